"""Registers of a thread, predicted before the assembler reports them.

Beside the engine's count (accumulators, operands in use, `lane_reserved_bytes`), a thread needs registers for copies. Each access
that it prefetches takes a value and its address (`Machine.place_registers`). Each asynchronous copy takes half a register, whatever
its target: the compiler does not keep these from step to step. Operands read in pieces of several widths take three more for each
further width: an address, and the cost of alignment. Without a reduction, reads are batched. The constants are medians over 597
kernels (docs/cuda.md), those of addresses over 164, those of prefetched values over 144, that of pieces is from a dozen.
"""

from __future__ import annotations

import math

from roller.lowering.simt.cooperative_fill import MOST_REPEATED
from roller.lowering.simt.fragments import narrower_widths, read_registers, window_row
from roller.lowering.simt.machine import Machine
from roller.lowering.simt.stage_kernel import (
    GridKernel,
    reads_ahead,
    registers_ahead,
    registers_at_once,
    started_copies,
    tile_bytes,
)
from roller.plugin import HardwareSpec, StageProgram
from roller_cuda.toolchain.occupancy import MOST, REGISTER_BYTES, free_registers, limit, resident_blocks

PIECE = 3  # registers for each further width of the pieces in which an operand is read
PLACES = 6  # registers beside the operands that a thread reads for a further step (half of the operands for windows)
SPARE, MANY = 1.15, 96  # max ratio of taken to predicted registers, where they are few; from MANY on FREE applies
FREE = 40  # max registers beyond them: with fewer a thread of many results reads late, with more small tiles take all registers
BATCH = 16  # results whose inputs a thread without a reduction reads at a time


def wanted_registers(spec: HardwareSpec, program: StageProgram, machine: Machine) -> int:
    """Returns the registers that a thread would take without a limit."""
    reserved = spec.unit.lane_reserved_bytes // REGISTER_BYTES
    if program.nest.before:
        return reserved // 2 + -(-tile_bytes(program, spec) // REGISTER_BYTES) + min(math.prod(program.inner), BATCH)
    if program.nest.stage.reducer is None:
        outputs = math.prod(program.inner[d] for d in program.nest.spatial)
        return reserved - 2 + min(outputs, BATCH)
    held = tile_bytes(program, spec)
    if machine.in_place(program.atom):
        return reserved + -(-held // REGISTER_BYTES)
    if not program.staged or (program.atom.kind == "matrix" and not reads_ahead(program, machine)):
        reserved //= 2  # no addresses in panels, or those of one step
    tile = reserved + -(-held // REGISTER_BYTES)
    started = sum(min(n, MOST_REPEATED) for n in started_copies(program, machine)) // 2
    apart = PIECE * narrower_widths(program) if program.atom.kind != "matrix" else 0
    return tile + registers_ahead(program, machine) + started + apart


def row_registers(program: StageProgram) -> int:
    """Returns the registers that a step with all taps of a window may take beyond one value of its largest operand: a row of it.

    Its values pass through one register in the order in which they are read, but the assembler reads a whole row before it uses it.
    Where a block may have fewer registers, the row spills (C4 and C38 of the paper on an H100: 2 to 51 registers).
    """
    return max(0, window_row(program) - 1)


def told_registers(spec: HardwareSpec, program: StageProgram, machine: Machine, kernel: GridKernel) -> tuple[int, int]:
    """Returns the registers of a thread under `__launch_bounds__` with minBlocksPerSM, and that number; 0: none is declared.

    Without it the assembler assumes that other warps hide latency, and reads operands just before their use. With it, it prefetches
    operands of further steps into registers that do not lower the occupancy.
    """
    wanted = predicted_registers(spec, program, machine, kernel.threads)
    if not program.staged or machine.in_place(program.atom):
        return wanted, 0
    each = -(-kernel.blocks // spec.unit.count)
    blocks = min(resident_blocks(spec, kernel.threads, wanted, kernel.shared_bytes), each)
    if not blocks:
        return wanted, 0
    ahead = math.ceil(read_registers(program) / (2 if program.windowed else 1)) + PLACES if reads_ahead(program, machine) else 0
    several = max(wanted, wanted_registers(spec, program, machine) + ahead)  # registers of fills between steps are free by then
    taken = min(several, limit(spec, blocks * kernel.threads))
    if program.atom.kind == "matrix":
        return taken, blocks
    most = taken + FREE if taken >= MANY else math.ceil(SPARE * taken)
    return taken, max(blocks, resident_blocks(spec, kernel.threads, min(MOST, most), 0))


def predicted_registers(spec: HardwareSpec, program: StageProgram, machine: Machine, threads: int) -> int:
    """Returns the registers of a thread in a block of `threads`: those that it needs, up to the limit.

    While that does not lower the occupancy, they include the values that it fills between steps at a time.
    """
    wanted = wanted_registers(spec, program, machine)
    if program.staged and not machine.in_place(program.atom):
        wanted = max(wanted, min(wanted + registers_at_once(program, machine), free_registers(spec, threads)))
    return min(limit(spec, threads), wanted)
