"""The subject of one tile space: a nest, an atom and the mapping of its roles onto dimensions, on one chip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import and_

from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.ir.elementwise import Extents, Value
from roller.ir.nest import Nest, Tile
from roller.ir.sliding_windows import taps_at_once
from roller.program.alignment import Rules, atom_tile, atoms_for
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.program.rprogram import lane_level, operand_value, tiled_levels
from roller.program.superwords import joined
from roller.program.words import read_in_words, vector_factor, word_dim
from roller.target.hardware import ComputeAtom, HardwareSpec

Chain = tuple[Tile, ...]  # tiles from some level inward


@dataclass
class TileSpace:
    """One nest, atom and mapping on one chip."""

    model: Model
    fit: Fit
    rules: Rules
    nest: Nest
    atom: ComputeAtom
    mapping: tuple[tuple[str, int], ...]
    constants: frozenset[str] = frozenset()
    refusals: Counter[str] = field(default_factory=Counter)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The tiled levels."""
        return tiled_levels(self.spec)

    @cached_property
    def lane_level(self) -> int | None:
        """The level whose tiles run on lanes."""
        return lane_level(self.spec)

    @property
    def way(self) -> tuple[object, ...]:
        """The key that all of its programs share, and no program of another tile space of the stage (`StageProgram.way`)."""
        return self.nest.dims, self.atom, self.mapping, self.fit.cooperate, self.fit.windowed

    @property
    def spec(self) -> HardwareSpec:
        """The chip."""
        return self.model.spec

    @cached_property
    def named(self) -> dict[int, int]:
        """The dimensions of which a unit's tile has one extent only (`Multiple.exact`), and that extent."""
        rules = {d: self.rules.multiple(self.levels[0], dim.name) for d, dim in enumerate(self.nest.dims)}
        return {d: rule.exact for d, rule in rules.items() if rule.exact is not None}

    def has_named(self, unit: Extents) -> Value:
        """Returns whether unit tiles have these extents: for one tile, or an array."""
        return reduce(and_, [unit[d] == extent for d, extent in self.named.items()], True)

    def vectorised(self, inner: Extents) -> Value:
        """Returns whether the compiler makes vectors of scalars, so that a vector atom has the tile; for one tile or an array."""
        return joined(self.nest, inner, self._superwords) if self._superwords else False

    @cached_property
    def _superwords(self) -> int:
        """The neighbours of which the compiler makes a vector; 0 where no vector atom has these tiles."""
        types = self.atom.in_dtype, self.atom.acc_dtype
        also = any(a.kind == "vector" and (a.in_dtype, a.acc_dtype) == types for a in self.rules.atoms)
        return self.model.parameters.superwords if self.atom.kind == "scalar" and also else 0


def tile_spaces(
    nests: Iterable[Nest], spec: HardwareSpec, rules: Rules, parameters: CostParameters, constants: frozenset[str] = frozenset()
) -> list[TileSpace]:
    """Returns a tile space for every nest, atom, mapping and way of lane cooperation; all of them share one count of refusals."""
    refusals: Counter[str] = Counter()
    found = []
    for nest in nests:
        model = Model(spec, parameters, Geometry(nest))
        ways = [(shared, windowed) for windowed in _windowed(nest, spec) for shared in _cooperation(nest, spec)]
        limits = rules.limits(nest, len(spec.levels) + 1)
        fits = [Fit(spec, nest, model.geometry, shared, windowed, limits) for shared, windowed in ways]
        for atom, mapping in mappings(nest, rules.atoms, spec.spread):
            able = [fit for fit in fits if _able(fit, atom)]
            found += [TileSpace(model, fit, rules, nest, atom, mapping, constants, refusals) for fit in able]
    return found


def equal_parts(space: TileSpace) -> bool:
    """True if a unit's tile lies directly around the atom, and arrays are spread over units or a rule asks for equal parts.

    All units of such a chip then work only if the parts of a problem are equal (`Multiple.even`).
    """
    even = any(space.rules.multiple(space.levels[0], dim.name).even for dim in space.nest.dims)
    return (space.spec.spread or even) and space.levels[1:] == (len(space.spec.levels),)


def start(space: TileSpace) -> Tile:
    """Returns the atom as a tile.

    A vector wider than its dimension shrinks to it, unless arrays are stored with whole vectors. Where panels hold windows, the
    tile has all taps that a lane takes at a step.
    """
    start = atom_tile(space.nest, space.atom, space.mapping)
    if not space.atom.loads or space.spec.spread:
        return start
    if space.fit.windowed:
        taps = taps_at_once(space.nest)
        return tuple([space.nest.extents[d] if d in taps else e for d, e in enumerate(start)])
    deep = word_dim(space.atom, space.mapping)  # words are whole: zeros fill the last one
    return tuple(t if d == deep else min(t, max(e, 1)) for d, (t, e) in enumerate(zip(start, space.nest.extents, strict=True)))


def _cooperation(nest: Nest, spec: HardwareSpec) -> tuple[bool, ...]:
    """Returns whether lanes share reductions: both ways are tried where lanes can combine their values."""
    able = lane_level(spec) is not None and bool(nest.reduce) and "shuffle" in spec.unit.combine
    return (False, True) if able else (False,)


def _windowed(nest: Nest, spec: HardwareSpec) -> tuple[bool, ...]:
    """Returns whether panels are windowed: both ways are tried where lanes read panels that software fills."""
    unit = spec.levels[tiled_levels(spec)[0]]
    able = lane_level(spec) is not None and unit.managed and "input" in unit.holds and not spec.spread
    return (False, True) if able and taps_at_once(nest) else (False,)


def _able(fit: Fit, atom: ComputeAtom) -> bool:
    """True if an atom can compute with this cooperation and these panels.

    Atoms that read operands in place do not share reductions. Atoms other than scalars take only operands in their own layout.
    """
    return not (fit.cooperate and fit.spec.in_place(atom)) and not (fit.windowed and atom.kind != "scalar")


def mappings(
    nest: Nest, atoms: Iterable[ComputeAtom], spread: bool = False
) -> Iterator[tuple[ComputeAtom, tuple[tuple[str, int], ...]]]:
    """Yields each atom with each mapping of its roles onto dimensions.

    A matrix unit needs a sum of products: k is a reduce dimension of both factors, m one of the first only, n one of the second
    only (or the other way round). A vector lies on one dimension along which some array is contiguous. It may lie on any dimension
    if there is none, or if arrays are `spread` over units. On a reduce dimension its lanes hold partial results. The atom's type
    must match the type in which the body computes.
    """
    atoms = tuple(atoms)
    for atom in atoms:
        if atom.sums:
            yield from ((atom, m) for m in _sum_mappings(nest, atom, spread))
    for atom in atoms_for(nest.stage.body.dtype, atoms):
        if atom.kind == "scalar":
            yield atom, ()
        else:
            role = next(iter(atom.roles))
            yield from ((atom, ((role, dim),)) for dim in _vector_dims(nest, spread))
            if all(dim.extent <= 1 for dim in nest.dims):  # one point takes one slot of the vector
                yield atom, ()


def unsuited(nest: Nest, atom: ComputeAtom, atoms: Iterable[ComputeAtom]) -> str | None:
    """Returns why no program of a nest computes with an atom; None where some might. `atoms`: all available atoms."""
    dtype = nest.stage.body.dtype
    if not atom.sums:
        return None if atom in atoms_for(dtype, tuple(atoms)) else f"computes in {atom.acc_dtype}"
    if len(nest.factors) != 2:
        return "multiplies matrices"
    if dtype != atom.acc_dtype:
        return f"accumulates in {atom.acc_dtype}"
    if any(operand_value(nest, operand, atom) is None for operand in range(2)):
        return f"rounds to {atom.in_dtype}, which is not permitted" if atom.rounds else f"its operands are {atom.in_dtype}"
    types = {value.dtype for operand in range(2) if (value := operand_value(nest, operand, atom)) is not None}
    if atom.n_dtype is not None and types != {atom.n_dtype, atom.stored_dtype}:
        return f"multiplies {atom.n_dtype} by {atom.in_dtype}"
    if _sum_mappings(nest, atom):
        return None
    if _sum_mappings(nest, atom.model_copy(update={"operand_rows": "k"})):
        return "takes what lies along the reduction in memory"
    return "wants a reduction that both factors run along"


def _vector_dims(nest: Nest, spread: bool) -> list[int]:
    """Returns the dimensions for a vector: those along which some array is contiguous, or which a panel or a box can make so.

    Any dimension qualifies where arrays are spread over units in any order.
    """
    wide = [i for i, d in enumerate(nest.dims) if d.extent > 1]
    if spread:
        return wide
    contiguous = [i for i in wide if any(a.strides[i] == 1 for a in nest.accesses)]
    packed = [i for i in nest.spatial if i in wide and any(nest.stageable(f) and t[i] for f, t in enumerate(_touches(nest)))]
    boxed = [i for i in nest.spatial if i in wide and nest.reduce and any(a.guarded and a.strides[i] for a in nest.inputs)]
    return sorted({*(contiguous or wide[-1:]), *packed, *boxed})


def _touches(nest: Nest) -> list[tuple[bool, ...]]:
    return [nest.factor_touches(f) for f in range(len(nest.factors))]


def _sum_mappings(nest: Nest, atom: ComputeAtom, spread: bool = False) -> list[tuple[tuple[str, int], ...]]:
    """Returns the mappings of the roles of an atom that sums products.

    Those whose n is contiguous in the results come first, as lanes then store contiguously: the prediction does not distinguish
    them from the others. A square atom has only the first one: the other one gives the same tiles again.
    """
    if len(nest.factors) != 2 or nest.stage.body.dtype != atom.acc_dtype:
        return []
    if any(operand_value(nest, operand, atom) is None for operand in range(2)):
        return []
    found = [mapping for sides in ((0, 1), (1, 0)) if (mapping := _laid(nest, atom, sides, spread)) is not None]
    if atom.simd:
        found = [mapping for mapping in found if _in_words(nest, atom, mapping) and _signed_apart(nest, atom, mapping)]
    found.sort(key=lambda mapping: not any(role == "n" and nest.output.strides[dim] == 1 for role, dim in mapping))
    alike = not spread and not atom.simd and atom.extents.get("m") == atom.extents.get("n")
    return found[:1] if alike else found


def _signed_apart(nest: Nest, atom: ComputeAtom, mapping: tuple[tuple[str, int], ...]) -> bool:
    """True if the factor along n has the atom's type for it, and the other one has the other type; n's type may be the same."""
    across = vector_factor(nest, mapping)
    types = [value.dtype for operand in (across, 1 - across) if (value := operand_value(nest, operand, atom)) is not None]
    return types == [atom.n_dtype or atom.stored_dtype, atom.stored_dtype]


def _in_words(nest: Nest, atom: ComputeAtom, mapping: tuple[tuple[str, int], ...]) -> bool:
    """True if a dot-product atom can read both factors in words: from panels, or one of them where its array lies."""
    roles = dict(mapping)
    if "n" not in roles or "k" not in roles:
        return False
    return all(nest.stageable(f) or read_in_words(nest, atom, mapping, f) for f in range(len(nest.factors)))


def _laid(nest: Nest, atom: ComputeAtom, sides: tuple[int, int], spread: bool) -> tuple[tuple[str, int], ...] | None:
    """Returns the atom's rows on the longest dimension of only the first of these factors, its columns on that of the second.

    Returns None where the factors share no reduction that the atom can take.
    """
    left, right = (nest.factor_touches(side) for side in sides)
    rows = [i for i in nest.spatial if left[i] and not right[i]]
    columns = [i for i in nest.spatial if right[i] and not left[i]]
    depth = [i for i in nest.reduce if left[i] and right[i]]
    if spread:  # boxes are copied as they are: a block of an operand is a block of an array
        columns, depth = [[i for i in dims if _walks_alone(nest, i)] for dims in (columns, depth)]
    if not depth:
        return None
    big = {"m": rows, "n": columns, "k": depth}
    found = tuple((r, max(big[r], key=lambda i: (nest.extents[i], i))) for r in atom.roles if big[r])
    stored = atom.operand_rows != "k_stored" or all(a.strides[dict(found)["k"]] == 1 for a in nest.inputs)
    return found if stored else None


def _walks_alone(nest: Nest, dim: int) -> bool:
    """True if a dimension alone walks one dimension of each array that depends on it."""
    axes = {a.name for a in nest.dims[dim].members}
    for access in nest.accesses:
        for index in access.index:
            names = {name for name, _ in index.terms}
            if names & axes and (len(names) > 1 or index.offset):
                return False
    return True
