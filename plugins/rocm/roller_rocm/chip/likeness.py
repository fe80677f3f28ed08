"""Which known chip a GPU is most like: by its architecture and by what the driver counts, never by its name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from roller.plugin import DeviceUnavailableError, HardwareSpec, builtin_dir, list_specs, load_spec
from roller_rocm.chip.facts import Facts

# How far a chip may be from what the driver says before a user hears of it. Of its memory a GPU reports what it leaves to users.
TOLERANCE: Mapping[str, float] = {"compute units": 0.0, "local memory bytes": 0.0, "memory bytes": 0.1}


def shipped() -> tuple[HardwareSpec, ...]:
    """The chips that come with roller."""
    return tuple(load_spec(entry.path) for entry in list_specs("rocm") if builtin_dir() in entry.path.parents)


def nearest(facts: Facts, known: Iterable[HardwareSpec]) -> HardwareSpec:
    """The chip most like a GPU: of its architecture, as kernels for another do not run on it; then the one that differs in the
    fewest figures, and by the least.

    `DeviceUnavailableError` where no chip is of its architecture.
    """
    alike = [spec for spec in known if spec.options["arch"] == facts.arch]
    if not alike:
        raise DeviceUnavailableError(f"no shipped chip is {facts.arch}: write a spec file for {facts.name} by hand")

    def distance(spec: HardwareSpec) -> tuple[int, float]:
        far = math.fsum(abs(math.log(mine / its)) for mine, its in _figures(facts, spec).values())
        return len(differences(facts, spec)), far

    return min(alike, key=distance)


def differences(facts: Facts, spec: HardwareSpec) -> list[str]:
    """In what a GPU is not a chip of its architecture, beyond the tolerances; nothing where it may well be one."""
    told = []
    figures = _figures(facts, spec)
    for name, tolerance in TOLERANCE.items():
        mine, its = figures.get(name, (1.0, 1.0))
        if abs(mine - its) > tolerance * its:
            told.append(f"{name} {mine:.0f} (spec: {its:.0f})")
    return told


def _figures(facts: Facts, spec: HardwareSpec) -> dict[str, tuple[float, float]]:
    """What the driver says and what a spec says, by name, where both say something."""
    local, count = spec.level("shared"), spec.unit.count
    counted = min((facts.units, facts.compute_units), key=lambda units: abs(units - count))  # a spec may mean either
    pairs = {
        "compute units": (counted, count),
        "local memory bytes": (facts.local_bytes, local.tile_max_bytes or local.capacity_bytes),
        "memory bytes": (facts.memory_bytes, spec.outermost.capacity_bytes),
        "GHz": (1e-6 * facts.clock_khz, spec.clock_ghz),
    }
    return {name: (float(mine), float(its)) for name, (mine, its) in pairs.items() if mine and its}
