"""The choices that a chain of tiles leaves open: copies, loop orders, split-K, number of units. Each is tried, the best kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from roller.cost.occupancy import held_copies, resident_tiles
from roller.ir.nest import Tile
from roller.ir.sliding_windows import windows
from roller.layout.banks import padding_bytes
from roller.layout.lanes import runs_padded
from roller.layout.row_padding import rows_padded
from roller.program.rprogram import StageProgram, Staging, staged_touches
from roller.program.words import read_in_words
from roller.search.tile_space import Chain, TileSpace


def program_of(space: TileSpace, levels: tuple[int, ...], chain: Chain, pad: bool = True) -> StageProgram:
    """Returns the program of a chain with the default orders (spatial loops outside reductions) and the copies that it needs.

    `pad`: the panels get the padding of the best one.
    """
    whole = len(chain) == len(space.levels) and space.spec.levels[space.levels[0]].managed
    depth = space.fit.depth(space.levels, 0, chain[0], space.atom) if whole else 1
    return bare(space, levels, chain, required_staging(space, space.levels, chain, depth, pad))


def bare(space: TileSpace, levels: tuple[int, ...], chain: Chain, staged: tuple[Staging, ...] = ()) -> StageProgram:
    """Returns the program of a chain with the default orders and these copies only."""
    spatial_first, lanes = (*space.nest.spatial, *space.nest.reduce), space.lane_level
    what, orders = (space.nest, space.atom, space.mapping), tuple(spatial_first for _ in levels)
    return StageProgram(*what, levels, chain, orders, staged, lane_level=lanes, cooperate=space.fit.cooperate)


def required_staging(
    space: TileSpace, levels: tuple[int, ...], chain: Chain, depth: int = 1, pad: bool = True
) -> tuple[Staging, ...]:
    """Returns the copies without which the nest would gather or guard: panels for factors, boxes for guarded arrays.

    A level that software fills holds a panel of every factor that is reused there, with as many copies (buffers) as it allows.
    """
    nest, unit = space.nest, space.spec.levels[levels[0]]
    if unit.managed:
        reused = [f for f in range(len(nest.factors)) if space.fit.reused(nest.factor_touches(f)) and "input" in unit.holds]
        windowed = [space.fit.windowed and bool(windows(nest, f)) for f in range(len(nest.factors))]
        panels = [Staging("panel", f, levels[0], depth, windowed=windowed[f]) for f in reused if nest.reduce]
        return padded(space, levels, chain, tuple(panels)) if pad else tuple(panels)
    needed = [f for f in range(len(nest.factors)) if nest.stageable(f) and _needs_panel(space, f)]
    panels = [_constant_panel(space, f) or Staging("panel", f, levels[0]) for f in needed]
    return (*_boxes(space, levels[0]), *panels)


def padded(space: TileSpace, levels: tuple[int, ...], chain: Chain, staged: tuple[Staging, ...]) -> tuple[Staging, ...]:
    """Returns the panels with runs and rows padded for wide accesses and against bank conflicts, as far as there is room.

    The model charges the conflicts of the other panels.
    """
    banks = space.spec.levels[levels[0]].banks
    if banks is None or not staged:
        return staged
    program = bare(space, levels, chain, staged)
    copies, found = max(held_copies(program, space.spec)) if staged[0].depth > 1 else 1, []
    room = space.fit.room_left(levels, 0, chain[0], copies, space.atom)
    for staging in staged:
        chosen = plain = replace(staging, row_padding=0, run_padding=0)
        for runs in dict.fromkeys((runs_padded(program, plain, space.spec, banks), plain)):
            rows = rows_padded(program, space.spec, banks, runs)
            needed = copies * padding_bytes(program, space.spec, rows)
            if needed <= room:
                chosen, room = rows, room - needed
                break
        found.append(chosen)
    return tuple(found)


def _constant_panel(space: TileSpace, factor: int) -> Staging | None:
    """Returns a panel that is filled (prepacked) when the kernel is built, if all of the factor's arrays are constant."""
    names = {a.tensor.name for a in space.nest.inputs if a.factor == factor}
    return Staging("panel", factor, 0, constant=True) if names and names <= space.constants else None


def _boxes(space: TileSpace, level: int) -> tuple[Staging, ...]:
    return tuple(Staging("box", n, level) for n, a in enumerate(space.nest.inputs) if a.guarded)


def _needs_panel(space: TileSpace, factor: int) -> bool:
    """True if the innermost tile cannot read the factor in place: it would gather along the vector, or decode at every step."""
    nest = space.nest
    if space.atom.depth > 1:
        return not read_in_words(nest, space.atom, space.mapping, factor)
    mine = [a for a in nest.inputs if a.factor == factor]
    if any(a.strides[i] is None for a in mine for i in nest.reduce):
        return True
    lane = space.mapping[0][1] if space.mapping else None
    return lane is not None and any(a.touches[lane] and a.strides[lane] != 1 for a in mine)


def every_staging(space: TileSpace, levels: tuple[int, ...]) -> Iterator[tuple[Staging, ...]]:
    """Yields every staging.

    A factor has no panel (if it can be read in place), one at the unit's level, or one that is filled once for all. Boxes are at
    any level whose tiles run one after another, or are filled once for all.
    """
    if space.spec.levels[levels[0]].managed:
        return
    choices: list[list[Staging | None]] = []
    for factor in range(len(space.nest.factors)):
        places: list[Staging | None] = [None]
        if space.nest.stageable(factor):
            constant = _constant_panel(space, factor)
            places = [constant] if constant else [Staging("panel", factor, levels[0]), Staging("panel", factor, 0)]
            places += [] if _needs_panel(space, factor) else [None]
        choices.append(places)
    for panels in itertools.product(*choices):
        for boxes in dict.fromkeys([_boxes(space, level) for level in (*levels[:-1], 0)]):
            yield (*boxes, *(p for p in panels if p is not None))


def refined(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields variants of a program, one choice after another; each choice starts from the best variant so far."""
    best = program
    for choices in (_staged, _recut, _deepened, _ordered, _banded, _clustered, _shifted, _serial):
        options = [best, *[p for p in choices(space, best) if space.has_named(p.unit_tile)]]
        yield from options[1:]
        best = min(options, key=lambda p: space.model.estimate(p).seconds)


def _staged(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    yield from (replace(program, staged=s) for s in every_staging(space, program.levels))


def _recut(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields the program with its longest reduction cut into other parts, where units work only if parts are equal.

    These are equal parts, the nearest numbers of them for which there are units, and parts that are a little longer: one that
    divides well may take a unit less time.
    """
    nest, units = space.nest, space.spec.unit.count
    if not space.spec.spread or program.dispatch.split == 1 or space.fit.cooperate:
        return
    dim, tiles = max(nest.reduce, key=lambda d: nest.extents[d]), max(1, space.fit.tiles(program.unit_tile))
    staged = tuple([replace(s, shifts=False) for s in program.staged])
    whole = replace(program, dispatch=program.dispatch.uncut, staged=staged)
    now, extent, step = program.dispatch.split, nest.extents[dim], program.inner[dim]
    parts = range(max(2, now - PARTS), min(now + PARTS, max(now, units // tiles)) + 1)
    equal = [-(-extent // (number * step)) * step for number in parts]
    longer = [-(-extent // (now * step)) * step + step * more for more in range(1, LONGER + 1)]
    for share in dict.fromkeys((*equal, *longer)):
        if share < extent:
            yield from cut(space, whole, dim, share)


def _deepened(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields the program with other numbers of copies (pipeline stages), with the same panels or those of shorter steps.

    The level of the panels has to allow that, and to have room for the copies. Fewer copies may leave room for something else.
    """
    level = space.spec.levels[program.levels[0]]
    if not level.managed or not program.staged or len(program.tiles) != len(space.levels):
        return
    now = max(held_copies(program, space.spec))
    for tile in (program.unit_tile, *_shorter(space, program)):
        tiles = (tile, *program.tiles[1:])
        for depth in range(1 if tile == program.unit_tile else now + 1, level.depth_max + 1):
            other = replace(program, tiles=tiles, staged=tuple([replace(s, depth=depth) for s in program.staged]))
            held = max(held_copies(other, space.spec))
            if held < depth or space.fit.room_left(program.levels, 0, tile, held, space.atom) < 0:
                break
            if depth != now or tile != program.unit_tile:
                yield replace(other, staged=padded(space, program.levels, tiles, other.staged))


def _shorter(space: TileSpace, program: StageProgram) -> Iterator[Tile]:
    """Yields a unit's tile with its longest reduction halved again and again: the same copies in shorter steps.

    Yields nothing where the tile is a unit's or a lane's share of the reduction.
    """
    if space.fit.cooperate or not space.nest.reduce or program.dispatch.cuts_tiles:
        return
    tile, inner = program.unit_tile, program.tiles[1] if len(program.tiles) > 1 else program.inner
    dim = max(space.nest.reduce, key=lambda d: (tile[d], d))
    while tile[dim] % (2 * inner[dim]) == 0 and tile[dim]:
        tile = (*tile[:dim], tile[dim] // 2, *tile[dim + 1 :])
        rules = (program.levels, 0, tile, inner, space.mapping, space.atom)
        if space.fit.fits(*rules) and space.fit.legal(*rules) is None:
            yield tile


def _ordered(_: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    unclustered = program.dispatched(cluster=1)  # the last dimension may change
    yield from (replace(unclustered, orders=o) for o in orders_of(program))


def _banded(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    for ordered in (program, *_ordered(space, program)):
        yield from bands_of(space, ordered.dispatched(band=None, cluster=1))


PARTS, LONGER = 8, 24  # other numbers of parts of a reduction, and steps by which a part is lengthened; more take more time
BAND_RATIO = 2  # a band size is near the wanted one if it is at most this factor larger or smaller


def bands_of(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields the program with the tiles of one dimension in bands (rasterisation, threadblock swizzle, GROUP_SIZE_M).

    Units work on n tiles at a time: c along this dimension and n / c along the innermost one. They load c times the extent of the
    one and n / c times that of the other. That is least where c is the root of n times their ratio. Where clusters may lie along
    the dimension, bands of even size and bands of two are tried as well.
    """
    units = [lp for lp in program.loops if lp.over == "units" and not program.nest.dims[lp.dim].is_reduce]
    if not program.dealt or space.spec.spread or not program.staged or len(units) < 2 or not program.unit_tiles:
        return
    together = min(program.unit_tiles, space.spec.unit.count * resident_tiles(program, space.spec, space.model.geometry))
    inside, pairs = units[-1].dim, space.spec.levels[program.levels[0]].multicast_max > 1
    for lp in units[:-1]:
        wanted = math.sqrt(together * program.unit_tile[inside] / program.unit_tile[lp.dim])
        counts = _counts(lp.trips, wanted, 1)
        counts += [*_counts(lp.trips, wanted, 2), *([2] if lp.trips > 2 else [])] if pairs else []
        for count in dict.fromkeys(counts):
            yield program.dispatched(band=(lp.dim, count))


def _counts(trips: int, wanted: float, multiple: int) -> list[int]:
    """Returns band sizes, multiples of `multiple`: the divisor of the tile count nearest to the wanted size.

    If no divisor is near, also the near size that overshoots the end least.
    """
    near = range(max(2, math.ceil(wanted / BAND_RATIO)), min(trips, math.floor(wanted * BAND_RATIO) + 1))
    whole = [(abs(math.log(n / wanted)), n) for n in range(multiple, trips, multiple) if trips % n == 0 and n > 1]
    least = [(-trips % n, abs(math.log(n / wanted)), n) for n in near if n % multiple == 0]
    found = [n for _, n in sorted(whole)[:1]]
    return found if found and found[0] in near else [*found, *(n for *_, n in sorted(least)[:1])]


def _clustered(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    for ordered in (program, *_ordered(space, program), *_banded(space, program)):
        yield from clusters_of(space, ordered)


def clusters_of(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields the program in clusters whose units multicast panels that atoms read in place.

    Lanes that carry copies write to their own unit only.
    """
    most = space.spec.levels[program.levels[0]].multicast_max
    units = [lp for lp in program.loops if lp.over == "units"]
    if most == 1 or not units or not space.spec.in_place(program.atom):
        return
    shared = any(not staged_touches(space.nest, s)[units[-1].dim] for s in program.staged)
    size = 2
    while shared and size <= most and units[-1].trips % size == 0:
        yield program.dispatched(cluster=size)
        size *= 2


def _shifted(space: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    """Yields the program with copies that are passed on from unit to unit.

    The longest reduction has as many steps as units share a copy, for every copy that this number of units needs.
    """
    nest, reduce = space.nest, space.nest.reduce
    steps = [lp for lp in program.loops if lp.over == "time" and lp.level == program.levels[0]]
    if not space.spec.spread or not reduce or not program.staged or steps:
        return
    dim = max(reduce, key=lambda i: nest.extents[i])
    whole = program.dispatch.share[1] if program.dispatch.share is not None else min(program.unit_tile[dim], nest.extents[dim])
    rings: dict[int, list[Staging]] = {}
    for staging in program.staged:
        touches = staged_touches(nest, staging)
        units = [lp.trips for lp in program.loops if lp.over == "units" and not nest.dims[lp.dim].is_reduce and not touches[lp.dim]]
        if touches[dim] and math.prod(units) > 1:
            rings.setdefault(math.prod(units), []).append(staging)
    for size, copies in rings.items():
        step = -(-whole // (size * program.inner[dim])) * program.inner[dim]
        if -(-whole // step) != size:
            continue
        tile = (*program.unit_tile[:dim], step, *program.unit_tile[dim + 1 :])
        parts = -(-nest.extents[dim] // (step * size)) if program.dispatch.split > 1 else 1
        dispatch = replace(program.dispatch, share=(dim, step * size) if parts > 1 else None, split=parts)
        for chosen in [[c] for c in copies] + ([copies] if len(copies) > 1 else []):
            staged = tuple([replace(s, shifts=s in chosen) for s in program.staged])
            yield replace(program, tiles=(tile, *program.tiles[1:]), staged=staged, dispatch=dispatch)


def _serial(_: TileSpace, program: StageProgram) -> Iterator[StageProgram]:
    yield program.dispatched(parallel=False)


def ordered(program: StageProgram) -> Iterator[StageProgram]:
    """Yields a program in its other loop orders, and each of these on one unit alone."""
    for orders in orders_of(program):
        for parallel in (True, False):
            if (orders, parallel) != (program.orders, program.dispatch.parallel):
                yield replace(program, orders=orders).dispatched(parallel=parallel)


def orders_of(program: StageProgram) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields loop orders: at each level spatial loops with one or the other operand stationary, reductions inside or outside."""
    nest = program.nest
    forward, backward = nest.spatial, tuple(reversed(nest.spatial))
    per_level = []
    for position in range(len(program.levels)):
        choices = [(*forward, *nest.reduce)]
        if sum(1 for i in nest.spatial if nest.extents[i] > 1) > 1:
            choices.append((*backward, *nest.reduce))
        if nest.reduce and 0 < position < len(program.levels) - 1:
            choices.append((*nest.reduce, *forward))
        per_level.append(choices if position < len(program.levels) - 1 else choices[:1])
    yield from itertools.product(*per_level)


def split(space: TileSpace, program: StageProgram, pad: bool = True) -> Iterator[StageProgram]:
    """Yields split-K versions: the longest reduction cut over units where spatial tiles are too few; `pad`: see `cut`."""
    units, tiles = space.spec.unit.count, space.fit.tiles(program.unit_tile)
    if tiles >= units or not space.nest.reduce or not space.spec.unit.combine:
        return
    dim = max(space.nest.reduce, key=lambda i: space.nest.extents[i])
    if not space.nest.extents[dim]:
        return
    step = space.named.get(dim, program.inner[dim])
    for parts in sorted({-(-units // max(tiles, 1)), units // max(tiles, 1)}):
        share = -(-space.nest.extents[dim] // max(parts, 1))
        share = -(-share // step) * step
        trips = -(-space.nest.extents[dim] // share)
        if trips > 1:
            yield from cut(space, program, dim, share, pad)


def in_turn(space: TileSpace, program: StageProgram, along: int | None = None) -> Iterator[StageProgram]:
    """Yields split-K versions although there are enough tiles for all units.

    The tiles along one dimension then run one after another on a unit, which keeps the data that do not depend on that dimension.
    """
    nest, reduce = space.nest, space.nest.reduce
    if not space.spec.spread or not reduce or not space.spec.unit.combine or program.dispatch.split > 1:
        return
    dim = max(reduce, key=lambda i: nest.extents[i])
    for first in nest.spatial if along is None else (along,):
        others = math.prod([-(-nest.extents[d] // program.unit_tile[d]) for d in nest.spatial if d != first])
        parts = space.spec.unit.count // max(others, 1)
        if parts < 2 or others * -(-nest.extents[first] // program.unit_tile[first]) < space.spec.unit.count:
            continue
        share, step = -(-nest.extents[dim] // parts), space.named.get(dim, program.inner[dim])
        share = -(-share // step) * step
        order = (first, *[d for d in program.orders[0] if d != first])
        if share < nest.extents[dim]:
            yield from cut(space, replace(program, orders=(order, *program.orders[1:])), dim, share)


def parts_of(space: TileSpace, unit: tuple[int, ...]) -> int:
    """Returns the parts of each result if every tile of the reductions is one: of all dimensions, not only of the one cut."""
    return math.prod([-(-space.nest.extents[d] // unit[d]) for d in space.nest.reduce])


def _in_one_step(space: TileSpace, program: StageProgram, dim: int, share: int) -> Iterator[StageProgram]:
    tiles = ((*program.unit_tile[:dim], share, *program.unit_tile[dim + 1 :]), *program.tiles[1:])
    rules = (space.levels, 0, tiles[0], tiles[1], space.mapping, space.atom)
    if space.fit.fits(*rules):
        yield replace(program, tiles=tiles).dispatched(split=parts_of(space, tiles[0]))


def cut(space: TileSpace, program: StageProgram, dim: int, share: int, pad: bool = True) -> Iterator[StageProgram]:
    """Yields the program with a unit's share of a reduction (split-K).

    Where software fills its level, a unit walks the share in steps of its tile. Elsewhere, or where the share is no longer than the
    tile, the share is the tile. Lanes that share it each take a run, as their number is limited. `pad`: where tiles change, panels
    get the padding that suits the new ones.
    """
    inner, levels, extent = program.inner, program.levels, space.nest.extents[dim]
    managed = space.spec.levels[levels[0]].managed
    if managed and share > program.unit_tile[dim]:
        if space.spec.spread:  # in one step, too: no transfer overlaps the computing of a step
            yield from _in_one_step(space, program, dim, share)
        share = -(-share // program.unit_tile[dim]) * program.unit_tile[dim]
        if -(-extent // share) > 1:
            yield program.dispatched(split=-(-extent // share), share=(dim, share))
        return
    if space.fit.cooperate:
        others = space.fit.lanes((*program.unit_tile[:dim], inner[dim], *program.unit_tile[dim + 1 :]), inner, space.atom)
        room = max(1, space.spec.unit.lanes_max // others)
        run = -(-share // (room * inner[dim])) * inner[dim]
        if run > inner[dim]:  # more than the lanes take at a time: all of them work, each on a run
            inner, share = (*inner[:dim], run, *inner[dim + 1 :]), run * room
    between = tuple((*t[:dim], min(t[dim], share), *t[dim + 1 :]) for t in program.tiles[1:-1])
    unit = (*program.unit_tile[:dim], share, *program.unit_tile[dim + 1 :])
    trips = -(-extent // share)
    tiles = (unit, *between, inner)
    legal = space.fit.legal(levels, len(levels) - 2, tiles[-2], inner, space.mapping, space.atom) if len(tiles) > 1 else None
    inside = (*tiles[1:], inner)
    if trips > 1 and legal is None and all(space.fit.within(*t) for t in zip(levels, tiles, inside, strict=True)):
        staged = padded(space, levels, tiles, program.staged) if managed and pad else program.staged
        yield replace(program, tiles=tiles, staged=staged).dispatched(split=parts_of(space, unit))
