"""The bridge from TVM: converts a `te` expression from its tree to a tensor expression of roller.

It accepts anything that a `Stage` can express: affine reads, sum, max and min, selects, casts and the functions of
`roller.ir.scalar`. It refuses the rest by name: indices that are not affine or depend on data, scans, several outputs, symbolic
shapes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import tvm
from tvm import te, tirx

from roller.errors import ExpressionError
from roller.ir.expr import ELEMENT_BYTES, FLOATS, Axis, Reducer, TensorExpr
from roller.ir.scalar import Affine, Binary, Cast, Const, Coordinate, Scalar, Select, Unary
from roller.ops.tensor import SymbolicTensor, expression, produced, source, tensor

# Max depth and size of a body: reading it cannot exhaust the stack, TVM's own analyses included.
DEPTH = 100
MOST_PARTS = 2000

BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min", "And": "and", "Or": "or",
    "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge", "EQ": "eq", "NE": "ne",
}  # fmt: skip
SIGNS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "FloorDiv": "//", "FloorMod": "%", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=",
    "EQ": "==", "NE": "!=",
}  # fmt: skip
SHOWN, SHOWN_DEPTH = 80, 5  # max characters and nested operations of an expression in a message
COMPARISONS = frozenset({"LT", "LE", "GT", "GE", "EQ", "NE"})
TVM_FUNCTIONS = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "sigmoid": "sigmoid", "erf": "erf",
    "floor": "floor", "ceil": "ceil", "nearbyint": "round", "sin": "sin", "cos": "cos", "fabs": "abs",
}  # fmt: skip
REDUCERS: dict[str, Reducer] = {"Add": "sum", "Max": "max", "Min": "min"}


def from_te(outputs: Any) -> TensorExpr:
    """Returns the tensor expression of a `te` tensor, or of a list of tensors as for `te.create_prim_func`.

    With a list, its placeholders are the inputs in that order, and its one computed tensor is the output. With a tensor, inputs are
    in order of first use. `ExpressionError` names the part that is not affine, depends on data, or is not supported.
    """
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    computed = [t for t in listed if not isinstance(getattr(t, "op", None), te.PlaceholderOp)]
    if len(computed) != 1:
        raise ExpressionError(f"from_te: expected one computed tensor, got {len(computed)}; build one expression for each output")
    handles = _handles(computed[0])
    expr = expression(handles[computed[0]])
    order = [handles[t].name for t in listed if t in handles and handles[t].stage is None]
    places = {name: place for place, name in enumerate(order)}
    inputs = sorted(expr.inputs, key=lambda t: places.get(t.name, len(order)))
    return TensorExpr(tuple(inputs), expr.stages)


def symbolic_te(output: Any) -> SymbolicTensor:
    """Returns the value of a `te` tensor, for use in `roller.ops`. Errors as `from_te`."""
    return _handles(output)[output]


def _handles(output: Any) -> dict[Any, SymbolicTensor]:
    """Returns every `te` tensor that the output needs → ours; sources first, with a stack, since chains may be long."""
    if not isinstance(output, te.Tensor):
        raise ExpressionError(f"from_te: expected a te tensor, got {type(output).__name__}")
    handles: dict[Any, SymbolicTensor] = {}
    names: dict[str, int] = {}
    seen: set[Any] = set()
    stack = [(output, False)]
    while stack:
        top, ready = stack.pop()
        if ready:
            handles[top] = _read(top, handles, _unique(_identifier(top.op.name), names))
        elif top not in seen:
            _check_kind(top)
            seen.add(top)
            stack.append((top, True))
            stack.extend((t, False) for t in reversed(_sources(top)))
    return handles


def _check_kind(value: Any) -> None:
    """Raises `ExpressionError` for an operation that is no `te.compute`: loops of TVM's own (sorts, scans), and calls."""
    if not isinstance(value.op, te.ComputeOp | te.PlaceholderOp):
        kind = type(value.op).__name__
        raise ExpressionError(
            f"te tensor {value.op.name!r}: {kind} is not supported; only te.compute and te.placeholder are. Sorts, scans and calls "
            "are no loops over one formula: compute them outside, and pass their result as an input"
        )


def _identifier(name: str) -> str:
    clean = re.sub(r"\W", "_", name, flags=re.ASCII) or "t"
    return clean if clean.isidentifier() else f"t_{clean}"


def _unique(name: str, names: dict[str, int]) -> str:
    found = name
    while found in names:
        found = f"{name}_{names[name]}"
        names[name] += 1
    names[found] = 1
    return found


def _read(value: Any, handles: dict[Any, SymbolicTensor], name: str) -> SymbolicTensor:
    shape = [_whole(extent, f"the shape of {name!r}") for extent in value.shape]
    if isinstance(value.op, te.PlaceholderOp):
        return tensor(shape, str(value.dtype), name)
    if value.op.num_outputs != 1:
        raise ExpressionError(f"te tensor {name!r}: computes {value.op.num_outputs} outputs together (a tuple); split it up")
    body = value.op.body[0]
    reduced = list(body.axis) if isinstance(body, tirx.Reduce) else []
    axes, variables = _axes([*value.op.axis, *reduced], len(value.op.axis), name)
    body_reader = _Reader(name, variables, _analyzer(value.op.axis, reduced), handles, [])
    if not isinstance(body, tirx.Reduce):
        scalar = body_reader.scalar(body)
        return _renamed(produced(name, axes, scalar, shape, body_reader.sources, dtype=str(value.dtype)), name)
    scalar, reducer = _reduction(body, body_reader)
    return _renamed(produced(name, axes, scalar, shape, body_reader.sources, dtype=str(value.dtype), reducer=reducer), name)


def _renamed(value: SymbolicTensor, name: str) -> SymbolicTensor:
    return SymbolicTensor(value.shape, value.dtype, name, value.stage, value.sources)


def _whole(value: Any, what: str) -> int:
    if not isinstance(value, (int, tirx.IntImm)):
        raise ExpressionError(f"{what} depends on {value}; give every extent as a number")
    return int(value)


def _axes(loops: Sequence[Any], spatial: int, name: str) -> tuple[list[Axis], list[tuple[Any, Affine]]]:
    """Returns the axes, and each loop variable as an index of them (ranges need not start at 0)."""
    axes: list[Axis] = []
    variables: list[tuple[Any, Affine]] = []
    names: dict[str, int] = {}
    for place, loop in enumerate(loops):
        axis = _unique(_identifier(loop.var.name), names)
        extent = _whole(loop.dom.extent, f"the range of {axis!r} in {name!r}")
        axes.append(Axis(axis, extent, "spatial" if place < spatial else "reduce"))
        start = _whole(loop.dom.min, f"the range of {axis!r} in {name!r}")
        variables.append((loop.var, Affine.axis(axis).plus(start)))
    return axes, variables


def _analyzer(*loops: Sequence[Any]) -> Any:
    analyzer = tvm.sym.Analyzer()
    for group in loops:
        for loop in group:
            if int(loop.dom.extent) > 0:
                analyzer.bind(loop.var, loop.dom)
    return analyzer


def _reduction(body: Any, reader: _Reader) -> tuple[Scalar, Reducer]:
    combiner = body.combiner
    if len(combiner.result) != 1 or len(body.init):
        raise ExpressionError(f"te tensor {reader.name!r}: reductions of tuples, or with an initial value, are not supported")
    result = combiner.result[0]
    kind = REDUCERS.get(_kind(result))
    operands = (combiner.lhs[0], combiner.rhs[0])
    if kind is None or not (result.a.same_as(operands[0]) and result.b.same_as(operands[1])):
        raise ExpressionError(f"te tensor {reader.name!r}: the reducer {result} is not supported; use te.sum, te.max or te.min")
    if kind == "sum" and not _is_zero(combiner.identity_element[0]):
        raise ExpressionError(f"te tensor {reader.name!r}: the identity of a sum must be 0, got {combiner.identity_element[0]}")
    scalar = reader.scalar(body.source[0])
    if not (isinstance(body.condition, tirx.IntImm) and int(body.condition)):
        neutral: float | int = 0
        if kind != "sum":
            neutral = cast(Const, reader.scalar(combiner.identity_element[0])).value
        scalar = Select(reader.scalar(body.condition), scalar, _literal(neutral, scalar.dtype))
    return scalar, kind


def _is_zero(node: Any) -> bool:
    return isinstance(node, (tirx.IntImm, tirx.FloatImm)) and float(node.value) == 0


def _kind(node: Any) -> str:
    return type(node).__name__


def _literal(value: float | int, dtype: str) -> Const:
    return Const(float(value) if dtype in FLOATS else int(value), dtype)


def _operands(node: Any) -> list[Any]:
    match _kind(node):
        case "Call":
            return list(node.args)
        case "Select":
            return [node.condition, node.true_value, node.false_value]
        case "Cast":
            return [node.value]
        case "Not":
            return [node.a]
        case "Reduce":
            return [*node.source, node.condition]
        case _:
            return [node.a, node.b] if hasattr(node, "a") and hasattr(node, "b") else []


def _sources(value: Any) -> list[Any]:
    """Returns the tensors that a tensor's body reads. TVM's own `input_tensors` recurses, and overflows the stack on deep bodies.

    `ExpressionError` for bodies too deep for later recursion, ours or TVM's.
    """
    found: list[Any] = []
    stack = [(part, 1) for part in getattr(value.op, "body", ())]
    count = 0
    while stack:
        node, depth = stack.pop()
        count += 1
        if depth > DEPTH or count > MOST_PARTS:
            raise ExpressionError(
                f"te tensor {value.op.name!r}: its expression is nested more than {DEPTH} deep or has more than "
                f"{MOST_PARTS} parts; split it into several te.compute stages"
            )
        if isinstance(node, te.Tensor):
            found.append(node)
        stack.extend((operand, depth + 1) for operand in reversed(_operands(node)))
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Reader:
    """The reader of one body: loop variables become affine indices, tensors become sources in order of first use."""

    name: str
    variables: list[tuple[Any, Affine]]
    analyzer: Any
    handles: dict[Any, SymbolicTensor]
    sources: list[SymbolicTensor]

    def scalar(self, node: Any) -> Scalar:
        """Returns the node as our scalar; an integer expression of loop variables becomes a coordinate."""
        kind = _kind(node)
        if kind in ("IntImm", "FloatImm"):
            return _literal(node.value, self._dtype(node))
        if kind == "Call":
            return self._call(node)
        if kind in COMPARISONS:
            return self._comparison(node)
        if kind == "Not":
            return Unary("not", self.scalar(node.a))
        if kind == "Select":
            return Select(*(self.scalar(part) for part in _operands(node)))
        if kind == "Cast":
            return Cast(self.scalar(node.value), self._dtype(node))
        dtype = self._dtype(node)
        if dtype not in FLOATS:
            index = self._affine(node)
            if index is not None:
                return Coordinate(index) if dtype == "int32" else Cast(Coordinate(index), dtype)
        if kind not in BINARY or (kind == "Div" and dtype not in FLOATS):
            raise self._unsupported(kind if kind != "Var" else f"the variable {node}", node)
        return Binary(BINARY[kind], self.scalar(node.a), self.scalar(node.b))

    def _comparison(self, node: Any) -> Scalar:
        op = BINARY[_kind(node)]
        if self._dtype(node.a) not in FLOATS:
            a, b = self._affine(node.a), self._affine(node.b)
            if a is not None and b is not None:
                return Binary(op, Coordinate(a), Coordinate(b) if b.terms else Const(b.offset, "int32"))
        return Binary(op, self.scalar(node.a), self.scalar(node.b))

    def _call(self, node: Any) -> Scalar:
        name = _name(node)
        if name == "tensor_load":
            return self._load(node.args[0], list(node.args[1:]))
        if name == "likely":
            return self.scalar(node.args[0])
        if name == "if_then_else":
            return Select(*(self.scalar(part) for part in node.args))
        if name == "pow":
            return Binary("pow", self.scalar(node.args[0]), self.scalar(node.args[1]))
        if name not in TVM_FUNCTIONS:
            hint = "; tirx.nearbyint (halves to even) is" if name == "round" else ""
            raise self._unsupported(f"the function {name!r}", node, hint)
        return Unary(TVM_FUNCTIONS[name], self.scalar(node.args[0]))

    def _load(self, value: Any, indices: list[Any]) -> Scalar:
        handle = self.handles[value]
        place = next((p for p, s in enumerate(self.sources) if s is handle), len(self.sources))
        if place == len(self.sources):
            self.sources.append(handle)
        found = []
        for dimension, index in enumerate(indices):
            affine = self._affine(index)
            if affine is None:
                why = "depends on data" if _loads(index) else f"is {self._shown(index)}, which is not affine in the axes"
                raise ExpressionError(f"te tensor {self.name!r}: the index of {value.op.name!r} in dimension {dimension} {why}")
            found.append(affine)
        return source(handle, place, found)

    def _affine(self, node: Any) -> Affine | None:
        """Returns the node as an affine index of the axes; None if it is none."""
        if _loads(node):
            return None
        variables = [v for v, _ in self.variables]
        parts = tvm.sym.detect_linear_equation(self.analyzer.simplify(node), variables)
        if len(parts) != len(variables) + 1 or not all(isinstance(p, tirx.IntImm) for p in parts):
            return None
        total = Affine((), int(parts[-1]))
        for (_, index), coefficient in zip(self.variables, parts, strict=False):
            total = total.plus(index.times(int(coefficient)))
        return total

    def _dtype(self, node: Any) -> str:
        dtype = str(node.ty.dtype)
        if dtype not in ELEMENT_BYTES:
            raise self._unsupported(f"the element type {dtype}", node)
        return dtype

    def _shown(self, node: Any) -> str:
        text = _text(node, SHOWN_DEPTH)
        return (text[1:-1] if _kind(node) in SIGNS else text)[:SHOWN]

    def _unsupported(self, what: str, node: Any, hint: str = "") -> ExpressionError:
        return ExpressionError(f"te tensor {self.name!r}: {what} is not supported{hint}; it occurs in {self._shown(node)}")


def _text(node: Any, depth: int) -> str:
    """Returns an expression as text, `depth` operations deep, close to its author's notation.

    TVM itself prints the load of a tensor as a table entry, with a warning.
    """
    kind, parts = _kind(node), _operands(node)
    if kind in ("IntImm", "FloatImm"):
        return str(node.value)
    if not parts:
        return " ".join(str(node).split("\n", maxsplit=1)[0].split())
    if not depth:
        return "…"
    if kind == "Call" and _name(node) == "tensor_load":
        return f"{parts[0].op.name}[{', '.join(_text(part, depth - 1) for part in parts[1:])}]"
    texts = [_text(part, depth - 1) for part in parts]
    if kind in SIGNS:
        return f"({f' {SIGNS[kind]} '.join(texts)})"
    return f"{_name(node)}({', '.join(texts)})"


def _name(node: Any) -> str:
    """Returns the name of an operation: a function, the type of a conversion, else TVM's kind of node."""
    if _kind(node) == "Call":
        return str(getattr(node.op, "name", node.op)).rpartition(".")[2]
    return str(node.ty.dtype) if _kind(node) == "Cast" else _kind(node).lower()


def _loads(node: Any) -> bool:
    """Returns True if an expression reads a tensor."""
    stack = [node]
    while stack:
        top = stack.pop()
        if _kind(top) == "Call" and str(getattr(top.op, "name", "")).endswith("tensor_load"):
            return True
        stack.extend(_operands(top))
    return False
