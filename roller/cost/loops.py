"""The loops of a program with the tile inside each of them, and the arrays that are live there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import dropwhile
from typing import Any

from roller.cost.issue import Issued
from roller.cost.occupancy import copies_around, resident_tiles, unit_efficiency
from roller.cost.parameters import CostParameters
from roller.ir.nest import Nest, Tile
from roller.program.dispatch import Loop
from roller.program.footprint import Geometry, HeldTile, whole_tiles
from roller.program.halo import box_order, turned
from roller.program.rprogram import StageProgram, copy_depth, panel_element_bytes
from roller.target.hardware import HardwareSpec, MemoryLevel

Kept = tuple[HeldTile | float | None, ...]  # at each depth: a data tile, the bytes of a panel, or nothing


@dataclass(frozen=True, slots=True)
class Stream:
    """One array, or its copy, between the loop depths `start` and `stop`: a data tile or a panel."""

    access: int | None  # position in nest.accesses, or None for a panel
    factor: int
    touches: tuple[bool, ...]
    start: int
    stop: int
    copy: bool = False  # a panel or a box, not the array itself


@dataclass
class NestWalk:
    """The loops of a program on a chip with the tile inside each prefix of them, and the arrays that are live there.

    `most_resident`: the occupancy limit, in tiles for each unit, where it is known better than from the program. `issued`: the
    issue slots of the nest's programs, if they are shared with other walks.
    """

    program: StageProgram
    spec: HardwareSpec
    geometry: Geometry
    parameters: CostParameters
    most_resident: int | None = None
    issued: Issued | None = None
    known: dict[int, Any] = field(init=False, default_factory=dict)  # cached traffic into each level
    _runs: dict[tuple[int, str | None], int] = field(default_factory=dict)
    _trips_apart: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _needs: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    @cached_property
    def busy(self) -> float:
        """The busy share of the units (`unit_efficiency`)."""
        return unit_efficiency(self.program, self.spec)

    @property
    def working(self) -> float:
        """The number of busy units."""
        return self.spec.unit.count * max(self.busy, 1e-9)

    @cached_property
    def resident(self) -> int:
        """The tiles on a unit at a time (occupancy)."""
        found = resident_tiles(self.program, self.spec, self.geometry)
        return found if self.most_resident is None else max(1, min(found, self.most_resident))

    @cached_property
    def issue(self) -> Issued:
        """The issue slots of the nest's programs."""
        return self.issued or Issued(self.spec, self.parameters)

    def copies_around(self, level: int) -> int:
        """Returns the copies at a level that form the circular buffer (`occupancy`); one where lanes cannot prefetch."""
        found = copies_around(self.program, self.spec, level)
        return found if found <= 1 or self._prefetches else 1

    @cached_property
    def _prefetches(self) -> bool:
        return self.issue.prefetches(self.program)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops outside the innermost tile, outermost first."""
        return self.program.loops

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """`tiles[d]` is the tile inside the first d loops."""
        tiles = [self.program.nest.extents]
        for loop in self.loops:
            tile = list(tiles[-1])
            tile[loop.dim] = self.program.step(loop)
            tiles.append(tuple(tile))
        return tuple(tiles)

    @cached_property
    def nearest(self) -> MemoryLevel | None:
        """The innermost cache that has sets."""
        return nearest_cache(self.spec)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """The arrays that the nest accesses: a staged one is its source outside the copy, and the panel or box inside."""
        program, depth = self.program, len(self.loops)
        panels = {s.operand: s for s in program.staged if s.kind == "panel"}
        boxes = {s.operand: s for s in program.staged if s.kind == "box"}
        streams: list[Stream] = []
        # Accumulators stay in the innermost memory: inside the last spatial loop the nest accesses no results or epilogue inputs.
        finished = max([i + 1 for i, lp in enumerate(self.loops) if not program.nest.dims[lp.dim].is_reduce], default=0)
        for number, access in enumerate(program.nest.accesses):
            panel = panels.get(access.factor) if access.role == "body" else None
            stop = (depth if access.role == "body" else finished) if panel is None else copy_depth(program, panel)
            boxed = min(stop, copy_depth(program, boxes[number])) if number in boxes else stop
            if all(staging is None or staging.level > 0 for staging in (panel, boxes.get(number))):
                streams.append(Stream(number, access.factor, access.touches, 0, boxed))
            if number in boxes and (panel is None or panel.level > 0):
                streams.append(Stream(number, access.factor, access.touches, boxed, stop, copy=True))
        for factor, panel in panels.items():
            touches = program.nest.factor_touches(factor)
            streams.append(Stream(None, factor, touches, copy_depth(program, panel), depth, copy=True))
        return tuple(streams)

    @cached_property
    def held(self) -> tuple[Kept, ...]:
        """For each stream its footprint at each depth: a data tile, the bytes of a panel, or None inside the panel's copy."""
        return tuple([_stream_held(self, stream) for stream in self.streams])

    @cached_property
    def inside(self) -> list[int]:
        """For each stream the first depth at which it lives in levels that software fills."""
        return [_inside(self, stream) for stream in self.streams]

    def needed(self, depth: int, transaction: int, units: int) -> float:
        """Returns the bytes that everything live at a depth needs in a level.

        `transaction`: the level's transaction in bytes; `units`: the units that share it. Callers pass the depths in order.
        """
        known = self._needs.setdefault((transaction, units), [])
        if depth == len(known):
            known.append(_room_at(self, depth, transaction, units))
        return known[depth]

    def copies(self, number: int, depth: int, units: int) -> int:
        """Returns how many different tiles of a stream `units` units use at a time, inside the first `depth` loops."""
        stream, dims, found = self.streams[number], self.program.nest.dims, 1
        own = stream.copy and stream.start > 0  # each unit has a copy of its own
        partial = stream.access is not None and self.program.nest.accesses[stream.access].role == "output"
        for loop, apart in zip(self.loops[:depth], self.apart(units), strict=False):
            if own or stream.touches[loop.dim] or (partial and dims[loop.dim].is_reduce):
                found *= apart
        return found

    def apart(self, units: int) -> tuple[int, ...]:
        """Returns for each loop how many of its trips `units` units run at a time.

        Where tiles are dealt, inner loops distribute units first. Where each unit takes a consecutive run of tiles, outer loops do.
        """
        known = self._trips_apart.get(units)
        if known is None:
            left, found = units, [1] * len(self.loops)
            order = range(len(self.loops))
            for number in reversed(order) if self.program.dealt else order:
                if self.loops[number].over == "units":
                    found[number] = max(1, min(self.loops[number].trips, left))
                    left = -(-left // found[number])
            known = self._trips_apart[units] = tuple(found)
        return known

    @cached_property
    def ahead(self) -> tuple[bool, ...]:
        """For each stream, whether an out-of-order core, which runs ahead of its arithmetic, requests the next rows early.

        The nest has to read them in place, and each of the rows that are fetched side by side needs a line in the nearest cache.
        """
        return tuple([_read_ahead(self, number) for number in range(len(self.streams))])

    def run(self, number: int, level: MemoryLevel) -> int:
        """Returns the elements that come into a level one after another; cached `run_in_order`."""
        near = room_for_rows(self.spec, level)
        key = number, None if near is None else near.name
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = run_in_order(self, number, near)
        return found


def run_in_order(walk: NestWalk, number: int, near: MemoryLevel | None) -> int:
    """Returns the elements of a stream that the nest walks one after another before it jumps to another address.

    After a jump the prefetcher has to find the next address. It follows a few rows side by side, as many as the cache `near` has
    room for where they start. A copy reads along the whole rows of its tile, many of them side by side where it transposes them.
    """
    stream, sizes, nest = walk.streams[number], walk.held[number], walk.program.nest
    depth = stream.start if stream.copy else stream.stop
    held = sizes[depth]
    assert isinstance(held, HeldTile)
    role = nest.accesses[stream.access or 0].role
    # A stream that is copied further in is read along the rows of its tile.
    run, rows = held.tile.run, held.runs if depth == len(walk.loops) or role != "body" else 1.0
    written = role == "output"
    followed = walk.parameters.write_streams if written else walk.parameters.read_streams
    while depth > stream.start and rows <= _together(near, held, followed):
        depth -= 1
        held = sizes[depth]
        assert isinstance(held, HeldTile)
        if stream.touches[walk.loops[depth].dim] and held.tile.run <= run:
            rows *= walk.loops[depth].trips
        elif rows <= _together(near, held, followed):
            run = max(run, min(held.tile.run, run * walk.loops[depth].trips))
    return min(run, _turned_row(walk, stream))


def reads_in_place(nest: Nest, stream: Stream, loops: int) -> bool:
    """True for an input of the body that the innermost tile of a nest with so many loops reads where it lies."""
    inmost = stream.access is not None and not stream.copy and stream.stop == loops
    return inmost and nest.accesses[stream.access or 0].role == "body"


def stores_runs(nest: Nest, number: int, dim: int) -> bool:
    """True if a loop over a dimension stores as many results as a run of an array has elements: along both lie results."""
    access = nest.accesses[number]
    return not nest.dims[dim].is_reduce and any(access.strides[d] == 1 for d in nest.spatial if access.touches[d])


def rows_in_turn(walk: NestWalk, number: int) -> Iterator[tuple[float, float]]:
    """Yields the rows that the nest reads in turn of an array in place, and the bytes of each before the next one.

    Where the nest walks a block of rows run by run, and then the next block, the runs are one pair and the blocks another. The runs
    of a single row are one, too, if their results are stored between them.
    """
    stream, sizes = walk.streams[number], walk.held[number]
    assert stream.access is not None
    width = walk.program.nest.accesses[stream.access].element_bytes
    held = sizes[stream.stop]
    assert isinstance(held, HeldTile)
    run, rows = held.tile.run, held.runs
    for depth in reversed(range(stream.start, stream.stop)):
        if not stream.touches[walk.loops[depth].dim]:
            continue
        held = sizes[depth]
        assert isinstance(held, HeldTile)
        if held.tile.run <= run:
            rows *= walk.loops[depth].trips
            continue
        if rows > 1 or stores_runs(walk.program.nest, stream.access, walk.loops[depth].dim):
            yield rows, run * width
        run, rows = held.tile.run, held.runs
    if rows > 1:
        yield rows, run * width


def _read_ahead(walk: NestWalk, number: int) -> bool:
    stream = walk.streams[number]
    if not reads_in_place(walk.program.nest, stream, len(walk.loops)):
        return False
    tiles = [held for held in walk.held[number][stream.start :] if isinstance(held, HeldTile)]
    rows = next((held for held in reversed(tiles) if held.runs > tiles[-1].runs), tiles[-1])  # the rows that follow
    followed = walk.parameters.read_streams
    return _together(walk.nearest, rows, followed) == followed


def _turned_row(walk: NestWalk, stream: Stream) -> int:
    """Returns the elements of one row of an array that is copied into a box across its rows; else those of the whole array."""
    access = walk.program.nest.accesses[stream.access or 0]
    boxed = any(s.kind == "box" and s.operand == stream.access for s in walk.program.staged)
    if stream.access is None or stream.copy or not boxed or not turned(walk.program, stream.access):
        return access.tensor.elements
    return math.prod(access.tensor.shape[box_order(walk.program, stream.access)[-1] + 1 :])


def nearest_cache(spec: HardwareSpec) -> MemoryLevel | None:
    """Returns the innermost cache whose sets are known."""
    return next((lv for lv in reversed(spec.levels) if not lv.managed and lv.banks is not None), None)


def room_for_rows(spec: HardwareSpec, level: MemoryLevel) -> MemoryLevel | None:
    """Returns the cache in which rows have to find room that come into a level: itself, or the next one inside with known sets."""
    inside = dropwhile(lambda one: one.name != level.name, spec.levels)
    return next((one for one in inside if not one.managed and one.banks is not None), None)


def _together(near: MemoryLevel | None, held: HeldTile, followed: int) -> int:
    """Returns the rows of a tile that are prefetched (or written) side by side."""
    if near is None or near.banks is None:
        return followed
    return min(followed, held.side_by_side(near.banks, near.capacity_bytes))


def _stream_held(walk: NestWalk, stream: Stream) -> Kept:
    """Returns a stream's footprint at each depth; outside a panel's copy, that of the panel itself (its buffer is reused)."""
    found: list[HeldTile | float | None] = []
    geometry, width = walk.geometry, panel_element_bytes(walk.program.nest, walk.program.atom)
    windowed = any(s.windowed and s.operand == stream.factor for s in walk.program.staged)
    for depth, tile in enumerate(walk.tiles):
        unchanged = depth and not stream.touches[walk.loops[depth - 1].dim]
        if unchanged and depth <= stream.stop:
            found.append(found[-1])
        elif depth > stream.stop:
            found.append(None)
        else:
            inside = walk.tiles[stream.start] if depth < stream.start else tile
            if stream.access is None:
                laid = tuple(whole_tiles(inside, walk.program.inner))
                found.append(float(geometry.panel_elements(stream.factor, laid, windowed) * width))
            else:
                found.append((geometry.held if stream.copy else geometry.read)(stream.access, inside))
    return tuple(found)


def _inside(walk: NestWalk, stream: Stream) -> int:
    """Returns the first depth at which a stream lives in levels that software fills, not in caches.

    It is 0 for a panel there. For accumulators that lanes hold, it is the depth at which their tile is chosen.
    """
    program, loops = walk.program, walk.loops
    if stream.access is None:
        homes = [s.level for s in program.staged if s.kind == "panel" and s.operand == stream.factor]
        return 0 if homes[0] and walk.spec.levels[homes[0]].managed else len(loops) + 1
    if program.lane_level is None or program.nest.accesses[stream.access].role != "output":
        return len(loops) + 1
    chosen = [d + 1 for d, lp in enumerate(loops) if lp.over != "lanes" and not program.nest.dims[lp.dim].is_reduce]
    return max(chosen, default=0)


def _room_at(walk: NestWalk, depth: int, transaction: int, units: int) -> float:
    needed = 0.0
    for number, (sizes, within) in enumerate(zip(walk.held, walk.inside, strict=True)):
        size = sizes[depth] if depth < within else None
        if size is not None:
            room = size.moved(transaction) if isinstance(size, HeldTile) else size
            needed += room * walk.copies(number, depth, units) if units > 1 else room
    return needed
