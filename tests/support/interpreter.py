"""Programs, interpreted slowly: which points they execute, what they load into a scratchpad, what a cache misses.

Everything is counted with real sets of elements, from loops and tiles alone, so that it can disagree with the engine.

The rule at ragged ends: loops are cut to what is left; an innermost tile moves back along spatial dimensions to stay inside
the problem (its points may belong to the tile before it as well) and is cut along reduce dimensions.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from roller.ir.expr import ELEMENT_BYTES
from roller.ir.nest import Access, Nest
from roller.program.rprogram import StageProgram

Box = tuple[range, ...]  # positions of a tile along each dimension


@dataclass(frozen=True)
class Visit:
    """One execution of what lies inside some loops: the trip of each loop, and the tile there."""

    trips: tuple[int, ...]
    box: Box


def visits(program: StageProgram, depth: int | None = None) -> Iterator[Visit]:
    """What the first `depth` loops execute, in order; innermost tiles for None."""
    loops = program.loops if depth is None else program.loops[:depth]
    tiles = dict(zip(program.levels, program.tiles, strict=True))
    extents = program.nest.extents

    def inside(number: int, bases: tuple[int, ...], limits: tuple[int, ...], trips: tuple[int, ...]) -> Iterator[Visit]:
        if number == len(loops):
            ends = zip(bases, limits, strict=True)
            yield Visit(trips, _innermost(program, bases, limits) if depth is None else tuple(range(b, b + n) for b, n in ends))
            return
        dim, step = loops[number].dim, tiles[loops[number].level][loops[number].dim]
        for trip in range(-(-limits[dim] // step)):
            base = (*bases[:dim], bases[dim] + trip * step, *bases[dim + 1 :])
            left = (*limits[:dim], min(step, limits[dim] - trip * step), *limits[dim + 1 :])
            yield from inside(number + 1, base, left, (*trips, trip))

    if all(extents):
        yield from inside(0, (0,) * len(extents), extents, ())


def _innermost(program: StageProgram, bases: tuple[int, ...], limits: tuple[int, ...]) -> Box:
    box = []
    for dim, (base, left, inner) in enumerate(zip(bases, limits, program.inner, strict=True)):
        extent = program.nest.extents[dim]
        if program.nest.dims[dim].is_reduce:
            box.append(range(base, base + min(inner, left)))
        else:
            start = max(min(base, extent - inner), 0)
            box.append(range(start, min(start + inner, extent)))
    return tuple(box)


def executed(program: StageProgram) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Every point in order of execution: (trips of the spatial loops, spatial position, reduce position).

    The trips name the accumulators that take the point in: a point that two ragged tiles share has two of them.
    """
    nest, loops = program.nest, program.loops
    for visit in visits(program):
        slot = tuple(t for t, lp in zip(visit.trips, loops, strict=True) if not nest.dims[lp.dim].is_reduce)
        for spatial in itertools.product(*(visit.box[i] for i in nest.spatial)):
            for reduce in itertools.product(*(visit.box[i] for i in nest.reduce)):
                yield slot, spatial, reduce


def elements(nest: Nest, access: Access, box: Box) -> frozenset[int]:
    """Flat addresses of one array that a tile reads or writes; what is outside the array (a fill value) is none."""
    touched = [i for i, t in enumerate(access.touches) if t]
    found = set()
    for position in itertools.product(*(box[i] for i in touched)):
        axes: dict[str, int] = {}
        for dim, value in zip(touched, position, strict=True):
            rest = value
            for axis in reversed(nest.dims[dim].members):
                rest, axes[axis.name] = divmod(rest, axis.extent)
        index = [i.offset + sum(c * axes.get(n, 0) for n, c in i.terms) for i in access.index]
        if all(0 <= x < bound for x, bound in zip(index, access.tensor.shape, strict=True)):
            found.add(sum(x * s for x, s in zip(index, access.tensor.strides, strict=True)))
    return frozenset(found)


def shares(program: StageProgram, units: int) -> list[list[int]]:
    """The numbers of the unit tiles that each unit runs, one after another: equal runs of neighbours."""
    size = -(-program.unit_tiles // units)
    return [list(range(at, min(at + size, program.unit_tiles))) for at in range(0, program.unit_tiles, size)]


@dataclass
class Scratchpad:
    """What moved into and out of all instances of a managed level, and the most bytes that one held at a time."""

    loaded: int = 0
    stored: int = 0
    peak: int = 0

    @property
    def moved(self) -> int:
        """Bytes in both directions."""
        return self.loaded + self.stored


def scratchpad(program: StageProgram, index: int, units: int) -> Scratchpad:
    """A managed level of which each unit has its own: it holds the tile's data exactly, and keeps what the next tile needs whole.

    An input is loaded when its box changes. An output is stored when its box changes, and loaded again when it returns.
    """
    nest = program.nest
    depth = sum(1 for lp in program.loops if lp.level <= index)
    units_depth = sum(1 for lp in program.loops if lp.over == "units")
    runs: dict[tuple[int, ...], list[Visit]] = {}
    for visit in visits(program, depth):
        runs.setdefault(visit.trips[:units_depth], []).append(visit)
    order = [runs[key] for key in sorted(runs)]
    result = Scratchpad()
    for share in shares(program, units):
        held: dict[int, frozenset[int]] = {}
        written: set[frozenset[int]] = set()
        for visit in itertools.chain.from_iterable(order[tile] for tile in share):
            for number, access in enumerate(nest.accesses):
                wanted, size = elements(nest, access, visit.box), access.element_bytes
                if held.get(number) == wanted:
                    continue
                if access.role != "output":
                    result.loaded += len(wanted) * size
                else:
                    result.stored += len(held.get(number, ())) * size
                    result.loaded += len(wanted) * size if wanted in written else 0
                    written.add(wanted)
                held[number] = wanted
            sizes = (len(held[n]) * (_width(nest, a)) for n, a in enumerate(nest.accesses))
            result.peak = max(result.peak, sum(sizes))
        last = len(nest.accesses) - 1
        result.stored += len(held.get(last, ())) * nest.output.element_bytes
    return result


def _width(nest: Nest, access: Access) -> int:
    return nest.accumulator_bytes if access.role == "output" else ELEMENT_BYTES[access.tensor.dtype]


def lane_groups(program: StageProgram, together: int) -> Iterator[dict[int, int]]:
    """The ways to make blocks of up to `together` neighbouring lanes: how many along each dimension, powers of two."""
    trips = {lp.dim: lp.trips for lp in program.loops if lp.over == "lanes"}
    size = min(together, math.prod(trips.values()))
    for shape in itertools.product(*([2**i for i in range(t.bit_length()) if t % 2**i == 0] for t in trips.values())):
        if math.prod(shape) == size:
            yield dict(zip(trips, shape, strict=True))


def lane_loads(program: StageProgram, index: int, group: dict[int, int]) -> int:
    """Bytes that the lanes of all unit tiles load into storage of their own: the lanes of a block (so many along each
    dimension) issue together, equal addresses among them count once, and a block loads anew whenever its box changes."""
    nest = program.nest
    depth = sum(1 for lp in program.loops if lp.level <= index)
    lanes = {i: lp.dim for i, lp in enumerate(program.loops[:depth]) if lp.over == "lanes"}
    units = [i for i, lp in enumerate(program.loops[:depth]) if lp.over == "units"]
    steps: dict[tuple[int, ...], dict[tuple[int, ...], list[Box]]] = {}
    for visit in visits(program, depth):
        time = tuple(t for i, t in enumerate(visit.trips) if i not in lanes)
        block = tuple(visit.trips[i] // group[dim] for i, dim in lanes.items())
        steps.setdefault(time, {}).setdefault(block, []).append(visit.box)
    total = 0
    held: dict[tuple[int, tuple[int, ...]], frozenset[int]] = {}
    for time in sorted(steps):
        if all(t == 0 for t in time[len(units) :]):
            held.clear()  # another unit tile, on another unit
        for block, boxes in steps[time].items():
            for number, access in enumerate(nest.accesses):
                union = frozenset[int]().union(*(elements(nest, access, box) for box in boxes))
                if access.role == "body" and held.get((number, block)) != union:
                    total += len(union) * access.element_bytes
                    held[number, block] = union
    return total


class Cache:
    """Least recently used, fully associative, one element a line; counts fetches, and write-backs of changed elements.

    The first write to an element fetches nothing: the whole of it is written.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.moved = capacity, 0
        self._lines: OrderedDict[tuple[int, int], bool] = OrderedDict()
        self._known: set[tuple[int, int]] = set()

    def touch(self, line: tuple[int, int], write: bool) -> None:
        """Read or write one element."""
        if line in self._lines:
            self._lines.move_to_end(line)
        else:
            self.moved += 0 if write and line not in self._known else 1
            self._lines[line] = False
            if len(self._lines) > self.capacity:
                self.moved += 1 if self._lines.popitem(last=False)[1] else 0
        if write:
            self._known.add(line)
            self._lines[line] = True

    def flush(self) -> int:
        """Write back what changed; all elements moved."""
        self.moved += sum(self._lines.values())
        self._lines.clear()
        return self.moved


def cache_elements(program: StageProgram, capacity: int) -> int:
    """Elements that one unit moves into and out of a cache of that many elements while it runs the whole program. Results wait in
    registers until the program goes on to others.
    """
    nest, cache = program.nest, Cache(capacity)
    last = len(nest.accesses) - 1
    walked = list(visits(program))
    for visit, following in itertools.zip_longest(walked, walked[1:]):
        for number, access in enumerate(nest.accesses):
            touched = sorted(elements(nest, access, visit.box))
            if number == last and following is not None and touched == sorted(elements(nest, access, following.box)):
                continue
            for address in touched:
                cache.touch((number, address), number == last)
    return cache.flush()


def points(nest: Nest) -> int:
    """Points of the whole nest."""
    return math.prod(nest.extents)
