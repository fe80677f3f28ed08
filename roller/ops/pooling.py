"""Two-dimensional pooling."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExpressionError
from roller.ir.expr import FLOATS, Axis, Reducer
from roller.ir.scalar import Accumulator, Affine, Binary, Cast, Const, Coordinate, Scalar
from roller.ops.tensor import SymbolicTensor, produced, source, symbolic
from roller.ops.types import compared_dtype, compute_dtype, constant, converted, lowest
from roller.ops.window import Layout, Padding, Pair, Window, by_letter, check_layout, pair, windows


def max_pool2d(
    x: SymbolicTensor,
    kernel: Pair,
    stride: Pair | None = None,
    padding: Padding = 0,
    dilation: Pair = 1,
    layout: Layout = "NCHW",
    ceil_mode: bool = False,
) -> SymbolicTensor:
    """Computes the max of each window of x (N, C, H, W) or (N, H, W, C); the default stride is the kernel.

    Padded elements are never the max: they are minus infinity (the min of an integer type). The type is x's. `ceil_mode`: if
    strides do not divide the input evenly, one more window covers the last elements; it extends beyond the padding. Axes n c h w r
    s. `ExpressionError` if the kernel does not fit, or if a window lies wholly in the padding.
    """
    (x,) = symbolic("max_pool2d", x)
    found = _windows("max_pool2d", x, kernel, stride, padding, dilation, layout, ceil_mode)
    _check_occupied("max_pool2d", found)
    return _pool("max_pool2d", x, found, layout, "max", lowest(x.dtype), None)


def avg_pool2d(
    x: SymbolicTensor,
    kernel: Pair,
    stride: Pair | None = None,
    padding: Padding = 0,
    dilation: Pair = 1,
    layout: Layout = "NCHW",
    count_include_pad: bool = True,
    ceil_mode: bool = False,
) -> SymbolicTensor:
    """Computes the mean of each window of x (N, C, H, W) or (N, H, W, C), of a floating type; the default stride is the kernel.

    With `count_include_pad`, padded zeros count (the divisor is the kernel's size); without it, only elements inside x count.
    `ceil_mode`: if strides do not divide the input evenly, one more window covers the last elements; its elements beyond the
    padding do not count. Accumulates in float32 (float64 for float64). Axes n c h w r s. `ExpressionError` for integers, if the
    kernel does not fit, or, without `count_include_pad`, if a window lies wholly in the padding.
    """
    what = "avg_pool2d"
    (x,) = symbolic(what, x)
    if x.dtype not in FLOATS:
        raise ExpressionError(f"{what}: the mean of {x.dtype} is not defined here; use .astype('float32') first")
    high, wide = found = _windows(what, x, kernel, stride, padding, dilation, layout, ceil_mode)
    dtype = compute_dtype(x.dtype)
    count: Scalar = constant(high.kernel * wide.kernel, dtype)
    if not count_include_pad and (high.padded or wide.padded):
        _check_occupied(what, found)
        count = Cast(Binary("mul", _inside(high, "h"), _inside(wide, "w")), dtype)
    elif high.beyond or wide.beyond:
        count = Cast(Binary("mul", _inside(high, "h", padding=True), _inside(wide, "w", padding=True)), dtype)
    return _pool(what, x, found, layout, "sum", 0.0, Binary("div", Accumulator(dtype), count))


def _windows(
    what: str,
    x: SymbolicTensor,
    kernel: Pair,
    stride: Pair | None,
    padding: Padding,
    dilation: Pair,
    layout: Layout,
    ceil_mode: bool,
) -> tuple[Window, Window]:
    check_layout(what, layout)
    images = by_letter(what, "x", x, layout)
    extents = pair(what, "kernel", kernel)
    high, wide = windows(what, (images["H"], images["W"]), extents, extents if stride is None else stride, padding, dilation)
    return (high.ceiled(), wide.ceiled()) if ceil_mode else (high, wide)


def _check_occupied(what: str, found: Sequence[Window]) -> None:
    for name, window in zip(("height", "width"), found, strict=True):
        if window.padded and any(window.elements_inside(p) == 0 for p in range(window.output)):
            raise ExpressionError(f"{what}: some windows over the {name} lie wholly in the padding; pad by less than the kernel")


def _inside(window: Window, axis: str, padding: bool = False) -> Scalar:
    """Returns the number of elements of window `axis` inside the input, or inside its `padding`, as an int32."""
    first, end = (-window.before, window.size + window.after) if padding else (0, window.size)
    if window.dilation == 1:  # the overlap of two intervals
        last = Binary("min", Coordinate(window.index(axis, "").substitute({"": Affine((), window.kernel)})), _whole(end))
        start = Binary("max", Coordinate(window.index(axis, "").substitute({"": Affine()})), _whole(first))
        return Binary("sub", last, start)
    total: Scalar = _whole(0)
    for r in range(window.kernel):  # an element counts min(index - first + 1, end - index), limited to 0..1
        index = window.index(axis, "").substitute({"": Affine((), r)})
        room = Binary("min", Coordinate(index.plus(1 - first)), Coordinate(index.times(-1).plus(end)))
        total = Binary("add", total, Binary("max", Binary("min", room, _whole(1)), _whole(0)))
    return total


def _whole(value: int) -> Const:
    return Const(value, "int32")


def _pool(
    what: str,
    x: SymbolicTensor,
    found: tuple[Window, Window],
    layout: Layout,
    reducer: Reducer,
    fill: float | int,
    epilogue: Scalar | None,
) -> SymbolicTensor:
    high, wide = found
    images = dict(zip(layout, x.shape, strict=True))
    extents = images | {"H": high.output, "W": wide.output}
    read = {"N": Affine.axis("n"), "C": Affine.axis("c"), "H": high.index("h", "r"), "W": wide.index("w", "s")}
    axes = [Axis(letter.lower(), extents[letter]) for letter in layout]
    axes += [Axis("r", high.kernel, "reduce"), Axis("s", wide.kernel, "reduce")]
    padded = high.padded or wide.padded
    body = converted(source(x, 0, [read[n] for n in layout], fill if padded else None), compared_dtype(x.dtype))
    return produced(what, axes, body, [extents[n] for n in layout], (x,), dtype=x.dtype, reducer=reducer, epilogue=epilogue)
