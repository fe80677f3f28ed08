"""Bytes that a program moves into each memory level.

Caches (unmanaged levels) are least-recently-used (LRU): a loop that does not touch an array reuses it if everything that one
iteration of that loop touches fits. Managed levels hold exactly their tile: an array is loaded again for every tile, except across
the innermost loops that do not touch it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roller.cost.loops import Kept, NestWalk, Stream, reads_in_place, rows_in_turn
from roller.cost.register_traffic import in_blocks
from roller.cost.stores import past_caches
from roller.ir.nest import Access, Tile
from roller.layout.banks import conflicts
from roller.layout.coalescing import lines
from roller.layout.lanes import group_tile, transactions
from roller.program.dispatch import Loop
from roller.program.footprint import HeldTile
from roller.program.halo import lane_step
from roller.program.rprogram import StageProgram, Staging, panel_element_bytes
from roller.target.hardware import Banks, HardwareSpec, MemoryLevel


@dataclass(frozen=True, slots=True)
class LevelTraffic:
    """Traffic into one level over the whole stage: bytes in whole transactions, and runs of consecutive addresses.

    `ahead`: the runs of arrays that the nest reads in place and that fit in the nearest cache when prefetched. `lost`: what more
    could move in the time that is lost from row to row. `filled`: the bytes that fill panels there; `lines`: transactions of the
    innermost level that these bytes take on their way, at least one a run.
    """

    bytes: float
    runs: float
    ahead: float = 0.0
    lost: float = 0.0
    filled: float = 0.0
    lines: float = 0.0

    def mixed(self, other: LevelTraffic, share: float) -> LevelTraffic:
        """Returns this traffic for a share of the data, and another one for the rest."""
        rest = 1 - share
        runs, ahead = share * self.runs + rest * other.runs, share * self.ahead + rest * other.ahead
        return LevelTraffic(share * self.bytes + rest * other.bytes, runs, ahead, share * self.lost + rest * other.lost)


def level_traffic(walk: NestWalk, index: int) -> LevelTraffic:
    """Returns the traffic into the level at this position of the spec; cached in the walk."""
    found: LevelTraffic | None = walk.known.get(index)
    if found is None:
        level = walk.spec.levels[index]
        found = walk.known[index] = _managed(walk, level, index) if level.managed else _cached(walk, level)
    return found


def _cached(walk: NestWalk, level: MemoryLevel) -> LevelTraffic:
    """Returns what a cache loads: each array, or its copy, by least-recently-used reuse."""
    together = _retained(walk, level, walk.spec.units_sharing(level))
    cold = 1 - together[0] * walk.parameters.warm
    if not cold:
        return LevelTraffic(0.0, 0.0)
    found = [_loaded(walk, level, number, together, cold) for number in range(len(walk.streams))]
    bytes_, runs = sum([f.bytes for f in found]), sum([f.runs for f in found])
    return LevelTraffic(bytes_, runs, sum([f.ahead for f in found]), sum([f.lost for f in found]))


def _loaded(walk: NestWalk, level: MemoryLevel, number: int, together: list[float], cold: float) -> LevelTraffic:
    """Returns what a cache loads of one array or copy. `cold`: the share of the data that the cache does not hold from before."""
    stream, _sizes = walk.streams[number], walk.held[number]
    if stream.access is None and not walk.inside[number]:
        return LevelTraffic(0.0, 0.0)  # the panel bypasses the caches
    kept = together if stream.copy else _kept_alone(walk, number, level, together)
    fit = min(max(len(kept) - 1, stream.start), stream.stop)
    stays = fit >= len(kept) or kept[fit] >= 1
    if stream.copy and fit == stream.start and stream.start > 0 and stays:
        return LevelTraffic(0.0, 0.0)  # the copy was just written at this level
    around = max(fit - 1, stream.start)  # neighbouring iterations of the loop around the fitting tile share lines and halos
    if stays:
        return _brought(walk, level, number, kept, around, cold)
    if fit < len(walk.loops):
        return _brought(walk, level, number, kept, fit, cold)
    kept_part, lost = _brought(walk, level, number, kept, around, cold), _brought(walk, level, number, kept, fit, cold, lost=True)
    return kept_part.mixed(lost, kept[fit])  # a share of the innermost tile stays for the next one


def _brought(
    walk: NestWalk, level: MemoryLevel, number: int, kept: list[float], depth: int, cold: float, lost: bool = False
) -> LevelTraffic:
    """Returns what a cache loads of one array or copy whose tile inside so many loops is loaded at each of their trips.

    `lost`: of an innermost tile that does not stay, each element that the nest gathers one by one takes a transaction.
    """
    stream, held = walk.streams[number], walk.held[number][depth]
    times = cold * _times_loaded(walk, level, stream.touches, kept, depth)
    if not isinstance(held, HeldTile):
        return LevelTraffic((held or 0.0) * times, 0.0)
    brought = held.moved(level.transaction_bytes) * _with_borders(walk, level, number, depth) * times
    started = held.tile.elements * times / max(walk.run(number, level), 1)
    if lost:
        gathered = _apart(walk.program, stream) * held.tile.elements * times
        brought, started = max(brought, gathered * level.transaction_bytes), max(started, gathered)
    started = min(started, brought / level.transaction_bytes)  # a run that starts in a transaction already present does not wait
    ahead = started if walk.ahead[number] else 0.0
    scattered = _scattered(walk, stream, walk.held[number], level) if level is walk.spec.levels[1] else 1.0
    moves, past = _passes(walk, stream, depth) * scattered, _stored_past(walk, stream, number)
    if past and level is walk.spec.levels[1]:
        run = walk.run(number, level) * walk.program.nest.output.element_bytes
        moves = max(moves, walk.parameters.past_run_bytes / run)
    if walk.parameters.write_allocate and level is walk.spec.levels[1] and _is_output(walk, stream) and not past:
        moves = max(moves, 2.0)
    moved = brought * moves
    return LevelTraffic(moved, 0.0 if past else started, ahead, moved * (1 / _row_share(walk, level, number) - 1))


def _with_borders(walk: NestWalk, level: MemoryLevel, number: int, depth: int) -> float:
    """Returns how often private caches load a tile whose parts are on several units: lines and halos on borders come twice.

    Each unit takes a consecutive run of a loop's trips. Borders between trips of one unit count once.
    """
    stream, sizes, factor = walk.streams[number], walk.held[number], 1.0
    if walk.program.dealt or stream.copy or stream.access is None:
        return factor
    for place, parts in enumerate(walk.apart(level.instances)[: stream.stop]):
        loop, whole, part = walk.loops[place], sizes[place], sizes[place + 1]
        if place < depth or parts == 1 or not stream.touches[loop.dim]:
            continue
        assert isinstance(whole, HeldTile) and isinstance(part, HeldTile)
        tile = list(walk.tiles[place + 1])
        tile[loop.dim] = walk.tiles[place][loop.dim] - (loop.trips - 1) * tile[loop.dim]
        last, once = walk.geometry.read(stream.access, tuple(tile)), whole.moved(level.transaction_bytes)
        apart = (loop.trips - 1) * part.moved(level.transaction_bytes) + last.moved(level.transaction_bytes)
        runs = -(-loop.trips // -(-loop.trips // parts))
        factor *= 1 + (apart / max(once, 1.0) - 1) * (runs - 1) / (loop.trips - 1)
    return factor


def _row_share(walk: NestWalk, level: MemoryLevel, number: int) -> float:
    """Returns the share of a level's bandwidth for an array that a reduction reads in place: the min of those of its rows.

    It is 1 for other arrays, and where the spec has no such numbers.
    """
    stream, nest = walk.streams[number], walk.program.nest
    if level.row_shares is None or nest.stage.reducer is None or not reads_in_place(nest, stream, len(walk.loops)):
        return 1.0
    return min([float(level.row_shares.share(rows, run)) for rows, run in rows_in_turn(walk, number)], default=1.0)


def _is_output(walk: NestWalk, stream: Stream) -> bool:
    return stream.access is not None and walk.program.nest.accesses[stream.access].role == "output"


def _stored_past(walk: NestWalk, stream: Stream, number: int) -> bool:
    """True for an output whose whole lines are stored past the caches."""
    held = walk.held[number][stream.stop]
    if not _is_output(walk, stream) or not isinstance(held, HeldTile):
        return False
    return bool(past_caches(walk.spec, walk.parameters, walk.program, held.tile.elements, held.tile.run))


def _times_loaded(walk: NestWalk, level: MemoryLevel, touches: Sequence[bool], kept: list[float], fit: int) -> float:
    """Returns how often the tile inside the first `fit` loops is loaded; what survives a trip is found again.

    Units that run neighbouring tiles at the same time share data: one of them fetches it for all.
    """
    spec, loops = walk.spec, walk.loops
    units, sharing = spec.unit.count if not spec.shared(level) else 1, spec.units_sharing(level)
    beside = walk.apart(sharing) if walk.program.dealt and units == 1 else (1,) * len(loops)
    times = 1.0
    for depth, loop in enumerate(loops[:fit]):
        if touches[loop.dim]:
            times *= loop.trips
        else:
            survives = kept[depth + 1] if depth + 1 < len(kept) else 1.0
            trips = -(-loop.trips // beside[depth])
            times *= max(trips - (trips - 1) * survives, _copies(loop, units))
    return times * math.prod([_copies(lp, units) for lp in loops[fit:] if not touches[lp.dim]]) if units > 1 else times


def _apart(program: StageProgram, stream: Stream) -> float:
    """Returns the share of an array's elements in an innermost tile that the nest gathers one by one, each from another row.

    A cache without room for all of these rows fetches a transaction for every element.
    """
    if stream.access is None or stream.copy or program.lane is None or not stream.touches[program.lane]:
        return 0.0
    access = program.nest.accesses[stream.access]
    across = access.role == "output" and program.across is not None
    return 0.0 if across or lane_step(program, stream.access) == 1 else 1.0 - in_blocks(program, access)


def _scattered(walk: NestWalk, stream: Stream, sizes: Kept, level: MemoryLevel) -> float:
    """Returns the write amplification of an output that no cache keeps and that is stored in several rows at a time.

    Partial transactions are written, as none is held back until the rest of it arrives.
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
    """Returns the number of private levels that each fetch the same data because a loop distributes it to several units."""
    return min(loop.trips, units) if loop.over == "units" else 1


def _retained(walk: NestWalk, level: MemoryLevel, sharing: int) -> list[float]:
    """Returns the share of data that survives until its reuse, at each depth: 1 if all fits, falling to 0 at twice the room.

    The list ends with the first depth at which all fits, as less is live further in.
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
    """Returns the surviving share of one array, whose rows may conflict in few sets of the cache although others have room."""
    sizes = walk.held[number]
    banks = level.banks
    if banks is None or all(_crowding(size, banks) <= 1 for size in sizes[: len(kept)]):
        return kept
    found: list[float] = []
    for depth, size in enumerate(sizes):
        share = kept[depth] if depth < len(kept) else 1.0
        crowding = _crowding(size, banks)
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
    """Returns how often the output moves for each of r sequential reduce trips outside the retained depth: (2r - 1) / r times."""
    nest = walk.program.nest
    if not _is_output(walk, stream):
        return 1.0
    trips = math.prod(lp.trips for lp in walk.loops[:fit] if nest.dims[lp.dim].is_reduce and lp.over == "time")
    return 2.0 - 1.0 / trips if trips > 1 else 1.0


def _managed(walk: NestWalk, level: MemoryLevel, index: int) -> LevelTraffic:
    program, spec, geometry, nest = walk.program, walk.spec, walk.geometry, walk.program.nest
    # The lanes of a matrix atom are already a group: they fetch its sub-tile together.
    grouped = level.access_lanes // program.atom.lanes if program.atom.kind == "matrix" else level.access_lanes
    tile, spread = _shared_tile(program, index, grouped)
    outside = [lp for lp in walk.loops if lp.level <= index]
    staged = {s.operand: s for s in program.staged if s.kind == "panel"}
    width = panel_element_bytes(nest, program.atom)
    total = runs = filled = crossed = 0.0
    for stream in walk.streams:
        access = nest.accesses[stream.access] if stream.access is not None else None
        role = access.role if access is not None else "body"
        staging = staged.get(stream.factor) if role == "body" else None
        outer = staging is not None and staging.level < index
        held = _held(spec, index, role)
        if not held or (staging is not None and outer != (access is None)):
            continue
        around = outside if role != "output" or "accumulator" in level.holds else walk.loops
        times = _loads(program, outside, stream.touches, spread, spec.unit.count, role != "body")
        times *= 2 * _visits(program, list(around)) - 1 if role == "output" else 1
        if staging is not None and index == program.levels[0] and program.brought_once(nest.factor_touches(stream.factor)):
            times *= 1 - level.multicast_saves * (1 - 1 / program.dispatch.cluster)
        if access is None or stream.access is None:
            assert staging is not None
            filling, reading = conflicts(program, spec, staging)
            times *= _rereads(program, stream) if index == program.lane_level and spec.in_place(program.atom) else 1
            banks = spec.levels[staging.level].banks if index == program.lane_level and len(program.tiles) > 1 else None
            if banks is not None and program.atom.kind != "matrix":
                total += transactions(program, staging, spread, banks) * banks.count * banks.width_bytes * times
            else:  # before the unit's tile is chosen, only the bytes that all lanes read once are known
                total += geometry.panel_elements(stream.factor, tile, staging.windowed) * width * times * reading
            if filling > 1 and staging.level == index - 1:
                total += _filled(walk, stream, staging) * width * (filling - 1)
        else:
            moved = geometry.read(stream.access, tile)
            brought = moved.moved(level.transaction_bytes) * times
            if index == program.lane_level and staging is None and program.atom.kind != "matrix":
                brought = max(brought, _by_lines(walk, access, spread, level) * times)
            total, runs = total + brought, runs + moved.runs * times
            if staging is not None and staging.level == index:
                filled += brought
                crossed += max(moved.runs * times, brought / spec.levels[-1].transaction_bytes)
    return LevelTraffic(total, runs, filled=filled, lines=crossed)


def _by_lines(walk: NestWalk, access: Access, group: dict[int, int], level: MemoryLevel) -> float:
    """Returns the bytes of the lines that a lane group touches, access by access; partly written lines count by their cost."""
    least, partly = 1, 1.0
    if access.role == "output":
        unit = walk.spec.levels[walk.program.levels[0]]
        least, partly = unit.transaction_bytes, walk.parameters.scattered_stores
    return lines(walk.program, access, group, level.transaction_bytes, least, partly) * level.transaction_bytes


def _rereads(program: StageProgram, stream: Stream) -> int:
    """Returns how often an innermost tile reads an operand that its atoms do not keep: once for each atom along other roles."""
    extents = program.atom.extents
    across = [(d, e) for role, d in program.mapping if isinstance(e := extents[role], int) and not stream.touches[d]]
    return math.prod([-(-program.inner[d] // e) for d, e in across])


def _filled(walk: NestWalk, stream: Stream, staging: Staging) -> float:
    """Returns the elements written into a panel over the whole stage."""
    program, loops = walk.program, [lp for lp in walk.loops if lp.level <= staging.level]
    times = _loads(program, loops, stream.touches, {}, walk.spec.unit.count, results=False)
    return walk.geometry.panel_elements(stream.factor, program.level_tile(staging.level), staging.windowed) * times


def _held(spec: HardwareSpec, index: int, role: str) -> bool:
    """True if an array of this role stays at the level, or crosses it on its way out of the accumulators inside it."""
    holds = spec.levels[index].holds
    if role != "output":
        return "input" in holds
    crosses = index + 1 < len(spec.levels) and "accumulator" in spec.levels[index + 1].holds
    return bool({"output", "accumulator"} & set(holds)) or crosses


def _shared_tile(program: StageProgram, index: int, access_lanes: int) -> tuple[Tile, dict[int, int]]:
    """Returns the tile whose data move together, and for each dimension the lanes that it spans.

    Accesses of lanes that issue together are coalesced: the tile of the whole lane group counts, as square as possible.
    """
    tile = program.level_tile(index)
    if index != program.lane_level:
        return tile, {}
    spread = group_tile(program, access_lanes)
    return tuple(t * spread.get(d, 1) for d, t in enumerate(tile)), spread


def _loads(
    program: StageProgram, loops: list[Loop], touches: tuple[bool, ...], spread: dict[int, int], units: int, results: bool
) -> float:
    """Returns how often an array's tile is loaded over the whole stage.

    It is once for every trip of the loops up to the innermost one that touches it; inner loops reuse it. Lanes that move together
    count once. Each unit runs a contiguous share of the unit tiles, so every unit that has a tile loads an array that few unit
    loops touch. Results, and the epilogue's other inputs, are not loaded again at every step of a reduction.
    """
    dims = program.nest.dims
    last = max((i for i, lp in enumerate(loops) if touches[lp.dim]), default=-1)
    over_units = [lp for lp in loops if lp.over == "units" and not (results and dims[lp.dim].is_reduce)]
    touched = max((i for i, lp in enumerate(over_units) if touches[lp.dim]), default=-1)
    if any(touches[lp.dim] for lp in loops if lp.over == "time"):
        touched = len(over_units) - 1  # a unit's data at the end of one unit tile are not those of the next one's start
    times = float(
        max(math.prod([lp.trips for lp in over_units[: touched + 1]]), min(math.prod([lp.trips for lp in over_units]), units))
    )
    for position, lp in enumerate(loops):
        if lp.over == "units" or (results and dims[lp.dim].is_reduce):
            continue
        if position <= last or lp.over == "lanes":
            times *= -(-lp.trips // spread.get(lp.dim, 1)) if lp.over == "lanes" else lp.trips
    return times


def _visits(program: StageProgram, loops: list[Loop]) -> int:
    """Returns how often a tile's accumulators return to a level: reduce trips among these loops outside spatial ones."""
    dims = program.nest.dims
    last = max((i for i, lp in enumerate(loops) if not dims[lp.dim].is_reduce and lp.over != "lanes"), default=0)
    return math.prod([lp.trips for lp in loops[:last] if dims[lp.dim].is_reduce and lp.over == "time"])
