"""Spec of a machine: topology from the operating system, with measured rates or those of the nearest shipped chip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roller.plugin import HardwareSpec, RowShares, SpecError, shipped_specs, spec_from_dict
from roller_cpu.chip.dot_atoms import dot_atoms
from roller_cpu.chip.half_atoms import half_atoms
from roller_cpu.chip.tile_atoms import CYCLES, LATENCY, tile_atoms
from roller_cpu.chip.topology import Topology

CACHE_NAMES = {3: "L3", 2: "L2", 1: "L1"}
GUEST_SHARE = 0.25  # share of the outermost cache that a virtual machine may count on; other guests fill the rest
PIPES = (0.5, 1.0, 2.0, 4.0)  # vector multiply-adds that cores issue per cycle
AGREE = 0.2  # max relative distance of a measurement from one of these; the next ones lie at twice or half of it
SLOWEST = 0.55  # min ratio of the all-core clock to the single-core clock: wide vectors on the largest chips


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of a machine.

    `per_cycle`: float32 operations per cycle of a core's vector units. `clock_ghz`: clock with all cores busy. `read_gbps`,
    `alone_gbps`: bytes read by all cores at once and by one core alone, keyed by the level that holds the data. `dots`: dot
    products of each name that start while a multiply-add starts. `rows`, `alone_rows`: shares of these bandwidths for rows, by
    all cores at once and by one core alone. `launch_us`: of a parallel loop over all cores, beside its work; None if not measured.
    `origin`: source and date of these numbers.
    """

    per_cycle: float
    clock_ghz: float
    read_gbps: Mapping[str, float]
    alone_gbps: Mapping[str, float]
    origin: str
    measured: bool
    dots: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, RowShares] = field(default_factory=dict)
    alone_rows: Mapping[str, RowShares] = field(default_factory=dict)
    launch_us: float | None = None

    def source(self, how: str) -> str:
        """Returns the spec's source entry for one of these numbers; `how` describes the measurement."""
        return f"measured: {self.origin}; {how}" if self.measured else f"estimate: {self.origin}"


def nearest(topology: Topology, processor: str) -> HardwareSpec:
    """Returns the shipped spec of this processor, else one with the same vector width, a generic one before others, else any."""
    shipped = shipped_specs("cpu")
    alike = [s for s in shipped if s.options.get("llvm_mcpu") == processor]
    wide = [s for s in shipped if s.options.get("vector_bytes") == topology.vector_bytes]
    wide.sort(key=lambda s: not str(s.options.get("llvm_mcpu")).startswith("x86-64"))
    return (alike or wide or shipped)[0]


def measured(topology: Topology, base: HardwareSpec, family: str, rates: Any, limits: tuple[float, float], when: str) -> Speeds:
    """Computes the speeds from the probe's rates.

    `SpecError` if no machine has such rates, or the clock is outside `limits` (GHz). `family`: LLVM's name for the processor. The
    width of its units comes from the shipped spec of this very family, unless the machine's vectors are wider or narrower than that
    spec's. `when`: date and conditions.
    """
    lanes = topology.vector_bytes // 4
    known = base.options.get("llvm_mcpu") == family and base.options.get("vector_bytes") == topology.vector_bytes
    per_cycle = _per_cycle(base) if known else 2 * lanes * _pipes(rates.alone_per_cycle / (2 * lanes))
    clock = rates.gflops / (topology.cores * per_cycle)
    if clock < SLOWEST * rates.clock_ghz <= 2 * clock:
        per_cycle, clock = per_cycle / 2, 2 * clock  # the system reports two threads of one core as two cores
    if not max(limits[0], SLOWEST * rates.clock_ghz) <= clock <= limits[1]:
        said = (
            f"{rates.clock_ghz:.2g} GHz alone, {clock:.2g} with all cores at work; {limits[0]:.2g} to {limits[1]:.2g} are possible"
        )
        raise SpecError(f"the measured clock cannot be: {said}")
    return Speeds(
        per_cycle,
        _two_digits(clock),
        rates.read_gbps,
        rates.alone_gbps,
        when,
        True,
        {name: _two_digits(rate) for name, rate in rates.dots.items()},
        rates.rows,
        rates.alone_rows,
        rates.launch_us,
    )


def _per_cycle(base: HardwareSpec) -> float:
    """Returns the float32 operations per cycle of a core's vector units."""
    known = [a.flops_per_cycle_per_unit or 1.0 for a in base.atoms if a.kind == "vector" and a.in_dtype == "float32"]
    return max(known, default=2.0)


def _pipes(ratio: float) -> float:
    near = min(PIPES, key=lambda pipes: abs(math.log(ratio / pipes)))
    if abs(ratio / near - 1) > AGREE:
        raise SpecError(
            f"a core seems to start {ratio:.2g} vector multiply-adds in a cycle; {', '.join(map(str, PIPES))} are possible"
        )
    return near


def assumed(topology: Topology, base: HardwareSpec, why: str) -> Speeds:
    """Returns the per-core speeds of the shipped chip, for a machine that could not be measured."""
    cores = topology.cores
    outside = dict(zip([level.name for level in base.levels], base.levels[1:], strict=False))
    each = {name: (level.bandwidth_gbps or 1.0) / base.unit.count for name, level in outside.items()}
    alone = {name: level.unit_bandwidth_gbps or each[name] for name, level in outside.items()}
    wider = topology.vector_bytes / int(base.options.get("vector_bytes") or topology.vector_bytes)
    together = {name: rate * cores for name, rate in each.items()}
    origin = f"not measured ({why}), each core as one of the shipped spec {base.chip}"
    rows = {name: level.row_shares for name, level in outside.items() if level.row_shares is not None}
    alone_rows = {name: level.unit_row_shares for name, level in outside.items() if level.unit_row_shares is not None}
    return Speeds(_per_cycle(base) * wider, base.clock_ghz, together, alone, origin, False, {}, rows, alone_rows)


def describe(topology: Topology, base: HardwareSpec, processor: str, chip: str, speeds: Speeds) -> HardwareSpec:
    """Returns the spec of a machine from its topology and speeds; everything else comes from the base."""
    data = base.model_dump(mode="json", exclude={"sources", "peaks_gflops"})
    cores = topology.cores
    data |= {"chip": chip, "title": f"{topology.name}, {cores} cores"[:200], "clock_ghz": speeds.clock_ghz}
    data["unit"]["count"] = cores
    if speeds.launch_us is not None:
        data["unit"]["launch_overhead_us"] = _two_digits(speeds.launch_us)
    data["levels"] = _levels(topology, base, data["levels"], speeds)
    tables = [table for table in data["atoms"] if not {"n", "k"} <= set(table["roles"]) and table["acc_dtype"] != "float16"]
    tables += half_atoms(tables, topology.features)
    tables += dot_atoms(base, topology.features, topology.vector_bytes, _per_cycle(base), speeds.dots)
    tables += tile_atoms(topology.features)
    data["atoms"] = _atoms(base, tables, speeds, cores)
    data["peaks_gflops"] = {}
    for atom in data["atoms"]:
        key = f"{atom['in_dtype']}_matrix" if atom["kind"] == "matrix" else atom["in_dtype"]
        data["peaks_gflops"][key] = max(atom["gflops"], data["peaks_gflops"].get(key, 0.0))
    data["options"] |= {"llvm_mcpu": processor, "vector_bytes": topology.vector_bytes}
    data["sources"] = _sources(base.chip, speeds, tables)
    return spec_from_dict(data)


def _levels(topology: Topology, base: HardwareSpec, tables: list[dict[str, Any]], speeds: Speeds) -> list[dict[str, Any]]:
    """Returns the levels with the system's sizes and sharing; bandwidth INTO a level is that of reads from the next outer one."""
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
        fastest = max(fastest, _two_digits(speeds.read_gbps.get(outside, 0.0)) or (owner.bandwidth_gbps or 1.0))
        table["bandwidth_gbps"] = fastest  # noise must not make an inner level slower than an outer one
        alone = _two_digits(speeds.alone_gbps.get(outside, 0.0))
        for key, rows in (("row_shares", speeds.rows), ("unit_row_shares", speeds.alone_rows)):
            table[key] = rows[outside].model_dump(mode="json") if outside in rows else None
        table["unit_bandwidth_gbps"] = min(alone, fastest) if alone and table["instances"] < topology.cores else None
        outside = name
    return kept


def _instances(cores: int, sharing: int) -> int:
    """Returns the number of instances of a level, reduced until it divides the number of cores."""
    return next(n for n in range(max(1, -(-cores // sharing)), 0, -1) if cores % n == 0)


def _atoms(base: HardwareSpec, tables: list[dict[str, Any]], speeds: Speeds, cores: int) -> list[dict[str, Any]]:
    """Returns the base's atoms at the machine's clock; vector rates are scaled by the machine's relative width."""
    wider = speeds.per_cycle / _per_cycle(base)
    for table in tables:
        rate = (table["flops_per_cycle_per_unit"] or 1.0) * (wider if table["kind"] == "vector" else 1.0)
        table |= {"flops_per_cycle_per_unit": rate, "gflops": rate * speeds.clock_ghz * cores, "clock_ghz": None}
    return tables


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _sources(base: str, speeds: Speeds, atoms: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns where each number is from."""
    how = "dot products in registers beside multiply-adds, on one core"
    dots = sorted(table["name"] for table in atoms if table["kind"] == "vector" and "k" in table["roles"])
    tiles = sorted(table["name"] for table in atoms if table["kind"] == "matrix")
    turns = speeds.source("sums of rows on all cores at once, a unit's on one core")
    launched = speeds.source("parallel loops on all cores, less the same work in plain calls")
    return {
        **({"levels.*row_shares.*": turns} if speeds.rows else {}),
        **({"unit.launch_overhead_us": launched} if speeds.launch_us is not None else {}),
        **{f"atoms.{name}.gflops": speeds.source(how) for name in dots},
        **{f"atoms.{name}.*": f"datasheet: an instruction in {CYCLES} cycles, its sums after {LATENCY}" for name in tiles},
        "clock_ghz": speeds.source("multiply-adds in registers on all cores, over the units' width"),
        "unit.count": "query: affinity, topology and quota of the process",
        "levels.*bandwidth_gbps": speeds.source("reading buffers on all cores at once, a unit's on one core"),
        "levels.*.capacity_bytes": "query: the operating system",
        "levels.*.instances": "query: the operating system",
        "levels.*.transaction_bytes": "query: the operating system",
        "atoms.*.gflops": speeds.source("multiply-adds in registers, other types derived from them"),
        "peaks_gflops.*": speeds.source("multiply-adds in registers, other types derived from them"),
        "*": f"estimate: as the shipped spec {base}",
    }
