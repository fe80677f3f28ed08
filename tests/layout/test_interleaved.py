"""Panels of matrix atoms whose rows lie across the reduction: neighbours along it side by side, as lanes read them."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_fill_order import places

import roller
from emulating import needs_cxx
from hip_text import best
from roller import ops, verify
from roller.device.chip import load_spec
from roller.errors import ConstructionError
from roller.lowering.simt.shared_panels import SharedPanel
from roller.lowering.simt.stage_kernel import _fillings
from roller.program.rprogram import StageProgram
from roller.runtime.arrays import aligned_empty
from roller.target.hardware import HardwareSpec
from roller_rocm.codegen import generator, machine
from roller_rocm.emulator.emulator import Emulator, Order
from roller_rocm.toolchain import compiling

CHIPS = ("mi100", "mi210", "mi300x", "rx7900xtx")


def product(
    dtype: str, turned: tuple[bool, bool] = (False, False), shape: tuple[int, int, int] = (64, 96, 64)
) -> ops.SymbolicTensor:
    m, n, k = shape
    a = ops.tensor((k, m) if turned[0] else (m, k), dtype, "a")
    return ops.matmul(a, ops.tensor((n, k) if turned[1] else (k, n), dtype, "b"), *turned)


def interleaving(spec: HardwareSpec, many: int) -> HardwareSpec:
    """The chip, with matrix atoms for float16 alone that take so many neighbours side by side."""
    atoms = [a for a in spec.atoms if a.kind == "matrix" and a.in_dtype == "float16" and a.extents["k"] % many == 0]  # type: ignore[operator]
    return spec.model_copy(update={"atoms": tuple(a.model_copy(update={"operand_interleave": many}) for a in atoms)})


def where(panel: SharedPanel, at: tuple[int, ...]) -> int:
    """The place of a value, written down once more: groups of neighbours along the reduction, then their place in the group."""
    inside = at[panel.depth] % panel.beside if panel.depth is not None else 0
    groups = [x - inside if d == panel.depth else x for d, x in enumerate(at)]
    return sum(x * step for x, step in zip(groups, panel.steps, strict=True)) + inside


@st.composite
def programs(draw: st.DrawFn) -> tuple[StageProgram, HardwareSpec, int]:
    many = draw(st.sampled_from((1, 2, 4, 8)))
    spec = interleaving(load_spec(f"rocm:{draw(st.sampled_from(CHIPS))}"), many)
    shape = draw(st.tuples(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70)))
    op = product("float16", draw(st.tuples(st.booleans(), st.booleans())), shape)
    try:
        found = roller.enumerate_programs(op, "rocm", spec=spec).sample(1, seed=draw(st.integers(0, 99)))
    except ConstructionError:  # matrix atoms alone: some operands are too small for them
        assume(False)
    return found[0].stages[0], spec, many


@given(programs())
def test_every_value_is_stored_once_where_it_is_read(made: tuple[StageProgram, HardwareSpec, int]) -> None:
    program, spec, many = made
    for filling in _fillings(program, machine.machine(spec)):
        panel = filling.panel
        assert panel.beside in (1, many)
        assert panel.depth is None or panel.beside == 1 or panel.steps[panel.depth] * panel.beside >= panel.beside
        dims = len(panel.steps)
        step = panel.steps[filling.wide] if filling.wide is not None else 0
        taken = [(n * step, row) for n in range(filling.width) for row in range(panel.beside)]
        covered = sorted(
            sum(x * s for x, s in zip(at, panel.steps, strict=True)) + n + row
            for at in places(filling.digits, dims)
            for n, row in taken
        )
        extents = [range(t) if s else range(1) for t, s in zip(program.unit_tile, panel.steps, strict=True)]
        assert covered == sorted(where(panel, at) for at in itertools.product(*extents))
        assert covered[-1] < panel.size
        assert filling.trips * filling.threads * filling.taken_together >= math.prod(map(len, extents))


@pytest.mark.one_in(6)
@needs_cxx
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (True, True)], ids=["plain", "first turned", "both turned"])
def test_operands_across_the_reduction_are_read_in_pieces(chip: str, dtype: str, turned: tuple[bool, bool]) -> None:
    """Not value by value; and lanes do not meet in a bank, neither those that read nor those that turn what they store."""
    op = product(dtype, turned, (128, 128, 128))
    spec, program = best(op, chip, "wmma" if chip == "rx7900xtx" else "mfma")
    artifact = compiling.build(spec, generator.generate(spec, program))
    assert not re.search(r"ds_(read|load)_[ui](16|8)", artifact.launch["assembly"])
    assert not re.search(r"ds_(write|store)_b16", artifact.launch["assembly"])
    emulator, expr = Emulator(artifact, [Order(False, True)]), program.expr
    arrays = verify.random_inputs(expr, 1, False)
    out = aligned_empty(expr.output.shape, verify.numpy_dtype(expr.output.dtype))
    out.reshape(-1).view(np.uint8)[...] = 0xFF
    emulator.run(tuple(np.ascontiguousarray(arrays[t.name]) for t in expr.inputs), out)
    verify.check(expr, arrays, out)
    for counts in emulator.counts().values():
        for part in (counts.loop, counts.rest):
            assert part.lds_reads.actual == part.lds_reads.ideal
            if turned == (True, False):  # both panels' rows lie across the reduction
                assert part.lds_writes.actual == part.lds_writes.ideal


def test_what_lies_side_by_side_divides_the_atom() -> None:
    spec = load_spec("rocm:mi300x")
    atom = next(a for a in spec.atoms if a.name == "mfma_m32n32k8_f16")
    with pytest.raises(ValidationError, match="operand_interleave: 3 does not divide the atom's extent of k, 8"):
        type(atom)(**{**atom.model_dump(), "operand_interleave": 3})
