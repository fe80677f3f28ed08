"""Target chip for callers that name none."""

from __future__ import annotations

from collections.abc import Iterable

from roller.plugin import DeviceUnavailableError, HardwareSpec, find_spec, like_attached, shipped_specs
from roller_cuda.chip import calibration, nearest_chip
from roller_cuda.chip.facts import facts_of
from roller_cuda.chip.probes import Facts
from roller_cuda.runtime import gpu

DEFAULT = "a100"  # the chip where no GPU is attached
CALIBRATE = "`roller specs calibrate cuda` measures it"


def default_spec() -> HardwareSpec:
    """Returns the measured spec of the GPU that the calling thread uses, else that of the shipped chip most like it.

    A shipped chip comes with a warning that lists the differences. Without a GPU it is the A100.
    """
    try:
        facts = facts_of(gpu.current())
    except DeviceUnavailableError:
        return find_spec("cuda", DEFAULT)
    return calibration.remembered(facts) or chosen(facts, shipped_specs("cuda"))


def chosen(facts: Facts, known: Iterable[HardwareSpec]) -> HardwareSpec:
    """Returns the chip most like an unmeasured GPU; warns if the GPU differs from it."""
    return like_attached(
        "cuda",
        DEFAULT,
        lambda: nearest_chip.nearest(facts, known),
        lambda spec: nearest_chip.differences(facts, spec),
        CALIBRATE,
    )
