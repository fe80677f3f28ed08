"""Match of a GPU to the nearest known chip: by architecture and driver attributes, never by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from roller.plugin import DeviceUnavailableError, HardwareSpec
from roller_rocm.chip.facts import Facts

# Max relative difference from the driver's values without a warning. A GPU reports only the memory that it leaves to users.
TOLERANCE: Mapping[str, float] = {"compute units": 0.0, "local memory bytes": 0.0, "memory bytes": 0.1}


def nearest(facts: Facts, known: Iterable[HardwareSpec]) -> HardwareSpec:
    """Returns the chip most like a GPU: of its architecture, with the fewest differing figures, and these by the least.

    Kernels for another architecture do not run on the GPU. `DeviceUnavailableError` where no chip has its architecture.
    """
    alike = [spec for spec in known if spec.options["arch"] == facts.arch]
    if not alike:
        raise DeviceUnavailableError(f"no shipped chip is {facts.arch}: write a spec file for {facts.name} by hand")

    def distance(spec: HardwareSpec) -> tuple[int, float]:
        far = math.fsum(abs(math.log(mine / its)) for mine, its in _figures(facts, spec).values())
        return len(differences(facts, spec)), far

    return min(alike, key=distance)


def differences(facts: Facts, spec: HardwareSpec) -> list[str]:
    """Returns the differences between a GPU and a chip of its architecture beyond the tolerances; empty if it may be this chip."""
    told = []
    figures = _figures(facts, spec)
    for name, tolerance in TOLERANCE.items():
        mine, its = figures.get(name, (1.0, 1.0))
        if abs(mine - its) > tolerance * its:
            told.append(f"{name} {mine:.0f} (spec: {its:.0f})")
    return told


def _figures(facts: Facts, spec: HardwareSpec) -> dict[str, tuple[float, float]]:
    """Returns pairs of the driver's and the spec's values, by name, where both exist."""
    local, count = spec.level("shared"), spec.unit.count
    counted = min((facts.units, facts.compute_units), key=lambda units: abs(units - count))  # a spec may mean either
    pairs = {
        "compute units": (counted, count),
        "local memory bytes": (facts.local_bytes, local.tile_max_bytes or local.capacity_bytes),
        "memory bytes": (facts.memory_bytes, spec.outermost.capacity_bytes),
        "GHz": (1e-6 * facts.clock_khz, spec.clock_ghz),
    }
    return {name: (float(mine), float(its)) for name, (mine, its) in pairs.items() if mine and its}
