"""Match of a GPU to the nearest known chip: by compute capability and driver attributes, never by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from roller.plugin import DeviceUnavailableError, HardwareSpec
from roller_cuda.chip.probes import Facts

# Max relative difference from the driver's values without a warning. A GPU reports only the memory that it leaves to users.
TOLERANCE: Mapping[str, float] = {
    "multiprocessors": 0.0,
    "L2 bytes": 0.0,
    "shared memory bytes": 0.0,
    "memory bytes": 0.1,
    "GB/s": 0.05,
}


def capability_of(spec: HardwareSpec) -> tuple[int, int]:
    """Returns the compute capability that a spec names."""
    major, minor = spec.options["compute_capability"]
    return int(major), int(minor)


def architecture(capability: tuple[int, int]) -> str:
    """Returns the compiler's target: 9.0 has instructions of its own, which only the architecture with an "a" includes."""
    return f"sm_{capability[0]}{capability[1]}" + ("a" if capability == (9, 0) else "")


def nearest(facts: Facts, known: Iterable[HardwareSpec]) -> HardwareSpec:
    """Returns the chip most like a GPU.

    It has the GPU's compute capability, or the nearest lower one with the same major number, whose kernels the GPU runs. Among
    these it differs in the fewest figures, and by the least. `DeviceUnavailableError` where no chip has the GPU's architecture.
    """
    alike = [s for s in known if capability_of(s)[0] == facts.capability[0] and capability_of(s) <= facts.capability]
    if not alike:
        raise DeviceUnavailableError(
            f"no shipped chip is of compute capability {facts.capability[0]}.x: write a spec file for {facts.name} by hand"
        )

    def distance(spec: HardwareSpec) -> tuple[int, int, float]:
        far = math.fsum(abs(math.log(mine / its)) for mine, its in _figures(facts, spec).values())
        return facts.capability[1] - capability_of(spec)[1], len(differences(facts, spec)), far

    return min(alike, key=distance)


def differences(facts: Facts, spec: HardwareSpec) -> list[str]:
    """Returns the differences between a GPU and a chip beyond the tolerances; empty if the GPU may be this chip."""
    told = []
    if facts.capability != capability_of(spec):
        told.append(f"compute capability {_dotted(facts.capability)} (spec: {_dotted(capability_of(spec))})")
    figures = _figures(facts, spec)
    for name, tolerance in TOLERANCE.items():
        mine, its = figures.get(name, (1.0, 1.0))
        if abs(mine - its) > tolerance * its:
            told.append(f"{name} {mine:.0f} (spec: {its:.0f})")
    return told


def _figures(facts: Facts, spec: HardwareSpec) -> dict[str, tuple[float, float]]:
    """Returns pairs of the driver's and the spec's values, by name, where both exist."""
    pairs = {
        "multiprocessors": (facts.sms, spec.unit.count),
        "L2 bytes": (facts.l2_bytes, spec.level("L2").capacity_bytes),
        "shared memory bytes": (facts.shared_sm_bytes, spec.level("shared").capacity_bytes),
        "memory bytes": (facts.memory_bytes, spec.outermost.capacity_bytes),
        "GB/s": (facts.memory_gbps, spec.level("L2").bandwidth_gbps),
        "GHz": (facts.clock_ghz, spec.clock_ghz),
    }
    return {name: (float(mine), float(its)) for name, (mine, its) in pairs.items() if mine and its}


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
