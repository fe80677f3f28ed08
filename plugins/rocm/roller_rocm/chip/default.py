"""Target chip for callers that name none."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from roller.plugin import DeviceUnavailableError, HardwareSpec, find_spec
from roller_rocm.chip import nearest_chip
from roller_rocm.chip.facts import Facts, facts_of
from roller_rocm.runtime import gpu

DEFAULT = "mi300x"  # the chip where no GPU is attached


def default_spec() -> HardwareSpec:
    """Returns the shipped chip most like the GPU that the calling thread uses; without a GPU the MI300X.

    A warning lists the differences.
    """
    try:
        facts = facts_of(gpu.current())
    except DeviceUnavailableError:
        return find_spec("rocm", DEFAULT)
    return chosen(facts, nearest_chip.shipped())


def chosen(facts: Facts, known: Iterable[HardwareSpec]) -> HardwareSpec:
    """Returns the chip most like a GPU; warns if the GPU differs from it."""
    try:
        best = nearest_chip.nearest(facts, known)
    except DeviceUnavailableError as error:
        warnings.warn(f"{error}; kernels are compiled for {DEFAULT}, and the attached GPU cannot run them", stacklevel=2)
        return find_spec("rocm", DEFAULT)
    differing = nearest_chip.differences(facts, best)
    if differing:
        warnings.warn(
            f"no spec describes the attached GPU; {best.chip} is the nearest. The GPU has {', '.join(differing)}. "
            f"Kernels are right, but their tiles are chosen for {best.chip}: write a spec file for it",
            stacklevel=2,
        )
    return best
