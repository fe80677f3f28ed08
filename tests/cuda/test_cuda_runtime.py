"""Running CUDA kernels without a GPU: our calls of the driver against one that checks them, and kernels on the emulator."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from emulating import needs_compiler, needs_cxx
from fake_arrays import Array, Interfaced, Namespaced, fake_torch
from fake_gpu import Gpus, kernel, why_not
from gpu_runtime import SMALL, CupyStream, Names, RuntimeContract, right, values
from roller.errors import LaunchError
from roller_cuda.runtime import driver, gpu, gpu_arrays

pytestmark = [needs_compiler, needs_cxx, pytest.mark.skipif(bool(why_not()), reason=why_not())]


class TestCuda(RuntimeContract):
    names = Names(
        driver=driver,
        gpu=gpu,
        foreign=gpu_arrays,
        kernel=kernel,
        torch=fake_torch,
        copies=frozenset({"cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync"}),
        waits=frozenset({"cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree", "cuMemAlloc"}),
        once=frozenset({"cuMemAlloc", "cuLibraryLoadData", "cuKernelGetAttribute", "cuStreamCreate"}),
        allocation="cuMemAlloc",
        launch="cuLaunchKernel",
        launched="kernel stage0_kernel cluster 1",
        default_stream=driver.LEGACY_STREAM,
        kind="cuda",
    )


class HandleStream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@pytest.mark.parametrize("wrap", [int, HandleStream, CupyStream])
def test_streams_are_handles_or_objects(gpus: Gpus, wrap: Any) -> None:
    run, a = kernel("small", gpus).load(), Namespaced(gpus, values((64, 3)))
    stream = gpus.new_stream()
    run(a, stream=wrap(stream))
    assert a.streams == [stream]


@pytest.mark.parametrize("told", [True, False])
def test_arrays_with_the_cuda_array_interface_alone(gpus: Gpus, told: bool) -> None:
    run, inner = kernel("small", gpus).load(), Array(gpus, values((64, 3)), number=1)
    stream = gpus.new_stream(1) if told else None
    result = run(Interfaced(inner, stream))
    gpus.settle()
    wanted = stream if told else gpu.gpu(1).stream
    interface = result.__cuda_array_interface__
    assert interface["stream"] == wanted and gpus.device_of(interface["data"][0]) == 1
    again = run(result)  # results are arrays to compute with
    gpus.settle()
    got = np.frombuffer(ctypes.string_at(again.__cuda_array_interface__["data"][0], 4 * 192), np.float32)
    right(run, got, a=inner.values())


def test_the_driver_is_told_how_much_shared_memory_a_kernel_prefers(gpus: Gpus) -> None:
    """All blocks that fit together get room; a kernel saved before that was said is launched without."""
    made = kernel("small", gpus)
    (described,) = made.artifact.launch["kernels"]
    run = made.load()
    run(Namespaced(gpus, values((64, 3))))
    assert gpus.asked_for(described["name"], "PREFERRED_SHARED_MEMORY_CARVEOUT") == described["carveout_percent"]
    assert 0 <= described["carveout_percent"] <= 100


def test_read_only_arrays_are_not_written(gpus: Gpus) -> None:
    """The array interface says so."""
    with pytest.raises(LaunchError, match="out: the array is read-only"):
        kernel("small", gpus)(Array(gpus, values(SMALL)), out=Interfaced(Array(gpus, values(SMALL)), readonly=True))
