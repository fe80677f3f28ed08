"""The user's symbolic tensor, and the tensor expression of a finished one.

A `SymbolicTensor` is an input or the output of a stage. Stages refer to their sources by position (`$0`, `$1`, …). Only
`expression` assigns real names, so two equal programs give two equal expressions, however they were built.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from numbers import Real
from typing import ClassVar

from roller.errors import ExpressionError
from roller.ir.expr import FLOATS, Axis, Reducer, Stage, Tensor, TensorExpr
from roller.ir.scalar import Affine, Binary, Load, Scalar, Unary, rewrite
from roller.ops.types import compared_dtype, compute_dtype, constant, converted, known_dtype


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
    """A tensor to be computed: shape, element type, and its definition. Compared by identity.

    `+ - * / **`, unary minus, `abs` and `< <= > >=` work on tensors and numbers with NumPy's broadcasting, `& | ~` on booleans. `@`
    multiplies two matrices, or two stacks of the same number of matrices (`matmul`, `batch_matmul`).
    """

    shape: tuple[int, ...]
    dtype: str
    name: str | None = None
    stage: Stage | None = field(default=None, repr=False)
    sources: tuple[SymbolicTensor, ...] = field(default=(), repr=False)

    # NumPy must leave `array + tensor` to this class, so that it gives one clear error instead of an array of objects.
    __array_ufunc__: ClassVar[None] = None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def astype(self, dtype: str) -> SymbolicTensor:
        """Returns the same values as another element type (to an integer: towards zero)."""
        (axes, index), wanted = grid(self.shape), known_dtype(dtype)
        return produced("cast", axes, converted(source(self, 0, index), wanted), self.shape, (self,), dtype=wanted)

    def __add__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("add", self, other)

    def __radd__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("add", other, self)

    def __sub__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("sub", self, other)

    def __rsub__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("sub", other, self)

    def __mul__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("mul", self, other)

    def __rmul__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("mul", other, self)

    def __truediv__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("div", self, other)

    def __rtruediv__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("div", other, self)

    def __pow__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("pow", self, other)

    def __rpow__(self, other: Operand) -> SymbolicTensor:
        return arithmetic("pow", other, self)

    def __matmul__(self, other: SymbolicTensor) -> SymbolicTensor:
        return _product(self, other)

    def __rmatmul__(self, other: SymbolicTensor) -> SymbolicTensor:
        return _product(other, self)

    def __neg__(self) -> SymbolicTensor:
        return opposite("neg", self)

    def __abs__(self) -> SymbolicTensor:
        return opposite("abs", self)

    def __lt__(self, other: Operand) -> SymbolicTensor:
        return compared("lt", self, other)

    def __le__(self, other: Operand) -> SymbolicTensor:
        return compared("le", self, other)

    def __gt__(self, other: Operand) -> SymbolicTensor:
        return compared("gt", self, other)

    def __ge__(self, other: Operand) -> SymbolicTensor:
        return compared("ge", self, other)

    def __and__(self, other: SymbolicTensor) -> SymbolicTensor:
        return logic("and", self, other)

    def __or__(self, other: SymbolicTensor) -> SymbolicTensor:
        return logic("or", self, other)

    def __invert__(self) -> SymbolicTensor:
        return logic("not", self)

    def __bool__(self) -> bool:
        raise ExpressionError(
            "a symbolic tensor has no truth value: nothing is computed yet; use ops.where to choose between values, and write "
            "0 < x < 1 as (0 < x) & (x < 1)"
        )


def opposite(op: str, x: SymbolicTensor) -> SymbolicTensor:
    """Returns the negative ("neg") or the absolute value ("abs") of numbers; `ExpressionError` for booleans."""
    if x.dtype == "bool":
        raise ExpressionError(f"{op}: not defined on bool; use .astype('float32') first")
    return pointwise(op, lambda value: Unary(op, value), x)


def _product(left: SymbolicTensor, right: SymbolicTensor) -> SymbolicTensor:
    """Returns `left @ right`; its operators import this module, so they are imported at the call."""
    products = import_module("roller.ops.matmul")
    stacks = all(getattr(side, "ndim", 0) == 3 for side in (left, right))
    result: SymbolicTensor = (products.batch_matmul if stacks else products.matmul)(left, right)
    return result


Operand = SymbolicTensor | float | int


def tensor(shape: Sequence[int], dtype: object = "float32", name: str | None = None) -> SymbolicTensor:
    """Returns an input of the given shape and element type; default names are t0, t1, … in order of first use.

    `dtype`: a name such as "float16", or a type object of NumPy, ml_dtypes or torch.

    `ExpressionError` for a negative or fractional extent, an unknown type, or a name that is no identifier.
    """
    try:
        extents = tuple(operator.index(e) for e in shape)
    except TypeError:
        extents = (-1,)
    if any(e < 0 for e in extents):
        raise ExpressionError(f"shape {shape!r} must be a sequence of non-negative integers")
    if name is not None and not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise ExpressionError(f"tensor name {name!r} must be an ASCII identifier: kernels take their arguments by name")
    return SymbolicTensor(extents, known_dtype(dtype), name)


def grid(shape: Sequence[int]) -> tuple[tuple[Axis, ...], tuple[Affine, ...]]:
    """Returns the axes i0, i1, … over a shape, and the index of these axes."""
    axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(shape))
    return axes, tuple(Affine.axis(a.name) for a in axes)


def source(value: SymbolicTensor, position: int, index: Sequence[Affine], fill: float | int | None = None) -> Load:
    """Returns a load of the stage's source number `position`, which is `value`."""
    return Load(f"${position}", tuple(index), value.dtype, fill)


def produced(
    hint: str,
    axes: Sequence[Axis],
    body: Scalar,
    shape: Sequence[int],
    sources: Sequence[SymbolicTensor],
    *,
    dtype: str | None = None,
    store: Sequence[Affine] | None = None,
    reducer: Reducer | None = None,
    epilogue: Scalar | None = None,
) -> SymbolicTensor:
    """Returns the output of one stage; `hint` is its name, `store` defaults to the spatial axes in order, `dtype` to the body's."""
    index = tuple(Affine.axis(a.name) for a in axes if not a.is_reduce) if store is None else tuple(store)
    output = Tensor(hint, tuple(shape), body.dtype if dtype is None else dtype)
    stage = Stage(tuple(axes), body, output, index, reducer, epilogue)
    return SymbolicTensor(output.shape, output.dtype, None, stage, tuple(sources))


def symbolic(what: str, *values: object) -> tuple[SymbolicTensor, ...]:
    """Returns the values, checked to be symbolic tensors; otherwise `ExpressionError` with the caller's name."""
    for value in values:
        if not isinstance(value, SymbolicTensor):
            kind = type(value).__name__
            raise ExpressionError(f"{what}: expected a symbolic tensor, got {kind}; make one with roller.tensor(shape, dtype)")
    return tuple(v for v in values if isinstance(v, SymbolicTensor))


def common_dtype(what: str, values: Sequence[SymbolicTensor]) -> str:
    """Returns the element type that all values share; `ExpressionError` if they differ."""
    kinds = list(dict.fromkeys(v.dtype for v in values))
    if len(kinds) != 1:
        raise ExpressionError(f"{what}: operands are {' and '.join(kinds)}; cast them to one type with .astype(...)")
    return kinds[0]


def broadcast_shape(what: str, values: Sequence[SymbolicTensor]) -> tuple[int, ...]:
    """Returns NumPy's broadcast of the values' shapes; `ExpressionError` if there is none."""
    rank = max(v.ndim for v in values)
    padded = [(1,) * (rank - v.ndim) + v.shape for v in values]
    result = []
    for extents in zip(*padded, strict=True):
        wide = list(dict.fromkeys(e for e in extents if e != 1))
        if len(wide) > 1:
            shapes = " and ".join(str(v.shape) for v in values)
            raise ExpressionError(f"{what}: shapes {shapes} do not broadcast; align them from the right, equal or 1")
        result.append(wide[0] if wide else 1)
    return tuple(result)


def broadcast_index(value: SymbolicTensor, shape: Sequence[int]) -> tuple[Affine, ...]:
    """Returns the index at which a point of `shape` (axes i0, i1, …) reads a value that broadcasts to it."""
    lead = len(shape) - value.ndim
    return tuple(
        Affine() if extent == 1 and shape[lead + d] != 1 else Affine.axis(f"i{lead + d}") for d, extent in enumerate(value.shape)
    )


def pointwise(
    hint: str, compute: Callable[..., Scalar], *operands: Operand, floats_only: bool = False, gives: str | None = None
) -> SymbolicTensor:
    """Returns an elementwise operator: `compute` of the operands' scalars at every point of their broadcast.

    16-bit floats compute in float32 and are rounded once, at the end; `gives` is the result's type, if it differs from the
    operands'. `ExpressionError` if types differ or shapes do not broadcast.
    """
    tensors = [v for v in operands if isinstance(v, SymbolicTensor)]
    symbolic(hint, *(v for v in operands if not isinstance(v, Real)), *(() if tensors else operands[:1]))
    dtype = common_dtype(hint, tensors)
    if floats_only and dtype not in FLOATS:
        raise ExpressionError(f"{hint}: not defined on {dtype}; use .astype('float32') first")
    shape = broadcast_shape(hint, tensors)
    working = compute_dtype(dtype)
    scalars: list[Scalar] = []
    position = 0
    for operand in operands:
        if isinstance(operand, SymbolicTensor):
            scalars.append(converted(source(operand, position, broadcast_index(operand, shape)), working))
            position += 1
        else:
            scalars.append(constant(float(operand) if working in FLOATS else operand, working))
    axes, _ = grid(shape)
    return produced(hint, axes, converted(compute(*scalars), gives or dtype), shape, tensors)


def arithmetic(op: str, left: Operand, right: Operand) -> SymbolicTensor:
    """Returns one of the binary operators of `roller.ir.scalar` on tensors or numbers (at least one a tensor)."""
    return pointwise(op, lambda a, b: Binary(op, a, b), left, right, floats_only=op in ("div", "pow"))


def compared(op: str, left: Operand, right: Operand) -> SymbolicTensor:
    """Returns a comparison of `roller.ir.scalar` on tensors or numbers (at least one a tensor); booleans compare as 0 and 1."""

    def compute(a: Scalar, b: Scalar) -> Scalar:
        return Binary(op, *(converted(value, compared_dtype(value.dtype)) for value in (a, b)))

    return pointwise(op, compute, left, right, gives="bool")


def logic(op: str, *operands: SymbolicTensor) -> SymbolicTensor:
    """Returns "and", "or" or "not" of booleans; `ExpressionError` for other types, in which any value but 0 would be true."""
    for value in symbolic(op, *operands):
        if value.dtype != "bool":
            raise ExpressionError(f"{op}: takes booleans, not {value.dtype}; compare them first, such as ops.not_equal(x, 0)")
    return pointwise(op, lambda *values: Binary(op, *values) if len(values) == 2 else Unary(op, *values), *operands)


def expression(value: SymbolicTensor) -> TensorExpr:
    """Returns the tensor expression of a finished value: inputs in order of first use (left to right), uniquely named stages.

    `ExpressionError` if nothing is computed, or if two different inputs have the same name.
    """
    symbolic("expression", value)
    order = list(_sources_first(value))
    inputs = [t for t in order if t.stage is None]
    names = _names(inputs, [t for t in order if t.stage is not None])
    stages = []
    for handle in order:
        if handle.stage is not None:
            stages.append(_named(handle.stage, names[id(handle)], [names[id(s)] for s in handle.sources]))
    return TensorExpr(tuple(Tensor(names[id(t)], t.shape, t.dtype) for t in inputs), tuple(stages))


def _sources_first(value: SymbolicTensor) -> Iterator[SymbolicTensor]:
    """Yields every tensor that the value needs, once, sources before readers; with a stack, since chains may be long."""
    seen: set[int] = set()
    stack = [(value, False)]
    while stack:
        top, ready = stack.pop()
        if ready:
            yield top
        elif id(top) not in seen:
            seen.add(id(top))
            stack.append((top, True))
            stack.extend((s, False) for s in reversed(top.sources))


def _names(inputs: Sequence[SymbolicTensor], computed: Sequence[SymbolicTensor]) -> dict[int, str]:
    taken: dict[str, int] = {}
    names: dict[int, str] = {}
    for handle in inputs:
        if handle.name is not None:
            if handle.name in taken:
                raise ExpressionError(f"two inputs are called {handle.name!r}; give each its own name")
            names[id(handle)] = handle.name
            taken[handle.name] = 1
    anonymous = 0
    for handle in inputs:
        if handle.name is None:
            while f"t{anonymous}" in taken:
                anonymous += 1
            names[id(handle)] = f"t{anonymous}"
            taken[f"t{anonymous}"] = 1
    for handle in computed:
        assert handle.stage is not None
        names[id(handle)] = _free(handle.name or handle.stage.name, taken)
    return names


def _free(hint: str, taken: dict[str, int]) -> str:
    """Returns `hint`, or `hint_1`, `hint_2`, …; `taken` has the next number of each hint."""
    name = hint
    while name in taken:
        name = f"{hint}_{taken[hint]}"
        taken[hint] += 1
    taken[name] = 1
    return name


def _named(stage: Stage, name: str, sources: Sequence[str]) -> Stage:
    def change(node: Scalar) -> Scalar | None:
        return replace(node, tensor=sources[int(node.tensor[1:])]) if isinstance(node, Load) else None

    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, change)
    return replace(stage, body=rewrite(stage.body, change), output=replace(stage.output, name=name), epilogue=epilogue)
