"""Torch as the GPU benchmark's library, on the CPU: its reference is roller's, its peers agree with it, faults are noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra of the benchmarks")

from bench.cuda.platform import PLATFORM  # noqa: E402
from bench.gpu import rounding  # noqa: E402
from bench.gpu.expressions import expression  # noqa: E402
from bench.gpu.library import Choices  # noqa: E402
from bench.gpu.operators import Operator  # noqa: E402
from bench.gpu.torch_library import CHAINS, TorchLibrary  # noqa: E402
from roller import ops, verify  # noqa: E402

WINDOW = {"stride": 2, "pads": [0, 1, 1, 1]}
OPERATORS = {
    "matmul": ({"a": (33, 50), "b": (50, 17)}, {}),
    "batch_matmul": ({"a": (3, 9, 20), "b": (3, 11, 20)}, {"transpose_b": True}),
    "matmul_bias_gelu": ({"a": (33, 50), "b": (50, 17), "bias": (17,)}, {}),
    "matmul_bias_residual": ({"a": (33, 50), "b": (50, 17), "bias": (17,), "residual": (33, 17)}, {}),
    "conv2d": ({"x": (2, 5, 9, 8), "w": (6, 5, 3, 3)}, WINDOW),
    "conv_bias_relu": ({"x": (2, 5, 9, 9), "w": (6, 5, 3, 3), "bias": (6, 1, 1)}, {"stride": 1, "pads": [1] * 4}),
    "depthwise": ({"x": (2, 6, 9, 9), "w": (6, 1, 3, 3)}, WINDOW),
    "avg_pool": ({"x": (2, 5, 9, 9)}, {**WINDOW, "kernel": [3, 3]}),
    "max_pool": ({"x": (2, 5, 9, 9)}, {**WINDOW, "kernel": [3, 3]}),
    "reduce_sum": ({"x": (6, 40, 30)}, {"axes": [1, 2]}),
    "transpose": ({"x": (4, 5, 6, 7)}, {"axes": [0, 2, 1, 3]}),
    "relu": ({"x": (7, 30)}, {}),
    "gelu": ({"x": (7, 30)}, {}),
    "add": ({"x": (7, 30), "y": (7, 30)}, {}),
    "scale_bias_relu": ({"x": (2, 5, 6, 6), "scale": (5, 1, 1), "bias": (5, 1, 1)}, {}),
}


def case(kind: str, dtype: str) -> Operator:
    shapes, options = OPERATORS[kind]
    return Operator(f"{kind} {dtype}", "fused", kind, dtype, shapes, options)


@pytest.fixture
def library() -> TorchLibrary:
    return TorchLibrary(PLATFORM, "cpu")


def rollers(op: Operator, operands: Any) -> Any:
    """Roller's reference, in the operator's type."""
    expr = ops.expression(expression(op))
    kind = verify.numpy_dtype(op.dtype)
    given = {name: array.double().numpy().astype(kind) for name, array in operands.items()}
    found = verify.reference(expr, given).astype(np.float64)
    return torch.from_numpy(found).to(getattr(torch, op.dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", OPERATORS)
def test_its_reference_is_rollers_and_a_fault_is_noticed(library: TorchLibrary, kind: str, dtype: str) -> None:
    op = case(kind, dtype)
    for integer in (True, False):
        operands = library.operands(op, integer, rounding.largest(op), seed=3)
        bound = rounding.bound(op, integer)
        expected = library.expected(op, operands, bound)
        got = rollers(op, operands)
        assert tuple(got.shape) == op.output
        assert library.excess(got, expected, 1.0) <= 1.0
        broken = got.clone()
        broken.reshape(-1)[-1] += 1.0
        assert library.excess(broken, expected, 1.0) > 1.0
        broken.reshape(-1)[-1] = float("nan")
        assert library.excess(broken, expected, 1.0) == float("inf")
        assert library.excess(got[:1], expected, 1.0) == float("inf") or got.shape[0] == 1


@pytest.mark.parametrize("kind", OPERATORS)
def test_its_peers_agree(library: TorchLibrary, kind: str) -> None:
    op = case(kind, "float32")
    operands = library.operands(op, False, 1, seed=5)
    before = {name: array.clone() for name, array in operands.items()}
    expected = library.expected(op, operands, rounding.bound(op, False))
    names = []
    for side in library.peers(op, operands, Choices(compiled=False)):
        assert library.excess(side.call(), expected, rounding.LIBRARY_SLACK) <= 1.0, side.name
        assert library.excess(side.call(), expected, rounding.LIBRARY_SLACK) <= 1.0, side.name
        names.append(side.name)
    assert len(names) == len(set(names)) >= 1
    assert all(torch.equal(before[name], array) for name, array in operands.items())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own parts
@pytest.mark.parametrize("kind", sorted(CHAINS))
def test_its_compiler_takes_every_chain(library: TorchLibrary, kind: str) -> None:
    op = case(kind, "float32")
    operands = library.operands(op, False, 1, seed=5)
    expected = library.expected(op, operands, rounding.bound(op, False))
    (side,) = [s for s in library.peers(op, operands, Choices()) if s.name.startswith("torch.compile")]
    assert library.excess(side.call(), expected, rounding.LIBRARY_SLACK) <= 1.0


def test_tf32_is_on_where_the_operator_permits_it_and_off_elsewhere(library: TorchLibrary) -> None:
    strict = case("matmul", "float32")
    op = Operator("matmul tf32", "tf32", strict.kind, strict.dtype, strict.shapes, {"precision": "tf32"})
    operands = library.operands(op, False, 1, seed=5)
    for asked, permitted in ((op, True), (strict, False)):
        assert list(library.peers(asked, operands, Choices(compiled=False)))
        assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is permitted


def test_rooms_and_what_lies_behind_an_output(library: TorchLibrary) -> None:
    raw = library.room(64)
    raw.fill_(0xFF)
    seen = library.view(raw, "float16", (3, 5))
    assert bool(torch.isnan(seen).all()) and library.address(seen) == library.address(raw)
    assert library.untouched(raw, 30, 0xFF)
    raw[63] = 0
    assert not library.untouched(raw, 30, 0xFF)
