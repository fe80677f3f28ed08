"""Steps on the lattice: for whole arrays of tile chains the chains around each of them.

A neighbour differs in one extent, or in two of one tile, where one grows and another one shrinks. An extent changes to the next one
on the lattice, to about twice or half of it, or to the whole dimension. Tiles around a changed one keep about their size, or their
number of these tiles.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roller.ir.elementwise import Value
from roller.program.alignment import FINE_STEPS
from roller.search.funnel.lattice import Chains, joined, run_widths, runs_along, with_named
from roller.search.tile_space import TileSpace, equal_parts, start


def nearby(space: TileSpace, chains: Chains) -> Chains:
    """Returns the chains around some, those of the first kind of step first; they may not fit, and some recur."""
    found = list(_every(space, chains))
    if not found:
        return [tile[:, :0] for tile in chains]
    near = with_named(space, joined(found))
    return [tile[:, _within(space, near)] for tile in near] if space.fit.limits else near


def _within(space: TileSpace, chains: Chains) -> Value:
    """Returns whether no extent exceeds the device's rules (`roller.program.capacity.Fit.within`)."""
    found = np.full(chains[0].shape[1], True)
    inside = [*chains[1:], np.array(start(space), dtype=np.int64)[:, None]]
    for (level, dim), limit in space.fit.limits.items():
        if level in space.levels:
            position = space.levels.index(level)
            found &= chains[position][dim] <= np.maximum(limit, inside[position][dim])
    return found


def _every(space: TileSpace, chains: Chains) -> Iterator[Chains]:
    last, managed = len(chains) - 1, space.spec.levels[space.levels[0]].managed
    for position in range(len(chains)):
        if space.levels[position] == len(space.spec.levels):
            continue
        dims = [d for d in range(len(chains[0])) if _open(space, position, d)]
        steps = {d: _steps(space, chains, position, d) for d in dims}
        for dim in dims:
            for extent in steps[dim].values():
                yield from _with(space, chains, position, {dim: extent})
        for one, other in ((a, b) for a in dims for b in dims if a != b and (position == last or managed)):
            for longer in ("next", "twice"):
                for shorter in ("before", "half"):
                    yield from _with(space, chains, position, {one: steps[one][longer], other: steps[other][shorter]})
            if not position and equal_parts(space):
                for extent in steps[one].values():
                    yield from _with(space, chains, position, {one: extent, other: _balanced(space, chains, one, extent, other)})


def _open(space: TileSpace, position: int, dim: int) -> bool:
    """True if a dimension of a tile may have several extents: reductions stay whole atoms in the innermost, or short runs."""
    innermost = position == len(space.levels) - 1
    lies = dim in runs_along(space) or dim in run_widths(space)
    return space.nest.extents[dim] > 1 and not (innermost and space.nest.dims[dim].is_reduce and not lies)


def _steps(space: TileSpace, chains: Chains, position: int, dim: int) -> dict[str, Value]:
    """Returns the extents of a dimension after each kind of step; the present one where there is no such extent."""
    now, innermost = chains[position][dim], position == len(chains) - 1
    rule = space.rules.multiple(space.levels[position], space.nest.dims[dim].name)
    inside = np.full_like(now, start(space)[dim]) if innermost else chains[position + 1][dim]
    base, extent = rule.around(inside), space.nest.extents[dim]
    most = np.maximum(1, extent // base if innermost else -(-extent // base))
    limit = space.fit.limits.get((space.levels[position], dim))
    if limit is not None:
        most = np.maximum(1, np.minimum(most, limit // base))
    widths = run_widths(space).get(dim) if innermost else None
    if widths:
        most = np.minimum(most, widths[-1])
    count = np.maximum(1, now // base)
    found = {"before": _before(count), "next": _next(count), "half": count // 2, "twice": 2 * count}
    if widths:
        found = {"before": count // 2, "next": 2 * count, "half": count // 2 // 2, "twice": 2 * 2 * count}
    if equal_parts(space) and not position and not space.nest.dims[dim].is_reduce:
        return {kind: np.clip(number, 1, most) * base for kind, number in _even(count, most).items()} | {"whole": most * base}
    found["half"], found["twice"] = _before(found["half"] + 1), _next(np.maximum(found["twice"] - 1, 1))
    return {kind: np.clip(number, 1, most) * base for kind, number in found.items()} | {"whole": most * base}


def _balanced(space: TileSpace, chains: Chains, one: int, extent: Value, other: int) -> Value:
    """Returns the extent of another dimension with which about as many units have a tile as before one dimension changed."""
    whole, unit = space.nest.extents, chains[0]
    parts = -(-whole[one] // unit[one]) * -(-whole[other] // unit[other])
    wanted = np.maximum(1, parts // -(-whole[one] // extent))
    base = space.rules.multiple(space.levels[0], space.nest.dims[other].name).around(chains[1][other])
    extents = -(-whole[other] // wanted)
    return -(-extents // base) * base


def _even(count: Value, most: Value) -> dict[str, Value]:
    """Returns the numbers of steps after each kind of step where parts are equal: one part more or less, twice or half as many."""
    parts = -(-most // count)
    return {
        "before": np.minimum(count - 1, -(-most // (parts + 1))),
        "next": np.maximum(count + 1, -(-most // np.maximum(parts - 1, 1))),
        "half": -(-most // (2 * parts)),
        "twice": -(-most // -(-parts // 2)),
    }


def _grain(count: Value) -> Value:
    """Returns the distance of numbers of steps on the lattice (`roller.program.alignment.aligned_extents`)."""
    octave = np.frexp(np.maximum(count, 1).astype(np.float64))[1]
    return np.where(count < FINE_STEPS, 1, 2 ** np.maximum(octave - (FINE_STEPS.bit_length() - 1), 0))


def _next(count: Value) -> Value:
    grain = _grain(count)
    return count // grain * grain + grain


def _before(count: Value) -> Value:
    grain = _grain(count - 1)
    return (count - 1) // grain * grain


def _with(space: TileSpace, chains: Chains, position: int, changed: dict[int, Value]) -> Iterator[Chains]:
    """Yields those of the chains that have other extents of one tile then, the tiles around them in both ways."""
    differs = np.logical_and.reduce([chains[position][dim] != extent for dim, extent in changed.items()])
    if not differs.any():
        return
    for along in (False, True) if position else (False,):
        found = [tile[:, differs] for tile in chains]
        for dim, extent in changed.items():
            found[position][dim] = extent[differs]
            for outer in reversed(range(position)):
                found[outer][dim] = _around(space, chains, outer, dim, found[outer + 1][dim], differs, along)
        yield found


def _around(space: TileSpace, chains: Chains, position: int, dim: int, inside: Value, some: Value, along: bool) -> Value:
    """Returns the extent of a tile around a changed one."""
    now, whole = chains[position][dim, some], space.nest.extents[dim]
    step = space.rules.multiple(space.levels[position], space.nest.dims[dim].name).around(inside)
    wanted = now * inside / chains[position + 1][dim, some] if along else now
    most = -(-whole // step)
    return step * np.where(wanted >= whole, most, np.minimum(most, np.maximum(1, np.rint(wanted / step)))).astype(np.int64)


__all__ = ["nearby"]
