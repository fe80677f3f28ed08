"""Spec of the host machine, measured on first use and stored in the user's file."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from filelock import FileLock

from roller.plugin import HardwareSpec, SpecError, keep_spec, kept_spec, narrowed, user_spec_path
from roller_cpu.chip.conditions import Conditions, clock_limits, watching
from roller_cpu.chip.description import CACHE_NAMES, assumed, describe, measured, nearest
from roller_cpu.chip.dot_atoms import names
from roller_cpu.chip.threads import default_threads
from roller_cpu.chip.tile_atoms import permitted
from roller_cpu.chip.topology import HOST, Topology, machine

_log = logging.getLogger("roller.cpu")

VERSION = 15  # version of the measurement method; a new number triggers a new measurement
VARIABLE, MODES = "ROLLER_CALIBRATE", ("once", "now", "off")
FILL = 0.5  # share of a cache that its probe reads, so that other data does not evict the probe's buffer
MEMORY_FACTOR, MEMORY_MAX = 4, 1 << 30  # the memory probe reads FACTOR x the outermost cache, at most MAX bytes,
MEMORY_SHARE = 8  # and at most this fraction (1/8) of memory
ATTEMPTS, PAUSE_SECONDS = 3, 1.0  # attempts to find a quiet moment, and the pause between them
RETRY_SECONDS = 600  # delay before a process measures a busy machine again

_AGAIN = "When the machine is idle, measure it with `roller specs calibrate cpu`."


def default_spec() -> HardwareSpec:
    """Returns the machine's spec from the user's file, with at most as many cores as `ROLLER_NUM_THREADS` allows.

    `ROLLER_CALIBRATE`: "once" (the default) measures where no file exists, in a few seconds; "now" measures in every process;
    "off" never measures, and uses the nearest shipped chip's speeds. `SpecError` for another value.
    """
    mode = (os.environ.get(VARIABLE) or "once").strip().lower()
    if mode not in MODES:
        raise SpecError(f"{VARIABLE}={mode!r} is none of {', '.join(MODES)}")
    spec = _default(_path(machine()), mode)
    return narrowed(spec, min(default_threads(), spec.unit.count))


def measure_spec() -> HardwareSpec:
    """Measures this machine now, stores its spec in the user's file and returns it.

    On a busy machine it returns the previous measurement, else the nearest shipped chip's speeds, and warns.
    """
    path = _path(machine())
    with _locked(path):
        spec = _measured_or_assumed(path)
    _default.cache_clear()
    return spec


def is_measured(spec: HardwareSpec) -> bool:
    """Returns whether the speeds in a machine's spec were measured on it."""
    return spec.sources.get("clock_ghz", "").startswith("measured")


@lru_cache(8)
def _default(path: Path, mode: str) -> HardwareSpec:
    found = kept_spec("cpu", path.stem)
    if mode == "off":
        return found or _spec(machine(), path.stem, "ROLLER_CALIBRATE=off")
    if mode == "once" and found is not None and not _again(found, path):
        return found
    with _locked(path):
        found = kept_spec("cpu", path.stem)  # another process may have measured while this one waited
        if mode == "once" and found is not None and not _again(found, path):
            return found
        _log.info("measuring this machine; the result is kept in %s", path)
        return _measured_or_assumed(path)


def _again(spec: HardwareSpec, path: Path) -> bool:
    """Returns whether it is time to measure a machine again that was busy before."""
    return not is_measured(spec) and time.time() - path.stat().st_mtime > RETRY_SECONDS


def _path(topology: Topology) -> Path:
    """Returns the file of this machine; its name depends on the processor, the set of cores and the measurement method.

    It also depends on whether the system gives this process tiles: one that gets none has another spec.
    """
    told = [VERSION, topology.name, topology.cores, topology.features, [str(c) for c in topology.caches], permitted()]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:8]
    return user_spec_path("cpu", f"{HOST}{digest}")


def _locked(path: Path) -> AbstractContextManager[object]:
    """Returns a lock, as two processes that measure at once would disturb each other. Without a writable file there is no lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_suffix(".lock")).acquire()
    except OSError:
        return nullcontext()


def _measured_or_assumed(path: Path) -> HardwareSpec:
    problems: tuple[str, ...] = ()
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_SECONDS if attempt else 0.0)
        try:
            spec, problems = _attempt(path.stem)
        except SpecError as error:
            problems = (str(error),)
        if not problems:
            return keep_spec(spec)
    before = kept_spec("cpu", path.stem)
    why = "; ".join(problems)
    if before is not None and is_measured(before):
        _log.warning("this machine cannot be measured now: %s. What was measured before stays. %s", why, _AGAIN)
        return before
    spec = _spec(machine(), path.stem, why)
    _log.warning("this machine cannot be measured now: %s. Kernels are made for the speeds of a like chip. %s", why, _AGAIN)
    return keep_spec(spec)


def _attempt(chip: str) -> tuple[HardwareSpec, tuple[str, ...]]:
    """Measures the machine once; returns its spec and the reasons against trusting it."""
    probe, processors = import_module("roller_cpu.chip.probe"), import_module("roller_cpu.toolchain.processors")
    topology, processor = _told(machine()), _processor()
    base, family = nearest(topology, processor), processors.host_processor()
    fused = bool({"fma", "asimd", "neon"} & set(topology.features))
    dots = names(topology.features, topology.vector_bytes)
    with watching() as watch:
        own = [CACHE_NAMES[c.level] for c in topology.caches[1:] if c.sharing == 1 and c.level in CACHE_NAMES]
        vectors = topology.cores, topology.vector_bytes, processor
        buffers = _buffers(topology)
        told = {"own": own, "fused": fused, "dots": dots, "in_rows": _in_rows(topology, buffers)}
        rates = probe.measure(*vectors, buffers, **told)
        if topology.cores > 1:
            launched = import_module("roller_cpu.runtime.launch_probe").launch_us(topology.cores, processor)
            rates = replace(rates, launch_us=launched)
    seen = Conditions(datetime.date.today().isoformat(), watch.others, rates.spread)
    if problems := seen.problems():
        return base, problems
    speeds = measured(topology, base, family, rates, clock_limits(), str(seen))
    return describe(topology, base, processor, chip, speeds), ()


def _spec(topology: Topology, chip: str, why: str) -> HardwareSpec:
    """Returns the machine's spec with a shipped chip's speeds."""
    topology, processor = _told(topology), _processor()
    base = nearest(topology, processor)
    return describe(topology, base, processor, chip, assumed(topology, base, why))


def _told(topology: Topology) -> Topology:
    """Returns the machine with the instruction sets that the processor itself reports; the system's list may lack some.

    Tile instructions count if the system lets this process use them.
    """
    own = import_module("roller_cpu.toolchain.processors").host_features()
    found = own | ({"hypervisor"} & set(topology.features)) if own else set(topology.features)
    return replace(topology, features=tuple(sorted(f for f in found if permitted() or not f.startswith("amx"))))


def _processor() -> str:
    """Returns LLVM's name for the processor, or a generic one where the system masks instruction sets that the name implies."""
    processors = import_module("roller_cpu.toolchain.processors")
    name = str(processors.host_processor())
    if not processors.missing_features(name):
        return name
    return next((n for n in ("x86-64-v4", "x86-64-v3", "x86-64-v2") if not processors.missing_features(n)), "x86-64")


def _buffers(topology: Topology) -> dict[str, int]:
    """Returns the bytes that each core reads to measure the bandwidth of each level."""
    sizes = {CACHE_NAMES[c.level]: int(c.size_bytes * FILL) // c.sharing for c in topology.caches if c.level in CACHE_NAMES}
    outermost = max((c.size_bytes for c in topology.caches), default=32 << 20)
    sizes["DRAM"] = min(MEMORY_FACTOR * outermost, MEMORY_MAX, topology.memory_bytes // MEMORY_SHARE) // topology.cores
    return sizes


def _in_rows(topology: Topology, buffers: Mapping[str, int]) -> list[str]:
    """Returns the buffers that are read in rows, too: memory and shared caches, if no cache further in holds much of them."""
    private = max((c.size_bytes for c in topology.caches if c.sharing == 1), default=0)
    shared = [CACHE_NAMES[c.level] for c in topology.caches if c.sharing > 1 and c.level in CACHE_NAMES]
    least = max(2 * private, 2 * import_module("roller_cpu.chip.row_probe").block_bytes())
    return [name for name in ("DRAM", *shared) if buffers.get(name, 0) >= least]
