"""Steps with all taps of a window: the same numbers for every tile, values loaded once, and the model counts these loads."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import launching
import roller
from roller import ops, verify
from roller.cost.model import Model
from roller.device.plugins import load_device
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ops import SymbolicTensor
from roller.plugin import aligned_empty
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram, Staging, tiled_levels
from roller.program.window_steps import whole_loops, window_steps
from roller.runtime.artifact import BuildOptions
from roller.target.catalog import find_spec
from roller.target.subset import limited
from roller.testing import expression
from roller.verify import reference

TILES = ((1, 1, 8), (1, 4, 16), (2, 7, 16), (1, 14, 16), (1, 5, 32), (3, 2, 16))


def operator(kind: str) -> SymbolicTensor:
    """Operators whose windows slide along the second and third of their tiles' dimensions."""
    if kind == "pool":
        return ops.max_pool2d(ops.tensor((1, 6, 21, 33)), 3, 1, 1)
    return ops.depthwise_conv2d(ops.tensor((1, 6, 21, 33)), ops.tensor((6, 1, 3, 3)), 2 if kind == "strided" else 1, 1)


def with_tile(kernel: roller.Kernel, inner: tuple[int, int, int]) -> StageProgram:
    """The kernel's program with an innermost tile of so many channels, rows and columns, and unit tiles of whole problems."""
    program = kernel.program.stages[0]
    assert len(program.nest.dims) == 5
    tile = (*(min(i, e) for i, e in zip(inner, program.nest.extents, strict=False)), 1, 1)
    whole = tuple(-(-e // i) * i for e, i in zip(program.nest.extents, tile, strict=True))
    levels = program.levels
    staged = tuple(replace(s, level=levels[-2]) for s in program.staged if s.kind == "box")
    return replace(program, tiles=(*(whole,) * (len(levels) - 1), tile), staged=staged).dispatched(split=1, parallel=False)


@pytest.mark.parametrize(("kind", "inner"), list(itertools.product(("plain", "strided", "pool"), TILES)))
def test_every_tile_gives_the_same_numbers(kind: str, inner: tuple[int, int, int]) -> None:
    op = operator(kind)
    kernel = roller.compile(op, "cpu", threads=1)
    device, options = load_device("cpu"), BuildOptions(threads=1)
    program = RProgram(kernel.expr, (with_tile(kernel, inner),))
    runner = device.load_kernel(device.build(kernel.spec, device.codegen(kernel.spec, program, options), options))
    generator = np.random.default_rng(0)
    inputs = [generator.integers(-4, 5, t.shape).astype(np.float32) for t in kernel.inputs]
    inputs[0].flat[::97] = [np.inf, -np.inf, -0.0, np.nan][sum(inner) % 4]
    out = aligned_empty(kernel.output.shape, np.dtype("float32"))
    out.fill(np.nan)
    runner.run(inputs, out)
    np.testing.assert_array_equal(out, reference(expression(op), inputs))


def loads(program: StageProgram, registers: int) -> float:
    """The bytes that the model counts from a cache into registers."""
    spec = roller.compile(operator("plain"), "cpu", threads=1).spec
    parameters = replace(load_device("cpu").cost_parameters(spec, expression(operator("plain"))), registers=registers)
    return Model(spec, parameters, Geometry(program.nest)).registers.bytes(program, 64)


def test_the_model_counts_shared_values_once_where_registers_suffice() -> None:
    program = with_tile(roller.compile(operator("plain"), "cpu", threads=1), (1, 7, 16))
    (step, *_) = window_steps(program)
    needed = step.vectors(program, program.inner)
    assert loads(program, needed - 1) == loads(program, 0)
    assert loads(program, needed) < loads(program, 0)
    assert step.share(program.nest, program.inner) == pytest.approx(9 / 21)  # seven rows and three taps read nine rows


def test_one_row_shares_nothing() -> None:
    program = with_tile(roller.compile(operator("plain"), "cpu", threads=1), (1, 1, 16))
    assert loads(program, 32) == loads(program, 0)


@pytest.mark.parametrize("between", [(1, 3), (2, 1), (2, 2), (3, 2)])
def test_taps_in_several_loops(between: tuple[int, int]) -> None:
    """A tile between takes a part of the window, and not the same part everywhere: no step may take the taps of all parts."""
    spec = limited(find_spec("cpu", "x86-64-v3"), 1)
    op = ops.conv2d(ops.tensor((1, 5, 8, 8)), ops.tensor((16, 5, 3, 3)), 1, 1)
    expr = fuse(expression(op))
    nest = next(n for n in variants(expr.stages[0], expr.tensors) if len(n.dims) == 6)
    levels, everywhere = tiled_levels(spec), tuple(range(6))
    rows, columns = between
    unit = (16, 8, 8, 8, 4 if rows == 2 else 3, 4 if columns == 2 else 3)
    tiles = (unit, (8, 2, 4, 4, rows, columns), (8, 2, 4, 1, 1, 1))
    atom = next(a for a in spec.atoms if a.kind == "vector" and a.in_dtype == "float32")
    staged = (Staging("box", 0, levels[0]), Staging("panel", 1, levels[0]))
    program = StageProgram(nest, atom, (("n", 0),), levels, tiles, (everywhere,) * len(levels), staged)
    arrays = verify.random_inputs(expr, 0, integer=True)
    launching.check(expr, launching.artifact(spec, RProgram(expr, (program,))), arrays, frozenset())


def test_parts_of_a_window_share_nothing() -> None:
    """Two loops over the taps: no step may take them all, and the model counts each load."""
    program = with_tile(roller.compile(operator("plain"), "cpu", threads=1), (1, 7, 16))
    cut = (*program.unit_tile[:3], 2, 3)
    in_parts = replace(program, tiles=(*program.tiles[:-2], cut, program.inner))
    assert sorted(whole_loops(program)) == [3, 4] and sorted(whole_loops(in_parts)) == [4]
    assert loads(in_parts, 32) == loads(in_parts, 0) and loads(program, 32) < loads(program, 0)
