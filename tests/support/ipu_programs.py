"""Programs for simulated IPUs: random legal ones that no engine would choose, and what has to hold of each that a tile can run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from roller import ops, verify
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import Nest, Tile, variants
from roller.ops import SymbolicTensor
from roller.program.alignment import Multiple, aligned_extents, atom_tile
from roller.program.dispatch import Dispatch
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram, StageProgram, Staging, tiled_levels
from roller.search.tile_space import mappings
from roller.target.catalog import find_spec
from roller.target.hardware import ComputeAtom, HardwareSpec
from roller.target.subset import narrowed
from roller_ipu_sim.codegen.generator import AGAIN, manifest_of, refusal
from roller_ipu_sim.cost import model
from roller_ipu_sim.manifest.models import Manifest
from roller_ipu_sim.plan.stage_plan import GRAIN_BYTES
from roller_ipu_sim.simulator.execute import Execution, execute
from roller_ipu_sim.simulator.interpret import interpret

BOW = find_spec("ipu_sim", "bow")
MOST_TRIPS = 400  # of a program's loops: manifests name each step and each send
CHIPS = [BOW, *[narrowed(BOW, count) for count in (1, 5, 24)]]  # few tiles: much is done in turn


# --- drawn at random -------------------------------------------------------------------------------------------------


@st.composite
def larger(draw: st.DrawFn) -> SymbolicTensor:
    """A product, convolution, pooling, or reduction whose reductions take several steps, in types of the matrix unit."""
    dtype, size = draw(st.sampled_from(("float16", "float32"))), st.integers(1, 48)
    kind = draw(st.sampled_from(("matmul", "einsum", "conv", "grouped", "pool", "reduce")))
    m, n, k = draw(size), draw(size), draw(size)
    if kind == "matmul":
        return ops.matmul(ops.tensor((m, k), dtype), ops.tensor((k, n), dtype), out_dtype=draw(st.sampled_from((dtype, "float32"))))
    if kind == "einsum":
        parts = draw(st.sampled_from((("mk", "nk", "mn"), ("bmk", "kn", "bmn"), ("kbm", "bnk", "nbm"), ("mh", "hnk", "mkn"))))
        extents = {"m": m, "n": n, "k": k, "b": draw(st.integers(2, 4)), "h": draw(size)}
        a, b = (ops.tensor(tuple(extents[c] for c in part), dtype) for part in parts[:2])
        return ops.einsum(f"{parts[0]},{parts[1]}->{parts[2]}", a, b) + ops.tensor((1,), dtype)
    if kind == "reduce":
        function = draw(st.sampled_from((ops.reduce_sum, ops.reduce_max, ops.reduce_mean)))
        return function(ops.tensor((m, k, n), dtype), draw(st.sampled_from(((0,), (1,), (2,), (0, 2), (0, 1, 2)))))
    window, side = draw(st.integers(1, 3)), draw(st.integers(3, 14))
    ways = {"stride": draw(st.integers(1, 2)), "padding": draw(st.integers(0, window - 1))}
    channels = 4 * draw(st.integers(1, 9))
    if kind == "pool":
        x = ops.tensor((draw(st.integers(1, 2)), channels, side, side), dtype)
        return draw(st.sampled_from((ops.max_pool2d, ops.avg_pool2d)))(x, (window, window), **ways)
    groups = draw(st.sampled_from((2, 4))) if kind == "grouped" else 1
    filters = groups * draw(st.integers(1, 12))
    layout = draw(st.sampled_from(("NCHW", "NHWC"))) if groups == 1 else "NCHW"
    x = ops.tensor((2, channels, side, side) if layout == "NCHW" else (2, side, side, channels), dtype)
    w = (filters, channels // groups, window, window) if layout == "NCHW" else (window, window, channels, filters)
    return ops.conv2d(x, ops.tensor(w, dtype), groups=groups, layout=layout, **ways)


@st.composite
def chains(draw: st.DrawFn) -> SymbolicTensor:
    """An operator of several stages: what one computes is moved to where the next one wants it, or stays."""
    dtype = draw(st.sampled_from(("float16", "float32", "float32", "int32")))
    size = st.integers(1, 24)
    m, n, k = draw(size), draw(size), draw(size)
    x = ops.tensor((m, k), dtype)
    kind = draw(st.sampled_from(("products", "softmax", "sums", "means", "pooled", "transposed")))
    if kind == "products":
        first = ops.relu(ops.matmul(x, ops.tensor((k, n), dtype)))
        return ops.matmul(first, ops.tensor((n, draw(size)), dtype))
    if kind == "softmax" and dtype != "int32":
        raised = ops.exp(x - ops.reduce_max(x, 1, keepdims=True))
        return raised / ops.reduce_sum(raised, 1, keepdims=True)
    if kind == "means" and dtype != "int32":
        centred = x - ops.reduce_mean(x, 1, keepdims=True)
        return centred * ops.rsqrt(ops.reduce_mean(centred * centred, 1, keepdims=True) + 1)
    if kind == "pooled":
        side = draw(st.integers(3, 9))
        image = ops.conv2d(ops.tensor((1, k, side, side), dtype), ops.tensor((n, k, 1, 1), dtype))
        return ops.max_pool2d(image, (2, 2), stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 1)))
    first = ops.matmul(x, ops.tensor((k, n), dtype))
    if kind == "transposed":
        return ops.matmul(ops.tensor((draw(size), m), dtype), first) + ops.reduce_sum(ops.tensor((n, 5), dtype), 1)
    return ops.reduce_sum(first * first, draw(st.integers(0, 1))) + ops.tensor((1,), dtype)


@st.composite
def programs(draw: st.DrawFn, expr: TensorExpr, spec: HardwareSpec) -> RProgram:
    """A legal program, capacities not asked: any nest, atom, mapping, unit tile, order of loops, and cut of the reduction."""
    stages = [draw(_stages(draw(st.sampled_from(variants(stage, expr.tensors, spec.spread))), spec)) for stage in expr.stages]
    return RProgram(expr, tuple(stages))


@st.composite
def _stages(draw: st.DrawFn, nest: Nest, spec: HardwareSpec) -> StageProgram:
    every = list(mappings(nest, spec.atoms, spec.spread))
    assume(every)  # else no unit computes in that type
    likely = [pair for pair in every if _likely(nest, pair[0])] if draw(st.integers(0, 9)) else []
    matrix = [pair for pair in likely if pair[0].kind == "matrix"]
    atom, mapping = draw(st.sampled_from(matrix if matrix and draw(st.booleans()) else likely or every))
    start = atom_tile(nest, atom, mapping)
    if atom.kind != "matrix":
        start = tuple(min(t, max(e, 1)) for t, e in zip(start, nest.extents, strict=True))
    tile: Tile = tuple(draw(_extents(nest, dim, start[dim])) for dim in range(len(start)))
    levels = tiled_levels(spec)
    spatial, reduce = draw(st.permutations(nest.spatial)), draw(st.permutations(nest.reduce))
    orders = [(*spatial, *reduce)] + [tuple(range(len(start))) for _ in levels[1:]]
    stage = StageProgram(nest, atom, mapping, levels, (tile,) * len(levels), tuple(orders))
    made = draw(_cut(stage))
    assume(math.prod([max(lp.trips, 1) for lp in made.loops]) <= MOST_TRIPS)
    return made


def _likely(nest: Nest, atom: ComputeAtom) -> bool:
    """True if no rule of the device's speaks against an atom laid so: types as they are."""
    return atom.kind != "matrix" or all(a.tensor.dtype == atom.in_dtype for a in nest.inputs)


@st.composite
def _extents(draw: st.DrawFn, nest: Nest, dim: int, inner: int) -> int:
    """An extent of the unit tile; mostly whole grains of 8 bytes where some array lies along the dimension."""
    sizes = [a.element_bytes for a in nest.accesses if a.strides[dim] == 1]
    grain = max([GRAIN_BYTES // size for size in sizes], default=1) if draw(st.integers(0, 4)) else 1
    extent = nest.extents[dim]
    return draw(st.sampled_from(list(aligned_extents(extent, max(inner, 1), Multiple(max(grain, 1)))) or [max(inner, 1)]))


@st.composite
def _cut(draw: st.DrawFn, stage: StageProgram) -> StageProgram:
    """The program with its reduction whole, or cut into the unit tile's parts or into shares that tiles walk in steps."""
    nest, tile = stage.nest, stage.unit_tile
    cut = [d for d in nest.reduce if tile[d] < nest.extents[d]]
    how = draw(st.sampled_from(("whole", "parts", "shares"))) if cut else "whole"
    if how == "whole":
        return stage
    if how == "parts":
        return stage.dispatched(split=math.prod([-(-nest.extents[d] // tile[d]) for d in nest.reduce]))
    dim = draw(st.sampled_from(cut))
    share = tile[dim] * draw(st.integers(1, -(-nest.extents[dim] // tile[dim]) - 1))
    return stage.dispatched(split=-(-nest.extents[dim] // share), share=(dim, share))


@st.composite
def rings(draw: st.DrawFn, spec: HardwareSpec) -> RProgram:
    """A product whose tiles hand parts of factors on round rings; of a length that fits, or nearly."""
    dtype, acc = draw(st.sampled_from((("float16", "float32"), ("float16", "float16"), ("float32", "float32"))))
    m, n, k = draw(st.integers(2, 60)), draw(st.integers(2, 60)), draw(st.integers(2, 130))
    product = ops.matmul(ops.tensor((m, k), dtype), ops.tensor((k, n), dtype), out_dtype=acc)
    expr = fuse(ops.expression(ops.relu(product) if draw(st.booleans()) else product))
    stage = expr.stages[0]
    nest = variants(stage, expr.tensors, spec.spread)[0]
    every = [pair for pair in mappings(nest, spec.atoms, spec.spread) if pair[0].kind == "matrix" and _likely(nest, pair[0])]
    assume(every)
    atom, mapping = draw(st.sampled_from(every))
    inner = atom_tile(nest, atom, mapping)
    tile = [draw(st.sampled_from(list(aligned_extents(e, i, Multiple(2))))) for e, i in zip(nest.extents, inner, strict=True)]
    trips = [-(-e // t) for e, t in zip(nest.extents, tile, strict=True)]
    factors = draw(st.sampled_from(([0], [1], [0, 1])))
    size = math.prod([trips[d] for d in nest.spatial if not nest.factor_touches(factors[0])[d]]) + draw(
        st.sampled_from((0, 0, 0, 1))
    )
    dim, parts = nest.reduce[0], draw(st.sampled_from((1, 1, 2)))
    tile[dim] = -(-nest.extents[dim] // (size * parts * inner[dim])) * inner[dim]
    levels = tiled_levels(spec)
    cut = Dispatch(split=parts, share=(dim, tile[dim] * size)) if parts > 1 else Dispatch()
    staged = tuple([Staging("panel", f, levels[0], shifts=True) for f in factors])
    order = (*draw(st.permutations(nest.spatial)), dim)
    tiles = (tuple(tile),) * len(levels)
    return RProgram(expr, (StageProgram(nest, atom, mapping, levels, tiles, (order,) * len(levels), staged, cut),))


# --- what has to hold ------------------------------------------------------------------------------------------------


def arrays_for(manifest: Manifest, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays that a manifest wants: each once for every home that it has, in the shape that it has there."""
    homes = [(t, t.name.partition(AGAIN)[0]) for t in manifest.tensors if t.role != "output"]
    return {t.name: arrays[name].reshape(t.shape) for t, name in homes}


def simulated(spec: HardwareSpec, estimate: Estimate) -> int:
    """An estimate in simulated cycles."""
    return round(estimate.seconds * spec.clock_ghz * 1e9)


def agrees(spec: HardwareSpec, program: RProgram, estimate: Estimate, seed: int, integer: bool) -> tuple[Manifest, Execution]:
    """Execution of a program's manifest: its cycles are those of the estimate, its numbers those of the reference."""
    manifest, expr = manifest_of(spec, program), program.expr
    arrays = verify.random_inputs(expr, seed, integer)
    found = execute(manifest, spec, arrays_for(manifest, arrays))
    name = expr.output.name
    if expr.output.elements:
        verify.check(expr, arrays, found.outputs[name].reshape(expr.output.shape))
    assert found.profile.cycles == simulated(spec, estimate), f"{found.profile.by_kind} where {dict(estimate.terms)} is predicted"
    return manifest, found


def agrees_if_legal(spec: HardwareSpec, program: RProgram, seed: int, integer: bool) -> Manifest | None:
    """As `agrees`, of a program that has a finite estimate; the others name the rule that they break, as their refusal does."""
    estimate = model.estimate(spec, program)
    refused = refusal(spec, program)
    assert (refused is None) == math.isfinite(estimate.seconds)
    if refused is not None:
        assert all(refused), "a rule and a reason"
        assert estimate.bound_by == refused[0]
        return None
    if len(program.stages) == 1:
        assert model.estimate(spec, program.stages[0]) == estimate
        _beaten(spec, program.stages[0], estimate)
    manifest, _ = agrees(spec, program, estimate, seed, integer)
    return manifest


def _beaten(spec: HardwareSpec, stage: StageProgram, estimate: Estimate) -> None:
    """Who only asks whether a program takes fewer seconds than another gets its estimate if it does, else no more than that."""
    cycle = 1e-9 / spec.clock_ghz
    for worth in (0.0, 0.3 * estimate.seconds, 0.9 * estimate.seconds, estimate.seconds, estimate.seconds + cycle):
        found = model.estimate(spec, stage, worth)
        if estimate.seconds < worth:
            assert found == estimate
        else:
            assert worth <= found.seconds <= estimate.seconds + cycle / 2


def interpreted(spec: HardwareSpec, manifest: Manifest, arrays: dict[str, Any]) -> None:
    """The slow interpreter gives the same bits and cycles."""
    wanted = arrays_for(manifest, arrays)
    fast, slow = execute(manifest, spec, wanted), interpret(manifest, spec, wanted)
    assert list(slow.cycles) == [step.cycles for step in fast.profile.supersteps]
    for name, array in fast.outputs.items():
        np.testing.assert_array_equal(slow.outputs[name], array)
