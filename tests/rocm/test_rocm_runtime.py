"""Running kernels on AMD GPUs without one: our calls of HIP's runtime against one that checks them."""

from __future__ import annotations

from typing import Any

import pytest

from fake_arrays import Array, Namespaced, Tensor
from fake_hip import AmdGpus, kernel, rocm_torch, why_not
from gpu_runtime import SMALL, A, B, CupyStream, Names, RuntimeContract, right, values
from roller.errors import LaunchError
from roller.runtime.dlpack import lend
from roller_rocm.runtime import gpu, gpu_arrays, hip

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


class TestRocm(RuntimeContract):
    names = Names(
        driver=hip,
        gpu=gpu,
        foreign=gpu_arrays,
        kernel=kernel,
        torch=rocm_torch,
        copies=frozenset({"hipMemcpyHtoD", "hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync", "hipMemcpyDtoDAsync"}),
        waits=frozenset({"hipStreamSynchronize", "hipDeviceSynchronize", "hipFree"}),
        once=frozenset({"hipMalloc", "hipMemcpyHtoD", "hipModuleLoadData", "hipModuleGetFunction"}),
        allocation="",
        launch="hipModuleLaunchKernel",
        launched="kernel stage0_kernel",
        default_stream=hip.DEFAULT_STREAM,
        kind="rocm",
    )

    @pytest.fixture
    def gpus(self, amd: AmdGpus) -> AmdGpus:
        return amd


def test_calls_are_made_in_the_order_of_their_stream(amd: AmdGpus) -> None:
    run = kernel("product", amd)
    run(values(A), values(B))
    mark = len(amd.calls)
    run(values(A), values(B))
    launch = ["hipModuleLaunchKernel", "kernel stage0_kernel"]
    assert amd.since(mark) == [*["hipMemcpyHtoDAsync"] * 2, *launch, "hipMemcpyDtoHAsync", "hipStreamSynchronize"]


def test_pinned_memory_is_the_hosts(amd: AmdGpus) -> None:
    run, a = kernel("small", amd), Array(amd, values(SMALL))
    amd.dlpack_device = 11  # kDLROCMHost
    right(run, run(a), a=a.values())


def test_torch_tensors_of_the_host_travel(amd: AmdGpus) -> None:
    torch = pytest.importorskip("torch")
    run, a = kernel("small", amd), torch.from_numpy(values(SMALL))
    result = run(a)
    assert type(result) is torch.Tensor
    right(run, result.numpy(), a=a.numpy())


def test_a_torch_for_other_gpus_is_refused(amd: AmdGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = rocm_torch(monkeypatch, amd, version=None)
    torch.int16 = torch.bfloat16 = object()
    with pytest.raises(LaunchError, match="takes arrays in host memory"):
        kernel("small", amd)(Tensor(amd, values(SMALL)))


class TorchStream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


@pytest.mark.parametrize("wrap", [int, CupyStream, TorchStream])
def test_streams_are_handles_or_objects(amd: AmdGpus, wrap: Any) -> None:
    run, a = kernel("small", amd).load(), Namespaced(amd, values(SMALL))
    stream = amd.new_stream()
    run(a, stream=wrap(stream))
    assert a.streams == [stream]


class ReadOnly(Array):
    """Of a library that says by DLPack's versions that its array may not be written."""

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return lend(self.address, self.shape, self.dtype.name, self.__dlpack_device__(), self, versioned=True, read_only=True)


def test_arrays_that_may_not_be_written_can_be_read(amd: AmdGpus) -> None:
    run, a, out = kernel("small", amd), ReadOnly(amd, values(SMALL)), Array(amd, values(SMALL, 5))
    run(a, out=out)
    amd.settle()
    right(run, out.values(), a=a.values())
    with pytest.raises(LaunchError, match="out: the array is read-only"):
        run(out, out=a)


class Plain(Array):
    """Of a library that knows nothing of DLPack's versions."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return super().__dlpack__(stream=stream)


def test_libraries_need_not_know_dlpacks_versions(amd: AmdGpus) -> None:
    run, a, out = kernel("small", amd), Plain(amd, values(SMALL)), Plain(amd, values(SMALL, 5))
    run(a, out=out)
    amd.settle()
    right(run, out.values(), a=a.values())
