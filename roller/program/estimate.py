"""The prediction for a program: seconds, and their terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["Estimate", "combine_estimates"]


@dataclass(frozen=True)
class Estimate:
    """A prediction: total seconds, the seconds of each term, and the term that bounds.

    `reason`: for infinite seconds, why the program cannot run; `short_bytes`: how many bytes of memory it lacks. `clock_ghz`: the
    clock of a simulated machine, where the seconds are cycles that a simulator counts; None where they are those of a machine.
    """

    seconds: float
    terms: tuple[tuple[str, float], ...]
    utilisation: tuple[tuple[str, float], ...] = ()
    reason: str = ""
    short_bytes: int = 0
    clock_ghz: float | None = None

    @cached_property
    def bound_by(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=lambda t: t[1])[0] if self.terms else "nothing"

    def cycles(self, seconds: float | None = None) -> int | None:
        """Returns all simulated cycles, or those of a term; None without a simulator."""
        if self.clock_ghz is None:
            return None
        return round((self.seconds if seconds is None else seconds) * self.clock_ghz * 1e9)

    def to_dict(self) -> dict[str, object]:
        """Plain data for reports."""
        simulated = {} if self.clock_ghz is None else {"simulated_cycles": self.cycles(), "clock_ghz": self.clock_ghz}
        return {
            **simulated,
            "seconds": self.seconds,
            "bound_by": self.bound_by,
            "terms": dict(self.terms),
            "utilisation": dict(self.utilisation),
        }


def combine_estimates(parts: list[Estimate]) -> Estimate:
    """Returns the estimate of stages that run one after another."""
    if len(parts) == 1:
        return parts[0]
    terms: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.terms:
            terms[name] = terms.get(name, 0.0) + seconds
    clocks = {part.clock_ghz for part in parts}
    clock = clocks.pop() if len(clocks) == 1 else None
    return Estimate(sum(p.seconds for p in parts), tuple(terms.items()), clock_ghz=clock)
