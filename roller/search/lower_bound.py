"""A lower bound of the seconds of every program of a stage: where it exceeds what is known, nothing is constructed."""

from __future__ import annotations

from collections.abc import Sequence

from roller.search.choices import program_of
from roller.search.tile_space import TileSpace, start


def least_seconds(found: Sequence[TileSpace]) -> float:
    """Returns a lower bound of the seconds of every program of a stage.

    It is the time to compute without any wait, or to move once the data read and written that cannot be cached beforehand. Where
    lanes need a kernel launch, that is added.
    """
    if not found:
        return 0.0
    model, unit = found[0].model, found[0].spec.unit
    floor = min(s.model.floor_seconds(program_of(s, s.levels[-1:], (start(s),))) for s in found)
    started = unit.launch_overhead_us * 1e-6 if found[0].lane_level is not None else 0.0
    moved = (1 - model.parameters.warm) * model.compulsory_seconds
    return started + max(floor, min(moved * _touched(s) for s in found))


def _touched(space: TileSpace) -> float:
    """Returns the share of its arrays that a nest touches."""
    whole = sum({a.tensor.name: a.tensor.nbytes for a in space.nest.accesses}.values())
    touched = sum([space.fit.geometry.read(number, space.nest.extents).nbytes for number in range(len(space.nest.accesses))])
    return min(1.0, touched / whole) if whole else 0.0
