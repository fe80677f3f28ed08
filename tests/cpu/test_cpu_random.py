"""Random operators with random programs on the host CPU, against the reference: what no engine would choose must be right too."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, note
from hypothesis import strategies as st

import launching
from random_operators import operators, random_examples
from roller import ops, verify
from roller.errors import ExpressionError
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import Nest, Tile, variants
from roller.program.alignment import Multiple, aligned_extents, atom_tile
from roller.program.dispatch import Dispatch
from roller.program.rprogram import RProgram, StageProgram, Staging, tiled_levels
from roller.program.tile_registers import registers_of
from roller.program.words import read_in_words, word_dim
from roller.search.tile_space import mappings
from roller.target.catalog import find_spec
from roller.target.hardware import ComputeAtom
from roller.target.subset import limited
from roller.testing import with_level
from roller_cpu.chip.dot_atoms import dot_atoms
from roller_cpu.chip.tile_atoms import tile_atoms

SPEC = find_spec("cpu", "x86-64-v3")
ALONE = limited(SPEC, 1)  # one core has the last cache to itself: one more level has tiles
FAR = with_level(SPEC, 1, capacity_bytes=1, latency_ns=1000.0)  # every input is far away: rows are prefetched
TILES = ("amx-tile", "amx-bf16", "amx-int8", "amx-fp16")  # as large as they are, and smaller, of which more fit small operators
DOTS = [
    ComputeAtom.model_validate(table | {"gflops": 1.0})
    for table in (
        *dot_atoms(SPEC, ("avxvnni", "avx2", "avx512bf16", "avx512vl"), 32, 1.0),
        *tile_atoms(TILES),
        *(table | {"roles": {"m": 4, "n": 4, "k": 2 * table["operand_interleave"]}} for table in tile_atoms(TILES)),
    )
]
MOST_LANES, MOST_ROWS = 40, 5  # largest innermost tiles: unrolled, they cost the compiler time


# --- programs --------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn, expr: TensorExpr, constants: frozenset[str]) -> RProgram:
    """A legal program, capacities not asked: any atom, mapping, tiles, loop orders, staging, and cut of the reduction."""
    levels = tiled_levels(draw(st.sampled_from((SPEC, ALONE))))
    nests = [draw(st.sampled_from(variants(stage, expr.tensors))) for stage in expr.stages]
    return RProgram(expr, tuple(draw(_stages(nest, constants, levels)) for nest in nests))


@st.composite
def _stages(draw: st.DrawFn, nest: Nest, constants: frozenset[str], levels: tuple[int, ...]) -> StageProgram:
    atom, mapping = draw(_atoms(nest))
    deep = word_dim(atom, mapping)
    tile = atom_tile(nest, atom, mapping)
    start: Tile = tuple(t if d == deep else min(t, e) for d, (t, e) in enumerate(zip(tile, nest.extents, strict=True)))
    lanes = [d for role, d in mapping if role == "n"]
    tiles = [tuple(start[d] if d == deep else _inner_extent(draw, nest, start, d, d in lanes) for d in range(len(start)))]
    if atom.registers is not None and registers_of(nest, atom, mapping, tiles[0]) > atom.registers:
        tiles = [start]
    for _ in levels[1:]:
        tiles.insert(0, tuple(draw(st.sampled_from(_multiples(e, t))) for e, t in zip(nest.extents, tiles[0], strict=True)))
    unit, inner = tiles[0], tiles[-1]
    orders = [tuple(draw(st.permutations(range(len(inner))))) for _ in levels]
    if draw(st.booleans()):  # else loops over units may lie inside others, and run one after another
        orders[0] = tuple(sorted(orders[0], key=lambda dim: nest.dims[dim].is_reduce))
    parallel, split = draw(st.booleans()), 1
    if parallel and draw(st.booleans()):
        split = math.prod([-(-nest.extents[i] // unit[i]) for i in nest.reduce if unit[i]])
    needed = {f for f in range(len(nest.factors)) if deep is not None and not read_in_words(nest, atom, mapping, f)}
    staged = draw(_staging(nest, constants, levels, needed))
    return StageProgram(nest, atom, mapping, levels, tuple(tiles), tuple(orders), staged, Dispatch(max(split, 1), parallel))


def _inner_extent(draw: st.DrawFn, nest: Nest, start: Tile, dim: int, lane: bool) -> int:
    """An extent of the innermost tile: whole vectors, few rows, single steps along what is reduced."""
    most = MOST_LANES if lane else 1 if nest.dims[dim].is_reduce else MOST_ROWS
    return draw(
        st.sampled_from([e for e in _multiples(nest.extents[dim], start[dim]) if e <= min(most, nest.extents[dim])] or [start[dim]])
    )


def _multiples(extent: int, inner: int) -> list[int]:
    """Aligned extents of a tile around an inner one, the last one around the whole dimension."""
    return list(aligned_extents(extent, inner, Multiple())) or [inner] if inner else [0]


@st.composite
def _atoms(draw: st.DrawFn, nest: Nest) -> tuple[ComputeAtom, tuple[tuple[str, int], ...]]:
    """A dot product or tiles where the operands suit them, a scalar, or a vector of any width along any dimension."""
    dtype, dots = nest.stage.body.dtype, list(mappings(nest, DOTS))
    if dots and draw(st.integers(0, 3)):
        return draw(st.sampled_from(dots))
    fields: dict[str, Any] = {"in_dtype": dtype, "acc_dtype": dtype, "gflops": 1.0}
    width = draw(st.sampled_from((1, 4, 8, 16)))
    wide = [i for i, e in enumerate(nest.extents) if e > 1]
    if width == 1 or not wide:
        return ComputeAtom.model_validate({**fields, "name": "scalar", "kind": "scalar", "roles": {}}), ()
    atom = ComputeAtom.model_validate({**fields, "name": f"x{width}", "kind": "vector", "roles": {"n": width}})
    reducing = draw(st.booleans())  # reductions are fewer, and trickier
    along = [i for i in wide if nest.dims[i].is_reduce == reducing] or wide
    return atom, (("n", draw(st.sampled_from(along))),)


@st.composite
def _staging(
    draw: st.DrawFn, nest: Nest, constants: frozenset[str], levels: tuple[int, ...], needed: set[int]
) -> tuple[Staging, ...]:
    found: list[Staging] = []
    for number, access in enumerate(nest.inputs):
        level = draw(st.sampled_from((None, 0, *levels[:-1]))) if access.guarded or draw(st.integers(0, 4)) == 0 else None
        if level is not None:
            found.append(Staging("box", number, level))
    for factor in range(len(nest.factors)):
        names = {a.tensor.name for a in nest.inputs if a.factor == factor}
        if nest.stageable(factor):
            if names <= constants:
                found.append(Staging("panel", factor, 0, constant=True))
            elif (level := draw(st.sampled_from((*(() if factor in needed else (None,)), 0, levels[0])))) is not None:
                found.append(Staging("panel", factor, level))
    return tuple(found)


def random_kernel(data: st.DataObject) -> None:
    """One operator with one program, against the reference; arrays need not be aligned."""
    try:
        expr = ops.expression(data.draw(operators()))
    except ExpressionError:
        assume(False)
        return
    fixed = frozenset(t.name for t in expr.inputs if data.draw(st.integers(0, 4)) == 0)
    program = data.draw(programs(fuse(expr), fixed))
    note(program.describe())
    arrays = verify.random_inputs(expr, data.draw(st.integers(0, 99)), integer=data.draw(st.booleans()))
    spec = data.draw(st.sampled_from((SPEC, FAR)))
    built = launching.artifact(spec, program, {name: arrays[name] for name in arrays if name in fixed})
    launching.check(expr, built, arrays, fixed, data.draw(st.integers(0, 3)))


@pytest.mark.parametrize("part", [0, 1, 2, 3])  # side by side where several processes test
def test_random_programs(part: int) -> None:
    random_examples(random_kernel, part, 15)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs(part: int) -> None:
    random_examples(random_kernel, 100 + part, 300)
