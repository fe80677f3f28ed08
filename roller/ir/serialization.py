"""Tensor expressions as plain JSON values, and back.

Scalars are tables of nodes that refer to earlier ones by number, so deep trees need no recursion and shared parts stay shared.
Floats are hexadecimal text: exact, also for infinities and NaN. The reader trusts nothing: any value that is not a well-formed
expression of this format is an `ExpressionError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller.errors import ExpressionError
from roller.ir.expr import ELEMENT_BYTES, Axis, Stage, Tensor, TensorExpr
from roller.ir.scalar import (
    ARITHMETIC,
    COMPARISON,
    DEPTH_MAX,
    LOGICAL,
    UNARY,
    Accumulator,
    Affine,
    Binary,
    Cast,
    Const,
    Coordinate,
    Load,
    Scalar,
    Select,
    Unary,
    children,
)
from roller.target.hardware import STORED_AS

SERIAL_VERSION = 1
INTEGER_MAX = 2**63  # extents, coefficients and constants are below
SIZE_MAX = 1 << 20  # max nodes of a scalar expanded to a tree, max length of lists and names


def expr_to_json(expr: TensorExpr) -> dict[str, Any]:
    """Returns the expression as dicts, lists, strings, integers, booleans and None."""
    return {
        "version": SERIAL_VERSION,
        "inputs": [_tensor_to_json(t) for t in expr.inputs],
        "stages": [_stage_to_json(s) for s in expr.stages],
    }


def expr_from_json(data: Any) -> TensorExpr:
    """Returns the expression that `expr_to_json` wrote; `ExpressionError` for anything else."""
    try:
        table = _table(data, "version", "inputs", "stages")
        if table["version"] != SERIAL_VERSION:
            raise ExpressionError(f"expression format {table['version']!r:.40}; this roller reads {SERIAL_VERSION}")
        inputs = tuple(_tensor_from_json(t) for t in _list(table["inputs"]))
        return TensorExpr(inputs, tuple(_stage_from_json(s) for s in _list(table["stages"])))
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        raise ExpressionError(f"not an expression: {type(error).__name__}: {str(error)[:200]}") from error


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    table = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
    return {**table, "finite": True} if tensor.finite else table


def _tensor_from_json(data: Any) -> Tensor:
    table = _table(data, "name", "shape", "dtype", optional=("finite",))
    finite = table.get("finite", False)
    if not isinstance(finite, bool):
        raise ExpressionError(f"finite: {finite!r:.40} is neither true nor false")
    return Tensor(_name(table["name"]), tuple(_integer(e) for e in _list(table["shape"])), _dtype(table["dtype"]), finite)


def _stage_to_json(stage: Stage) -> dict[str, Any]:
    nodes: list[list[Any]] = []
    numbers: dict[int, tuple[int, int]] = {}
    body = _scalar_to_json(stage.body, nodes, numbers)
    epilogue = None if stage.epilogue is None else _scalar_to_json(stage.epilogue, nodes, numbers)
    table = {
        "axes": [[a.name, a.extent, a.kind] for a in stage.axes],
        "output": _tensor_to_json(stage.output),
        "store": [_affine_to_json(i) for i in stage.store],
        "reducer": stage.reducer,
        "nodes": nodes,
        "body": body,
        "epilogue": epilogue,
    }
    return table if stage.factor_dtype is None else {**table, "factor_dtype": stage.factor_dtype}


def _stage_from_json(data: Any) -> Stage:
    keys = ("axes", "output", "store", "reducer", "nodes", "body", "epilogue")
    table = _table(data, *keys, optional=("factor_dtype",))
    axes = tuple(_axis(a) for a in _list(table["axes"]))
    names = frozenset(a.name for a in axes)
    nodes = _Nodes(names)
    for entry in _list(table["nodes"]):
        nodes.add(_list(entry))
    reducer = table["reducer"]
    if reducer not in (None, "sum", "max", "min"):
        raise ExpressionError(f"unknown reducer {reducer!r:.40}")
    body = nodes.root(table["body"], accumulator=False)
    epilogue = None if table["epilogue"] is None else nodes.root(table["epilogue"], accumulator=True)
    store = tuple(_affine(i, names) for i in _list(table["store"]))
    rounded = _member(table["factor_dtype"], frozenset(STORED_AS)) if "factor_dtype" in table else None
    return Stage(axes, body, _tensor_from_json(table["output"]), store, reducer, epilogue, rounded)


def _axis(data: Any) -> Axis:
    name, extent, kind = _list(data, 3)
    if kind not in ("spatial", "reduce"):
        raise ExpressionError(f"axis kind {kind!r:.40} is neither spatial nor reduce")
    return Axis(_name(name), _integer(extent), kind)


def _scalar_to_json(root: Scalar, nodes: list[list[Any]], numbers: dict[int, tuple[int, int]]) -> int:
    """Appends the nodes of a tree, operands first, and returns the root's number. `numbers`: identity → number and depth."""
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in numbers:
            continue
        if ready:
            operands = [numbers[id(c)] for c in children(node)]
            depth = 1 + max((d for _, d in operands), default=0)
            if depth > DEPTH_MAX:
                raise ExpressionError(f"a scalar more than {DEPTH_MAX} operations deep; split the operator into stages")
            numbers[id(node)] = len(nodes), depth
            nodes.append(_node_to_json(node, [number for number, _ in operands]))
        else:
            stack.append((node, True))
            stack.extend((c, False) for c in reversed(children(node)))
    return numbers[id(root)][0]


def _node_to_json(node: Scalar, operands: list[int]) -> list[Any]:
    match node:
        case Const():
            return ["const", _number_to_json(node.value), node.dtype]
        case Load():
            fill = None if node.fill is None else _number_to_json(node.fill)
            return ["load", node.tensor, [_affine_to_json(i) for i in node.index], node.dtype, fill]
        case Coordinate():
            return ["coordinate", _affine_to_json(node.index), node.dtype]
        case Accumulator():
            return ["accumulator", node.dtype]
        case Unary() | Binary():
            return ["unary" if isinstance(node, Unary) else "binary", node.op, *operands]
        case Select():
            return ["select", *operands]
        case Cast():
            return ["cast", *operands, node.dtype]


def _affine_to_json(index: Affine) -> list[Any]:
    return [[[name, coefficient] for name, coefficient in index.terms], index.offset]


def _number_to_json(value: float | int) -> str | int:
    return value if isinstance(value, int) else float(value).hex()


class _Nodes:
    """The nodes of one stage during reading: each refers to earlier ones only, and their sizes are bounded."""

    def __init__(self, axes: frozenset[str]) -> None:
        self._axes = axes
        self._nodes: list[Scalar] = []
        self._sizes: list[tuple[int, int, bool]] = []  # nodes of the expanded tree, depth, whether it reads the accumulator

    def add(self, entry: Sequence[Any]) -> None:
        """Reads one node."""
        read: dict[str, Callable[..., Scalar]] = {
            "const": lambda value, dtype: Const(_number(value), _dtype(dtype)),
            "load": self._load,
            "coordinate": lambda index, dtype: Coordinate(_affine(index, self._axes), _dtype(dtype)),
            "accumulator": lambda dtype: Accumulator(_dtype(dtype)),
            "unary": lambda op, value: Unary(_member(op, UNARY), self._at(value)),
            "binary": self._binary,
            "select": lambda condition, yes, no: self._select(self._at(condition), self._at(yes), self._at(no)),
            "cast": lambda value, dtype: Cast(self._at(value), _dtype(dtype)),
        }
        node = read[_member(entry[0], frozenset(read))](*entry[1:])
        below = [self._sizes[n] for n in entry[1:] if type(n) is int] if children(node) else []
        size, depth = 1 + sum(s for s, _, _ in below), 1 + max((d for _, d, _ in below), default=0)
        if size > SIZE_MAX or depth > DEPTH_MAX:
            raise ExpressionError(f"a scalar of {size} nodes, {depth} deep; at most {SIZE_MAX} and {DEPTH_MAX} can be read")
        self._nodes.append(node)
        self._sizes.append((size, depth, isinstance(node, Accumulator) or any(a for _, _, a in below)))

    def root(self, number: Any, *, accumulator: bool) -> Scalar:
        """Returns a finished tree; only epilogues may read the accumulator."""
        node = self._at(number)
        if self._sizes[number][2] and not accumulator:
            raise ExpressionError("a body reads the accumulator, which only exists in epilogues")
        return node

    def _at(self, number: Any) -> Scalar:
        if type(number) is not int or not 0 <= number < len(self._nodes):
            raise ExpressionError(f"node {number!r:.40} is none of the {len(self._nodes)} before it")
        return self._nodes[number]

    def _load(self, tensor: Any, index: Any, dtype: Any, fill: Any) -> Load:
        indices = tuple(_affine(i, self._axes) for i in _list(index))
        return Load(_name(tensor), indices, _dtype(dtype), None if fill is None else _number(fill))

    def _binary(self, op: Any, left: Any, right: Any) -> Binary:
        node = Binary(_member(op, ARITHMETIC | COMPARISON | LOGICAL), self._at(left), self._at(right))
        if node.left.dtype != node.right.dtype:
            raise ExpressionError(f"{node.op} of {node.left.dtype} and {node.right.dtype}")
        return node

    def _select(self, condition: Scalar, yes: Scalar, no: Scalar) -> Select:
        if condition.dtype != "bool" or yes.dtype != no.dtype:
            raise ExpressionError(f"a select by {condition.dtype} between {yes.dtype} and {no.dtype}")
        return Select(condition, yes, no)


def _affine(data: Any, axes: frozenset[str]) -> Affine:
    terms, offset = _list(data, 2)
    pairs = [(_member(name, axes), _integer(coefficient)) for name, coefficient in (_list(t, 2) for t in _list(terms))]
    return Affine(tuple(pairs), _integer(offset))


def _number(value: Any) -> float | int:
    if isinstance(value, str):
        try:
            return float.fromhex(value)
        except ValueError as error:
            raise ExpressionError(f"{value!r:.40} is not a hexadecimal number") from error
    return value if isinstance(value, bool) else _integer(value)


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) > INTEGER_MAX:
        raise ExpressionError(f"{value!r:.40} is not an integer of at most 64 bits")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise ExpressionError(f"{value!r:.40} is not a name")
    return value


def _dtype(value: Any) -> str:
    return _member(value, frozenset(ELEMENT_BYTES))


def _member(value: Any, known: frozenset[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ExpressionError(f"{value!r:.40} is none of {', '.join(sorted(known)) or 'no names'}")
    return value


def _list(value: Any, length: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or length not in (None, len(value)) or len(value) > SIZE_MAX:
        raise ExpressionError(f"a list{'' if length is None else f' of {length}'} expected, found {value!r:.40}")
    return value


def _table(value: Any, *keys: str, optional: tuple[str, ...] = ()) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or set(value).difference(optional) != set(keys):
        raise ExpressionError(f"a table with {', '.join(keys)} expected, found {value!r:.60}")
    return value
