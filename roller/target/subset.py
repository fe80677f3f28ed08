"""A subset of a chip's units, as a spec of its own."""

from __future__ import annotations

from typing import Any

from roller.errors import SpecError
from roller.target.catalog import spec_from_dict
from roller.target.hardware import HardwareSpec, MemoryLevel


def limited(spec: HardwareSpec, threads: int | None) -> HardwareSpec:
    """Returns the spec for a kernel with at most `threads` units.

    `SpecError` as `narrowed`, and for hardware that dispatches tiles to any free unit.
    """
    if threads is not None and spec.unit.lanes_max > 1 and not spec.spread:
        which = f"{spec.unit.name} of {spec.device}:{spec.chip}"
        raise SpecError(f"threads={threads!r}: tiles go to whichever {which} is free; kernels cannot be kept to some of them")
    return narrowed(spec, threads)


def narrowed(spec: HardwareSpec, units: int | None) -> HardwareSpec:
    """Returns the spec with that many units: rates of units and of their own levels scale down, shared levels stay.

    The spec itself for None. `SpecError` for fewer than one unit, or for more than the chip has.
    """
    count = spec.unit.count
    if units is None or units == count:
        return spec
    if type(units) is not int or not 0 < units <= count:
        raise SpecError(f"{units!r} threads asked for, {spec.device}:{spec.chip} has 1 to {count} {spec.unit.name}s")
    share = units / count
    data = spec.model_dump(mode="json")
    data["sources"] = {pattern: f"{text}; scaled to {units} of {count} {spec.unit.name}s" for pattern, text in spec.sources.items()}
    data["unit"]["count"] = units
    for level, table in zip(spec.levels, data["levels"], strict=True):
        table["instances"] = _instances(spec, level, units)
        if level.bandwidth_gbps is not None and not spec.shared(level):
            table["bandwidth_gbps"] = level.bandwidth_gbps * share
        elif level.bandwidth_gbps is not None and level.unit_bandwidth_gbps is not None:
            table["bandwidth_gbps"] = min(level.bandwidth_gbps, units * level.unit_bandwidth_gbps)
        if level.bandwidth_gbps is not None and level.row_shares is not None and level.unit_row_shares is not None:
            rates = level.bandwidth_gbps, level.unit_bandwidth_gbps or level.bandwidth_gbps / count
            table["row_shares"] = level.row_shares.among(level.unit_row_shares, *rates, units).model_dump(mode="json")
    for atom in data["atoms"]:
        atom["gflops"] *= share
    data["peaks_gflops"] = {key: peak * share for key, peak in spec.peaks_gflops.items()}
    _keep_order(data["levels"])
    _keep_owners(data["levels"])
    return spec_from_dict(data)


def _instances(spec: HardwareSpec, level: MemoryLevel, units: int) -> int:
    """Returns the instances that the remaining units still use; fewer if they do not divide evenly."""
    if not spec.shared(level):
        return level.instances // spec.unit.count * units
    reached = -(-units // spec.units_sharing(level))
    return next(n for n in range(reached, 0, -1) if units % n == 0)


def _keep_order(levels: list[dict[str, Any]]) -> None:
    """Limits a shared level's bandwidth to the sum of the units' own levels inside it."""
    for outer, inner in zip(reversed(levels[:-1]), reversed(levels), strict=False):
        if outer.get("bandwidth_gbps") is not None:
            outer["bandwidth_gbps"] = min(outer["bandwidth_gbps"], inner["bandwidth_gbps"])


def _keep_owners(levels: list[dict[str, Any]]) -> None:
    """Limits a level carved from another to the bytes left of that one."""
    total = {table["name"]: table["instances"] * table["capacity_bytes"] for table in levels}
    for table in levels:
        if table["carved_from"] is not None:
            table["capacity_bytes"] = min(table["capacity_bytes"], total[table["carved_from"]] // table["instances"])
