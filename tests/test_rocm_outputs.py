"""`out=` of calls on AMD GPUs, and arrays that do not fit; without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_arrays import Array, Tensor
from fake_hip import SMALL, A, AmdGpus, B, kernel, rocm_torch, values, why_not

from roller import verify
from roller.dlpack import lend
from roller.errors import LaunchError

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def test_out_is_written_in_place(amd: AmdGpus) -> None:
    run, a, out = kernel("small", amd).load(), Array(amd, values(SMALL)), Array(amd, values(SMALL, 5))
    mark = len(amd.calls)
    assert run(a, out=out) is out
    assert amd.since(mark) == ["hipModuleLaunchKernel", "kernel stage0_kernel"]
    amd.settle()
    verify.check(run.expr, {"a": a.values()}, out.values())


@pytest.mark.parametrize("apart", [16, 0, -16])
def test_out_that_overlaps_an_input_is_written_last(amd: AmdGpus, apart: int) -> None:
    """Each thread would read what the one before it wrote."""
    run, whole = kernel("small", amd).load(), Array(amd, values((70, 3)))
    a, out = Array(amd, values(SMALL)), Array(amd, values(SMALL))
    a.address, out.address = whole.address + 16, whole.address + 16 + apart
    before, mark = a.values().copy(), len(amd.calls)
    run(a, out=out)
    launch = ["hipModuleLaunchKernel", "kernel stage0_kernel"]
    assert amd.since(mark) == ["hipMalloc", *launch, "hipMemcpyDtoDAsync"]
    amd.settle()
    verify.check(run.expr, {"a": before}, out.values())


class ReadOnly(Array):
    """Of a library that says by DLPack's versions that its array may not be written."""

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return lend(self.address, self.shape, self.dtype.name, self.__dlpack_device__(), self, versioned=True, read_only=True)


def readonly(amd: AmdGpus) -> Any:
    return ReadOnly(amd, values(SMALL))


def transposed(amd: AmdGpus) -> Any:
    return Array(amd, values(SMALL), strides=(1, 64))


def half(amd: AmdGpus) -> Any:
    return Array(amd, values(SMALL).astype(np.float16))


def other_shape(amd: AmdGpus) -> Any:
    return Array(amd, values((3, 64)))


def shifted(amd: AmdGpus) -> Any:
    return Array(amd, values(SMALL), shift=4)


def elsewhere(amd: AmdGpus) -> Any:
    return Array(amd, values(SMALL), number=1)


def in_host_memory(_: AmdGpus) -> Any:
    return values(SMALL)


def learning(amd: AmdGpus) -> Any:
    tensor = Tensor(amd, values(SMALL))
    tensor.requires_grad = True
    return tensor


def strided_tensor(amd: AmdGpus) -> Any:
    return Tensor(amd, values(SMALL), contiguous=False)


WRONG = [
    (transposed, "not contiguous; copy it first"),
    (strided_tensor, "not contiguous; copy it first"),
    (half, "element type float16 given, float32 wanted"),
    (other_shape, r"shape \(3, 64\) given"),
    (shifted, "needs a multiple of 16 bytes; copy it first"),
    (learning, "requires a gradient"),
]


@pytest.mark.parametrize(("make", "said"), WRONG)
def test_arrays_that_do_not_fit_are_refused(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch, make: Any, said: str) -> None:
    rocm_torch(monkeypatch, amd)
    run = kernel("small", amd).load()
    mark = len(amd.calls)
    with pytest.raises(LaunchError, match=said):
        run(make(amd))
    with pytest.raises(LaunchError, match=f"out: .*{said}"):
        run(Array(amd, values(SMALL)), out=make(amd))
    assert "hipModuleLaunchKernel" not in amd.since(mark)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (elsewhere, r"a on GPU 0, out on GPU 1; bring them to one place"),
        (in_host_memory, r"a on GPU 0, out in host memory; bring them to one place"),
        (readonly, "out: the array is read-only"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(amd: AmdGpus, make: Any, said: str) -> None:
    run = kernel("small", amd)
    with pytest.raises(LaunchError, match=said):
        run(Array(amd, values(SMALL)), out=make(amd))


def test_arrays_that_may_not_be_written_can_be_read(amd: AmdGpus) -> None:
    run, a, out = kernel("small", amd), readonly(amd), Array(amd, values(SMALL, 5))
    run(a, out=out)
    amd.settle()
    verify.check(run.expr, {"a": a.values()}, out.values())


class Plain(Array):
    """Of a library that knows nothing of DLPack's versions."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return super().__dlpack__(stream=stream)


def test_libraries_need_not_know_dlpacks_versions(amd: AmdGpus) -> None:
    run, a, out = kernel("small", amd), Plain(amd, values(SMALL)), Plain(amd, values(SMALL, 5))
    run(a, out=out)
    amd.settle()
    verify.check(run.expr, {"a": a.values()}, out.values())


def test_arrays_in_different_places_are_refused(amd: AmdGpus) -> None:
    run = kernel("product", amd)
    with pytest.raises(LaunchError, match="a in host memory, b on GPU 0"):
        run(values(A), Array(amd, values(B)))
    with pytest.raises(LaunchError, match="a on GPU 1, b on GPU 0"):
        run(Array(amd, values(A), number=1), Array(amd, values(B)))
    with pytest.raises(LaunchError, match="2 wanted"):
        run(Array(amd, values(A)), Array(amd, values(B)), Array(amd, values(B)))
