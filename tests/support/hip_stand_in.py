"""A stand-in for a machine with an AMD GPU, for the benchmark: HIP's runtime as in `fake_hip.cpp`, memory that it knows.

As a script it is the process that `bench.gpu.run` starts.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import timing
from bench.gpu.package import Package
from bench.rocm import driver
from bench.rocm.driver import Driver
from bench.rocm.platform import PLATFORM
from fake_hip import AmdGpus
from gpu_stand_in import ILLEGAL_ADDRESS, Kernel, NumpyLibrary, answer, at, teach
from roller.errors import LaunchError
from roller.runtime.artifact import Artifact
from roller.target.catalog import find_spec
from roller_rocm.emulator import emulator

CHIP = "mi210"


class HipGpu:
    """One GPU like a chip, to which the test says what code objects do. `folder`: where the fake is, or will be; `faults`: what
    HIP's documentation does not allow.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, chip: str = CHIP, **changed: int) -> None:
        self.fake = AmdGpus(monkeypatch, folder, count=1)
        for name in ("running", "code"):
            getattr(self.fake, name).restype = ctypes.c_size_t
        self.becomes(chip, **changed)
        self._runs: dict[tuple[int, str], Any] = {}

    def becomes(self, chip: str, **changed: int) -> None:
        """A GPU like that chip."""
        self.fake.become(0, find_spec("rocm", chip), **changed)
        for number, value in {driver.L2_BYTES: 8 << 20, driver.MEMORY_CLOCK_KHZ: 1_600_000}.items():
            self.fake.attribute(0, number, value)

    def knows(self, code: bytes, name: str, arguments: int, run: Kernel, lanes: int = 1024, local: int = 0) -> None:
        """A code object with one kernel."""
        self.fake.plan_of(code, name.encode(), arguments, local, lanes)
        self._runs[self.fake.code(code), name] = lambda given, *shape: run([given[n] for n in range(arguments)], *shape)
        self.fake._runs[name] = partial(self._run, name)

    def _run(self, name: str, given: Any, blocks: int, threads: int) -> int:
        """The kernel of that name in the code object that runs."""
        return int(self._runs[self.fake.running(), name](given, blocks, threads))

    def emulates(self, artifact: Artifact, output: tuple[int, ...], dtype: str) -> None:
        """A code object whose assembly runs on the emulator, in one order of events, with what its kernels are launched with."""
        made, launch = emulator.Emulator(artifact, emulator.ORDERS[:1]), artifact.launch
        arrays = {t["name"]: (t["dtype"], tuple(t["shape"]), False) for t in launch["tensors"]}
        arrays |= {s["name"]: (s["dtype"], (max(s["elements"], 1),), True) for s in launch["workspaces"]}
        arrays[launch["output"]] = (dtype, output, True)

        def running(described: Mapping[str, Any]) -> Kernel:
            def run(places: list[int], blocks: int, threads: int) -> int:
                if (blocks, threads) != (described["blocks"], described["threads"]):
                    return 1
                given = []
                for place, name in zip(places, described["arguments"], strict=True):
                    kind, shape, writable = arrays[name]
                    given.append((at(place, kind, shape), writable))
                try:
                    made._start(described, given, emulator.ORDERS[0], None)
                except LaunchError:
                    return ILLEGAL_ADDRESS
                return 0

            return run

        for described in launch["kernels"]:
            count, local = len(described["arguments"]), described["shared_bytes"]
            self.knows(artifact.data, described["name"], count, running(described), described["threads"], local)

    def driver(self) -> Driver:
        """The benchmark's driver on it."""
        return Driver(str(self.fake.path))

    @property
    def faults(self) -> list[str]:
        """What HIP's documentation does not allow."""
        return self.fake.faults


class HipLibrary(NumpyLibrary):
    """NumPy's arrays in the GPU's memory."""

    def __init__(self, gpu: HipGpu, disagreeing: bool = False) -> None:
        super().__init__(disagreeing)
        self._gpu = gpu

    def room(self, size: int) -> Any:
        return at(self._gpu.fake.place(size), "uint8", (size,))


def main() -> int:
    """The process with the GPU."""
    timing.FLUSH_LEAST, timing.FLUSH_TIMES_L2 = 1 << 12, 0
    job = json.load(sys.stdin)
    folder = Path(job["package"])
    package, said = Package(folder, PLATFORM), json.loads((folder / "stand-in.json").read_text())
    with pytest.MonkeyPatch.context() as monkeypatch:
        gpu = HipGpu(monkeypatch, Path(said["folder"]))
        teach(gpu, package, CHIP, said["faults"])
        status = answer(PLATFORM, job, gpu, HipLibrary(gpu))
        assert not gpu.faults, gpu.faults
    return status


if __name__ == "__main__":
    sys.exit(main())
