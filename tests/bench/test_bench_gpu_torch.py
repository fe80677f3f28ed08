"""Torch as the GPU benchmark's library, on the CPU: its reference is roller's, its peers agree with it, faults are noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra of the benchmarks")

from bench.cuda.platform import PLATFORM as CUDA  # noqa: E402
from bench.gpu import rounding  # noqa: E402
from bench.gpu.expressions import expression  # noqa: E402
from bench.gpu.library import Choices  # noqa: E402
from bench.gpu.operators import Operator  # noqa: E402
from bench.gpu.torch_library import CHAINS, TorchLibrary  # noqa: E402
from bench.rocm.platform import PLATFORM as ROCM  # noqa: E402
from roller import ops, verify  # noqa: E402

WINDOW = {"stride": 2, "pads": [0, 1, 1, 1]}
OPERATORS = {
    "matmul": ({"a": (33, 50), "b": (50, 17)}, {}),
    "matmul NT": ({"a": (33, 50), "b": (17, 50)}, {"transpose_b": True}),
    "matmul TT": ({"a": (50, 33), "b": (17, 50)}, {"transpose_a": True, "transpose_b": True}),
    "batch_matmul": ({"a": (3, 9, 20), "b": (3, 11, 20)}, {"transpose_b": True}),
    "matmul_bias_gelu": ({"a": (33, 50), "b": (50, 17), "bias": (17,)}, {}),
    "matmul_bias_residual": ({"a": (33, 50), "b": (50, 17), "bias": (17,), "residual": (33, 17)}, {}),
    "conv2d": ({"x": (2, 5, 9, 8), "w": (6, 5, 3, 3)}, WINDOW),
    "conv2d NHWC": ({"x": (2, 9, 8, 5), "w": (3, 3, 5, 6)}, {**WINDOW, "layout": "NHWC"}),
    "conv_bias_relu": ({"x": (2, 5, 9, 9), "w": (6, 5, 3, 3), "bias": (6, 1, 1)}, {"stride": 1, "pads": [1] * 4}),
    "depthwise": ({"x": (2, 6, 9, 9), "w": (6, 1, 3, 3)}, WINDOW),
    "avg_pool": ({"x": (2, 5, 9, 9)}, {**WINDOW, "kernel": [3, 3]}),
    "max_pool": ({"x": (2, 5, 9, 9)}, {**WINDOW, "kernel": [3, 3]}),
    "reduce_sum": ({"x": (6, 40, 30)}, {"axes": [1, 2]}),
    "transpose": ({"x": (4, 5, 6, 7)}, {"axes": [0, 2, 1, 3]}),
    "relu": ({"x": (7, 30)}, {}),
    "gelu": ({"x": (7, 30)}, {}),
    "add": ({"x": (7, 30), "y": (7, 30)}, {}),
    "softmax": ({"x": (7, 300)}, {}),
    "layer_norm": ({"x": (7, 300), "scale": (300,), "bias": (300,)}, {}),
    "attention": ({"q": (3, 40, 16), "k": (3, 40, 16), "v": (3, 40, 16)}, {}),
    "scale_bias_relu": ({"x": (2, 5, 6, 6), "scale": (5, 1, 1), "bias": (5, 1, 1)}, {}),
}


CASES = [(kind, dtype) for kind in OPERATORS for dtype in ("float32", "float16", "bfloat16")]
CASES += [(kind, "int8") for kind in OPERATORS if kind.startswith("matmul") and kind.split()[0] == "matmul"]


def case(kind: str, dtype: str) -> Operator:
    shapes, options = OPERATORS[kind]
    return Operator(f"{kind} {dtype}", "fused", kind.split(maxsplit=1)[0], dtype, shapes, options)


@pytest.fixture
def library() -> TorchLibrary:
    return TorchLibrary(CUDA, "cpu")


def rollers(op: Operator, operands: Any) -> Any:
    """Roller's reference, in the operator's type."""
    expr = ops.expression(expression(op))
    kind = verify.numpy_dtype(op.dtype)
    given = {name: array.double().numpy().astype(kind) for name, array in operands.items()}
    found = verify.reference(expr, given).astype(np.float64)
    return torch.from_numpy(found).to(getattr(torch, op.out_dtype))


@pytest.mark.parametrize(("kind", "dtype"), CASES)
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
        broken.reshape(-1)[-1] += 1
        assert library.excess(broken, expected, 1.0) > 1.0
        assert library.excess(got[:1], expected, 1.0) == float("inf") or got.shape[0] == 1
        if not got.is_floating_point():
            continue
        broken.reshape(-1)[-1] = float("nan")
        assert library.excess(broken, expected, 1.0) == float("inf")


@pytest.mark.parametrize(("kind", "dtype"), [c for c in CASES if c[1] in ("float32", "int8")])
def test_its_peers_agree(library: TorchLibrary, kind: str, dtype: str) -> None:
    op = case(kind, dtype)
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


@pytest.mark.parametrize("kind", ["matmul", "batch_matmul", "conv_bias_relu"])
def test_products_are_offered_to_both_of_rocms_libraries(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch takes for everything else stays as it was."""
    asked: list[str] = []

    def preferred(name: str | None = None) -> str:
        asked.extend([name] if name else [])
        return asked[-1] if asked else "its own"

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    library, op = TorchLibrary(ROCM, "cpu"), case(kind, "float32")
    operands = library.operands(op, False, 1, seed=5)
    expected = library.expected(op, operands, rounding.bound(op, False))
    sides = {side.name: side for side in library.peers(op, operands, Choices(compiled=False))}
    mine = [name for name in sides if "BLAS" in name]
    assert mine == (["torch, rocBLAS", "torch, hipBLASLt"] if "matmul" in kind else [])
    for name in mine:
        assert library.excess(sides[name].call(), expected, rounding.LIBRARY_SLACK) <= 1.0
    assert asked == (["cublas", "its own", "cublaslt", "its own"] if mine else [])


def test_convolutions_are_fused_by_the_library_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    op, given = case("conv_bias_relu", "float32"), []
    for platform in (CUDA, ROCM):
        library = TorchLibrary(platform, "cpu")
        operands = library.operands(op, False, 1, seed=5)
        monkeypatch.setattr(torch, platform.torch.fused, lambda *values: given.append(values) or values[0], raising=False)
        sides = list(library._fused_convolutions(op, operands))
        assert [side.name for side in sides] == [f"{platform.torch.convolutions} fused{rest}" for rest in ("", " channels-last")]
        assert [side.boundary for side in sides] == [True, False]
        for side in sides:
            side.call()
        last, first = given.pop(), given.pop()
        assert torch.equal(first[2], last[2]) and first[3:] == last[3:] == ([1, 1], [1, 1], [1, 1], 1) and not given


def test_it_says_what_torch_brings_and_refuses_a_torch_for_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"torch", "hip (torch)", "miopen", "numpy"} <= TorchLibrary(ROCM, "cpu").describe().keys()
    assert {"torch", "cuda (torch)", "cudnn", "numpy"} <= TorchLibrary(CUDA, "cpu").describe().keys()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    with pytest.raises(ImportError, match="finds no AMD GPU: a build for rocm is needed"):
        TorchLibrary(ROCM)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own parts
@pytest.mark.parametrize("kind", sorted(CHAINS & OPERATORS.keys()))
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
