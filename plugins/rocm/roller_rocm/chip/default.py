"""Target chip for callers that name none."""

from __future__ import annotations

from collections.abc import Iterable

from roller.plugin import DeviceUnavailableError, HardwareSpec, find_spec, like_attached, shipped_specs
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
    return chosen(facts, shipped_specs("rocm"))


def chosen(facts: Facts, known: Iterable[HardwareSpec]) -> HardwareSpec:
    """Returns the chip most like an unmeasured GPU; warns if the GPU differs from it."""
    return like_attached(
        "rocm",
        DEFAULT,
        lambda: nearest_chip.nearest(facts, known),
        lambda spec: nearest_chip.differences(facts, spec),
        "write a spec file for it",
    )
