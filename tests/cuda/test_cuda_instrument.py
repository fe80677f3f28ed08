"""Timing probes through the driver, on one that is not there: calls are in order, and all that was taken is given back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emulating import needs_compiler, needs_cxx
from fake_gpu import Gpus, built, why_not
from measuring import seconds_of, truth
from roller.device.chip import load_spec
from roller.errors import DeviceUnavailableError, LaunchError
from roller_cuda.chip import calibration, default, probes
from roller_cuda.chip.facts import facts_of
from roller_cuda.chip.probe_timer import measuring
from roller_cuda.chip.probes import Launch, Probe
from roller_cuda.runtime import driver, gpu

pytestmark = [needs_compiler, needs_cxx, pytest.mark.skipif(bool(why_not()), reason=why_not())]
PARAMETERS = "ppli"  # data, ticks, count, rounds


def cubin() -> bytes:
    """A binary for an A100; which kernels it has says the fake."""
    return built("small").artifact.data


def noting(seen: list[tuple[Any, ...]], name: str) -> Callable[[Any, int, int], int]:
    """A probe that remembers with what it was started, and leaves 1500 cycles and 1000 nanoseconds."""

    def run(arguments: Any, blocks: int, threads: int) -> int:
        given = [int(arguments[n] or 0) for n in range(4)]
        ctypes.memmove(given[1], (ctypes.c_uint64 * 2)(1500, 1000), 16)
        seen.append((name, given, blocks, threads))
        return 0

    return run


def test_a_probe_is_timed_between_two_events_after_what_prepares_it(gpus: Gpus) -> None:
    seen: list[tuple[Any, ...]] = []
    before = gpus.held()  # by GPUs of other tests
    for name in ("probe_read", "probe_chain", "probe_chase"):
        gpus.plan_by_hand(name, PARAMETERS, run=noting(seen, name))
    flush, chain = Launch("probe_read", 4, 256, 64, 1, offset=4096), Launch("probe_chain", 2, 256, 1 << 40, 1)
    probe = Probe("x", "ns", Launch("probe_chase", 1, 1, 32, 7), 7, 8192, launches=3, prepare=chain, flush=flush, ahead=flush)
    with measuring(gpu.gpu(0)) as instrument:
        assert instrument.facts == facts_of(gpu.gpu(0))
        instrument.load(cubin(), 8192)
        mark = len(gpus.calls)
        samples = instrument.samples(probe)
        calls = [call for call in gpus.calls[mark:] if not call.startswith(("kernel", "cuLibraryGetKernel"))]
    assert [(s.seconds, s.cycles, s.nanoseconds) for s in samples] == [(3 * 0.00125, 1500, 1000)] * probes.REPEATS
    assert (gpus.live(0), gpus.held()) == (0, before)
    timed = ["cuLaunchKernel", "cuStreamSynchronize", "cuLaunchKernel", "cuEventRecord", *["cuLaunchKernel"] * 3, "cuEventRecord"]
    once = [*timed, "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuEventElapsedTime"]
    assert calls == ["cuMemsetD8Async", "cuLaunchKernel", *once * probes.REPEATS]
    assert [name for name, *_ in seen] == ["probe_chain", *["probe_read", "probe_read", *["probe_chase"] * 3] * probes.REPEATS]
    (_, (data, ticks, *numbers), *shape), (_, (moved, same, *_), *_) = seen[:2]
    assert (numbers, shape) == ([1 << 40, 1], [2, 256])
    assert (moved, same) == (data + 4096, ticks)
    assert ticks not in range(data, data + 8192)


@pytest.mark.parametrize(
    ("call", "after", "words"),
    [
        ("cuDevicePrimaryCtxRetain", 0, ""),
        ("cuCtxPushCurrent", 0, ""),
        ("cuLibraryLoadData", 0, "loading the probes on GPU 0"),
        ("cuMemAlloc", 0, "measuring on GPU 0"),
        ("cuMemAlloc", 1, r"0\.1 GB of GPU memory to measure with"),
        ("cuEventCreate", 1, ""),
        ("cuLaunchKernel", 3, "measuring barrier"),
        ("cuStreamSynchronize", 3, "measuring barrier"),
        ("cuEventElapsedTime", 0, "measuring barrier"),
    ],
)
def test_whatever_fails_everything_is_given_back(gpus: Gpus, call: str, after: int, words: str) -> None:
    before = gpus.held()
    gpus.plan_by_hand("probe_barrier", PARAMETERS)
    gpus.fail(call.encode(), after, int(driver.constant("CUresult.CUDA_ERROR_UNKNOWN")))
    with pytest.raises(LaunchError, match=f"{words}.*{call} says CUDA_ERROR_UNKNOWN"), measuring(gpu.gpu(0)) as instrument:
        instrument.load(cubin(), 10**8)
        instrument.samples(Probe("barrier", "ns", Launch("probe_barrier", 1, 256, 1, 9), 72))
    gpus.settle()
    assert (gpus.live(0), gpus.held()) == (0, before)


def test_a_gpu_is_measured_and_known_from_then_on(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command's whole way but for the kernels' work, with invented times and little memory, which is really there."""
    monkeypatch.setenv("ROLLER_CONFIG_DIR", str(tmp_path))
    shipped, before = load_spec("cuda:l4"), gpus.held()
    for number in range(2):
        gpus.become(number, shipped)
        gpus.attribute(number, -1, 1 << 10)
    gpus.current(1)
    facts = facts_of(gpu.gpu(1))
    values = truth(facts, shipped)
    table = probes.table(facts, calibration.expected(facts, shipped))
    times = seconds_of(table, values)

    def running(kernel: str) -> Callable[[Any, int, int], int]:
        def taking(arguments: Any, blocks: int, threads: int) -> int:
            seconds = times.get((kernel, int(arguments[2]), int(arguments[3])), 1e-3)
            gpus.takes(seconds)
            clocks = (ctypes.c_uint64 * 2)(round(1.7e9 * seconds), round(1e9 * seconds))
            ctypes.memmove(arguments[1], clocks, 16)
            return 0

        return taking

    for launch in {launch for p in table for launch in (p.launch, p.prepare, p.flush) if launch}:
        gpus.plan_by_hand(launch.kernel, PARAMETERS, run=running(launch.kernel))
    with pytest.warns(UserWarning, match="memory bytes"):
        assert default.default_spec().chip == "l4"
    spec = calibration.measure_spec()
    assert (gpus.live(1), gpus.held()) == (0, before)
    assert default.default_spec() == spec and spec.clock_ghz == 1.7
    for name, value in calibration.specified(spec).items():
        assert value == pytest.approx(values[name], rel=0.006), name


def test_a_kernel_that_the_cubin_lacks_is_named(gpus: Gpus) -> None:
    with pytest.raises(LaunchError, match=r"measuring lost: .*NOT_FOUND"), measuring(gpu.gpu(0)) as instrument:
        instrument.load(cubin(), 64)
        instrument.samples(Probe("lost", "ns", Launch("probe_that_is_not_there", 1, 32, 1, 1), 1))


def test_a_driver_that_does_not_start_and_no_gpu_are_told(gpus: Gpus) -> None:
    gpus.fail(b"cuInit", 0, int(driver.constant("CUresult.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")))
    with pytest.raises(DeviceUnavailableError, match=r"no NVIDIA driver, or none that works: .*restart the machine"):
        calibration.measure_spec()
    gpus.reset(0, gpus._run)
    with pytest.raises(DeviceUnavailableError, match="finds no GPU"):
        calibration.measure_spec()


def test_a_library_of_the_driver_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: int) -> None:
        raise RuntimeError("libcuda.so.1 is\nnot there")

    monkeypatch.setattr(driver, "_bindings", lambda: SimpleNamespace(cuInit=missing))
    with pytest.raises(DeviceUnavailableError, match=r"no NVIDIA driver, or none that works: libcuda\.so\.1 is not there"):
        calibration.measure_spec()
