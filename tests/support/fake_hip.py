"""AMD GPUs for tests: `fake_hip.cpp` in the place of HIP's runtime, kernels computed by the reference.

What a kernel of several computes is known of the whole program only: all but the last leave a number in their workspace that stands
for the inputs as they were when they ran, and the last one computes from those. So a workspace that others wrote to shows.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roller
from fake_arrays import Namespaced, fake_torch
from gpu_runtime import compiled
from roller import verify
from roller.device.chip import load_spec
from roller.errors import DeviceUnavailableError
from roller.runtime.host_compiler import host_compiler
from roller.target.hardware import HardwareSpec
from roller_rocm.chip.facts import ATTRIBUTES
from roller_rocm.runtime import gpu, hip
from roller_rocm.toolchain import linkers

MACHINES = {"gfx906": 0x2F, "gfx908": 0x30, "gfx90a": 0x3F, "gfx942": 0x4C, "gfx1100": 0x41}  # in the flags of ELF files
CODES = {
    **{"InvalidValue": 1, "OutOfMemory": 2, "NotInitialized": 3, "InsufficientDriver": 35, "InvalidImage": 200},
    **{"NoBinaryForGpu": 209, "SharedObjectInitFailed": 303, "IllegalAddress": 700, "LaunchOutOfResources": 701},
    **{"LaunchFailure": 719, "Unknown": 999},
}
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_uint)
_LOOKS = r"hip(Get|Set|Init|RuntimeGet|DeviceGet|DeviceTotal|Event|StreamIs)"
Run = Callable[[Any, int, int], int]  # arguments, blocks, threads → 0 if it went well
Values = np.ndarray[Any, Any]


def why_not() -> str:
    """Why there can be no fake runtime here; empty where there can."""
    try:
        host_compiler("the fake HIP needs")
    except DeviceUnavailableError as error:
        return str(error)
    return "; ".join(linkers.problems())


def library(folder: Path, *defined: str) -> Path:
    """The fake as a library in a folder, compiled once; `defined`: "HIP5" for one that is as old."""
    target, source = folder / f"{'-'.join(['fakehip', *defined])}.so", Path(__file__).with_name("fake_hip.cpp")
    if not target.is_file():
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC", *(f"-D{name}" for name in defined)]
        subprocess.run([*host_compiler("the fake HIP needs"), *flags, "-o", str(target), str(source)], check=True)
    return target


def forget() -> None:
    """The plugin knows nothing of a runtime that it has seen."""
    for known in (hip._library, hip._function, hip.alone, gpu._made):
        known.cache_clear()
    hip.FORKS.used = hip.FORKS.forked = False


class AmdGpus:
    """GPUs like an MI50. `folder`: where the fake is, or will be."""

    dlpack_device = 10  # kDLROCM

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, count: int = 2) -> None:
        self._monkeypatch, self._folder = monkeypatch, folder
        self._runs: dict[str, Run] = {}
        self._run = _RUN(self._start)
        monkeypatch.setattr(hip, "mapped", lambda: ())
        monkeypatch.setattr(Namespaced, "stream", 0)
        self.use()
        self.become_none(count)

    def use(self, *defined: str) -> None:
        """Of that version from now on; nothing is attached."""
        self.path = library(self._folder, *defined)
        self._monkeypatch.setenv(hip.LIBRARY, str(self.path))
        forget()
        self._lib = ctypes.CDLL(str(self.path))
        for name in ("fake_call", "fake_fault"):
            getattr(self._lib, name).restype, getattr(self._lib, name).argtypes = ctypes.c_char_p, [ctypes.c_size_t]
        for name in ("fake_place", "fake_live", "fake_pending", "fake_events", "fake_modules"):
            getattr(self._lib, name).restype = ctypes.c_size_t
        self._lib.fake_place.argtypes = [ctypes.c_int, ctypes.c_size_t]

    def become_none(self, count: int = 0) -> None:
        """So many GPUs from now on, of which nothing is known."""
        forget()
        self._lib.fake_reset(count, self._run)
        for number in range(count):
            self.become(number, load_spec("rocm:mi50"))

    def become(self, number: int, spec: HardwareSpec, arch: str = "", **changed: int) -> None:
        """A GPU has what a spec says; `changed`: what differs, by the names of `gpu.Facts`, and "blocks", "lanes"."""
        gpu._made.cache_clear()
        arch = arch or str(spec.options["arch"])
        told = {
            "memory_bytes": int(0.98 * spec.outermost.capacity_bytes),
            "units": spec.unit.count,
            "compute_units": spec.unit.count,
            "clock_khz": round(1e6 * spec.clock_ghz),
            "local_bytes": spec.level("shared").usable_bytes,
            **{"blocks": 2**31 - 1, "lanes": 1024},
            **changed,
        }
        memory = ctypes.c_size_t(told["memory_bytes"])
        self._lib.fake_device(number, arch.encode(), MACHINES.get(arch, 0), memory)
        other = {gpu.MAX_GRID: "blocks", gpu.MAX_LANES: "lanes"}
        for which, name in {**{which: field for field, which in ATTRIBUTES.items()}, **other}.items():
            self._lib.fake_attribute(number, which, told[name])

    def gone(self) -> list[str]:
        """Finish all work and take the GPUs away; what was wrong until then, and what nobody gave back."""
        self.settle()
        self._runs.clear()  # they hold kernels
        if self._left():
            gc.collect()
        wrong = [*self._left(), *self.faults]
        self._lib.fake_reset(0, self._run)
        forget()
        return wrong

    def _left(self) -> list[str]:
        """What nobody gave back, once all work is done and what was kept for later is gone."""
        self.settle()
        for one in [gpu._made(number) for number in range(2)] if hip.FORKS.used else []:
            if one._pool is not None:
                with one.current():
                    one.wait()
                    one.pool.trim()
        found = {"pieces of memory": self._lib.fake_live(0) + self._lib.fake_live(1), "modules": self._lib.fake_modules()}
        return [f"{count} {what} left" for what, count in {**found, "events": self._lib.fake_events()}.items() if count]

    def plan(self, built: roller.Kernel, local: int = 0, lanes: int = 1024) -> None:
        """The kernels of an artifact can be launched. `local`, `lanes`: what the runtime says of them."""
        launch, seen = built.artifact.launch, {}
        for described in launch["kernels"]:
            self.plan_by_hand(described["name"], len(described["arguments"]), local, lanes)
            self._runs[described["name"]] = partial(_computed, built, described, seen)

    def plan_by_hand(self, name: str, arguments: int, local: int = 0, lanes: int = 1024, run: Run | None = None) -> None:
        """A kernel of a test's own, or one that does nothing."""
        self._lib.fake_plan(name.encode(), arguments, local, lanes)
        if run is not None:
            self._runs[name] = run

    def _start(self, name: bytes, arguments: Any, blocks: int, threads: int) -> int:
        run = self._runs.get(name.decode())
        return 0 if run is None else run(arguments, blocks, threads)

    def fail(self, function: str, after: int, status: str) -> None:
        """The call after so many of that function fails; `status` without its prefix."""
        self._lib.fake_fail(function.encode(), after, CODES[status])

    def works(self, function: str) -> None:
        """It does not fail any more."""
        self._lib.fake_fail(function.encode(), 1 << 30, 0)

    def settle(self) -> None:
        """All work is done."""
        self._lib.fake_settle()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, f"fake_{name}")

    def live(self, number: int) -> int:
        """How many pieces of a GPU's memory are in use, without what is kept for later."""
        pool = gpu._made(number)._pool
        return int(self._lib.fake_live(number)) - (0 if pool is None else pool.kept)

    def capture(self, stream: int) -> None:
        """What comes on the stream from now on goes to a graph."""
        self._lib.fake_capture(ctypes.c_size_t(stream))

    def capacity(self, size: int) -> None:
        """The bytes that there are for all."""
        self._lib.fake_capacity(ctypes.c_size_t(size))

    @property
    def calls(self) -> list[str]:
        """What was asked of the runtime, in order."""
        return self._listed(self._lib.fake_call)

    @property
    def faults(self) -> list[str]:
        """What HIP's documentation does not allow."""
        return self._listed(self._lib.fake_fault)

    def since(self, mark: int) -> list[str]:
        """Calls after the first so many, without those that only look."""
        return [call for call in self.calls[mark:] if not re.match(_LOOKS, call)]

    @staticmethod
    def _listed(get: Callable[[int], bytes | None]) -> list[str]:
        found: list[str] = []
        while (each := get(len(found))) is not None:
            found.append(each.decode())
        return found

    def new_stream(self, number: int = 0) -> int:
        """A stream of somebody else's on a GPU."""
        with gpu.gpu(number).current():
            return hip.handle("hipStreamCreateWithFlags", 0)

    def place(self, size: int, number: int = 0) -> int:
        """Memory of somebody else's on a GPU."""
        return int(self._lib.fake_place(number, max(size, 1)))


# --- kernels ---------------------------------------------------------------------------------------------------------------

_tokens = itertools.count(1)


def _computed(
    built: roller.Kernel, described: Any, seen: dict[int, dict[str, Values]], given: Any, blocks: int, threads: int
) -> int:
    """One kernel of a program; see the module."""
    if (blocks, threads) != (described["blocks"], described["threads"]):
        return 1
    places = dict(zip(described["arguments"], (given[n] for n in range(len(described["arguments"]))), strict=True))
    spaces = [space["name"] for space in built.artifact.launch["workspaces"] if space["name"] in places]
    arrays: dict[str, Values] = {}
    for name in spaces:
        arrays |= seen.get(ctypes.c_uint32.from_address(places[name]).value, {})
    for tensor in built.expr.inputs:
        if tensor.name in places:
            dtype = verify.numpy_dtype(tensor.dtype)
            raw = ctypes.string_at(places[tensor.name], tensor.elements * dtype.itemsize)
            arrays[tensor.name] = np.frombuffer(raw, dtype).reshape(tensor.shape)
    output = built.expr.output
    if output.name in places:
        if set(arrays) != {tensor.name for tensor in built.expr.inputs}:
            return 2  # a kernel before this one did not leave what it saw
        result = verify.reference(built.expr, arrays).astype(verify.numpy_dtype(output.dtype))
        ctypes.memmove(places[output.name], np.ascontiguousarray(result).ctypes.data, result.nbytes)
        return 0
    token = next(_tokens)
    seen[token] = arrays
    for name in spaces:
        ctypes.c_uint32.from_address(places[name]).value = token
    return 0


@cache
def made(kind: str, chip: str = "rocm:mi50") -> roller.Kernel:
    """As `compiled`, once."""
    return compiled(kind, chip)


def kernel(kind: str, amd: AmdGpus, chip: str = "rocm:mi50") -> roller.Kernel:
    """A kernel that nobody has loaded, on GPUs that can start it."""
    found = made(kind, chip)
    amd.plan(found)
    return roller.Kernel(found.artifact, found.expr, found._device)


def changed(kind: str, data: bytes | None = None, **launch: Any) -> roller.Kernel:
    """The same with another code object or launch description; the runtime is not told of its kernels."""
    found = made(kind)
    artifact = replace(
        found.artifact, data=found.artifact.data if data is None else data, launch={**found.artifact.launch, **launch}
    )
    return roller.Kernel(artifact, found.expr, found._device)


def rocm_torch(monkeypatch: pytest.MonkeyPatch, amd: AmdGpus, version: str | None = "6.4") -> Any:
    """A torch for that HIP; None: one for other GPUs."""
    torch = fake_torch(monkeypatch, amd)
    torch.version = type("version", (), {"hip": version})
    return torch
