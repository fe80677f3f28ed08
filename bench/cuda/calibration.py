"""The attached GPU's own rates, latencies and clocks, measured by the package's probes, beside what predictions took them to be.

The package brings what it takes: kernels (`probes.cubin`), what to launch and what times mean (`probes.py`), and what the chip's
spec says of the same (`spec.json`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import util
from pathlib import Path
from typing import Any

from bench.cuda.driver import Driver
from bench.gpu.driver import DriverError
from bench.gpu.library import Library
from bench.gpu.package import Package

LEAST_SECONDS = 60.0  # with less time for everything there is none for this
SHARE = 0.1  # of the time for everything, at most
ATTRIBUTES: Mapping[str, int] = {  # `CUdevice_attribute` by the field of `Facts`
    "sms": 16,
    "l2_bytes": 38,
    "shared_sm_bytes": 81,
    "shared_block_bytes": 97,
    "shared_reserved_bytes": 111,
    "registers_sm": 82,
    "threads_sm": 39,
    "threads_block": 1,
    "blocks_sm": 106,
    "warp": 10,
}
CLOCKS: Mapping[str, int] = {"clock_khz": 13, "memory_khz": 36, "bus_bits": 37}  # later drivers need not know them
KINDS = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32)  # of a probe's arguments

Found = dict[str, Any]


def section(package: Package, chip: str, driver: Driver, library: Library, seconds: float) -> tuple[Found, bool]:
    """What results say of the chip, and whether the GPU's context was lost over it. `seconds`: for everything there is to do.

    `values` and `clocks` (GHz): probe, unit, measured, and spec where a number of the spec is the same. `reason`: why there are
    none, or no more.
    """
    failures: tuple[type[Exception], ...] = (*library.failures(), OSError, ValueError, KeyError, AttributeError)
    begin, found = time.monotonic(), Found(chip=chip, values=[], clocks=[], reason="", seconds=0.0)
    folder, lost = package.folder / "calibration" / chip, False
    if not folder.is_dir():
        found["reason"] = f"the package has no probes for {chip}"
        return found, lost
    if seconds < LEAST_SECONDS:
        found["reason"] = f"{seconds:.0f} s are left, at least {LEAST_SECONDS:g} are wanted: see --limit"
        return found, lost
    try:
        _measure(folder, driver, library, begin + SHARE * seconds, found)
    except DriverError as error:
        found["reason"], lost = str(error), error.fatal
    except failures as error:
        found["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if not lost:
        library.release()
    found["seconds"] = time.monotonic() - begin
    return found, lost


def _measure(folder: Path, driver: Driver, library: Library, end: float, found: Found) -> None:
    said = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    with _loaded(folder / "probes.py") as probes:
        table = probes.table(facts(probes, driver), said["expected"])
        bench = _Bench(probes, driver, library, (folder / "probes.cubin").read_bytes(), probes.buffer_bytes(table))
        try:
            for number, probe in enumerate(table):
                if time.monotonic() > end:
                    found["reason"] = f"time was up: {len(table) - number} of {len(table)} probes did not run"
                    break
                _one(probe, bench.samples(probe), probes, said, found)
        finally:
            with contextlib.suppress(DriverError):  # what fails here has failed before
                bench.close()


def _one(probe: Any, samples: list[Any], probes: Any, said: Mapping[str, Any], found: Found) -> None:
    if probe.name == "warm_up":
        return
    value = probes.value_of(probe, samples)
    found["values"].append({"probe": probe.name, "unit": probe.unit, "measured": value, "spec": said["values"].get(probe.name)})
    if probe.clocked:
        clock = said["clocks"].get(probe.name)
        found["clocks"].append({"probe": probe.name, "unit": "GHz", "measured": probes.clock_of(samples), "spec": clock})


def facts(probes: Any, driver: Driver) -> Any:
    """What the driver says of the GPU, as `probes.py` wants it."""
    told = driver.describe()
    asked = {field: driver.attribute(number) for field, number in ATTRIBUTES.items()} | dict.fromkeys(CLOCKS, 0)
    for field, number in CLOCKS.items():
        with contextlib.suppress(DriverError):
            asked[field] = driver.attribute(number)
    return probes.Facts(name=told["gpu"], capability=tuple(told["capability"]), memory_bytes=told["memory_bytes"], **asked)


@contextlib.contextmanager
def _loaded(path: Path) -> Iterator[Any]:
    """A file of the package as a module; known to the interpreter only meanwhile."""
    name = "probes_of_a_package"
    spec = util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]


class _Bench:
    """Probes on the GPU: a binary, the buffer that all share, and two events."""

    def __init__(self, probes: Any, driver: Driver, library: Library, cubin: bytes, data_bytes: int) -> None:
        self._probes, self._driver, self._stream = probes, driver, library.stream()
        self._rooms = library.room(max(data_bytes, 1)), library.room(8 * probes.TICKS)
        self._data, self._ticks = (library.address(room) for room in self._rooms)
        self._events = driver.event(), driver.event()
        self._module, self._functions = driver.load(cubin), dict[tuple[str, int], Any]()

    def samples(self, probe: Any) -> list[Any]:
        """The timings of a probe."""
        self._driver.fill(self._ticks, 0, 8 * self._probes.TICKS, self._stream)
        if probe.prepare is not None:
            self._start(probe.prepare)
        return [self._timed(probe) for _ in range(self._probes.REPEATS)]

    def close(self) -> None:
        """Forget the binary."""
        self._driver.unload(self._module)

    def _timed(self, probe: Any) -> Any:
        if probe.flush is not None:
            self._start(probe.flush)
        self._driver.synchronize(self._stream)
        if probe.ahead is not None:
            self._start(probe.ahead)
        self._driver.record(self._events[0], self._stream)
        for _ in range(probe.launches):
            self._start(probe.launch)
        self._driver.record(self._events[1], self._stream)
        self._driver.synchronize(self._stream)
        ticks = (ctypes.c_uint64 * self._probes.TICKS).from_buffer_copy(self._driver.read(self._ticks, 8 * self._probes.TICKS))
        return self._probes.Sample(self._driver.elapsed(*self._events), ticks[0], ticks[1])

    def _start(self, launch: Any) -> None:
        wanted = launch.kernel, launch.shared_bytes
        function = self._functions.get(wanted)
        if function is None:
            function = self._functions[wanted] = self._driver.function(self._module, launch.kernel, launch.shared_bytes)
        given = (self._data + launch.offset, self._ticks, launch.count, launch.rounds)
        values = [kind(value) for kind, value in zip(KINDS, given, strict=True)]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self._driver.launch(function, launch.blocks, launch.threads, launch.shared_bytes, 1, self._stream, pointers)
