"""What a model says of a program: seconds, and the terms that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

__all__ = ["Estimate", "combine_estimates"]


@dataclass(frozen=True)
class Estimate:
    """A prediction: total seconds, the seconds of each term, and the term that bounds."""

    seconds: float
    terms: tuple[tuple[str, float], ...]
    utilisation: tuple[tuple[str, float], ...] = ()

    @cached_property
    def bound_by(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=lambda t: t[1])[0] if self.terms else "nothing"

    def to_dict(self) -> dict[str, object]:
        """Plain data for reports."""
        return {
            "seconds": self.seconds,
            "bound_by": self.bound_by,
            "terms": dict(self.terms),
            "utilisation": dict(self.utilisation),
        }


def combine_estimates(parts: list[Estimate]) -> Estimate:
    """The estimate of stages that run one after another."""
    if len(parts) == 1:
        return parts[0]
    terms: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.terms:
            terms[name] = terms.get(name, 0.0) + seconds
    return Estimate(sum(p.seconds for p in parts), tuple(terms.items()))
