"""Two-dimensional convolutions: dense, grouped, depthwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roller.errors import ExpressionError
from roller.ir.expr import Axis
from roller.ir.scalar import Affine, Binary
from roller.ops.tensor import SymbolicTensor, common_dtype, produced, source, symbolic
from roller.ops.types import accumulation_dtype, converted, output_dtype
from roller.ops.window import Layout, Padding, Pair, by_letter, check_layout, windows

# Dimensions of the weights by letter: F output channels, C input channels, M multiplier, R S kernel height and width.
CONV_WEIGHTS = {"NCHW": "FCRS", "NHWC": "RSCF"}
DEPTHWISE_WEIGHTS = {"NCHW": "CMRS", "NHWC": "RSCM"}


def conv2d(
    x: SymbolicTensor,
    w: SymbolicTensor,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    out_dtype: str | None = None,
    acc_dtype: str | None = None,
) -> SymbolicTensor:
    """Convolves x (N, C, H, W) with w (F, C/groups, KH, KW); for NHWC, x is (N, H, W, C) and w (KH, KW, C/groups, F).

    Padding is a number, (height, width), (top, bottom, left, right), "same" (as in TensorFlow: the odd element at the end) or
    "valid". Accumulator and result types are those of `matmul`. Axes n f h w c r s; with groups also g, where the stored channel is
    g·(F/groups) + f. `ExpressionError` if shapes, element types or groups do not match, or if the kernel does not fit.
    """
    what = "conv2d"
    x, w = symbolic(what, x, w)
    check_layout(what, layout)
    images, weights = by_letter(what, "x", x, layout), by_letter(what, "w", w, CONV_WEIGHTS[layout])
    if not isinstance(groups, int) or groups < 1 or images["C"] % groups or weights["F"] % groups:
        raise ExpressionError(f"{what}: groups={groups!r} must divide the {images['C']} input and {weights['F']} output channels")
    if weights["C"] * groups != images["C"]:
        raise ExpressionError(
            f"{what}: w {w.shape} ({CONV_WEIGHTS[layout]}) takes {weights['C'] * groups} input channels with groups={groups}, "
            f"but x {x.shape} ({layout}) has {images['C']}"
        )
    high, wide = windows(what, (images["H"], images["W"]), (weights["R"], weights["S"]), stride, padding, dilation)
    features = weights["F"] // groups
    extents = {"n": images["N"], "g": groups, "f": features, "h": high.output, "w": wide.output}
    extents |= {"c": weights["C"], "r": high.kernel, "s": wide.kernel}
    feature = Affine.of(("g", features), ("f", 1)) if groups > 1 else Affine.axis("f")
    channel = Affine.of(("g", weights["C"]), ("c", 1)) if groups > 1 else Affine.axis("c")
    index = {letter.upper(): Affine.axis(letter) for letter in "nhwcrs"} | {"F": feature}
    read = index | {"C": channel, "H": high.index("h", "r"), "W": wide.index("w", "s")}
    spatial = "".join("gf" if letter == "C" else letter.lower() for letter in layout)
    order = [a for a in spatial + CONV_WEIGHTS[layout].replace("F", "").lower() if a != "g" or groups > 1]
    return _convolution(
        what,
        (x, w),
        ([read[n] for n in layout], [index[n] for n in CONV_WEIGHTS[layout]]),
        [Axis(a, extents[a], "reduce" if a in "crs" else "spatial") for a in order],
        {n: (index[n.replace("C", "F")], _extent(n, extents, features * groups)) for n in layout},
        high.padded or wide.padded,
        (out_dtype, acc_dtype),
    )


def depthwise_conv2d(
    x: SymbolicTensor,
    w: SymbolicTensor,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    layout: Layout = "NCHW",
    out_dtype: str | None = None,
    acc_dtype: str | None = None,
) -> SymbolicTensor:
    """Convolves each channel of x (N, C, H, W) with its own M kernels w (C, M, KH, KW) → (N, C·M, OH, OW), channel c·M + m.

    For NHWC, x is (N, H, W, C) and w (KH, KW, C, M). Padding, types and errors are those of `conv2d`. Axes n c m h w r s (no m if M
    is 1).
    """
    what = "depthwise_conv2d"
    x, w = symbolic(what, x, w)
    check_layout(what, layout)
    images, weights = by_letter(what, "x", x, layout), by_letter(what, "w", w, DEPTHWISE_WEIGHTS[layout])
    if weights["C"] != images["C"]:
        raise ExpressionError(
            f"{what}: w {w.shape} ({DEPTHWISE_WEIGHTS[layout]}) is for {weights['C']} channels, "
            f"but x {x.shape} ({layout}) has {images['C']}"
        )
    if weights["M"] < 1:
        raise ExpressionError(f"{what}: the channel multiplier in w {w.shape} ({DEPTHWISE_WEIGHTS[layout]}) must be at least 1")
    high, wide = windows(what, (images["H"], images["W"]), (weights["R"], weights["S"]), stride, padding, dilation)
    several = weights["M"] > 1
    extents = {"n": images["N"], "c": images["C"], "m": weights["M"], "h": high.output, "w": wide.output}
    extents |= {"r": high.kernel, "s": wide.kernel}
    index = {letter.upper(): Affine.axis(letter) for letter in "nchwrs"} | {"M": Affine.axis("m") if several else Affine()}
    read = index | {"H": high.index("h", "r"), "W": wide.index("w", "s")}
    channel = Affine.of(("c", weights["M"]), ("m", 1)) if several else Affine.axis("c")
    spatial = "".join("cm" if letter == "C" else letter.lower() for letter in layout)
    order = [a for a in spatial + "rs" if a != "m" or several]
    return _convolution(
        what,
        (x, w),
        ([read[n] for n in layout], [index[n] for n in DEPTHWISE_WEIGHTS[layout]]),
        [Axis(a, extents[a], "reduce" if a in "rs" else "spatial") for a in order],
        {n: (channel if n == "C" else index[n], _extent(n, extents, images["C"] * weights["M"])) for n in layout},
        high.padded or wide.padded,
        (out_dtype, acc_dtype),
    )


def _extent(letter: str, extents: Mapping[str, int], channels: int) -> int:
    return channels if letter == "C" else extents[letter.lower()]


def _convolution(
    what: str,
    operands: tuple[SymbolicTensor, SymbolicTensor],
    indices: tuple[Sequence[Affine], Sequence[Affine]],
    axes: Sequence[Axis],
    output: Mapping[str, tuple[Affine, int]],
    padded: bool,
    dtypes: tuple[str | None, str | None],
) -> SymbolicTensor:
    """Returns the sum of products; `output` has the stored index and the extent of each output dimension, in order."""
    dtype = common_dtype(what, operands)
    acc_dtype = accumulation_dtype(dtype, dtypes[1])
    fill = (0.0 if dtype.startswith(("float", "bfloat")) else 0) if padded else None
    body = Binary(
        "mul",
        converted(source(operands[0], 0, indices[0], fill), acc_dtype),
        converted(source(operands[1], 1, indices[1]), acc_dtype),
    )
    store, shape = [index for index, _ in output.values()], [extent for _, extent in output.values()]
    return produced(what, axes, body, shape, operands, dtype=output_dtype(dtype, dtypes[0]), store=store, reducer="sum")
