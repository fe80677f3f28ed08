"""Bytes that a program moves into each memory level.

Caches (unmanaged levels) are least-recently-used: an array is found again by a loop that does not touch it if everything
one iteration of that loop touches fits. Managed levels hold exactly their tile: an array is loaded again for every
tile but for the innermost loops that do not touch it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from roller.hardware import Banks, HardwareSpec, MemoryLevel
from roller.nest import Tile
from roller.program import Loop, StageProgram, copy_depth
from roller.rates import CostParameters
from roller.tile import Geometry, HeldTile

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


@dataclass(frozen=True, slots=True)
class LevelTraffic:
    """What moves into one level over the whole stage: bytes in whole transactions, and runs of consecutive addresses."""

    bytes: float
    runs: float


@dataclass
class NestWalk:
    """The loops of a program on a chip with the tile inside each prefix of them, and the arrays that are live there."""

    program: StageProgram
    spec: HardwareSpec
    geometry: Geometry
    parameters: CostParameters
    _runs: dict[int, int] = field(default_factory=dict)
    _needs: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops outside the innermost tile, outermost first."""
        return self.program.loops

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """`tiles[d]` is the tile inside the first d loops."""
        tiles = [self.program.nest.extents]
        by_level = dict(zip(self.program.levels, self.program.tiles, strict=True))
        for loop in self.loops:
            tile = list(tiles[-1])
            tile[loop.dim] = by_level[loop.level][loop.dim]
            tiles.append(tuple(tile))
        return tuple(tiles)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """The arrays as the nest sees them: what is staged is its source outside the copy, the panel or box inside."""
        program, depth = self.program, len(self.loops)
        panels = {s.operand: s for s in program.staged if s.kind == "panel"}
        boxes = {s.operand: s for s in program.staged if s.kind == "box"}
        streams: list[Stream] = []
        for number, access in enumerate(program.nest.accesses):
            panel = panels.get(access.factor) if access.role == "body" else None
            stop = depth if panel is None else copy_depth(program, panel)
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
        """How many different tiles of a stream so many units work on at a time, inside the first loops up to a depth: units take
        consecutive tiles, so that the outer loops tell them apart first.
        """
        stream, dims, found = self.streams[number], self.program.nest.dims, 1
        own = stream.copy and stream.start > 0  # each unit has a copy of its own
        partial = stream.access is not None and self.program.nest.accesses[stream.access].role == "output"
        for loop in self.loops[:depth]:
            if loop.over == "units":
                apart = min(loop.trips, units)
                units = -(-units // apart)
                found *= apart if own or stream.touches[loop.dim] or (partial and dims[loop.dim].is_reduce) else 1
        return found

    def run(self, number: int) -> int:
        """Elements of a stream that the nest walks one after another."""
        found = self._runs.get(number)
        if found is None:
            found = self._runs[number] = run_in_order(self, number)
        return found


def level_traffic(walk: NestWalk, index: int) -> LevelTraffic:
    """Traffic into the level at this position of the spec."""
    level = walk.spec.levels[index]
    return _managed(walk, level, index) if level.managed else _cached(walk, level)


def _cached(walk: NestWalk, level: MemoryLevel) -> LevelTraffic:
    spec, loops, transaction = walk.spec, walk.loops, level.transaction_bytes
    sharing = spec.units_sharing(level)
    together = _retained(walk, level, sharing)
    total = runs = 0.0
    units = spec.unit.count if not spec.shared(level) else 1
    cold = 1 - together[0] * walk.parameters.warm
    if not cold:
        return LevelTraffic(0.0, 0.0)
    for number, (stream, sizes, within) in enumerate(zip(walk.streams, walk.held, walk.inside, strict=True)):
        if stream.access is None and not within:
            continue  # the panel never comes near a cache
        kept = together if stream.copy else _kept_alone(walk, number, level, together)
        fit = min(max(len(kept) - 1, stream.start), stream.stop)
        stays = fit >= len(kept) or kept[fit] >= 1
        if stream.copy and fit == stream.start and stream.start > 0 and stays:
            continue  # the copy was written at this level just now
        if stays:
            fit = max(fit - 1, stream.start)  # neighbouring iterations of the loop around what fits share lines and halos
        times = cold
        touches = stream.touches
        for d in range(fit):
            loop = loops[d]
            if touches[loop.dim]:
                times *= loop.trips
            else:
                survives = kept[d + 1] if d + 1 < len(kept) else 1.0
                times *= max(loop.trips - (loop.trips - 1) * survives, _copies(loop, units))
        if units > 1:
            times *= math.prod([_copies(lp, units) for lp in loops[fit:] if not touches[lp.dim]])
        moved = sizes[fit]
        if isinstance(moved, HeldTile):
            brought = moved.moved(transaction) * times
            started = moved.tile.elements * times / max(walk.run(number), 1)
            runs += min(started, brought / transaction)  # a run that starts in a transaction that is here waits for nothing
            scattered = _scattered(walk, stream, sizes, level) if level is spec.levels[1] else 1.0
            total += brought * _passes(walk, stream, fit) * scattered
        elif moved is not None:
            total += moved * times
    return LevelTraffic(total, runs)


def run_in_order(walk: NestWalk, number: int) -> int:
    """Elements of a stream that the nest walks one after another before it goes elsewhere, so that whoever fetches ahead has to
    find the next place. Few rows side by side are followed together. What a copy reads, it reads along the whole rows of its tile.
    """
    stream, sizes, nest = walk.streams[number], walk.held[number], walk.program.nest
    depth = stream.start if stream.copy else stream.stop
    held = sizes[depth]
    assert isinstance(held, HeldTile)
    run, rows = held.tile.run, held.runs if depth == len(walk.loops) else 1.0
    written = nest.accesses[stream.access or 0].role == "output"
    followed = walk.parameters.write_streams if written else walk.parameters.read_streams
    while depth > stream.start and rows <= followed:
        depth -= 1
        held = sizes[depth]
        assert isinstance(held, HeldTile)
        if stream.touches[walk.loops[depth].dim] and held.tile.run <= run:
            rows *= walk.loops[depth].trips
        elif rows <= followed:
            run = max(run, min(held.tile.run, run * walk.loops[depth].trips))
    return run


def _scattered(walk: NestWalk, stream: Stream, sizes: Kept, level: MemoryLevel) -> float:
    """How much more is written where an output that no cache keeps is stored in several rows at a time: parts of transactions,
    as nobody waits for the rest.
    """
    access = walk.program.nest.accesses[stream.access or 0]
    held = sizes[stream.stop]
    assert isinstance(held, HeldTile)
    alone = held.tile.run >= held.tile.elements
    kept = access.tensor.nbytes <= level.capacity_bytes or walk.program.lane_level is not None  # lanes store side by side
    if access.role != "output" or alone or kept or not held.nbytes:
        return 1.0
    return held.moved(level.transaction_bytes) / held.nbytes


def _copies(loop: Loop, units: int) -> int:
    """Private levels that each fetch the same data because a loop hands it to several units."""
    return min(loop.trips, units) if loop.over == "units" else 1


def _stream_held(walk: NestWalk, stream: Stream) -> Kept:
    """What a stream keeps at each depth; outside a panel's copy, the panel itself (its buffer is reused)."""
    found: list[HeldTile | float | None] = []
    geometry, width = walk.geometry, walk.program.nest.accumulator_bytes
    for depth, tile in enumerate(walk.tiles):
        unchanged = depth and not stream.touches[walk.loops[depth - 1].dim]
        if unchanged and depth <= stream.stop:
            found.append(found[-1])
        elif depth > stream.stop:
            found.append(None)
        else:
            inside = walk.tiles[stream.start] if depth < stream.start else tile
            if stream.access is None:
                found.append(float(geometry.panel_elements(stream.factor, inside) * width))
            else:
                found.append(geometry.held(stream.access, inside))
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


def _retained(walk: NestWalk, level: MemoryLevel, sharing: int) -> list[float]:
    """The share of data that survives until it is used again, at each depth: 1 if all fits, fading to 0 at twice the room.

    It ends with the first depth at which all fits: further in less is live.
    """
    kept, room = [], level.capacity_bytes * level.usable_fraction
    for depth in range(len(walk.tiles)):
        kept.append(_share(walk.needed(depth, level.transaction_bytes, sharing), room))
        if kept[-1] >= 1:
            break
    return kept


def _share(needed: float, room: float) -> float:
    return min(1.0, max(0.0, 2.0 - needed / room))


def _kept_alone(walk: NestWalk, number: int, level: MemoryLevel, kept: list[float]) -> list[float]:
    """What survives of one array, whose rows may crowd into few sets of the cache although there is room in others."""
    sizes = walk.held[number]
    if level.banks is None or _crowding(sizes[len(kept) - 1], level.banks) <= 1:
        return kept
    found: list[float] = []
    for depth, size in enumerate(sizes):
        share = kept[depth] if depth < len(kept) else 1.0
        crowding = _crowding(size, level.banks)
        if isinstance(size, HeldTile) and crowding > 1:
            copies = walk.copies(number, depth, walk.spec.units_sharing(level))
            share = min(share, _share(size.moved(level.transaction_bytes) * crowding * copies, level.capacity_bytes))
        found.append(share)
        if found[-1] >= 1:
            break
    return found


def _crowding(size: HeldTile | float | None, banks: Banks) -> float:
    return size.crowding(banks) if isinstance(size, HeldTile) else 1.0


def _passes(walk: NestWalk, stream: Stream, fit: int) -> float:
    """How often the output moves: 2r - 1 times where r sequential reduce trips lie outside what is retained."""
    nest = walk.program.nest
    if stream.access is None or nest.accesses[stream.access].role != "output":
        return 1.0
    trips = math.prod(lp.trips for lp in walk.loops[:fit] if nest.dims[lp.dim].is_reduce and lp.over == "time")
    return 2.0 - 1.0 / trips if trips > 1 else 1.0


def _managed(walk: NestWalk, level: MemoryLevel, index: int) -> LevelTraffic:
    program, spec, geometry, nest = walk.program, walk.spec, walk.geometry, walk.program.nest
    tile, spread = _shared_tile(program, index, level.access_lanes)
    outside = [lp for lp in walk.loops if lp.level <= index]
    staged = {s.operand: s.level for s in program.staged if s.kind == "panel"}
    total = runs = 0.0
    for stream in walk.streams:
        access = nest.accesses[stream.access] if stream.access is not None else None
        role = access.role if access is not None else "body"
        kept_at = staged.get(stream.factor) if role == "body" else None
        outer = kept_at is not None and kept_at < index
        held = _held(spec, index, role)
        if not held or (kept_at is not None and outer != (access is None)):
            continue
        around = outside if role != "output" or "accumulator" in level.holds else walk.loops
        times = _loads(program, outside, stream.touches, spread, spec.unit.count, role == "output")
        times *= 2 * _visits(program, list(around)) - 1 if role == "output" else 1
        if access is None or stream.access is None:
            total += geometry.panel_elements(stream.factor, tile) * nest.accumulator_bytes * times
        else:
            moved = geometry.held(stream.access, tile)
            total += moved.moved(level.transaction_bytes) * times
            runs += moved.runs * times
    return LevelTraffic(total, runs)


def _held(spec: HardwareSpec, index: int, role: str) -> bool:
    """True if an array of this role stays at the level, or crosses it on its way out of the accumulators inside it."""
    holds = spec.levels[index].holds
    if role != "output":
        return "input" in holds
    crosses = index + 1 < len(spec.levels) and "accumulator" in spec.levels[index + 1].holds
    return bool({"output", "accumulator"} & set(holds)) or crosses


def _shared_tile(program: StageProgram, index: int, access_lanes: int) -> tuple[Tile, dict[int, int]]:
    """The tile whose data move together, and for each dimension the lanes that it spans.

    Lanes that issue together merge equal addresses: for them the tile of the whole lane group counts, as square as it gets.
    """
    tile = program.level_tile(index)
    trips = {lp.dim: lp.trips for lp in program.loops if lp.over == "lanes"}
    if index != program.lane_level or not trips:
        return tile, {}
    spread = dict.fromkeys(trips, 1)
    while math.prod(spread.values()) < access_lanes:
        open_dims = [d for d in trips if spread[d] * 2 <= trips[d]]
        if not open_dims:
            break
        spread[min(open_dims, key=lambda d: (tile[d] * spread[d], d))] *= 2
    return tuple(t * spread.get(d, 1) for d, t in enumerate(tile)), spread


def _loads(
    program: StageProgram, loops: list[Loop], touches: tuple[bool, ...], spread: dict[int, int], units: int, output: bool
) -> float:
    """How often an array's tile is loaded over the whole stage: once for every trip of the loops up to the innermost that
    touches it (inner ones find it in place), lanes that move together counting once.

    Each unit runs a contiguous share of the unit tiles, so an array that few unit loops touch is still loaded by every unit
    that has a tile.
    """
    dims = program.nest.dims
    last = max((i for i, lp in enumerate(loops) if touches[lp.dim]), default=-1)
    over_units = [lp for lp in loops if lp.over == "units" and not (output and dims[lp.dim].is_reduce)]
    touched = max((i for i, lp in enumerate(over_units) if touches[lp.dim]), default=-1)
    if any(touches[lp.dim] for lp in loops if lp.over == "time"):
        touched = len(over_units) - 1  # what a unit holds at the end of one unit tile is not what the next one starts with
    times = float(
        max(math.prod([lp.trips for lp in over_units[: touched + 1]]), min(math.prod([lp.trips for lp in over_units]), units))
    )
    for position, lp in enumerate(loops):
        if lp.over == "units" or (output and dims[lp.dim].is_reduce):
            continue
        if position <= last or lp.over == "lanes":
            times *= -(-lp.trips // spread.get(lp.dim, 1)) if lp.over == "lanes" else lp.trips
    return times


def _visits(program: StageProgram, loops: list[Loop]) -> int:
    """How often a tile's accumulators come back to a level: reduce trips among these loops outside spatial ones."""
    dims = program.nest.dims
    last = max((i for i, lp in enumerate(loops) if not dims[lp.dim].is_reduce and lp.over != "lanes"), default=0)
    return math.prod([lp.trips for lp in loops[:last] if dims[lp.dim].is_reduce and lp.over == "time"])
