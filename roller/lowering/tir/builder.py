"""Helpers that build TIR: constants, loops, sequences, buffers, vector indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from roller.ir.expr import ELEMENT_BYTES

Expr = Any  # a TIR expression; TVM's classes carry no type information
Stmt = Any
Buffer = Any
Var = Any
INDEX = "int32"
AT_LAUNCH, IN_KERNEL = "shared.dyn", "shared"  # TVM's scopes of a block's shared memory, by when its size is set
STACK_BYTES = 1 << 14  # the largest allocation that may be forced onto a thread's stack; register files are smaller


def number(value: float | int, dtype: str) -> Expr:
    """A literal."""
    return tirx.const(value, dtype)


def index(value: int | Expr) -> Expr:
    """An index literal, or the expression itself."""
    return tirx.const(value, INDEX) if isinstance(value, int) else value


def variable(name: str) -> Var:
    """A loop or index variable."""
    return tirx.Var(name, INDEX)


def buffer(name: str, elements: int, dtype: str) -> Buffer:
    """Returns a flat buffer. LLVM promotes it from the stack to registers where it can; TVM's scope "local" prevents that."""
    return tirx.decl_buffer((max(elements, 1),), dtype, name)


def register_buffer(name: str, elements: int, dtype: str) -> Buffer:
    """Returns a flat buffer private to each lane (thread) of a block: registers, as long as indices are constants."""
    return tirx.decl_buffer((max(elements, 1),), dtype, name, scope="local")


def shared_buffer(name: str, elements: int, dtype: str, scope: str = AT_LAUNCH) -> Buffer:
    """Returns a flat buffer in a block's shared memory; TVM treats a buffer of one element as a scalar private to each lane."""
    return tirx.decl_buffer((max(elements, 2),), dtype, name, scope=scope)


def barrier() -> Stmt:
    """Returns a barrier over all lanes of a block."""
    return tirx.Evaluate(tirx.op.tvm_storage_sync(AT_LAUNCH))


def argument(name: str, elements: int, dtype: str) -> Buffer:
    """Returns a flat argument buffer that is aligned to its elements only."""
    return tirx.decl_buffer((max(elements, 1),), dtype, name, data_alignment=ELEMENT_BYTES[dtype])


def holds_its_type(held: Buffer) -> bool:
    """True if a buffer's memory holds elements of its type: TVM widens bfloat16 in buffers that no caller passes (`argument`)."""
    return str(held.dtype) != "bfloat16" or int(held.data_alignment) == ELEMENT_BYTES["bfloat16"]


def address_of(memory: Buffer, place: int | Expr) -> Expr:
    """The address of an element."""
    return tirx.address_of(tirx.BufferLoad(memory, [index(place)]))


def load(source: Buffer, address: Expr) -> Expr:
    """Read an element, or several with a vector address."""
    return tirx.BufferLoad(source, [index(address)])


def store(target: Buffer, value: Expr, address: Expr) -> Stmt:
    """Write an element, or several with a vector address."""
    return tirx.BufferStore(target, value, [index(address)])


def pointer(held: Buffer, address: Expr, written: bool = False) -> Expr:
    """Returns the address of an element, for a function that reads or writes it; TVM does not follow `address_of`."""
    return held.access_ptr("rw" if written else "r", offset=index(address))


def view(name: str, place: Expr, held: Buffer) -> tuple[Buffer, list[Stmt]]:
    """Returns a buffer that starts at an element of another buffer, and the statements that define it.

    The printed code keeps the start address in a pointer; each access adds its constant offset to it.
    """
    start = variable(f"{name}_start")  # for a longer expression, TVM would look for common subexpressions in code after its use
    found = tirx.decl_buffer(held.shape, held.dtype, name, scope=held.scope())
    return found, [tirx.Bind(start, index(place)), tirx.DeclBuffer(found, data=pointer(held, start))]


def called(name: str, *arguments: Expr) -> Stmt:
    """Returns a call of a function that the printed source defines beside the kernel."""
    return tirx.Evaluate(tirx.call_extern(INDEX, name, *arguments))


def ramp(base: Expr, stride: int, lanes: int) -> Expr:
    """Addresses base, base + stride, …; a scalar for one lane."""
    return index(base) if lanes == 1 else tirx.Ramp(index(base), index(stride), lanes)


def spread(value: Expr, lanes: int) -> Expr:
    """A scalar repeated over the lanes of a vector."""
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def loop(var: Var, trips: int | Expr, body: Stmt, parallel: bool = False) -> Stmt:
    """Returns a loop from 0; the body alone for one trip."""
    if isinstance(trips, int) and trips == 1:
        return bind(var, index(0), body)
    kind = ForKind.PARALLEL if parallel else ForKind.SERIAL
    return tirx.For(var, index(0), index(trips), kind, body)


def bind(var: Var, value: Expr, body: Stmt) -> Stmt:
    """Returns the statement with a name bound to a value."""
    return sequence([tirx.Bind(var, value), body])


def sequence(statements: Iterable[Stmt]) -> Stmt:
    """Returns the statements in sequence."""
    flat = [s for s in statements if s is not None]
    if not flat:
        return tirx.Evaluate(index(0))
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def allocate(buffers: Iterable[Buffer]) -> list[Stmt]:
    """Returns allocations that live to the end of the enclosing sequence."""
    return [tirx.AllocBuffer(b) for b in buffers]


def allocate_on_stack(held: Buffer) -> Stmt:
    """Returns an allocation on the stack; TVM takes 1 KiB and more from its pool, which LLVM cannot promote to registers."""
    size = int(held.shape[0]) * ELEMENT_BYTES[str(held.dtype)]
    return tirx.AllocBuffer(held, {"disable_lower_builtin": tirx.const(True, "bool")} if size <= STACK_BYTES else None)


def when(condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """A branch."""
    return tirx.IfThenElse(condition, then, otherwise)


def every(conditions: Iterable[Expr]) -> Expr | None:
    """Returns the conjunction of all conditions; None for an empty list."""
    together = None
    for condition in conditions:
        together = condition if together is None else tirx.And(together, condition)
    return together


def least(a: int | Expr, b: int | Expr) -> int | Expr:
    """The smaller of two indices, folded where both are known."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.min(index(a), index(b))


def greatest(a: int | Expr, b: int | Expr) -> int | Expr:
    """The larger of two indices, folded where both are known."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.max(index(a), index(b))


def ceil_div(a: int | Expr, b: int) -> int | Expr:
    """Returns the quotient rounded up; 0 for a step of 0, which only empty dimensions have."""
    if b == 0:
        return 0
    return -(-a // b) if isinstance(a, int) else tirx.floordiv(a + (b - 1), index(b)) if b != 1 else a


def plus(a: int | Expr, b: int | Expr) -> int | Expr:
    """Sum, folded where possible."""
    if isinstance(a, int) and a == 0:
        return b
    if isinstance(b, int) and b == 0:
        return a
    return a + b


def times(a: int | Expr, factor: int) -> int | Expr:
    """Product with a known factor, folded where possible."""
    if factor == 0:
        return 0
    return a if factor == 1 else a * factor


def vector_type(dtype: str, lanes: int) -> str:
    """TVM's name of a vector type."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


EMPTY: Mapping[str, str] = MappingProxyType({})


class Held:
    """Values in local storage that an expression uses several times; TVM's passes would visit a repeated part once for each use.

    `statements` compute them, in order, before the expression; `room` allocates the storage. `promotes`: the printed language
    computes narrow types in int, as C does. `functions`: by operation, the target's own function of a float32.
    """

    def __init__(
        self,
        room: Callable[[str, int, str], Buffer] = buffer,
        promotes: bool = False,
        functions: Mapping[str, str] = EMPTY,
    ) -> None:
        self.statements: list[Stmt] = []
        self.room, self.promotes, self.functions = room, promotes, functions

    @staticmethod
    def in_registers(functions: Mapping[str, str] = EMPTY) -> Held:
        """Returns storage in each lane's own registers, for kernels that are printed as C."""
        return Held(register_buffer, promotes=True, functions=functions)

    def __call__(self, value: Expr, dtype: str, lanes: int) -> Expr:
        """Stores the value and returns the load that reads it."""
        place = self.room("value", lanes, dtype)
        self.statements += [*allocate([place]), store(place, value, ramp(0, 1, lanes))]
        return load(place, ramp(0, 1, lanes))
