"""How the operators of `bench.emulated.cases` are made: each from an element type, extents and a variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roller import ops
from roller.ops import SymbolicTensor

FLOATS = ("float16", "bfloat16", "float32", "float64")
Extents = tuple[int, ...]


def _t(name: str, dtype: str, *shape: int) -> SymbolicTensor:
    return ops.tensor(shape, dtype, name=name)


# --- products --------------------------------------------------------------------------------------------------------


def _operands(dtype: str, extents: Extents, turned: str, lead: Extents = ()) -> tuple[SymbolicTensor, SymbolicTensor]:
    m, n, k = extents
    a = _t("a", dtype, *lead, *((k, m) if turned[0] == "t" else (m, k)))
    return a, _t("b", dtype, *lead, *((n, k) if turned[1] == "t" else (k, n)))


def _turned(turned: str) -> dict[str, Any]:
    return {"transpose_a": turned[0] == "t", "transpose_b": turned[1] == "t"}


def product(dtype: str, extents: Extents, turned: str) -> SymbolicTensor:
    return ops.matmul(*_operands(dtype, extents, turned), **_turned(turned))


def batched(dtype: str, extents: Extents, turned: str) -> SymbolicTensor:
    return ops.batch_matmul(*_operands(dtype, extents, turned, (3,)), **_turned(turned))


def wider(dtype: str, extents: Extents, types: dict[str, Any]) -> SymbolicTensor:
    return ops.matmul(*_operands(dtype, extents, "nn"), **types)


def einsum(dtype: str, extents: Extents, subscripts: str) -> SymbolicTensor:
    m, n, k = extents
    sizes = {"m": m, "n": n, "k": k, "b": 3, "h": 2}
    operands = subscripts.partition("->")[0].split(",")
    return ops.einsum(subscripts, *(_t(f"x{i}", dtype, *(sizes[c] for c in letters)) for i, letters in enumerate(operands)))


def then(dtype: str, extents: Extents, after: Callable[[SymbolicTensor], SymbolicTensor]) -> SymbolicTensor:
    return after(ops.matmul(*_operands(dtype, extents, "nt"), transpose_b=True))


def prepared(dtype: str, extents: Extents, before: Callable[[SymbolicTensor], SymbolicTensor]) -> SymbolicTensor:
    a, b = _operands(dtype, extents, "nn")
    return ops.matmul(before(a), b)


def _row(x: SymbolicTensor, name: str) -> SymbolicTensor:
    return _t(name, x.dtype, x.shape[-1])


def _like(x: SymbolicTensor, name: str) -> SymbolicTensor:
    return _t(name, x.dtype, *x.shape)


AFTER: dict[str, Callable[[SymbolicTensor], SymbolicTensor]] = {
    "bias, relu": lambda x: ops.relu(x + _row(x, "bias")),
    "bias, residual": lambda x: x + _row(x, "bias") + _like(x, "residual"),
    "scale, clip": lambda x: ops.clip(x * 3, -9, 9),
    "turned": ops.transpose,
    "rows scaled": lambda x: x * _t("scale", x.dtype, x.shape[0], 1),
}
AFTER_FLOATS = {
    "bias, gelu": lambda x: ops.gelu(x + _row(x, "bias")),
    "silu, gate": lambda x: ops.silu(x) * _like(x, "gate"),
    "cast": lambda x: ops.cast(ops.tanh(x), "float16"),
}
BEFORE: dict[str, Callable[[SymbolicTensor], SymbolicTensor]] = {
    "relu": ops.relu,
    "plus a row": lambda x: x + _row(x, "row"),
    "of a padded matrix": lambda x: ops.pad(_t("inner", x.dtype, x.shape[0], max(x.shape[1] - 1, 0)), [(0, 0), (1, 0)]),
    "of bytes": lambda x: ops.cast(_t("bytes", "int8", *x.shape), x.dtype),
}
SUBSCRIPTS = (
    "mk,kn->nm",
    "bmk,kn->bmn",
    "kbm,bnk->nbm",
    "mk,k->m",
    "mk,mk->m",
    "mk,nk,k->mn",
    "mhk,nhk->hmn",
    "mm->m",
    "mnk->knm",
    "mk->",
    "m,n->mn",
)


# --- windows ---------------------------------------------------------------------------------------------------------


def _images(dtype: str, extents: Extents, layout: str, groups: int = 1) -> SymbolicTensor:
    n, c, _, h, w, *_ = extents
    return _t("x", dtype, *((n, c * groups, h, w) if layout == "NCHW" else (n, h, w, c * groups)))


def convolution(dtype: str, extents: Extents, window: dict[str, Any]) -> SymbolicTensor:
    _, c, f, _, _, r, s = extents
    layout, groups = window.get("layout", "NCHW"), window.get("groups", 1)
    shape = (f * groups, c, r, s) if layout == "NCHW" else (r, s, c, f * groups)
    return ops.conv2d(_images(dtype, extents, layout, groups), _t("w", dtype, *shape), **({"padding": "same"} | window))


def convolution_then(dtype: str, extents: Extents, layout: str) -> SymbolicTensor:
    made = convolution(dtype, extents, {"layout": layout})
    bias = _t("bias", dtype if dtype in FLOATS else "int32", *((extents[2], 1, 1) if layout == "NCHW" else (extents[2],)))
    return ops.relu(made + bias + _like(made, "residual"))


def depthwise(dtype: str, extents: Extents, window: dict[str, Any]) -> SymbolicTensor:
    _, c, _, _, _, r, s = extents
    layout, many = window.get("layout", "NCHW"), window.get("many", 1)
    shape = (c, many, r, s) if layout == "NCHW" else (r, s, c, many)
    rest = {name: value for name, value in window.items() if name != "many"}
    return ops.depthwise_conv2d(_images(dtype, extents, layout), _t("w", dtype, *shape), **({"padding": "same"} | rest))


def _pair(extents: Extents) -> tuple[int, int]:
    """The window's height and width: the last two extents."""
    return extents[-2], extents[-1]


def greatest(dtype: str, extents: Extents, window: dict[str, Any]) -> SymbolicTensor:
    return ops.max_pool2d(_images(dtype, extents, window.get("layout", "NCHW")), _pair(extents), **window)


def average(dtype: str, extents: Extents, window: dict[str, Any]) -> SymbolicTensor:
    return ops.avg_pool2d(_images(dtype, extents, window.get("layout", "NCHW")), _pair(extents), **window)


LAYOUTS = {"NCHW": {"layout": "NCHW"}, "NHWC": {"layout": "NHWC"}}
MOVED: dict[str, dict[str, Any]] = {
    "stride 2": {"stride": 2},
    "dilation 2": {"dilation": 2},
    "stride 2, NHWC": {"stride": 2, "layout": "NHWC"},
    "dilation (1, 2), NHWC": {"dilation": (1, 2), "layout": "NHWC"},
    "padding (0, 2, 1, 3)": {"padding": (0, 2, 1, 3)},
    "stride (3, 1), padding (1, 0, 2, 2), NHWC": {"stride": (3, 1), "padding": (1, 0, 2, 2), "layout": "NHWC"},
}
GROUPED = {"2 groups": {"groups": 2}, "3 groups, NHWC": {"groups": 3, "layout": "NHWC"}, "4 groups": {"groups": 4, "stride": 2}}
DEEP = {"": {}, "NHWC": {"layout": "NHWC"}, "2 kernels": {"many": 2}, "stride 2, NHWC": {"stride": 2, "layout": "NHWC"}}
POOLED: dict[str, dict[str, Any]] = {
    "": {},
    "stride 1, same": {"stride": 1, "padding": "same"},
    "NHWC": {"layout": "NHWC"},
    "stride 2, same, NHWC": {"stride": 2, "padding": "same", "layout": "NHWC"},
    "dilation 2": {"dilation": 2, "stride": 1, "padding": "same"},
}
AVERAGED = {**POOLED, "same, inside": {"stride": 1, "padding": "same", "count_include_pad": False}}


# --- reductions and what goes element by element ---------------------------------------------------------------------


def reduced(dtype: str, extents: Extents, how: tuple[Callable[..., SymbolicTensor], Any]) -> SymbolicTensor:
    reducer, axes = how
    return reducer(_t("x", dtype, *extents), axes)


REDUCERS = {"sum": ops.reduce_sum, "max": ops.reduce_max, "min": ops.reduce_min}
AXES = {"last": 2, "middle": 1, "leading": 0, "two": (0, 2), "all": None}
REDUCED = {f"{name} over {place}": (reducer, axes) for place, axes in AXES.items() for name, reducer in REDUCERS.items()}
TRUTHS = {name: how for name, how in REDUCED.items() if not name.startswith("sum")}
LONG = {name: how for name, how in REDUCED.items() if not name.startswith("min")}
MEANS = {f"over {place}": (ops.reduce_mean, axes) for place, axes in AXES.items()}


def function(dtype: str, extents: Extents, function: Callable[[SymbolicTensor], SymbolicTensor]) -> SymbolicTensor:
    return function(_t("x", dtype, *extents))


NAMES = (
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "floor",
    "ceil",
    "round",
    "silu",
    "gelu",
    "relu",
    "abs",
    "neg",
)
FUNCTIONS = {name: getattr(ops, name) for name in NAMES} | {"gelu by tanh": lambda x: ops.gelu(x, "tanh")}
WHOLE = {name: FUNCTIONS[name] for name in ("relu", "abs", "neg")}


def binary(dtype: str, extents: Extents, how: tuple[Callable[..., SymbolicTensor], Extents]) -> SymbolicTensor:
    function, ones = how
    return function(_t("x", dtype, *extents), _t("y", dtype, *(1 if d in ones else e for d, e in enumerate(extents))))


def _chosen(x: SymbolicTensor, y: SymbolicTensor) -> SymbolicTensor:
    return ops.where(_t("condition", "bool", *x.shape), x, y)


def _clipped(x: SymbolicTensor, y: SymbolicTensor) -> SymbolicTensor:
    return ops.clip(x + y, 0, 3)


BINARY = {
    "add": (ops.add, ()),
    "sub, a row": (ops.sub, (0, 1)),
    "mul, a column": (ops.mul, (2,)),
    "maximum, one": (ops.maximum, (0, 1, 2)),
    "minimum, the middle": (ops.minimum, (1,)),
    "where": (_chosen, (0,)),
    "clip": (_clipped, (0, 2)),
}
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


def _between(x: SymbolicTensor, y: SymbolicTensor) -> SymbolicTensor:
    return ops.logical_and(x > 0, ops.logical_not(x > y))


def _where_less(x: SymbolicTensor, y: SymbolicTensor) -> SymbolicTensor:
    return ops.where(ops.logical_or(x < y, ops.equal(x, 2)), x, 1)


def _both(x: SymbolicTensor, y: SymbolicTensor) -> SymbolicTensor:
    return x & ~y


COMPARING = {
    **{name: (getattr(ops, name), ones) for name, ones in zip(COMPARISONS, ((), (0, 1), (2,), (0, 1, 2), (1,), ()), strict=True)},
    "between": (_between, (0,)),
    "where less, a number": (_where_less, (0, 2)),
}
TRUTHS_COMPARED = {name: COMPARING[name] for name in COMPARISONS} | {"both": (_both, ())}
DIVIDING = {"div": (ops.div, ()), "div, a row": (ops.div, (0, 1)), "pow": (ops.pow, ()), "pow, a column": (ops.pow, (2,))}


def converted(dtype: str, extents: Extents, target: str) -> SymbolicTensor:
    return ops.cast(_t("x", dtype, *extents), target)


# --- movement and chains ---------------------------------------------------------------------------------------------


def moved(dtype: str, extents: Extents, change: Callable[[SymbolicTensor], SymbolicTensor]) -> SymbolicTensor:
    return change(_t("x", dtype, *extents))


MOVES: dict[str, Callable[[SymbolicTensor], SymbolicTensor]] = {
    "reversed": ops.transpose,
    "rows and columns": lambda x: ops.transpose(x, (0, 2, 1)),
    "first to last": lambda x: ops.transpose(x, (1, 2, 0)),
    "padded": lambda x: ops.pad(x, [(1, 0), (0, 2), (3, 1)], 1),
    "padded, turned": lambda x: ops.transpose(ops.pad(x, [(0, 1), (2, 0), (0, 0)]), (2, 0, 1)),
    "repeated": lambda x: ops.broadcast_to(ops.expand_dims(x, 1), (x.shape[0], 3, x.shape[1], x.shape[2])),
}


def _softmax(x: SymbolicTensor) -> SymbolicTensor:
    powers = ops.exp(x - ops.reduce_max(x, -1, keepdims=True))
    return powers / ops.reduce_sum(powers, -1, keepdims=True)


def _normed(x: SymbolicTensor) -> SymbolicTensor:
    centred = x - ops.reduce_mean(x, -1, keepdims=True)
    return centred * ops.rsqrt(ops.reduce_mean(centred * centred, -1, keepdims=True) + 1.0) * _row(x, "scale") + _row(x, "bias")


def _squares(x: SymbolicTensor) -> SymbolicTensor:
    return ops.sqrt(ops.reduce_sum(x * x, (0, 1)))


CHAINS = {"softmax": _softmax, "layer norm": _normed, "root of squares": _squares}


def attention(dtype: str, extents: Extents, _: None) -> SymbolicTensor:
    m, n, k = extents
    scores = ops.batch_matmul(_t("q", dtype, 2, m, k), _t("k", dtype, 2, n, k), transpose_b=True)
    return ops.batch_matmul(_softmax(scores), _t("v", dtype, 2, n, 8))
