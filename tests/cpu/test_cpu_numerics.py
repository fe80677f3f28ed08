"""Every operator family on the host CPU, in every element type, at odd, prime, one and zero extents, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import launching
import roller
from roller import ops, verify
from roller.errors import ExpressionError
from roller.ops import SymbolicTensor

FLOATS = ("float32", "float64", "float16", "bfloat16")
TYPES = (*FLOATS, "int8")
Make = Callable[[str], SymbolicTensor]


def t(*shape: int) -> Callable[[str], SymbolicTensor]:
    return lambda dtype: ops.tensor(shape, dtype)


def two(function: Any, a: tuple[int, ...], b: tuple[int, ...], **more: Any) -> Make:
    return lambda dtype: function(ops.tensor(a, dtype), ops.tensor(b, dtype), **more)


def one(function: Any, shape: tuple[int, ...], *rest: Any, **more: Any) -> Make:
    return lambda dtype: function(ops.tensor(shape, dtype), *rest, **more)


def fused(dtype: str) -> SymbolicTensor:
    """Convolution, scale, residual and activation in one nest; the sum is int32 for int8."""
    y = ops.conv2d(ops.tensor((1, 5, 9, 11), dtype), ops.tensor((13, 5, 3, 3), dtype), padding=1)
    y = y + ops.tensor((1, 13, 1, 1), y.dtype) * ops.tensor((1,), y.dtype)
    return ops.relu(y + ops.tensor(y.shape, y.dtype))


def gated(dtype: str) -> SymbolicTensor:
    """A prologue on both operands and a long epilogue."""
    x = ops.matmul(ops.tensor((17, 31), dtype) * 2 + ops.tensor((31,), dtype), ops.relu(ops.tensor((31, 23), dtype)))
    return ops.clip(ops.maximum(x, ops.tensor((23,), x.dtype)) - ops.tensor((17, 1), x.dtype), -7, 9) * 3


FAMILIES: Mapping[str, Mapping[str, Make]] = {
    "matmul": {
        "prime": two(ops.matmul, (37, 41), (41, 43)),
        "odd": two(ops.matmul, (1, 127), (127, 65)),
        "vector": two(ops.matmul, (129, 67), (67, 1)),
        "one": two(ops.matmul, (1, 1), (1, 1)),
        "outer": two(ops.matmul, (19, 1), (1, 35)),
        "transposed": two(ops.matmul, (29, 31), (47, 29), transpose_a=True, transpose_b=True),
        "no rows": two(ops.matmul, (0, 5), (5, 7)),
        "empty sum": two(ops.matmul, (5, 0), (0, 7)),
    },
    "batch_matmul": {
        "prime": two(ops.batch_matmul, (3, 11, 13), (3, 13, 17)),
        "transposed": two(ops.batch_matmul, (2, 7, 33), (2, 9, 33), transpose_b=True),
        "no batch": two(ops.batch_matmul, (0, 3, 4), (0, 4, 5)),
    },
    "conv2d": {
        "prime": two(ops.conv2d, (1, 7, 13, 11), (17, 7, 3, 3), padding=1),
        "strided": two(ops.conv2d, (2, 5, 19, 23), (11, 5, 5, 3), stride=(2, 3), padding=(2, 1)),
        "dilated": two(ops.conv2d, (1, 3, 17, 15), (9, 3, 3, 3), dilation=(2, 3), padding=(1, 0, 3, 2)),
        "groups": two(ops.conv2d, (1, 9, 7, 7), (15, 3, 3, 3), groups=3, padding="same"),
        "nhwc": two(ops.conv2d, (1, 13, 9, 5), (3, 3, 5, 19), padding=1, layout="NHWC"),
        "pointwise": two(ops.conv2d, (3, 11, 7, 7), (13, 11, 1, 1)),
        "one": two(ops.conv2d, (1, 1, 1, 1), (1, 1, 1, 1)),
        "no images": two(ops.conv2d, (0, 3, 5, 5), (4, 3, 3, 3)),
        "no channels": two(ops.conv2d, (1, 0, 5, 5), (4, 0, 3, 3)),
    },
    "depthwise": {
        "prime": two(ops.depthwise_conv2d, (1, 11, 13, 17), (11, 1, 3, 3), padding=1),
        "strided": two(ops.depthwise_conv2d, (2, 5, 15, 15), (5, 2, 5, 5), stride=2, padding=2),
        "nhwc": two(ops.depthwise_conv2d, (1, 9, 7, 19), (3, 3, 19, 1), padding=1, layout="NHWC"),
    },
    "max_pool2d": {
        "prime": one(ops.max_pool2d, (1, 7, 23, 17), 3, stride=2, padding=1),
        "nhwc": one(ops.max_pool2d, (1, 11, 13, 19), (2, 3), layout="NHWC"),
        "no images": one(ops.max_pool2d, (0, 7, 9, 9), 3),
    },
    "reduce": {
        "rows": one(ops.reduce_sum, (37, 131), 1),
        "columns": one(ops.reduce_sum, (131, 37), 0),
        "middle": one(ops.reduce_sum, (5, 67, 9), 1, keepdims=True),
        "all": one(ops.reduce_sum, (7, 11, 13)),
        "max": one(ops.reduce_max, (17, 129), 1),
        "min": one(ops.reduce_min, (9, 13, 5), (0, 2)),
        "one": one(ops.reduce_sum, (1, 1), 0),
        "empty sum": one(ops.reduce_sum, (3, 0), 1),
        "nothing to give": one(ops.reduce_max, (0, 3), 1),
    },
    "elementwise": {
        "add": two(ops.add, (7, 13, 17), (13, 1)),
        "sub": two(ops.sub, (1001,), (1001,)),
        "mul": two(ops.mul, (1, 19), (23, 1)),
        "maximum": two(ops.maximum, (3, 31), (31,)),
        "relu": one(ops.relu, (4099,)),
        "abs": one(ops.abs, (5, 7)),
        "neg": one(ops.neg, (257,)),
        "clip": one(ops.clip, (11, 13), -2, 3),
        "one": one(ops.relu, (1,)),
        "scalar": one(ops.neg, ()),
        "none": one(ops.relu, (3, 0, 5)),
        "where": lambda dtype: ops.where(ops.tensor((13, 1), "int8"), ops.tensor((13, 7), dtype), ops.tensor((7,), dtype)),
    },
    "movement": {
        "transpose": one(ops.transpose, (37, 53)),
        "permute": one(ops.transpose, (3, 5, 7, 11), (2, 0, 3, 1)),
        "pad": one(ops.pad, (7, 9), [(2, 1), (0, 3)], 1),
        "broadcast": one(ops.broadcast_to, (13, 1), (5, 13, 17)),
        "one": one(ops.transpose, (1, 1)),
        "none": one(ops.transpose, (0, 5)),
    },
    "einsum": {
        "trace": one(lambda x: ops.einsum("ii->", x), (29, 29)),
        "diagonal": one(lambda x: ops.einsum("ii->i", x), (31, 31)),
        "triple": lambda d: ops.einsum("ij,jk,kl->il", ops.tensor((5, 7), d), ops.tensor((7, 3), d), ops.tensor((3, 11), d)),
        "heads": two(lambda a, b: ops.einsum("bqhd,bkhd->bhqk", a, b), (2, 5, 3, 13), (2, 7, 3, 13)),
    },
    "fused": {"conv scale residual relu": fused, "matmul with both ends": gated},
}  # fmt: skip

FLOATING: Mapping[str, Make] = {
    "avg_pool2d": one(ops.avg_pool2d, (1, 5, 17, 19), 3, stride=2, padding=1),
    "avg_pool2d without padding": one(ops.avg_pool2d, (2, 3, 11, 13), (3, 2), padding=1, count_include_pad=False),
    "avg_pool2d dilated": one(ops.avg_pool2d, (1, 3, 15, 13), 3, stride=1, padding=1, dilation=2, count_include_pad=False),
    "reduce_mean": one(ops.reduce_mean, (13, 97), 1),
    "div": two(ops.div, (13, 17), (17,)),
    "pow": two(ops.pow, (7, 11), (11,)),
    **{f.__name__: one(f, (5, 29)) for f in (ops.exp, ops.log, ops.sqrt, ops.rsqrt, ops.tanh, ops.sigmoid, ops.erf, ops.gelu)},
    **{f.__name__: one(f, (257,)) for f in (ops.silu, ops.sin, ops.cos, ops.floor, ops.ceil, ops.round)},
    "gelu tanh": one(ops.gelu, (3, 33), approximate="tanh"),
    "matmul bias gelu": lambda d: ops.gelu(ops.matmul(ops.tensor((17, 31), d), ops.tensor((31, 23), d)) + ops.tensor((23,), d)),
    "softmax": lambda d: _softmax(ops.tensor((7, 37), d)),
    "layer norm": lambda d: _normalised(ops.tensor((5, 67), d)),
}


def _softmax(x: SymbolicTensor) -> SymbolicTensor:
    e = ops.exp(x - ops.reduce_max(x, 1, keepdims=True))
    return e / ops.reduce_sum(e, 1, keepdims=True)


def _normalised(x: SymbolicTensor) -> SymbolicTensor:
    centred = x - ops.reduce_mean(x, 1, keepdims=True)
    return centred * ops.rsqrt(ops.reduce_mean(centred * centred, 1, keepdims=True) + 1e-3)


def right(op: SymbolicTensor, integer: bool, seed: int = 0, shift: int = 0, **options: Any) -> np.ndarray[Any, Any]:
    """Check the chosen program of an operator, on special values, too; gives the tolerance that it was allowed."""
    expr = ops.expression(op)
    kernel = roller.compile(op, "cpu:x86-64-v3", **options)
    for special in (True, False):
        arrays = verify.random_inputs(expr, seed, integer=integer, special=special)
        arrays |= {name: np.frombuffer(raw, arrays[name].dtype).reshape(arrays[name].shape) for name, raw in _fixed(kernel)}
        launching.check(expr, kernel.artifact, arrays, frozenset(kernel.artifact.constants), shift)
    return verify.tolerance(expr, arrays)


def _fixed(kernel: roller.Kernel) -> list[tuple[str, bytes]]:
    """Inputs whose values came with the kernel."""
    return list(kernel.artifact.constants.items())


CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("family", "name"), CASES, ids=[f"{f}, {n}" for f, n in CASES])
def test_families(family: str, name: str, dtype: str) -> None:
    """Whole numbers exactly, whatever the order of summation; then fractions within the bound, misaligned."""
    op = FAMILIES[family][name](dtype)
    bound = right(op, integer=True)
    assert dtype in ("float16", "bfloat16") or not bound.any()
    if dtype != "int8":
        right(op, integer=False, seed=1, shift=1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FLOATING)
def test_families_of_floats(name: str, dtype: str) -> None:
    right(FLOATING[name](dtype), integer=False, shift=3)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_integer_types(dtype: str) -> None:
    right(ops.matmul(ops.tensor((13, 37), dtype), ops.tensor((37, 11), dtype)), integer=False)
    right(ops.maximum(ops.tensor((13, 37), dtype), ops.tensor((37,), dtype)), integer=False)


@pytest.mark.parametrize("axes", [0, 1, 2, (0, 2), None])
@pytest.mark.parametrize("reducer", [ops.reduce_max, ops.reduce_min])
def test_truths_are_compared(reducer: Callable[..., SymbolicTensor], axes: Any) -> None:
    right(reducer(ops.tensor((5, 9, 33), "bool"), axes), integer=True)


@pytest.mark.parametrize("function", [ops.add, ops.mul])
def test_truths_are_added_and_multiplied(function: Callable[..., SymbolicTensor]) -> None:
    right(function(ops.tensor((5, 33), "bool"), ops.tensor((33,), "bool")), integer=True)


@pytest.mark.parametrize("function", [ops.maximum, ops.minimum])
def test_truths_are_compared_element_by_element(function: Callable[..., SymbolicTensor]) -> None:
    right(function(ops.tensor((5, 33), "bool"), ops.tensor((33,), "bool")), integer=True)
    right(ops.max_pool2d(ops.tensor((1, 3, 7, 9), "bool"), 3, padding=1), integer=True)


@pytest.mark.parametrize(
    ("dtype", "out", "acc"),
    [
        ("float16", "float32", "float32"),
        ("int8", "int8", "int32"),
        ("float32", "float32", "float64"),
        ("int8", "int64", "int64"),
        ("bfloat16", "float32", None),
    ],
)
def test_output_and_accumulation_types(dtype: str, out: str, acc: str | None) -> None:
    a, b = ops.tensor((9, 33), dtype), ops.tensor((33, 21), dtype)
    right(ops.matmul(a, b, out_dtype=out, acc_dtype=acc), integer=True)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", [*TYPES, "int32"])
def test_casts(source: str, target: str) -> None:
    right(ops.cast(ops.tensor((67,), source), target) + ops.cast(ops.tensor((67,), source), target), integer=True)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_any_number_of_threads(threads: int) -> None:
    right(FAMILIES["fused"]["conv scale residual relu"]("float32"), integer=True, threads=threads)
    right(ops.reduce_sum(ops.tensor((3, 100003), "float32"), 1), integer=True, threads=threads)


def test_constants_give_the_same() -> None:
    for dtype in TYPES:
        op = fused(dtype)
        expr = ops.expression(op)
        weights = {name: a for name, a in verify.random_inputs(expr, integer=True).items() if a.ndim == 4 and a.shape[0] == 13}
        right(op, integer=True, constants=weights)


def test_equal_extents_are_not_confused() -> None:
    for name in ("matmul", "einsum"):
        op = (
            two(ops.matmul, (8, 8), (8, 8)) if name == "matmul" else two(lambda a, b: ops.einsum("ab,cb->ca", a, b), (8, 8), (8, 8))
        )
        right(op("float32"), integer=True)


def test_large_operators_at_sampled_elements() -> None:
    x, w = ops.tensor((2, 64, 112, 113), name="x"), ops.tensor((96, 64, 3, 3), name="w")
    op = ops.relu(ops.conv2d(x, w, padding=1))
    expr = ops.expression(op)
    arrays = verify.random_inputs(expr, integer=True)
    got = launching.run(roller.compile(op, "cpu:x86-64-v3").artifact, expr.output, tuple(arrays[t.name] for t in expr.inputs))
    verify.check(expr, arrays, got, verify.sample_points(expr, 2000))


def test_what_has_no_value_is_refused() -> None:
    with pytest.raises(ExpressionError, match="no value"):
        ops.reduce_max(ops.tensor((3, 0)), 1)
