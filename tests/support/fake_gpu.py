"""GPUs for tests: `fake_driver.cpp` in the place of the driver's library, kernels on the emulator."""

from __future__ import annotations

import ctypes
import gc
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import roller
from gpu_runtime import compiled, values
from measuring import facts_of
from roller import ops
from roller.device.chip import load_spec
from roller.runtime.artifact import Artifact
from roller.target.hardware import HardwareSpec
from roller_cuda.chip.facts import ATTRIBUTES
from roller_cuda.emulator import emulator
from roller_cuda.runtime import driver, gpu

LEFT, RIGHT = (200, 152), (152, 136)  # and of the one on Hopper's own path
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_uint)


WHOLE = 1 << 30  # bytes of shared memory: more than there are
Run = Callable[[Any, int, int], int]  # arguments, blocks, threads → 0 if it went well


def _cuda_header() -> Path | None:
    try:
        files = metadata.files("nvidia-cuda-runtime-cu12") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.name == "cuda.h"), None)


def why_not() -> str:
    """Why there can be no fake driver here; empty where there can."""
    if shutil.which("g++") is None:
        return "the fake driver needs g++"
    if _cuda_header() is None:
        return "the fake driver needs cuda.h of nvidia-cuda-runtime-cu12"
    if Path("/proc/driver/nvidia/version").exists():
        return "this machine has a driver of its own"
    return ""


@cache
def _library() -> ctypes.CDLL:
    """The fake, loaded under the name by which cuda-bindings looks for the driver: whoever asks for that name now gets it."""
    header = _cuda_header()
    assert header is not None
    folder = Path(tempfile.mkdtemp(prefix="roller-fake-driver-"))
    try:
        target = folder / "libcuda.so.1"
        source = Path(__file__).with_name("fake_driver.cpp")
        call = [
            "g++",
            "-std=c++17",
            "-O1",
            "-shared",
            "-fPIC",
            f"-I{header.parent}",
            "-Wl,-soname,libcuda.so.1",
            "-o",
            target,
            source,
        ]
        subprocess.run([*map(str, call)], check=True)
        library = ctypes.CDLL(str(target))
    finally:
        shutil.rmtree(folder)
    for name in ("fake_call", "fake_fault", "fake_map"):
        getattr(library, name).restype = ctypes.c_char_p
    for name in ("fake_call", "fake_fault", "fake_map", "fake_capacity", "fake_device_of"):
        getattr(library, name).argtypes = [ctypes.c_size_t]
    library.fake_live.restype = library.fake_pending.restype = library.fake_held.restype = ctypes.c_size_t
    return library


def _emulating(library: ctypes.CDLL, name: str) -> Run:
    function = getattr(library, f"emulate_{name}")
    return lambda arguments, blocks, threads: int(function(arguments, blocks, threads, 0, 0, WHOLE))


class Gpus:
    """Two GPUs like the chip of a spec. `streams`: handles made for tests, two a GPU."""

    dlpack_device = 2  # kDLCUDA

    def __init__(self, count: int = 2, chip: str = "cuda:a100") -> None:
        self._lib = _library()
        self._runs: dict[str, Run] = {}
        self._run = _RUN(self._start)
        self._lib.fake_reset(count, self._run)
        for number in range(count):
            self.become(number, load_spec(chip))
        self._forget()

    def gone(self) -> list[str]:
        """Finish all work and take the GPUs away; what was wrong until then."""
        gc.collect()
        self._lib.fake_settle()
        wrong = self.faults
        self._lib.fake_reset(0, self._run)
        self._forget()
        return wrong

    @staticmethod
    def _forget() -> None:
        gpu._made.cache_clear()
        driver.FORKS.used = driver.FORKS.forked = False

    def become(self, number: int, spec: HardwareSpec, **changed: int) -> None:
        """A GPU has what a spec says; `changed`: attributes that differ from it."""
        gpu._made.cache_clear()
        facts = facts_of(spec)
        found = {
            **{attribute: getattr(facts, field) for field, attribute in ATTRIBUTES.items()},
            "COMPUTE_CAPABILITY_MAJOR": facts.capability[0],
            "COMPUTE_CAPABILITY_MINOR": facts.capability[1],
            "MAX_GRID_DIM_X": 2**31 - 1,
            "MEMORY_POOLS_SUPPORTED": 1,
            "CLUSTER_LAUNCH": int(facts.capability[0] >= 9),
            **changed,
        }
        for name, value in found.items():
            which = int(driver.constant(f"CUdevice_attribute.CU_DEVICE_ATTRIBUTE_{name}"))
            self._lib.fake_attribute(number, which, value)
        self._lib.fake_attribute(number, -1, facts.memory_bytes >> 20)  # MiB

    def plan(self, artifact: Artifact, static_shared: int = 0) -> None:
        """The kernels of an artifact can be launched: they run on the emulator, from the text that the cubin was made of."""
        text = str(artifact.launch["text"])
        library = emulator.Emulator(artifact)._library
        for name, given in re.findall(r"__global__ void (?:__launch_bounds__\(\d+(?:, \d+)?\) )?(\w+)\((.*?)\)", text, re.DOTALL):
            kinds = ("m" if "RollerTensorMap" in parameter else "p" for parameter in given.split(","))
            self.plan_by_hand(name, "".join(kinds), static_shared)
            self._runs[name] = _emulating(library, name)

    def plan_by_hand(self, name: str, parameters: str, static_shared: int = 0, run: Run | None = None) -> None:
        """A kernel of a test's own, or one that does nothing: "p" for a pointer, "m" for a tensor map, "l" and "i" for numbers of
        64 and 32 bits.
        """
        self._lib.fake_plan(name.encode(), parameters.encode(), static_shared)
        if run is not None:
            self._runs[name] = run

    def takes(self, seconds: float) -> None:
        """How long the kernel that runs now takes."""
        self._lib.fake_take(ctypes.c_double(1e3 * seconds))

    def _start(self, name: bytes, arguments: Any, blocks: int, threads: int) -> int:
        run = self._runs.get(name.decode())
        return 0 if run is None else run(arguments, blocks, threads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, f"fake_{name}")

    @property
    def calls(self) -> list[str]:
        """What was asked of the driver, in order."""
        return self._listed(self._lib.fake_call)

    @property
    def faults(self) -> list[str]:
        """What the driver's documentation does not allow."""
        return self._listed(self._lib.fake_fault)

    def asked_for(self, name: str, attribute: str) -> int:
        """What the driver was told of an attribute of a loaded kernel; -1 where it was told nothing."""
        which = int(driver.constant(f"CUfunction_attribute.CU_FUNC_ATTRIBUTE_{attribute}"))
        return int(self._lib.fake_set(name.encode(), which))

    def since(self, mark: int) -> list[str]:
        """Calls after the first so many, without those that only look."""
        return [
            call
            for call in self.calls[mark:]
            if not re.match(r"cu(Ctx(Get|Push|Pop)|DeviceGet|Pointer|Driver|Init|Event|GetProc)", call)
        ]

    @staticmethod
    def _listed(get: Callable[[int], bytes | None]) -> list[str]:
        found, index = [], 0
        while (each := get(index)) is not None:
            found.append(each.decode())
            index += 1
        return found

    def new_stream(self, number: int = 0) -> int:
        """A stream of somebody else's on a GPU."""
        with gpu.gpu(number).current():
            return int(driver.call("cuStreamCreate", 0))

    def place(self, size: int, number: int = 0) -> int:
        """Memory of somebody else's on a GPU."""
        with gpu.gpu(number).current():
            return int(driver.call("cuMemAlloc", max(size, 1)))


# --- kernels ---------------------------------------------------------------------------------------------------------------


@cache
def built(kind: str) -> roller.Kernel:
    """As `compiled`, for an A100, once."""
    return compiled(kind, "cuda:a100")


@cache
def of_groups(constant: bool = False) -> roller.Kernel:
    """A ragged product for an H100 on Hopper's own path: warp groups, and panels and results that go through tensor maps. For small
    products the model prefers other programs, so it is given no atoms but those of 64 columns. `constant`: the second operand is
    fixed.
    """
    spec = load_spec("cuda:h100")
    spec = spec.model_copy(update={"atoms": tuple(atom for atom in spec.atoms if atom.name.startswith("wgmma_m64n64"))})
    a, b = ops.tensor(LEFT, "float16", name="a"), ops.tensor(RIGHT, "float16", name="b")
    constants = {"b": np.rint(2 * values(RIGHT, 1)).astype(np.float16)} if constant else None
    return roller.compile(ops.matmul(a, b), device="cuda", spec=spec, top_k=1, constants=constants)


@cache
def rounding_groups() -> roller.Kernel:
    """A product of float32 values on Hopper's own path, whose factors boxes round to tf32."""
    spec = load_spec("cuda:h100")
    spec = spec.model_copy(update={"atoms": tuple(atom for atom in spec.atoms if atom.name.startswith("wgmma"))})
    a, b = ops.tensor((72, 64), "float32", name="a"), ops.tensor((40, 64), "float32", name="b")
    return roller.compile(ops.matmul(a, b, transpose_b=True), device="cuda", spec=spec, top_k=1, precision="tf32")


def kernel(kind: str, gpus: Gpus) -> roller.Kernel:
    """A kernel that nobody has loaded, on GPUs that can start it."""
    return fresh(built(kind), gpus)


def fresh(found: roller.Kernel, gpus: Gpus) -> roller.Kernel:
    """The same, not loaded yet, on GPUs that can start it."""
    gpus.plan(found.artifact)
    return roller.Kernel(found.artifact, found.expr, found._device)


def changed(kind: str, data: bytes | None = None, **launch: Any) -> roller.Kernel:
    """The same with another cubin or launch description; the driver is not told of its kernels."""
    found = built(kind)
    artifact = replace(
        found.artifact, data=found.artifact.data if data is None else data, launch={**found.artifact.launch, **launch}
    )
    return roller.Kernel(artifact, found.expr, found._device)
