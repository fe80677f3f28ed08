"""Times, sizes and names as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches

from roller.program.estimate import Estimate


def predicted(estimate: Estimate) -> str:
    """Returns the predicted time; for a simulated machine the cycles that a simulator counts, and their time at its clock."""
    if estimate.clock_ghz is None:
        return duration(estimate.seconds)
    return f"{estimate.cycles():,} simulated cycles ({duration(estimate.seconds)} at {estimate.clock_ghz:g} GHz)"


def of_term(estimate: Estimate, seconds: float) -> str:
    """Returns the time of a term in the estimate's unit."""
    cycles = estimate.cycles(seconds)
    return duration(seconds) if cycles is None else f"{cycles:,}"


def duration(seconds: float) -> str:
    """Returns the seconds as text in a fitting unit, with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def no_dimension(name: str, known: Sequence[str]) -> str:
    """Returns what to say of a name that no dimension has: the known ones, and the one that is probably meant.

    Case does not count, and fused dimensions (h.w) are found by the names of their members.
    """
    members = [one for one in known if name.casefold() in one.casefold().split(".")]
    close = [*members, *get_close_matches(name, known, n=1)]
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"dimension {name!r}{hint}; there is: {', '.join(known)}"


def size_text(size: float) -> str:
    """Returns bytes as text in a fitting unit."""
    if not math.isfinite(size) or size < 1024:
        return f"{size:.0f} B"
    for unit, scale in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30)):
        if size < 1000 * scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size / 2**40:.3g} TiB"
