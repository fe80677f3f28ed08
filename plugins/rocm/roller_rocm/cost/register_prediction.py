"""Registers of a lane, predicted before LLVM says.

Beside its accumulators a lane needs registers for all values of its operands that it reads for a step, as LLVM reads them together;
for what it carries from step to step, each with the place in the array, and for numbers and counters. Where lanes share a reduction
inside a wave, what they exchange is there beside what they have. LLVM is told how many waves that leaves room for, and keeps to it.
"""

from __future__ import annotations

import math
from typing import cast

from roller.lowering.simt import matrix_atoms
from roller.lowering.simt.fragments import read_tile
from roller.lowering.simt.machine import Machine, MatrixUnit
from roller.lowering.simt.stage_kernel import registers_ahead, tile_bytes
from roller.lowering.simt.threads import Block
from roller.plugin import ELEMENT_BYTES, HardwareSpec, StageProgram
from roller_rocm.toolchain import occupancy
from roller_rocm.toolchain.occupancy import REGISTER_BYTES

FEW = 8  # registers of a lane that has nothing but values of arrays, and their places
LEAST = 36  # values of arrays that are worth their registers, even where fewer would leave room for more waves


def wanted_registers(spec: HardwareSpec, program: StageProgram, machine: Machine) -> int:
    """Registers that a lane would take if it might have any number."""
    nest, reserved = program.nest, spec.unit.lane_reserved_bytes // REGISTER_BYTES
    block = matrix_atoms.block_of(program, machine)
    if nest.before:
        return reserved + _words(tile_bytes(program, spec))
    if nest.stage.reducer is None:  # LLVM reads as far ahead as costs no waves
        return min(FEW + _moving(program, block), max(LEAST, occupancy.registers_for(spec, occupancy.most_waves(spec))))
    held = block.outputs * _words(nest.accumulator_bytes)
    exchanged = held if block.each == 1 and any(block.lanes[d] > 1 for d in nest.reduce) else 0
    return reserved + held + exchanged + _operands(program, block) + registers_ahead(program, machine)


def _moving(program: StageProgram, block: Block) -> int:
    """Registers for the inputs of all results of a lane."""
    share, sizes = block.share, 0
    for access in program.nest.inputs:
        sizes += math.prod([share[d] for d, t in enumerate(access.touches) if t]) * ELEMENT_BYTES[access.tensor.dtype]
    return _words(sizes)


def _operands(program: StageProgram, block: Block) -> int:
    """Registers for the operands of one step."""
    nest, found = program.nest, 0
    for factor in range(len(nest.factors)):
        touched = [d for d, t in enumerate(nest.factor_touches(factor)) if t]
        if isinstance(block, matrix_atoms.GroupBlock):
            atoms = [program.inner[d] // (block.extent(block.roles[d]) if d in block.roles else 1) for d in touched]
            words = cast("MatrixUnit", block.unit).registers["m"]  # as many for either operand of every unit here
            found += math.prod([n for d, n in zip(touched, atoms, strict=True) if d in nest.spatial]) * words
        else:
            sizes = [ELEMENT_BYTES[a.tensor.dtype] for a in nest.inputs if a.factor == factor]
            values = math.prod([read_tile(program, factor)[d] for d in touched])
            found += _words(values * max(sizes, default=REGISTER_BYTES))
    return found


def _words(size: int) -> int:
    """Registers that so many bytes take."""
    return -(-size // REGISTER_BYTES)
