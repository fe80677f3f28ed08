"""The known chip that stands in for an attached one without a spec of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from roller.errors import DeviceUnavailableError
from roller.target.catalog import find_spec
from roller.target.hardware import HardwareSpec


def like_attached(
    device: str,
    default: str,
    nearest: Callable[[], HardwareSpec],
    differences: Callable[[HardwareSpec], Sequence[str]],
    advice: str,
) -> HardwareSpec:
    """Returns the known chip most like the attached one; warns with the differences and the advice if there are differences.

    If `nearest` raises `DeviceUnavailableError`, no known chip's kernels run there: it warns, and returns the chip `default`.
    """
    try:
        best = nearest()
    except DeviceUnavailableError as error:
        warnings.warn(f"{error}; kernels are compiled for {default}, and the attached GPU cannot run them", stacklevel=3)
        return find_spec(device, default)
    differing = differences(best)
    if differing:
        warnings.warn(
            f"no spec describes the attached GPU; {best.chip} is the nearest. The GPU has {', '.join(differing)}. "
            f"Kernels are right, but their tiles are chosen for {best.chip}: {advice}",
            stacklevel=3,
        )
    return best
