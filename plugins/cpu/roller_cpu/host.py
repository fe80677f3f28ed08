"""The spec of the machine this runs on: what the system says, what probing measures, the rest from the nearest shipped chip."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from roller.plugin import (
    HardwareSpec,
    SpecError,
    builtin_dir,
    dump_spec,
    list_specs,
    load_spec,
    narrowed,
    spec_dir,
    spec_from_dict,
    write_atomic,
)
from roller_cpu.threads import default_threads
from roller_cpu.topology import Topology, machine

_log = logging.getLogger("roller.cpu")

VERSION = 7  # of how machines are measured: another number measures them anew
CACHE_NAMES = {3: "L3", 2: "L2", 1: "L1"}
GUEST_SHARE = 0.25  # of the outermost cache that a virtual machine may count on: its neighbours fill the rest
FILL = 0.5  # share of a cache that its probe reads, so that what else is there does not push it out
MEMORY_FACTOR, MEMORY_MAX = 4, 256 << 20  # the probe of memory reads so many times the outermost cache, at most so much


def default_spec() -> HardwareSpec:
    """The machine's spec from the user's file, measured first where there is none (a second or two, once), with as many
    cores as `ROLLER_NUM_THREADS` allows.
    """
    spec = _remembered(_path(machine()))
    return narrowed(spec, min(default_threads(), spec.unit.count))


def measure_spec() -> HardwareSpec:
    """The machine's spec measured now, and kept in the user's file."""
    topology = machine()
    path = _path(topology)
    spec = _measured(topology, path.stem)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, dump_spec(spec).encode())
    except OSError as error:
        _log.warning("the machine's measured spec cannot be kept in %s: %s", path, error)
    _remembered.cache_clear()
    return spec


@lru_cache(4)
def _remembered(path: Path) -> HardwareSpec:
    if path.is_file():
        try:
            spec = load_spec(path)
            if (spec.device, spec.chip) == ("cpu", path.stem):
                return spec
            _log.warning("%s describes another machine; it is measured anew", path)
        except SpecError as error:
            _log.warning("%s; the machine is measured anew", error)
    _log.info("measuring this machine once; the result is kept in %s", path)
    return measure_spec()


def _path(topology: Topology) -> Path:
    """The file of this machine: another processor, set of cores or way of measuring has another."""
    told = [VERSION, topology.name, topology.cores, topology.features, [str(c) for c in topology.caches]]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:8]
    return spec_dir() / "cpu" / f"host-{digest}.toml"


def _measured(topology: Topology, chip: str) -> HardwareSpec:
    processor = _processor(topology)
    base = nearest(topology, processor)
    fused = "fma" in topology.features or "asimd" in topology.features
    probe = import_module("roller_cpu.probe")
    rates = probe.measure(topology.cores, topology.vector_bytes, processor, _buffers(topology), fused=fused)
    return describe(topology, base, processor, chip, rates)


def _processor(topology: Topology) -> str:
    """LLVM's name for the processor; a plain one where the system masks instruction sets that the name implies."""
    runtime = import_module("roller_cpu.runtime")
    name = str(runtime.host_processor())
    if not runtime.missing_features(name):
        return name
    wide = {64: "x86-64-v4", 32: "x86-64-v3", 16: "x86-64-v2"}[topology.vector_bytes]
    return next((n for n in (wide, "x86-64-v2", "x86-64") if not runtime.missing_features(n)), "x86-64")


def nearest(topology: Topology, processor: str) -> HardwareSpec:
    """The shipped spec of this processor, else of one as wide, else of any."""
    shipped = [load_spec(entry.path) for entry in list_specs("cpu") if builtin_dir() in entry.path.parents]
    alike = [s for s in shipped if s.options.get("llvm_mcpu") == processor]
    wide = [s for s in shipped if s.options.get("vector_bytes") == topology.vector_bytes]
    return (alike or wide or shipped)[0]


def _buffers(topology: Topology) -> dict[str, int]:
    """Bytes that each core reads to show the speed of each place."""
    sizes = {CACHE_NAMES[c.level]: int(c.size_bytes * FILL) // c.sharing for c in topology.caches if c.level in CACHE_NAMES}
    outermost = max((c.size_bytes for c in topology.caches), default=32 << 20)
    sizes["DRAM"] = min(MEMORY_FACTOR * outermost, MEMORY_MAX) // topology.cores
    return sizes


def describe(topology: Topology, base: HardwareSpec, processor: str, chip: str, rates: Any) -> HardwareSpec:
    """The spec of a machine from its topology and measured rates; everything else is the base's."""
    data = base.model_dump(mode="json", exclude={"sources", "peaks_gflops"})
    cores = topology.cores
    # How many operations a cycle the vector units take is a power of two; the clock is what then explains the measured rate.
    per_cycle = 2 ** round(math.log2(rates.gflops / (cores * rates.clock_ghz)))
    clock = _two_digits(rates.gflops / (cores * per_cycle))
    data |= {"chip": chip, "title": f"{topology.name}, {cores} cores, measured"[:200], "clock_ghz": clock}
    data["unit"]["count"] = cores
    data["levels"] = _levels(topology, base, data["levels"], rates)
    data["atoms"] = _atoms(base, data["atoms"], per_cycle, clock, cores)
    data["peaks_gflops"] = {}
    for atom in data["atoms"]:
        key = f"{atom['in_dtype']}_matrix" if atom["kind"] == "matrix" else atom["in_dtype"]
        data["peaks_gflops"][key] = max(atom["gflops"], data["peaks_gflops"].get(key, 0.0))
    data["options"] |= {"llvm_mcpu": processor, "vector_bytes": topology.vector_bytes}
    data["sources"] = _sources(base.chip)
    return spec_from_dict(data)


def _levels(topology: Topology, base: HardwareSpec, tables: list[dict[str, Any]], rates: Any) -> list[dict[str, Any]]:
    """Sizes and sharing from the system; the bandwidth INTO a level is that of reading what lies outside it."""
    caches = {CACHE_NAMES[c.level]: c for c in topology.caches if c.level in CACHE_NAMES}
    kept = [t for t in tables if t["name"] not in CACHE_NAMES.values() or not caches or t["name"] in caches]
    outside, fastest = "DRAM", 0.0
    for table in kept:
        name = table["name"]
        cache = caches.get(name)
        if name == "DRAM":
            table["capacity_bytes"] = topology.memory_bytes
            continue
        if cache is not None:
            table |= {"capacity_bytes": cache.size_bytes, "transaction_bytes": cache.line_bytes}
            if topology.virtual and cache is topology.caches[0]:
                table["usable_fraction"] = min(table["usable_fraction"], GUEST_SHARE)
            if table.get("banks"):  # a cache's banks are its sets
                table["banks"] = {"count": cache.sets, "width_bytes": cache.line_bytes} if cache.sets else None
        owner = base.level(name)
        sharing = cache.sharing if cache is not None else min(base.units_sharing(owner), topology.cores)
        table["instances"] = _instances(topology.cores, sharing)
        fastest = max(fastest, _two_digits(rates.read_gbps.get(outside, 0.0)) or (owner.bandwidth_gbps or 1.0))
        table["bandwidth_gbps"] = fastest  # noise must not make an inner level slower than an outer one
        alone = _two_digits(rates.alone_gbps.get(outside, 0.0))
        table["unit_bandwidth_gbps"] = min(alone, fastest) if alone and table["instances"] < topology.cores else None
        outside = name
    return kept


def _instances(cores: int, sharing: int) -> int:
    """Instances of a level, fewer where they do not divide among the cores."""
    return next(n for n in range(max(1, -(-cores // sharing)), 0, -1) if cores % n == 0)


def _atoms(base: HardwareSpec, tables: list[dict[str, Any]], per_cycle: int, clock: float, cores: int) -> list[dict[str, Any]]:
    """The base's atoms at the measured clock; vectors by how much wider the measured units are."""
    known = [a.flops_per_cycle_per_unit or 1.0 for a in base.atoms if a.kind == "vector" and a.in_dtype == "float32"]
    wider = per_cycle / max(known, default=per_cycle)
    for table in tables:
        rate = (table["flops_per_cycle_per_unit"] or 1.0) * (wider if table["kind"] == "vector" else 1.0)
        table |= {"flops_per_cycle_per_unit": rate, "gflops": rate * clock * cores, "clock_ghz": None}
    return tables


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _sources(base: str) -> dict[str, str]:
    return {
        "clock_ghz": "measured: multiply-adds in registers on all cores, over the units' width",
        "unit.count": "query: affinity, topology and quota of the process",
        "levels.*.bandwidth_gbps": "measured: reading buffers on all cores at once",
        "levels.*.capacity_bytes": "query: the operating system",
        "levels.*.instances": "query: the operating system",
        "levels.*.transaction_bytes": "query: the operating system",
        "atoms.*.gflops": "measured: multiply-adds in registers; other types derived from them",
        "peaks_gflops.*": "measured: multiply-adds in registers; other types derived from them",
        "*": f"estimate: as the shipped spec {base}",
    }
