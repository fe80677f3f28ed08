"""A stand-in for a machine with a GPU: NumPy as the array library, kernels as functions, and the driver of `fake_libcuda.cpp`, in
place of which `hip_stand_in.py` has another maker's.

As a script it is the process that `bench.gpu.run` starts; what its kernels do stands in the job's package, beside the manifest.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from bench.cuda.driver import Driver
from bench.cuda.platform import PLATFORM
from bench.gpu import build, child, run, timing
from bench.gpu import driver as gpu_driver
from bench.gpu.driver import NOT_READY
from bench.gpu.driver import Driver as AnyDriver
from bench.gpu.library import Choices
from bench.gpu.operators import Operator
from bench.gpu.package import Entry, Package
from bench.gpu.platform import Platform
from bench.gpu.rounding import Bound
from bench.gpu.timing import Side
from bench.gpu.worker import line
from roller.runtime.artifact import Artifact
from roller_cuda.emulator import emulator

SOURCE = Path(__file__).parent / "fake_libcuda.cpp"
RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int)
ILLEGAL_ADDRESS = 700
WHOLE = 1 << 30  # bytes of shared memory: more than there are
CHIP = "a100"
RELU = Operator("small relu", "paper119 elementwise", "relu", "float32", {"x": (3, 37)})
OTHER = Operator("other relu", "paper119 elementwise", "relu", "float32", {"x": (5, 41)})
LAST = Operator("last relu", "paper119 elementwise", "relu", "float32", {"x": (7, 11)})
PRODUCT = Operator("small product", "fp16 GEMM ragged", "matmul", "float16", {"a": (17, 40), "b": (40, 24)})
DEEP = Operator("deep product", "paper119 matmul", "matmul", "float32", {"a": (4, 3000), "b": (3000, 8)}, ten=True)

Kernel = Callable[[list[int], int, int], int]  # addresses, blocks, threads → what the driver says of it


def silent(text: str) -> None:
    """Progress that nobody reads."""


def packed(platform: Platform, chip: str, folder: Path) -> Path:
    """A package of the small operators."""
    build.manifest(platform, folder, [chip])
    found = build.build(platform, folder, chip, [RELU, OTHER, LAST, PRODUCT, DEEP], silent)
    assert [e.status for e in found] == ["ok"] * 5, [e.reason for e in found]
    return folder


def compiled(folder: Path) -> Path:
    """The stand-in for the driver, as a library."""
    path = folder / "libcuda.so"
    subprocess.run(["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return path


class StandIn(Protocol):
    """A GPU to which a test says what binaries do."""

    def knows(self, code: bytes, name: str, arguments: int, run: Kernel) -> None: ...

    def driver(self) -> AnyDriver: ...


class FakeGpu:
    """One loaded copy of the driver, to which the test says what binaries do."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.path = str(shutil.copy(library, folder / f"libcuda-{time.monotonic_ns()}.so"))  # a copy has a state of its own
        self._library = ctypes.CDLL(self.path)
        self._library.fake_calls.restype = ctypes.c_char_p
        self._library.fake_map.restype = ctypes.c_void_p
        self._kept: list[Any] = []

    def knows(self, code: bytes, name: str, arguments: int, run: Kernel) -> None:
        """A binary with one kernel."""

        def called(given: Any, blocks: int, threads: int) -> int:
            return run([ctypes.c_uint64.from_address(given[n]).value for n in range(arguments)], blocks, threads)

        self._kept.append(RUN(called))
        self._library.fake_image(code, ctypes.c_size_t(len(code)), name.encode(), arguments, self._kept[-1])

    def emulates(self, artifact: Artifact) -> None:
        """A binary whose kernels' own text runs on the emulator, with what they are launched with."""
        library = emulator.Emulator(artifact)._library
        for described in artifact.launch["kernels"]:
            mapped = [name in described.get("maps", {}) for name in described["arguments"]]
            start, data = getattr(library, f"emulate_{described['name']}"), artifact.data
            self._kept.append(RUN(self._emulating(start, mapped)))
            self._library.fake_image(data, ctypes.c_size_t(len(data)), described["name"].encode(), len(mapped), self._kept[-1])

    def _emulating(self, start: Any, mapped: list[bool]) -> Callable[[Any, int, int], int]:
        def called(given: Any, blocks: int, threads: int) -> int:
            passed = (ctypes.c_void_p * len(mapped))()
            for number, is_map in enumerate(mapped):
                place = given[number]
                passed[number] = (
                    self._library.fake_map(ctypes.c_void_p(place)) if is_map else ctypes.c_void_p.from_address(place).value
                )
                if not passed[number]:
                    return ILLEGAL_ADDRESS
            return ILLEGAL_ADDRESS if start(passed, blocks, threads, 0, 0, WHOLE) else 0

        return called

    def becomes(self, attributes: Mapping[int, int], memory_bytes: int) -> None:
        """The GPU has these attributes."""
        for number, value in attributes.items():
            self._library.fake_attribute(number, value)
        self._library.fake_memory(ctypes.c_size_t(memory_bytes))

    def takes(self, seconds: float) -> None:
        """How long the kernel that runs now takes."""
        self._library.fake_take(ctypes.c_double(1e3 * seconds))

    def calls(self) -> list[str]:
        """The driver's functions that were called since this was asked last."""
        return (self._library.fake_calls() or b"").decode().split()

    def carved(self) -> int:
        """The percentage of shared memory that the kernel launched last prefers; -1 where nobody said."""
        return int(self._library.fake_carved())

    def alive(self) -> int:
        """Modules that are loaded."""
        return int(self._library.fake_alive())

    def driver(self) -> Driver:
        """The benchmark's driver on it."""
        return Driver(self.path)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def at(address: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Memory as an array."""
    kind = dtype_of(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return np.ctypeslib.as_array((ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)).view(kind).reshape(shape)


class NumpyLibrary:
    """`bench.gpu.library.Library` over NumPy, for products and relu."""

    def __init__(self, disagreeing: bool = False) -> None:
        self._disagreeing = disagreeing

    def describe(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def stream(self) -> int:
        return 0

    def room(self, size: int) -> Any:
        raw = np.empty(size + 256, np.uint8)
        return raw[-raw.ctypes.data % 256 :][:size]

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def view(self, raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        kind = dtype_of(dtype)
        return raw[: int(np.prod(shape)) * kind.itemsize].view(kind).reshape(shape)

    def operands(self, op: Operator, integer: bool, largest: int, seed: int) -> dict[str, Any]:
        generator, found = np.random.default_rng(seed), {}
        for name, shape in op.shapes.items():
            values = generator.integers(-largest, largest + 1, shape) if integer else generator.uniform(-1, 1, shape)
            found[name] = self.view(self.room(values.size * dtype_of(op.dtype).itemsize), op.dtype, shape)
            found[name][...] = values
        return found

    def expected(self, op: Operator, operands: Mapping[str, Any], bound: Bound) -> tuple[Any, Any]:
        wide = {name: array.astype(np.float64) for name, array in operands.items()}
        value = self._computed(op, wide)
        if bound.exact:
            return value.astype(dtype_of(op.dtype)).astype(np.float64), np.zeros_like(value)
        terms = self._computed(op, {name: np.abs(array) for name, array in wide.items()})
        return value, bound.terms * terms + bound.spread * np.abs(value) + bound.floor

    def _computed(self, op: Operator, t: Mapping[str, Any]) -> Any:
        return t["a"] @ t["b"] if op.kind == "matmul" else np.maximum(t["x"], 0)

    def excess(self, got: Any, expected: tuple[Any, Any], slack: float) -> float:
        error = np.abs(got.astype(np.float64) - expected[0])
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.nan_to_num(np.where(error == 0, 0, error / (slack * expected[1])), nan=np.inf, posinf=np.inf).max())

    def untouched(self, raw: Any, start: int, byte: int) -> bool:
        return bool((raw[start:] == byte).all())

    def peers(self, op: Operator, operands: Mapping[str, Any], choices: Choices) -> Iterator[Side]:
        def refused() -> Any:
            raise NotImplementedError("not this one")

        yield Side("numpy", lambda: self._computed(op, {n: a.astype(np.float64) for n, a in operands.items()}))
        yield Side("refuses", refused)
        if self._disagreeing:
            yield Side("differs", lambda: self._computed(op, operands) + 1)

    def failures(self) -> tuple[type[Exception], ...]:
        return (NotImplementedError,)

    def release(self) -> None:
        pass


def relu(entry: Entry, fault: str) -> Kernel:
    """What a relu kernel does: right, or with a fault."""
    op, launch = entry.operator, entry.programs[0]["launch"]
    names, size, runs = list(launch["kernels"][0]["arguments"]), int(np.prod(op.output)), itertools.count(1)

    def run(places: list[int], blocks: int, threads: int) -> int:
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "hang":
            time.sleep(600)
        if fault == "lost":
            return ILLEGAL_ADDRESS
        if fault == "endless":
            return NOT_READY
        if fault == "later" and next(runs) > 2:
            return 0  # it was checked before with whole numbers and with others
        if fault == "idle":
            return 0
        x, y = (at(places[names.index(name)], op.dtype, op.output) for name in ("x", launch["output"]))
        np.maximum(x, 0, out=y)
        if fault == "wrong":
            y.reshape(-1)[-1] += 1
        if fault == "beyond":
            at(places[names.index(launch["output"])], "float32", (size + 1,))[-1] = 0
        return 0

    return run


def probe(fault: str) -> Kernel:
    """What a probe does: it leaves its clocks, or fails."""

    def run(places: list[int], blocks: int, threads: int) -> int:
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        at(places[1], "uint64", (2,))[...] = 1500, 1000
        return ILLEGAL_ADDRESS if fault == "lost" else 0

    return run


def job_of(folder: Path, **more: Any) -> dict[str, Any]:
    """What `bench.gpu.run` asks of the process with the GPU."""
    choices = {"compiled": True, "triton": True, "max_autotune": False}
    job: dict[str, Any] = {"package": str(folder), "chip": "", "only": "", "quick": False, "rounds": 3, "seconds": 100.0}
    return {**job, "choices": choices, "done": [], "calibrate": False, **more}


def served(
    platform: Platform, folder: Path, driver: AnyDriver, library: NumpyLibrary, **more: Any
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Exit status, what was said first, and the rows by case."""
    messages: list[Any] = []
    status = child.serve(platform, job_of(folder, **more), driver, library, messages.append)
    rows = {m["row"]["case"]: json.loads(json.dumps(m["row"])) for m in messages if "row" in m}
    assert [m["begin"] for m in messages if "begin" in m] == list(rows)
    return status, messages[0]["hello"], rows


def supervised(
    platform: Platform, script: str, built: Path, folder: Path, said: dict[str, Any], stall: float = 60.0, more: Sequence[str] = ()
) -> tuple[int, dict[str, Any]]:
    """`bench.gpu.run` on three relus, with a script of this folder as the process with the GPU: exit status and results."""
    made = Path(shutil.copytree(built, folder / "package"))
    (made / "stand-in.json").write_text(json.dumps(said))
    out, command = folder / "results.json", [sys.executable, str(Path(__file__).with_name(script))]
    status = run.main(platform, [str(made), "--out", str(out), "--only", "relu", *more], command, stall)
    return status, json.loads(out.read_text()) if out.exists() else {}


# What becomes of a case whose kernel has a fault: its status, and the reason that every driver's words begin with.
FAULTS = {
    "wrong": ("wrong", "off by inf times"),
    "idle": ("wrong", "off by inf times"),
    "beyond": ("wrong", "writes beyond its output"),
    "unknown": ("failed", "ModuleLoadData: "),
    "lost": ("failed", "StreamSynchronize: "),
    "crash": ("failed", "its process crashed: SIGSEGV"),
    "later": ("wrong", "off by inf times"),
}


def teach(gpu: StandIn, package: Package, chip: str, faults: Mapping[str, str]) -> None:
    """The relus of a package, each with its fault."""
    for entry in package.entries(chip):
        for program in entry.programs:
            kernel = program["launch"]["kernels"][0]
            fault = faults.get(entry.operator.id, "")
            if fault != "unknown":
                gpu.knows(package.binary(program["binary"]), kernel["name"], len(kernel["arguments"]), relu(entry, fault))


def answer(platform: Platform, job: dict[str, Any], gpu: StandIn, library: NumpyLibrary) -> int:
    """Do a job."""
    with os.fdopen(job["descriptor"], "w") as out:

        def report(message: Mapping[str, Any]) -> None:
            out.write(line(message))
            out.flush()

        return child.serve(platform, job, gpu.driver(), library, report)


def main() -> int:
    """The process with the GPU."""
    timing.FLUSH_LEAST, timing.FLUSH_TIMES_L2 = 1 << 12, 0  # nothing is cached here
    gpu_driver.PATIENCE = 1.0
    job = json.load(sys.stdin)
    folder = Path(job["package"])
    package, said = Package(folder, PLATFORM), json.loads((folder / "stand-in.json").read_text())
    gpu = FakeGpu(Path(said["library"]), Path(said["copies"]))
    teach(gpu, package, CHIP, said["faults"])
    gpu.becomes({int(number): value for number, value in said.get("attributes", {}).items()}, 40 << 30)
    probes = folder / "calibration" / CHIP / "probes.cubin"
    for name in said.get("probes", ()):
        gpu.knows(probes.read_bytes(), name, 4, probe(said["faults"].get("calibration", "")))
    return answer(PLATFORM, job, gpu, NumpyLibrary())


if __name__ == "__main__":
    sys.exit(main())
