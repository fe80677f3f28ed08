"""Timing probes through the driver, on one that is not there: calls are in order, and all that was taken is given back."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roller.errors import DeviceUnavailableError, LaunchError
from roller_cuda import gpu, probes
from roller_cuda.probes import Launch, Probe


class FakeDriver:
    """The driver's functions that are used, with a GPU that counts what is taken and given back."""

    def __init__(self, **failing: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.held: list[str] = []
        self.failing = failing  # calls that fail, by name: from which on
        self.CUdevice_attribute = SimpleNamespace(
            **{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in (*gpu.ATTRIBUTES.values(), *CAPABILITY)}
        )

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> tuple[Any, ...]:
            self.calls.append((name, *given))
            before = sum(made[0] == name for made in self.calls)
            if before >= self.failing.get(name, 10**9):
                return (Status(2, "CUDA_ERROR_OF_THE_TEST"), None)
            for taken, given_back in PAIRS.items():
                if name == taken:
                    self.held.append(taken)
                elif name == given_back:
                    self.held.remove(taken)
            if name == "cuMemcpyDtoH":
                ctypes.memmove(given[0], (ctypes.c_uint64 * 4)(1500, 1000, 0, 0), 32)
            return (Status(0, "CUDA_SUCCESS"), ANSWERS.get(name))

        return call


class Status(int):
    """A result of the driver, as its bindings give it."""

    def __new__(cls, value: int, name: str) -> Status:
        made = super().__new__(cls, value)
        made.name = name
        return made

    name: str


CAPABILITY = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
PAIRS = {
    "cuDevicePrimaryCtxRetain": "cuDevicePrimaryCtxRelease",
    "cuCtxPushCurrent": "cuCtxPopCurrent",
    "cuModuleLoadData": "cuModuleUnload",
    "cuMemAlloc": "cuMemFree",
    "cuEventCreate": "cuEventDestroy",
}
ANSWERS = {
    "cuDeviceGetCount": 1,
    "cuDeviceGet": 0,
    "cuDeviceGetName": b"NVIDIA Test\0\0",
    "cuDeviceTotalMem": 1 << 34,
    "cuDeviceGetAttribute": 8,
    "cuModuleLoadData": object(),
    "cuMemAlloc": 1 << 20,
    "cuEventCreate": object(),
    "cuEventElapsedTime": 2.5,
}


def test_a_probe_is_timed_between_two_events_after_what_prepares_it() -> None:
    driver = FakeDriver()
    flush, chain = Launch("probe_read", 4, 256, 64, 1, offset=4096), Launch("probe_chain", 2, 256, 32, 1)
    probe = Probe("x", "ns", Launch("probe_chase", 1, 1, 32, 7), 7, 8192, launches=3, prepare=chain, flush=flush)
    with gpu.Gpu(driver) as device:
        assert device.facts.name == "NVIDIA Test"
        assert (device.facts.capability, device.facts.sms, device.facts.memory_bytes) == ((8, 8), 8, 1 << 34)
        device.load(b"cubin", 8192)
        driver.calls.clear()
        samples = device.samples(probe)
    assert [(s.seconds, s.cycles, s.nanoseconds) for s in samples] == [(0.0025, 1500, 1000)] * probes.REPEATS
    assert driver.held == []
    names = [call[0] for call in driver.calls if call[0] != "cuModuleGetFunction"]
    timed = ["cuLaunchKernel", "cuCtxSynchronize", "cuEventRecord", *["cuLaunchKernel"] * 3, "cuEventRecord", "cuEventSynchronize"]
    once = ["cuMemsetD8", "cuLaunchKernel", *timed, "cuEventElapsedTime", "cuMemcpyDtoH"]
    assert names[: len(once)] == once
    launched = [call for call in driver.calls if call[0] == "cuLaunchKernel"]
    asked = [call[1] for call in driver.calls if call[0] == "cuModuleGetFunction"]
    assert len(asked) == len(launched) == 1 + probes.REPEATS * 4
    (_, _, *shape, parameters, _) = launched[1]
    assert shape == [4, 1, 1, 256, 1, 1, 0, 0]
    assert parameters[0] == ((1 << 20) + 4096, 1 << 20, 64, 1)
    assert [ctypes.sizeof(kind) for kind in parameters[1]] == [8, 8, 8, 4]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("cuDevicePrimaryCtxRetain", "taking the GPU"),
        ("cuCtxPushCurrent", ""),
        ("cuModuleLoadData", "loading the probes"),
        ("cuMemAlloc", "GB of GPU memory"),
        ("cuEventCreate", ""),
        ("cuLaunchKernel", "measuring barrier"),
        ("cuEventSynchronize", "measuring barrier"),
    ],
)
def test_whatever_fails_everything_is_given_back(call: str, words: str) -> None:
    driver = FakeDriver(**{call: 2 if call == "cuMemAlloc" else 1})
    with pytest.raises(LaunchError, match=f"{words}.*the CUDA driver says CUDA_ERROR_OF_THE_TEST"), gpu.Gpu(driver) as device:
        device.load(b"cubin", 10**9)
        device.samples(Probe("barrier", "ns", Launch("probe_barrier", 1, 256, 1, 9), 72))
    assert driver.held == []


def test_the_drivers_bindings_have_what_is_asked_for() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    for name in (*gpu.ATTRIBUTES.values(), *CAPABILITY):
        assert hasattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    text = Path(gpu.__file__).read_text(encoding="utf-8")
    called = {word for word in text.replace("(", " ").replace(".", " ").split() if word.startswith("cu") and word[2:3].isupper()}
    assert len(called) > 15
    assert all(callable(getattr(driver, name)) for name in called)


def test_without_a_driver_or_a_gpu_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    for fake, words in (
        (FakeDriver(cuInit=1), "does not start: CUDA_ERROR_OF_THE_TEST"),
        (SimpleNamespace(cuInit=lambda _: (Status(0, ""),), cuDeviceGetCount=lambda: (Status(0, ""), 0)), "finds no GPU"),
    ):
        for name in ("cuInit", "cuDeviceGetCount"):
            monkeypatch.setattr(driver, name, getattr(fake, name))
        with pytest.raises(DeviceUnavailableError, match=words):
            gpu.attached()

    def missing(_: int) -> None:
        raise RuntimeError("libcuda.so.1 is\nnot there")

    monkeypatch.setattr(driver, "cuInit", missing)
    with pytest.raises(DeviceUnavailableError, match=r"no NVIDIA driver, or none that works: libcuda\.so\.1 is not there"):
        gpu.attached()
