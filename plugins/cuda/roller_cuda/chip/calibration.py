"""Calibration of the attached GPU: attributes from the driver, rates from probes, the rest from the nearest shipped chip.

Measurement and evaluation are separate: `measure_spec` alone needs a GPU.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from roller.plugin import (
    HardwareSpec,
    SpecError,
    keep_spec,
    kept_spec,
    shipped_specs,
    spec_from_dict,
    user_spec_path,
)
from roller_cuda.chip import probe_kernels, probe_timer, probes
from roller_cuda.chip.nearest_chip import architecture, capability_of, nearest
from roller_cuda.chip.probes import Facts, Probe, Sample
from roller_cuda.runtime import gpu
from roller_cuda.toolchain import compiling

_log = logging.getLogger("roller.cuda")

VERSION = 1  # version of the measurement method; another number makes other files
OVER = 1.2  # max ratio of a measured to a theoretical rate; a higher one is a measurement error
UNDER = 0.05  # min ratio; a lower one is an error too
L2_CYCLE_BYTES = 64  # max bytes per cycle from the L2 cache into an SM, on all architectures from 7.0 to 9.0


class Instrument(Protocol):
    """A GPU that probes run on."""

    facts: Facts

    def load(self, cubin: bytes, data_bytes: int) -> None:
        """Loads the kernels, and allocates a buffer for them."""

    def samples(self, probe: Probe) -> list[Sample]:
        """Returns the timings of a probe."""


@dataclass(frozen=True)
class Measured:
    """The results of the probes: values by probe, in the units of the probes; clocks in GHz of the clocked probes."""

    values: Mapping[str, float]
    clocks: Mapping[str, float]


def measure_spec() -> HardwareSpec:
    """Measures the attached GPU (some seconds), stores its spec in the user's file and returns it.

    `DeviceUnavailableError` without a GPU, or for one that resembles no known chip; `SpecError` where the measurements are
    impossible.
    """
    with probe_timer.measuring(gpu.current()) as attached:
        spec = measured(attached, shipped_specs("cuda"), datetime.date.today().isoformat())
    _kept.cache_clear()
    return keep_spec(spec)


def remembered(facts: Facts) -> HardwareSpec | None:
    """Returns the stored spec of an equal GPU; None if there is none, or it cannot be read."""
    return _kept(user_spec_path("cuda", chip_name(facts)))


@lru_cache(4)  # keyed by file: another folder holds another spec
def _kept(path: Path) -> HardwareSpec | None:
    return kept_spec("cuda", path.stem)


def chip_name(facts: Facts) -> str:
    """Returns one name for all equal GPUs: compute capability, SMs, and a digest of other driver attributes except exact memory."""
    told = [VERSION, facts.capability, facts.sms, facts.clock_khz, facts.memory_khz, facts.bus_bits, facts.l2_bytes]
    told += [facts.shared_sm_bytes, facts.registers_sm, facts.threads_sm, round(facts.memory_bytes / 2**30)]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:8]
    return f"sm{facts.capability[0]}{facts.capability[1]}-{facts.sms}-{digest}"


def prebuilt(spec: HardwareSpec) -> dict[str, bytes]:
    """Returns files that measure a chip on a machine without roller.

    These are the probes' kernels, `probes.py`, which holds the launches and the meaning of times, and the spec's values of the same
    as JSON.
    """
    capability = capability_of(spec)
    cubin, _ = compiling.compiled(probe_kernels.text(capability), architecture(capability))
    rates = {atom.name: atom.gflops for atom in spec.atoms}
    clocks = {f"rate_{atom.name}": atom.clock_ghz or spec.clock_ghz for atom in spec.atoms}
    said = {"expected": rates, "values": specified(spec), "clocks": clocks}
    text = json.dumps(said, indent=1, sort_keys=True) + "\n"
    return {"probes.cubin": cubin, "probes.py": Path(probes.__file__).read_bytes(), "spec.json": text.encode()}


def specified(spec: HardwareSpec) -> dict[str, float | None]:
    """Returns a spec's value for each probe that measures one of its numbers, in the units of the probes."""
    l2, shared, register = (spec.level(name) for name in ("L2", "shared", "register"))
    return {
        "dram_read": l2.bandwidth_gbps,
        "dram_latency": l2.latency_ns,
        "l2_read": shared.bandwidth_gbps,
        "l2_latency": shared.latency_ns,
        "shared_read": register.bandwidth_gbps,
        "shared_latency": register.latency_ns,
        "barrier": shared.step_overhead_ns,
        "launch": spec.unit.launch_overhead_us,
        **{f"rate_{atom.name}": atom.gflops for atom in spec.atoms},
    }


# --- measuring --------------------------------------------------------------------------------------------------------


def measured(attached: Instrument, known: Iterable[HardwareSpec], date: str) -> HardwareSpec:
    """Measures an instrument's GPU and returns its spec."""
    facts = attached.facts
    base = nearest(facts, known)
    table = probes.table(facts, expected(facts, base))
    cubin, _ = compiling.compiled(probe_kernels.text(facts.capability), architecture(facts.capability))
    attached.load(cubin, probes.buffer_bytes(table))
    found = evaluated({probe: attached.samples(probe) for probe in table})
    check(found, facts, base)
    return describe(found, facts, base, date)


def expected(facts: Facts, base: HardwareSpec) -> dict[str, float]:
    """Returns the GFLOP/s of the base's atoms at the GPU's SMs and clock, as an upper bound."""
    clock = facts.clock_ghz or base.clock_ghz
    return {
        atom.name: atom.gflops * facts.sms / base.unit.count * clock / (atom.clock_ghz or base.clock_ghz) for atom in base.atoms
    }


def evaluated(samples: Mapping[Probe, list[Sample]]) -> Measured:
    """Converts timings to values; `SpecError` for a probe without usable timings."""
    values, clocks = {}, {}
    for probe, found in samples.items():
        try:
            values[probe.name] = probes.value_of(probe, found)
            if probe.clocked:
                clocks[probe.name] = probes.clock_of(found)
        except ValueError as error:
            raise SpecError(f"measuring {probe.name}: {error}") from error
    return Measured(values, clocks)


def check(found: Measured, facts: Facts, base: HardwareSpec) -> None:
    """Raises `SpecError` if a value is faster than the chip can be, far slower, or in the wrong order with another."""
    clock = facts.clock_ghz or base.clock_ghz
    memory = facts.memory_gbps or base.level("L2").bandwidth_gbps or math.inf
    banks = 128 * facts.sms * clock  # 32 banks of 4 bytes
    possible = {
        "dram_read": (memory, "GB/s that memory clock and bus allow"),
        "dram_copy": (memory, "GB/s that memory clock and bus allow"),
        "l2_read": (L2_CYCLE_BYTES * facts.sms * clock, "GB/s that the SMs can take"),
        "shared_read": (banks, "GB/s of all banks"),
        **{f"rate_{name}": (rate, "GFLOP/s at the highest clock") for name, rate in expected(facts, base).items()},
    }
    for name, (limit, what) in possible.items():
        _within(name, found.values.get(name), limit, what)
    for name, value in found.clocks.items():
        _within(f"clock of {name}", value, clock, "GHz of the highest clock")
    for slow, fast in (("dram_read", "l2_read"), ("l2_read", "shared_read")):
        _ordered(found, slow, fast)
    for near, far in (("shared_latency", "l2_latency"), ("l2_latency", "dram_latency")):
        _ordered(found, near, far)


def _within(name: str, value: float | None, limit: float, what: str) -> None:
    if value is not None and not UNDER * limit <= value <= OVER * limit:
        side = f"more than {OVER}" if value > limit else f"less than {UNDER}"
        raise SpecError(f"measured {value:.4g} for {name}, {side} times the {limit:.4g} {what}; {_AGAIN}")


def _ordered(found: Measured, less: str, more: str) -> None:
    if found.values[less] > found.values[more]:
        raise SpecError(f"measured {found.values[less]:.4g} for {less} but {found.values[more]:.4g} for {more}; {_AGAIN}")


_AGAIN = "nothing is kept: measure again with nothing else on the GPU"


# --- the spec ---------------------------------------------------------------------------------------------------------


def describe(found: Measured, facts: Facts, base: HardwareSpec, date: str) -> HardwareSpec:
    """Returns the spec of a GPU from its attributes and measurements; everything else comes from the base."""
    data = base.model_dump(mode="json", exclude={"sources", "peaks_gflops"})
    clock = _digits(found.clocks["rate_f32"])
    data |= {"chip": chip_name(facts), "title": f"{facts.name}, measured"[:200], "clock_ghz": clock}
    data["unit"] |= {
        "count": facts.sms,
        "lanes_max": facts.threads_block,
        "lane_group": facts.warp,
        "resident_tiles_max": facts.blocks_sm,
        "resident_lanes_max": facts.threads_sm,
        "lane_storage_bytes": 4 * facts.registers_sm,
        "launch_overhead_us": _digits(found.values["launch"]),
    }
    banks = _banks(found, base)
    _levels({table["name"]: table for table in data["levels"]}, found, facts, base, banks)
    for table in data["atoms"]:
        _rate(table, found, facts, clock / base.clock_ghz * (table["clock_ghz"] or base.clock_ghz), clock)
    data["peaks_gflops"] = {}
    for table in data["atoms"]:
        key = f"{table['in_dtype']}_matrix" if table["kind"] == "matrix" else table["in_dtype"]
        data["peaks_gflops"][key] = max(table["gflops"], data["peaks_gflops"].get(key, 0.0))
    data["options"] |= {"arch": architecture(facts.capability), "compute_capability": list(facts.capability)}
    data["sources"] = _sources(found, base, date)
    return spec_from_dict(data)


def _levels(tables: dict[str, dict[str, Any]], found: Measured, facts: Facts, base: HardwareSpec, banks: int | None) -> None:
    """Sets the levels: sizes from the driver; bandwidth and latency INTO a level are those of reads from the next outer level."""
    value = found.values
    tables["DRAM"]["capacity_bytes"] = facts.memory_bytes
    tables["L2"] |= {
        "capacity_bytes": facts.l2_bytes,
        "bandwidth_gbps": _digits(value["dram_read"]),
        "latency_ns": _digits(value["dram_latency"]),
    }
    usable = facts.shared_sm_bytes - facts.shared_reserved_bytes
    tables["shared"] |= {
        "instances": facts.sms,
        "capacity_bytes": facts.shared_sm_bytes,
        "reserved_bytes": facts.shared_reserved_bytes,
        "tile_max_bytes": facts.shared_block_bytes if facts.shared_block_bytes < usable else None,
        "bandwidth_gbps": _digits(value["l2_read"]),
        "latency_ns": _digits(value["l2_latency"]),
        "step_overhead_ns": _digits(value["barrier"]),
    }
    if banks is not None:
        tables["shared"]["banks"]["count"] = banks
    parts = base.level("register").instances // base.unit.count
    tables["register"] |= {
        "instances": parts * facts.sms,
        "capacity_bytes": 4 * facts.registers_sm // parts,
        "bandwidth_gbps": _digits(value["shared_read"]),
        "latency_ns": _digits(value["shared_latency"]),
    }


def _rate(table: dict[str, Any], found: Measured, facts: Facts, scaled: float, chip: float) -> None:
    """Sets an atom's rate and its measured clock; an unmeasured atom keeps the base's rate per cycle, at the scaled clock."""
    name = f"rate_{table['name']}"
    if name in found.values:
        clock, rate = _digits(found.clocks[name]), _digits(found.values[name])
        cycle = float(f"{rate / facts.sms / clock:.5g}")
    else:
        clock, cycle = _digits(scaled), table["flops_per_cycle_per_unit"]
        rate = _digits(cycle * facts.sms * clock)
    table |= {"gflops": rate, "flops_per_cycle_per_unit": cycle, "clock_ghz": None if clock == chip else clock}


def _banks(found: Measured, base: HardwareSpec) -> int | None:
    """Returns the measured number of 4-byte banks; None, and a warning, if strided accesses do not show it."""
    banks = probes.banks_of({stride: found.values[f"stride_{stride}"] for stride in probes.STRIDES})
    if banks is None:
        _log.warning("accesses with strides do not show how many banks there are; %s's are kept", base.chip)
    return banks


def _sources(found: Measured, base: HardwareSpec, date: str) -> dict[str, str]:
    """Returns the sources: first those of measured and queried values, then that of the rest."""
    rates = {f"atoms.{n.removeprefix('rate_')}.*": f"measured: {date}, the instruction on all SMs" for n in found.clocks}
    copied = _digits(found.values["dram_copy"])
    return {
        "clock_ghz": f"measured: {date}, cycles over nanoseconds under float32 multiply-adds on all SMs",
        "unit.launch_overhead_us": f"measured: {date}, launches of an empty kernel in a row",
        "levels.L2.bandwidth_gbps": f"measured: {date}, reading far more than the L2 cache holds ({copied:g} GB/s copying it)",
        "levels.shared.bandwidth_gbps": f"measured: {date}, reading what the L2 cache holds, past the SMs' own caches",
        "levels.register.bandwidth_gbps": f"measured: {date}, reading shared memory on all SMs",
        "levels.*.latency_ns": f"measured: {date}, one thread going from address to address",
        "levels.shared.banks.count": f"measured: {date}, the stride from which on accesses get no slower, where one shows it",
        "levels.shared.step_overhead_ns": f"measured: {date}, block barriers in a row",
        **rates,
        "peaks_gflops.*": f"measured: {date}, the fastest atom",
        **{f"unit.{name}": "query: the CUDA driver" for name in ("count", "lanes_max", "lane_group", "resident_*")},
        "unit.lane_storage_bytes": "query: the CUDA driver, registers of an SM",
        "levels.*.capacity_bytes": "query: the CUDA driver",
        "levels.*.reserved_bytes": "query: the CUDA driver",
        "levels.*.instances": "query: the CUDA driver, SMs",
        "*": f"estimate: as the shipped spec {base.chip}",
    }


def _digits(value: float) -> float:
    """Rounds to three digits: further digits would vary between measurements."""
    return float(f"{value:.3g}")
