"""Target chip for callers that name none."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from roller.plugin import DeviceUnavailableError, HardwareSpec, find_spec
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
    return calibration.remembered(facts) or chosen(facts, nearest_chip.shipped())


def chosen(facts: Facts, known: Iterable[HardwareSpec]) -> HardwareSpec:
    """Returns the chip most like an unmeasured GPU; warns if the GPU differs from it."""
    try:
        best = nearest_chip.nearest(facts, known)
    except DeviceUnavailableError as error:
        warnings.warn(f"{error}; kernels are compiled for {DEFAULT}, and the attached GPU cannot run them", stacklevel=2)
        return find_spec("cuda", DEFAULT)
    differing = nearest_chip.differences(facts, best)
    if differing:
        warnings.warn(
            f"no spec describes the attached GPU; {best.chip} is the nearest. The GPU has {', '.join(differing)}. "
            f"Kernels are right, but their tiles are chosen for {best.chip}: {CALIBRATE}",
            stacklevel=2,
        )
    return best
