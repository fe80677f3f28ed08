"""Registers of a lane, predicted before LLVM reports them.

Beside its accumulators a lane needs registers for all operand values of a step, as LLVM reads them together. It needs registers for
each value that it carries from step to step, with its address in the array, and for numbers and counters. Where lanes share a
reduction inside a wave, the values that they exchange take registers beside their own. LLVM is given the number of waves for which
this leaves room, and keeps to it.
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

FEW = 8  # registers of a lane beside values of arrays and their addresses
LEAST = 36  # min registers for values of arrays, even where fewer would leave room for more waves


def wanted_registers(spec: HardwareSpec, program: StageProgram, machine: Machine) -> int:
    """Returns the registers that a lane would take without a limit."""
    nest, reserved = program.nest, spec.unit.lane_reserved_bytes // REGISTER_BYTES
    block = matrix_atoms.block_of(program, machine)
    if nest.before:
        return reserved + _words(tile_bytes(program, spec))
    if nest.stage.reducer is None:  # LLVM prefetches as far as costs no waves
        return min(FEW + _moving(program, block), max(LEAST, occupancy.registers_for(spec, occupancy.most_waves(spec))))
    held = block.outputs * _words(nest.accumulator_bytes)
    exchanged = held if block.each == 1 and any(block.lanes[d] > 1 for d in nest.reduce) else 0
    return reserved + held + exchanged + _operands(program, block) + registers_ahead(program, machine)


def _moving(program: StageProgram, block: Block) -> int:
    """Returns the registers for the inputs of all results of a lane."""
    share, sizes = block.share, 0
    for access in program.nest.inputs:
        sizes += math.prod([share[d] for d, t in enumerate(access.touches) if t]) * ELEMENT_BYTES[access.tensor.dtype]
    return _words(sizes)


def _operands(program: StageProgram, block: Block) -> int:
    """Returns the registers for the operands of one step."""
    nest, found = program.nest, 0
    for factor in range(len(nest.factors)):
        touched = [d for d, t in enumerate(nest.factor_touches(factor)) if t]
        if isinstance(block, matrix_atoms.GroupBlock):
            atoms = [program.inner[d] // (block.extent(block.roles[d]) if d in block.roles else 1) for d in touched]
            words = cast("MatrixUnit", block.unit).registers["m"]  # the same for both operands of every unit here
            found += math.prod([n for d, n in zip(touched, atoms, strict=True) if d in nest.spatial]) * words
        else:
            sizes = [ELEMENT_BYTES[a.tensor.dtype] for a in nest.inputs if a.factor == factor]
            values = math.prod([read_tile(program, factor)[d] for d in touched])
            found += _words(values * max(sizes, default=REGISTER_BYTES))
    return found


def _words(size: int) -> int:
    """Returns the registers that `size` bytes take."""
    return -(-size // REGISTER_BYTES)
