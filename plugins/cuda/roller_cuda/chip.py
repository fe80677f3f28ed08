"""Which chip kernels are for, and what of it they use. The attached GPU is known by what the driver says of it, not by its name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roller.plugin import (
    ComputeAtom,
    DeviceUnavailableError,
    HardwareSpec,
    TensorExpr,
    builtin_dir,
    find_spec,
    list_specs,
    spec_dir,
)
from roller_cuda import gpu, tensor_cores
from roller_cuda.gpu import Gpu

DEFAULT = "a100"  # where no GPU is attached
CALIBRATE = "`roller specs calibrate cuda` measures it"
# How far a spec may be from what the driver says before a user hears of it. Of its memory a GPU reports what it leaves to users.
TOLERANCE: Mapping[str, float] = {
    "multiprocessors": 0.0,
    "L2 bytes": 0.0,
    "shared memory bytes": 0.0,
    "memory bytes": 0.1,
    "GB/s": 0.05,
}


@dataclass(frozen=True, slots=True)
class Attributes:
    """A chip as the driver describes it, and as a spec does: compute capability, and by name those figures that are known."""

    capability: tuple[int, int]
    figures: Mapping[str, float]

    def far(self, other: Attributes) -> float:
        """How unlike two chips are: the sum of the figures' ratios, as logarithms."""
        common = self.figures.keys() & other.figures.keys()
        return math.fsum(abs(math.log(self.figures[name] / other.figures[name])) for name in sorted(common))

    def differences(self, other: Attributes) -> list[str]:
        """In what another chip is not this one, beyond the tolerances."""
        told = []
        if self.capability != other.capability:
            told.append(f"compute capability {_dotted(self.capability)} (spec: {_dotted(other.capability)})")
        for name, tolerance in TOLERANCE.items():
            mine, its = self.figures.get(name), other.figures.get(name)
            if mine is not None and its is not None and abs(mine - its) > tolerance * its:
                told.append(f"{name} {mine:.0f} (spec: {its:.0f})")
        return told


def default_spec() -> HardwareSpec:
    """The spec of the GPU that the calling thread uses, else of the nearest chip whose kernels it can run, with a warning that says
    in what they differ; the A100's where no GPU is attached.
    """
    try:
        here = gpu.current()
    except DeviceUnavailableError:
        return find_spec("cuda", DEFAULT)
    return nearest(attributes(here), _known())


def nearest(here: Attributes, known: Sequence[HardwareSpec]) -> HardwareSpec:
    """The spec that is most like a chip, of those whose kernels it can run; warns where it is not that chip's."""
    fitting = [s for s in known if capability_of(s)[0] == here.capability[0] and capability_of(s) <= here.capability]
    if not fitting:
        warnings.warn(
            f"no spec describes a chip of compute capability {here.capability[0]}.x: kernels are compiled for {DEFAULT}, "
            f"and the attached GPU cannot run them; write a spec for it ({CALIBRATE})",
            stacklevel=2,
        )
        return find_spec("cuda", DEFAULT)

    def rank(spec: HardwareSpec) -> tuple[int, int, float]:
        like = described(spec)
        return here.capability[1] - capability_of(spec)[1], len(here.differences(like)), here.far(like)

    best = min(fitting, key=rank)
    differing = here.differences(described(best))
    if differing:
        warnings.warn(
            f"no spec describes the attached GPU; {best.chip} is the nearest. The GPU has {', '.join(differing)}. "
            f"Kernels are right, but their tiles are chosen for {best.chip}: {CALIBRATE}",
            stacklevel=2,
        )
    return best


def attributes(there: Gpu) -> Attributes:
    """What the driver says of a GPU."""
    bus_bytes, memory_khz = there.attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8, there.attribute("MEMORY_CLOCK_RATE")
    figures = {
        "multiprocessors": there.attribute("MULTIPROCESSOR_COUNT"),
        "L2 bytes": there.attribute("L2_CACHE_SIZE"),
        "shared memory bytes": there.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        "memory bytes": there.memory_bytes,
        "GB/s": 2 * memory_khz * 1e3 * bus_bytes / 1e9,  # both edges of the clock
        "GHz": there.attribute("CLOCK_RATE") / 1e6,
    }
    return Attributes(there.capability, {name: float(value) for name, value in figures.items() if value > 0})


def described(spec: HardwareSpec) -> Attributes:
    """The same of a spec. Rates that were measured are left out: they are below what the driver computes."""
    memory, cache, shared = spec.levels[0], spec.levels[1], spec.levels[2]
    figures = {
        "multiprocessors": spec.unit.count,
        "L2 bytes": cache.capacity_bytes,
        "shared memory bytes": shared.capacity_bytes,
        "memory bytes": memory.capacity_bytes,
        "GB/s": 0.0 if _measured(spec, "bandwidth") else cache.bandwidth_gbps or 0.0,
        "GHz": 0.0 if _measured(spec, "clock") else spec.clock_ghz or 0.0,
    }
    return Attributes(capability_of(spec), {name: float(value) for name, value in figures.items() if value > 0})


def capability_of(spec: HardwareSpec) -> tuple[int, int]:
    """The compute capability that a spec names."""
    major, minor = spec.options["compute_capability"]
    return int(major), int(minor)


def atoms(spec: HardwareSpec, _: TensorExpr) -> Sequence[ComputeAtom]:
    """What kernels are printed for."""
    return tuple(atom for atom in spec.atoms if tensor_cores.supported(atom))


def _known() -> list[HardwareSpec]:
    """The user's own specs, which win where both fit, and the shipped ones."""
    folders = [spec_dir()]
    entries = sorted(list_specs("cuda", folders), key=lambda entry: entry.path.is_relative_to(builtin_dir()))
    found = [find_spec("cuda", entry.chip, folders) for entry in entries]
    return [spec for spec in found if "compute_capability" in spec.options]


def _measured(spec: HardwareSpec, what: str) -> bool:
    return any(what in field and source.startswith("measured") for field, source in spec.sources.items())


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
