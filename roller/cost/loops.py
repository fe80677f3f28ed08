"""The loops of a program with the tile inside each of them, and the arrays that are live there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roller.cost.parameters import CostParameters
from roller.ir.nest import Tile
from roller.program.footprint import Geometry, HeldTile
from roller.program.halo import box_order, turned
from roller.program.rprogram import Loop, StageProgram, copy_depth, panel_element_bytes
from roller.target.hardware import HardwareSpec, MemoryLevel

Kept = tuple[HeldTile | float | None, ...]  # at each depth: a data tile, the bytes of a panel, or nothing


@dataclass(frozen=True, slots=True)
class Stream:
    """One array as a part of the nest sees it: between loop depths `start` and `stop`, as a data tile or a panel."""

    access: int | None  # position in nest.accesses, or None for a panel
    factor: int
    touches: tuple[bool, ...]
    start: int
    stop: int
    copy: bool = False  # a panel or a box, not the array itself


@dataclass
class NestWalk:
    """The loops of a program on a chip with the tile inside each prefix of them, and the arrays that are live there."""

    program: StageProgram
    spec: HardwareSpec
    geometry: Geometry
    parameters: CostParameters
    known: dict[int, Any] = field(init=False, default_factory=dict)  # what moves into each level, for who asks more than once
    _runs: dict[int, int] = field(default_factory=dict)
    _trips_apart: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _needs: dict[tuple[int, int], list[float]] = field(default_factory=dict)

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
        return next((lv for lv in reversed(self.spec.levels) if not lv.managed and lv.banks is not None), None)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """The arrays as the nest sees them: what is staged is its source outside the copy, the panel or box inside."""
        program, depth = self.program, len(self.loops)
        panels = {s.operand: s for s in program.staged if s.kind == "panel"}
        boxes = {s.operand: s for s in program.staged if s.kind == "box"}
        streams: list[Stream] = []
        # Accumulators wait in the innermost memory: inside the last spatial loop nobody asks for results or for epilogues.
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
        """For each stream what it keeps at each depth: a data tile, the bytes of a panel, or None inside the panel's copy."""
        return tuple([_stream_held(self, stream) for stream in self.streams])

    @cached_property
    def inside(self) -> list[int]:
        """For each stream the depth from which on it lives in levels that software fills."""
        return [_inside(self, stream) for stream in self.streams]

    def needed(self, depth: int, transaction: int, units: int) -> float:
        """Room that everything live at a depth needs in a level of such transactions that so many units share; depths are asked
        for one by one.
        """
        known = self._needs.setdefault((transaction, units), [])
        if depth == len(known):
            known.append(_room_at(self, depth, transaction, units))
        return known[depth]

    def copies(self, number: int, depth: int, units: int) -> int:
        """How many different tiles of a stream so many units work on at a time, inside the first loops up to a depth."""
        stream, dims, found = self.streams[number], self.program.nest.dims, 1
        own = stream.copy and stream.start > 0  # each unit has a copy of its own
        partial = stream.access is not None and self.program.nest.accesses[stream.access].role == "output"
        for loop, apart in zip(self.loops[:depth], self.apart(units), strict=False):
            if own or stream.touches[loop.dim] or (partial and dims[loop.dim].is_reduce):
                found *= apart
        return found

    def apart(self, units: int) -> tuple[int, ...]:
        """For each loop how many of its trips so many units make at a time: inner loops tell units apart first where tiles are
        dealt, outer ones where each unit takes a run of them.
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
        """For each stream whether a core that runs ahead of its arithmetic finds its next rows early: the nest reads them in place,
        and as many of them as are fetched side by side have a line each in the nearest cache.
        """
        return tuple([_read_ahead(self, number) for number in range(len(self.streams))])

    def run(self, number: int) -> int:
        """Elements of a stream that the nest walks one after another."""
        found = self._runs.get(number)
        if found is None:
            found = self._runs[number] = run_in_order(self, number)
        return found


def run_in_order(walk: NestWalk, number: int) -> int:
    """Elements of a stream that the nest walks one after another before it goes elsewhere, so that whoever fetches ahead has to
    find the next place. Few rows side by side are followed together, as many as the nearest cache has room for where they start.
    What a copy reads, it reads along the whole rows of its tile, many of them side by side where it turns them.
    """
    stream, sizes, nest = walk.streams[number], walk.held[number], walk.program.nest
    depth = stream.start if stream.copy else stream.stop
    held = sizes[depth]
    assert isinstance(held, HeldTile)
    role = nest.accesses[stream.access or 0].role
    # What is copied further in is read along the rows of its tile.
    run, rows = held.tile.run, held.runs if depth == len(walk.loops) or role != "body" else 1.0
    written = role == "output"
    followed = walk.parameters.write_streams if written else walk.parameters.read_streams
    while depth > stream.start and rows <= _together(walk, held, followed):
        depth -= 1
        held = sizes[depth]
        assert isinstance(held, HeldTile)
        if stream.touches[walk.loops[depth].dim] and held.tile.run <= run:
            rows *= walk.loops[depth].trips
        elif rows <= _together(walk, held, followed):
            run = max(run, min(held.tile.run, run * walk.loops[depth].trips))
    return min(run, _turned_row(walk, stream))


def _read_ahead(walk: NestWalk, number: int) -> bool:
    stream = walk.streams[number]
    if stream.access is None or stream.copy or stream.stop < len(walk.loops):
        return False
    tiles = [held for held in walk.held[number][stream.start :] if isinstance(held, HeldTile)]
    rows = next((held for held in reversed(tiles) if held.runs > tiles[-1].runs), tiles[-1])  # those that come next
    followed = walk.parameters.read_streams
    return walk.program.nest.accesses[stream.access].role == "body" and _together(walk, rows, followed) == followed


def _turned_row(walk: NestWalk, stream: Stream) -> int:
    """Elements of a row of an array that is copied into a box across its rows; the whole array where it is not."""
    access = walk.program.nest.accesses[stream.access or 0]
    boxed = any(s.kind == "box" and s.operand == stream.access for s in walk.program.staged)
    if stream.access is None or stream.copy or not boxed or not turned(walk.program, stream.access):
        return access.tensor.elements
    return math.prod(access.tensor.shape[box_order(walk.program, stream.access)[-1] + 1 :])


def _together(walk: NestWalk, held: HeldTile, followed: int) -> int:
    """Rows of a tile that are followed together."""
    near = walk.nearest
    if near is None or near.banks is None:
        return followed
    return min(followed, held.side_by_side(near.banks, near.capacity_bytes))


def _stream_held(walk: NestWalk, stream: Stream) -> Kept:
    """What a stream keeps at each depth; outside a panel's copy, the panel itself (its buffer is reused)."""
    found: list[HeldTile | float | None] = []
    geometry, width = walk.geometry, panel_element_bytes(walk.program.nest, walk.program.atom)
    body = stream.access is not None and walk.program.nest.accesses[stream.access].role == "body"
    filling = body and any(s.kind == "panel" and s.operand == stream.factor for s in walk.program.staged)
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
                found.append(float(geometry.panel_elements(stream.factor, inside, windowed) * width))
            else:
                found.append((geometry.read if filling else geometry.held)(stream.access, inside))
    return tuple(found)


def _inside(walk: NestWalk, stream: Stream) -> int:
    """The depth from which on a stream lives in levels that software fills, not in caches: 0 for a panel there; accumulators
    that lanes hold, once their tile is chosen.
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
