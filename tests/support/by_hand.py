"""Programs given by hand for one chip, with the check that they are right."""

from __future__ import annotations

from typing import Any

import launching
from roller import ops, verify
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.ops import SymbolicTensor
from roller.program.rprogram import RProgram, StageProgram, tiled_levels
from roller.target.catalog import find_spec
from roller.target.hardware import ComputeAtom

SPEC = find_spec("cpu", "x86-64-v3")


def t(*shape: int, dtype: str = "float32", name: str | None = None) -> SymbolicTensor:
    return ops.tensor(shape, dtype, name)


def scalar(dtype: str = "float32") -> ComputeAtom:
    return ComputeAtom.model_validate(
        {"name": "scalar", "kind": "scalar", "roles": {}, "in_dtype": dtype, "acc_dtype": dtype, "gflops": 1.0}
    )


def vector(width: int) -> ComputeAtom:
    return scalar().model_copy(update={"name": f"x{width}", "kind": "vector", "roles": {"n": width}})


def given(op: SymbolicTensor, tiles: Any, lane: int | None = None, **more: Any) -> RProgram:
    """A program with these unit and innermost tiles, on the nest whose axes are not fused."""
    expr = fuse(ops.expression(op))
    nest = variants(expr.stages[0], expr.tensors)[0]
    everywhere = tuple(range(len(nest.dims)))
    atom, mapping = (vector(8), (("n", lane),)) if lane is not None else (scalar(), ())
    stage = StageProgram(nest, atom, mapping, tiled_levels(SPEC), tiles, (everywhere, everywhere), **more)
    return RProgram(expr, (stage,))


def right(op: SymbolicTensor, program: RProgram, constants: tuple[str, ...] = (), seed: int = 0) -> None:
    expr = ops.expression(op)
    arrays = verify.random_inputs(expr, seed, integer=True)
    built = launching.artifact(SPEC, program, {name: arrays[name] for name in constants})
    launching.check(expr, built, arrays, frozenset(constants))
