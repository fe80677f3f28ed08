"""Vectors that the compiler makes of a scalar program's unrolled tile (superword-level parallelism, SLP).

Neighbouring points along a dimension in which all arrays are contiguous become one vector. The program is rated as if it had the
vector atom.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from roller.ir.elementwise import Extents, Value, where
from roller.ir.nest import Nest
from roller.program.rprogram import StageProgram, Staging
from roller.target.hardware import ComputeAtom, HardwareSpec


def as_compiled(spec: HardwareSpec, program: StageProgram, least: int) -> StageProgram:
    """Returns the program with the vectors that the compiler makes of its scalars; itself where it makes none.

    `least`: the neighbours of which it makes a vector; 0: it makes none.
    """
    if not least or program.atom.kind != "scalar" or program.nest.before:
        return program
    dims = joined_dims(program.nest, program.staged)
    dim = max((d for d in dims if program.inner[d] >= least), key=lambda d: program.inner[d], default=None)
    if dim is None:
        return program
    types = program.atom.in_dtype, program.atom.acc_dtype
    atom = next((a for a in spec.atoms if a.kind == "vector" and not a.sums and (a.in_dtype, a.acc_dtype) == types), None)
    if atom is None:
        return program
    return replace(program, atom=_filled(atom, program.inner[dim]), mapping=(("n", dim),))


def joined_dims(nest: Nest, staged: tuple[Staging, ...] = ()) -> list[int]:
    """Returns the spatial dimensions along which all arrays that depend on them are contiguous, or lie in panels."""
    panels = {s.operand for s in staged if s.kind == "panel"}
    along = [a for a in nest.inputs if a.factor not in panels or a.role != "body"]
    return [
        d
        for d in nest.spatial
        if nest.output.strides[d] == 1 and all(not a.touches[d] or (a.strides[d] == 1 and not a.guarded) for a in along)
    ]


def joined(nest: Nest, inner: Extents, least: int) -> Value:
    """Returns whether the compiler makes vectors of scalar tiles that read everything in place; for a tile or an array of them.

    `least`: the neighbours of which it makes a vector.
    """
    found: Value = False
    for dim in joined_dims(nest):
        found = where(inner[dim] >= least, True, found)
    return found


@cache
def _filled(atom: ComputeAtom, extent: int) -> ComputeAtom:
    """Returns as much of a vector atom as so many neighbours fill: a power of two."""
    if extent >= atom.width:
        return atom
    width = 1 << (extent.bit_length() - 1)
    narrow = {"name": f"{atom.name}_{width}", "roles": {"n": width}, "gflops": atom.gflops * width / atom.width}
    return ComputeAtom.model_validate(atom.model_dump() | narrow | {"flops_per_cycle_per_unit": None})
