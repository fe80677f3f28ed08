"""The engine: construct programs from the innermost memory level outward, rate them, keep the best that differ.

    for each nest, atom and mapping:
        start from the atom; at each level, innermost first:
            grow the dimension with the best data-reuse score to its next aligned extent
            while it fits, parallelism suffices and memory still bounds; keep a spread of the path
        give every chain of tiles its loop orders, staging and reduce splits
    rank by estimate; drop near-duplicates

Score of growing dimension a:  S_a = (Q(T) - Q(T + a)) / (F(T + a) - F(T))  with Q the operator's whole traffic into the level
and F the tile's footprint (ROLLER, section 3.3, at the next aligned size). Innermost first, so that outer extents are
multiples of inner ones and a register tile of 6 rows is reachable.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from roller.align import Rules, atom_tile, next_aligned
from roller.cost import CostParameters, Estimate, Model, accumulators, combine_estimates, overlapped
from roller.errors import ConstructionError
from roller.expr import TensorExpr
from roller.fit import Fit
from roller.hardware import ComputeAtom, HardwareSpec
from roller.nest import Nest, Tile, variants
from roller.program import RProgram, StageProgram, Staging, lane_level, tiled_levels
from roller.tile import Geometry, padding_waste

EPSILONS = (0.0, 0.125, math.inf)  # rounds of tensor padding; each admits more waste
INNER_VISITS = 32  # tiles looked at by one growth at the innermost level: its lattice is small
OUTER_VISITS = 12  # … at an outer level, where growth follows one path with few side steps
INNER_KEEP, OUTER_KEEP = 12, 16  # chains kept after a level
REFINED = 6  # best chains for which orders, staging and splits are tried
REDUCE_STEPS = 3  # largest reduce extents that are kept for a tile
LARGEST = 3  # last tiles of a growth path that are kept, beside one for every doubling of its length
MAPPING_SLACK = 2.0  # an innermost tile predicted this much slower than the best one is not pursued
BOUND_SLACK = 0.02  # memory no longer bounds when what it adds is less than this share of compute


@dataclass(frozen=True)
class Candidate:
    """A program and its prediction."""

    program: RProgram
    estimate: Estimate


@dataclass
class _Search:
    """One nest, atom and mapping on one chip."""

    model: Model
    fit: Fit
    rules: Rules
    nest: Nest
    atom: ComputeAtom
    mapping: tuple[tuple[str, int], ...]
    constants: frozenset[str] = frozenset()
    refusals: Counter[str] = field(default_factory=Counter)

    @property
    def spec(self) -> HardwareSpec:
        return self.model.spec


def construct(
    expr: TensorExpr,
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    top_k: int = 10,
    constants: frozenset[str] = frozenset(),
) -> list[Candidate]:
    """The `top_k` best programs for a fused expression, best first; `ConstructionError` where nothing fits.

    `constants` names inputs whose values are known when the kernel is built: panels of them cost nothing.
    """
    per_stage = [construct_stage(nests, spec, rules, parameters, top_k, constants) for nests in _nests(expr)]
    count = min(top_k, max(len(found) for found in per_stage))
    candidates = []
    for rank in range(count):
        chosen = [found[min(rank, len(found) - 1)] for found in per_stage]
        program = RProgram(expr, tuple(p for p, _ in chosen))
        candidates.append(Candidate(program, combine_estimates([e for _, e in chosen])))
    return sorted(candidates, key=lambda c: c.estimate.seconds)


def _nests(expr: TensorExpr) -> Iterator[tuple[Nest, ...]]:
    for stage in expr.stages:
        yield variants(stage, expr.tensors)


Rated = tuple[StageProgram, Estimate]


def construct_stage(
    nests: tuple[Nest, ...],
    spec: HardwareSpec,
    rules: Rules,
    parameters: CostParameters,
    top_k: int,
    constants: frozenset[str] = frozenset(),
) -> list[Rated]:
    """The best programs for one stage over its nest variants."""
    refusals: Counter[str] = Counter()
    searches = []
    for nest in nests:
        model = Model(spec, parameters, Geometry(nest))
        fits = [Fit(spec, nest, model.geometry, cooperate=shared) for shared in _cooperation(nest, spec)]
        searches += [
            _Search(model, fit, rules, nest, atom, m, constants, refusals) for atom, m in mappings(nest, rules.atoms) for fit in fits
        ]
    pool: dict[tuple[object, ...], Rated] = {}
    for search, chains in _innermost(searches):
        for program in _programs(search, chains):
            pool.setdefault((search.nest.dims, *program.key), (program, search.model.estimate(program)))
    if not pool:
        raise ConstructionError(f"no tile of {nests[0].stage.name!r} fits {spec.device}:{spec.chip}", dict(refusals))
    ranked = sorted(pool.values(), key=lambda item: (item[1].seconds, item[0].tiles))
    return diverse(ranked, top_k)


def _cooperation(nest: Nest, spec: HardwareSpec) -> tuple[bool, ...]:
    """Whether lanes share reductions: tried both ways where there are lanes that can combine what they hold."""
    able = lane_level(spec) is not None and bool(nest.reduce) and "shuffle" in spec.unit.combine
    return (False, True) if able else (False,)


def mappings(nest: Nest, atoms: Iterable[ComputeAtom]) -> Iterator[tuple[ComputeAtom, tuple[tuple[str, int], ...]]]:
    """Each atom with each way to lay its roles on dimensions.

    A matrix unit needs a sum of products: k is a reduce dimension of both factors, m one of the first only, n one of the
    second only (or the other way round). A vector lies on one dimension along which some array is contiguous, or any
    if there is none; on a reduce dimension its lanes hold partial results. Types must match what the body computes in.
    """
    kind = nest.stage.body.dtype
    for atom in atoms:
        if atom.kind == "matrix":
            yield from ((atom, m) for m in _matrix_mappings(nest, atom))
        elif atom.acc_dtype != kind:
            continue
        elif atom.kind == "scalar":
            yield atom, ()
        else:
            role = next(iter(atom.roles))
            yield from ((atom, ((role, dim),)) for dim in _vector_dims(nest))


def _vector_dims(nest: Nest) -> list[int]:
    contiguous = [i for i, d in enumerate(nest.dims) if d.extent > 1 and any(a.strides[i] == 1 for a in nest.accesses)]
    return contiguous or [i for i, d in enumerate(nest.dims) if d.extent > 1][-1:]


def _matrix_mappings(nest: Nest, atom: ComputeAtom) -> Iterator[tuple[tuple[str, int], ...]]:
    if len(nest.factors) != 2 or nest.stage.body.dtype != atom.acc_dtype:
        return
    if any(a.tensor.dtype != atom.in_dtype for a in nest.inputs):
        return
    first, second = nest.factor_touches(0), nest.factor_touches(1)
    for left, right in ((first, second), (second, first)):
        rows = [i for i in nest.spatial if left[i] and not right[i]]
        columns = [i for i in nest.spatial if right[i] and not left[i]]
        depth = [i for i in nest.reduce if left[i] and right[i]]
        if depth:
            big = {"m": rows, "n": columns, "k": depth}
            yield tuple((r, max(big[r], key=lambda i: (nest.extents[i], i))) for r in atom.roles if big[r])


Chain = tuple[Tile, ...]


def _innermost(searches: list[_Search]) -> Iterator[tuple[_Search, list[Chain]]]:
    """The innermost tiles worth pursuing, over all nests, atoms and mappings together."""
    floors = [s.model.floor_seconds(_program(s, tiled_levels(s.spec)[-1:], (_start(s),))) for s in searches]
    rated: list[tuple[float, int, Chain]] = []
    for number, search in enumerate(searches):
        if floors[number] > MAPPING_SLACK * min(floors):
            continue
        levels = tiled_levels(search.spec)
        for tile in grow(search, levels, len(levels) - 1, _start(search)):
            program = _program(search, levels[-1:], (tile,))
            rated.append((_partial_seconds(search, program, levels[-1]), number, (tile,)))
    rated.sort()
    kept = [r for r in rated[:INNER_KEEP] if r[0] <= MAPPING_SLACK * rated[0][0]]
    for number, search in enumerate(searches):
        chains = [chain for _, n, chain in kept if n == number]
        if chains:
            yield search, chains


def _start(search: _Search) -> Tile:
    """The atom as a tile; a vector wider than its dimension shrinks to it."""
    start = atom_tile(search.nest, search.atom, search.mapping)
    whole = search.nest.extents
    return start if search.atom.kind == "matrix" else tuple(min(t, e) for t, e in zip(start, whole, strict=True))


def _programs(search: _Search, chains: list[Chain]) -> Iterator[StageProgram]:
    """Chains of tiles from the innermost ones outward, then the programs that use them."""
    levels = tiled_levels(search.spec)
    for position in reversed(range(len(levels) - 1)):
        found: dict[Chain, None] = {}
        for chain in chains:
            for tile in _spread(search, levels, position, chain[0], grow(search, levels, position, chain[0])):
                found[(tile, *chain)] = None
        chains = _prune(search, levels[position:], list(found), OUTER_KEEP)
    yield from _finish(search, levels, chains)


def grow(search: _Search, levels: tuple[int, ...], position: int, inner: Tile) -> list[Tile]:
    """Tiles at one level, reached by growing the best-scored dimension first; every padding round in turn."""
    seen: dict[Tile, None] = {}
    if levels[position] == len(search.spec.levels):
        return [inner]  # the atom itself
    visits = INNER_VISITS if position == len(levels) - 1 else OUTER_VISITS
    if not search.fit.fits(levels, position, inner, inner, search.mapping, search.atom):
        search.refusals[search.fit.rule(levels, position)] += 1
        return []
    for epsilon in EPSILONS if _pads(search, levels, position) else EPSILONS[-1:]:
        _grow_round(search, levels, position, inner, epsilon, visits, seen)
    return list(seen)


def _pads(search: _Search, levels: tuple[int, ...], position: int) -> bool:
    """True if tiles of this level run whole, so that their extents decide how much padding is executed."""
    return position == len(levels) - 1 or lane_level(search.spec) is not None


def _grow_round(
    search: _Search, levels: tuple[int, ...], position: int, inner: Tile, epsilon: float, visits: int, seen: dict[Tile, None]
) -> None:
    """One round at one padding allowance: best score first, at most `visits` new tiles; adds to `seen`."""
    frontier, done = [(0.0, inner)], set[Tile]()
    while frontier and visits:
        frontier.sort(key=lambda item: (-item[0], item[1]))
        _, tile = frontier.pop(0)
        if tile in done:
            continue
        done.add(tile)
        visits -= 1
        seen[tile] = None
        if _memory_bounds(search, levels, position, tile):
            frontier += _steps(search, levels, position, inner, tile, epsilon)


def _legal(search: _Search, levels: tuple[int, ...], position: int, inner: Tile, tile: Tile) -> bool:
    broken = search.fit.legal(levels, position, tile, inner, search.mapping, search.atom)
    if broken is not None:
        search.refusals[broken] += 1
    return broken is None


def _steps(
    search: _Search, levels: tuple[int, ...], position: int, inner: Tile, tile: Tile, epsilon: float
) -> Iterator[tuple[float, Tile]]:
    """The next aligned tiles of a tile with their reuse scores."""
    nest, innermost = search.nest, position == len(levels) - 1
    traffic, footprint = search.fit.traffic(levels, position, tile), _footprint(search, levels, position, tile, inner)
    for dim in range(len(nest.dims)):
        if nest.dims[dim].is_reduce and not (innermost and any(d == dim for _, d in search.mapping)):
            continue
        grown = _next_tile(search, levels, position, inner, tile, dim, epsilon)
        if grown is None:
            continue
        if not search.fit.fits(levels, position, grown, inner, search.mapping, search.atom):
            search.refusals[search.fit.rule(levels, position)] += 1
            continue
        if position == 0 and _too_few(search, tile, inner) and _too_few(search, grown, inner):
            search.refusals["parallelism"] += 1
            continue
        saved = traffic - search.fit.traffic(levels, position, grown)
        added = _footprint(search, levels, position, grown, inner) - footprint
        score = math.inf if saved > 0 >= added else saved / max(added, 1e-9)
        yield score, grown


def _too_few(search: _Search, tile: Tile, inner: Tile) -> bool:
    """True if the tiles cannot occupy all units, not even with the reduction cut over units where units can combine."""
    parts = math.prod([-(-search.nest.extents[i] // inner[i]) for i in search.nest.reduce]) if search.spec.unit.combine else 1
    return search.fit.tiles(tile) * parts < search.spec.unit.count


def _footprint(search: _Search, levels: tuple[int, ...], position: int, tile: Tile, inner: Tile) -> int:
    if position == len(levels) - 1:
        return search.fit.inner_bytes(tile, search.mapping, search.atom)
    return search.fit.footprint(levels, position, tile, inner)


def _next_tile(
    search: _Search, levels: tuple[int, ...], position: int, inner: Tile, tile: Tile, dim: int, epsilon: float
) -> Tile | None:
    """The tile with one dimension at its next aligned extent that keeps padding within the allowance."""
    nest = search.nest
    multiple = search.rules.multiple(levels[position], nest.dims[dim].name)
    allowed = max(epsilon, padding_waste(nest.extents, inner)) + 1e-9
    extent: int | None = tile[dim]
    while extent is not None:
        extent = next_aligned(nest.extents[dim], inner[dim], extent, multiple)
        if extent is None or (extent > nest.extents[dim] and search.atom.kind != "matrix" and position == len(levels) - 1):
            return None
        grown = (*tile[:dim], extent, *tile[dim + 1 :])
        if not _lane_shape(search, levels, position, dim, grown, inner):
            continue
        if not _pads(search, levels, position) or padding_waste(nest.extents, grown) <= allowed:
            return grown
    return None


def _lane_shape(search: _Search, levels: tuple[int, ...], position: int, dim: int, tile: Tile, inner: Tile) -> bool:
    """True unless the sub-tiles along the dimension run on lanes and are no power of two: whole groups come of such shapes."""
    if lane_level(search.spec) is None or position != len(levels) - 2 or search.spec.unit.lanes_fixed:
        return True
    count = -(-tile[dim] // inner[dim])
    return count & (count - 1) == 0


def _memory_bounds(search: _Search, levels: tuple[int, ...], position: int, tile: Tile) -> bool:
    """False once growing further cannot help: what loads add to compute is negligible and all chains are busy."""
    program = StageProgram(
        search.nest, search.atom, search.mapping, levels[-1:], (tile,), (tuple(range(len(tile))),), lane_level=lane_level(search.spec)
    )
    if position == len(levels) - 1:
        if search.nest.stage.reducer is not None and search.model.chain_efficiency(program) < 1:
            return True
        return accumulators(program) >= 1
    rate = search.atom.gflops * 1e9 / 2
    compute = math.prod(search.nest.extents) / rate
    bandwidth = search.spec.levels[levels[position]].bandwidth_gbps or 1.0
    load = search.fit.traffic(levels, position, tile) / (bandwidth * 1e9)
    return max(0.0, load - compute) + search.spec.overlap_loss * load >= BOUND_SLACK * compute


def _spread(search: _Search, levels: tuple[int, ...], position: int, inner: Tile, tiles: list[Tile]) -> Iterator[Tile]:
    """Each tile with the reduce extents worth trying at this level."""
    chosen = tiles[-LARGEST:] + [t for i, t in enumerate(tiles[:-LARGEST]) if i & (i + 1) == 0]
    for tile in chosen:
        deeper = _with_reduce(search, levels, position, inner, tile) if search.nest.reduce else (tile,)
        yield from (t for t in deeper if _legal(search, levels, position, inner, t))


def _with_reduce(search: _Search, levels: tuple[int, ...], position: int, inner: Tile, tile: Tile) -> Iterator[Tile]:
    """The tile with reduce extents doubled as long as it fits: the largest three, and the whole where the level is a cache."""
    steps = [tile]
    managed = search.spec.levels[levels[position]].managed
    for dim in reversed(search.nest.reduce):
        while True:
            last = steps[-1]
            whole = -(-search.nest.extents[dim] // inner[dim]) * inner[dim]
            extent = min(last[dim] * 2, whole)
            if extent <= last[dim]:
                break
            grown = (*last[:dim], extent, *last[dim + 1 :])
            if managed and not search.fit.fits(levels, position, grown, inner, search.mapping, search.atom):
                yield from steps[-REDUCE_STEPS:]
                return
            steps.append(grown)
    yield from steps[-REDUCE_STEPS:]


def _prune(search: _Search, levels: tuple[int, ...], chains: list[tuple[Tile, ...]], keep: int) -> list[tuple[Tile, ...]]:
    """The chains with the least predicted time so far, counting only the levels that have a tile."""
    if len(chains) <= keep:
        return chains
    rated = []
    for chain in chains:
        program = _program(search, levels, chain)
        options = [program, *_split(search, program)] if levels[0] == tiled_levels(search.spec)[0] else [program]
        rated.append((min(_partial_seconds(search, p, levels[0]) for p in options), chain))
    rated.sort()
    return [chain for _, chain in rated[:keep]]


def _partial_seconds(search: _Search, program: StageProgram, level: int) -> float:
    model = search.model
    moving, latency = model.level_terms(program, level)
    return overlapped((model.compute_seconds(program), *moving), 2, search.spec.overlap_loss) + latency + model.overhead_seconds(program)


def _program(search: _Search, levels: tuple[int, ...], chain: tuple[Tile, ...]) -> StageProgram:
    spatial_first = (*search.nest.spatial, *search.nest.reduce)
    lanes = lane_level(search.spec)
    staged = _required_staging(search, tiled_levels(search.spec))
    return StageProgram(
        search.nest, search.atom, search.mapping, levels, chain, tuple(spatial_first for _ in levels), staged, lane_level=lanes,
        cooperate=search.fit.cooperate,
    )


def _required_staging(search: _Search, levels: tuple[int, ...]) -> tuple[Staging, ...]:
    """Copies without which the nest would gather or guard: panels for factors, boxes for arrays that can be left.

    A level that software fills holds a panel of every factor that is used again there, as many deep as it allows.
    """
    nest, unit = search.nest, search.spec.levels[levels[0]]
    if unit.managed:
        reused = [f for f in range(len(nest.factors)) if search.fit.reused(nest.factor_touches(f)) and "input" in unit.holds]
        return tuple(Staging("panel", f, levels[0], depth=min(2, unit.depth_max)) for f in reused if nest.reduce)
    needed = [f for f in range(len(nest.factors)) if nest.stageable(f) and _needs_panel(search, f)]
    panels = [_constant_panel(search, f) or Staging("panel", f, levels[0]) for f in needed]
    return (*_boxes(search, levels[0]), *panels)


def _constant_panel(search: _Search, factor: int) -> Staging | None:
    """A panel filled when the kernel is built, if all of the factor's arrays are constant."""
    names = {a.tensor.name for a in search.nest.inputs if a.factor == factor}
    return Staging("panel", factor, 0, constant=True) if names and names <= search.constants else None


def _boxes(search: _Search, level: int) -> tuple[Staging, ...]:
    return tuple(Staging("box", n, level) for n, a in enumerate(search.nest.inputs) if a.guarded)


def _needs_panel(search: _Search, factor: int) -> bool:
    """True if the innermost tile could not read the factor in place: gathered along the vector, or decoded at every step."""
    nest = search.nest
    mine = [a for a in nest.inputs if a.factor == factor]
    if any(a.strides[i] is None for a in mine for i in nest.reduce):
        return True
    lane = search.mapping[0][1] if search.mapping else None
    return lane is not None and any(a.touches[lane] and a.strides[lane] != 1 for a in mine)


def _finish(search: _Search, levels: tuple[int, ...], chains: list[Chain]) -> Iterator[StageProgram]:
    """Programs for the chains with default orders and staging; for the best of them each choice in turn, keeping the best."""
    whole = [_program(search, levels, chain) for chain in chains]
    plain = [*whole, *(p for program in whole for p in _split(search, program))]
    yield from plain
    plain.sort(key=lambda p: (search.model.estimate(p).seconds, p.tiles))
    for program in plain[:REFINED]:
        best = program
        for choices in (_staged, _ordered, _serial):
            options = [best, *choices(search, best)]
            yield from options[1:]
            best = min(options, key=lambda p: search.model.estimate(p).seconds)


def _staged(search: _Search, program: StageProgram) -> Iterator[StageProgram]:
    yield from (replace(program, staged=s) for s in _stagings(search, program.levels))


def _ordered(_: _Search, program: StageProgram) -> Iterator[StageProgram]:
    yield from (replace(program, orders=o) for o in _orders(program))


def _serial(_: _Search, program: StageProgram) -> Iterator[StageProgram]:
    yield replace(program, parallel=False)


def _orders(program: StageProgram) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Loop orders: at each level the spatial loops with one or the other operand stationary, reductions inside or outside."""
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


def _stagings(search: _Search, levels: tuple[int, ...]) -> Iterator[tuple[Staging, ...]]:
    """Every way to stage: panels not at all (where a factor can be read in place), at the unit's level, or once for all."""
    if search.spec.levels[levels[0]].managed:
        return
    choices: list[list[Staging | None]] = []
    for factor in range(len(search.nest.factors)):
        places: list[Staging | None] = [None]
        if search.nest.stageable(factor):
            constant = _constant_panel(search, factor)
            places = [constant] if constant else [Staging("panel", factor, levels[0]), Staging("panel", factor, 0)]
            places += [] if _needs_panel(search, factor) else [None]
        choices.append(places)
    for panels in itertools.product(*choices):
        for boxes in dict.fromkeys((_boxes(search, levels[0]), _boxes(search, 0))):
            yield (*boxes, *(p for p in panels if p is not None))


def _split(search: _Search, program: StageProgram) -> Iterator[StageProgram]:
    """Versions whose longest reduction is cut over units where spatial tiles are too few."""
    units, tiles = search.spec.unit.count, search.fit.tiles(program.unit_tile)
    if tiles >= units or not search.nest.reduce or not search.spec.unit.combine:
        return
    dim = max(search.nest.reduce, key=lambda i: search.nest.extents[i])
    for parts in sorted({-(-units // max(tiles, 1)), units // max(tiles, 1)}):
        share = -(-search.nest.extents[dim] // max(parts, 1))
        share = -(-share // program.inner[dim]) * program.inner[dim]
        trips = -(-search.nest.extents[dim] // share)
        if trips > 1:
            tiles_cut = tuple((*t[:dim], min(t[dim], share), *t[dim + 1 :]) for t in program.tiles)
            unit = (*tiles_cut[0][:dim], share, *tiles_cut[0][dim + 1 :])
            yield replace(program, tiles=(unit, *tiles_cut[1:]), split=trips)


def diverse(ranked: list[Rated], count: int) -> list[Rated]:
    """The best programs of which no two share atom, innermost tile, unit tile and split; near-duplicates only fill up."""
    kept: list[Rated] = []
    rest: list[Rated] = []
    seen: set[tuple[object, ...]] = set()
    for program, rating in ranked:
        key = (program.nest.dims, program.atom.name, program.mapping, program.inner, program.unit_tile, program.split)
        (rest if key in seen else kept).append((program, rating))
        seen.add(key)
        if len(kept) >= count:
            break
    return sorted([*kept, *rest][:count], key=lambda item: item[1].seconds)
