"""Registers of a thread, predicted before the assembler says.

Beside what the engine counts (accumulators, operands in use, `lane_reserved_bytes`), a thread needs registers for what it copies: a
value and its place for each access that it reads ahead (`Machine.place_registers`), and half of one for each copy that runs by
itself, wherever it goes: the compiler does not keep those from step to step. Operands that are read in pieces of several widths
take three more for each further one: a place, and what alignment costs. Without a reduction reads are batched. The constants are
medians over 597 kernels (docs/cuda.md), those of places over 164, those of what is read ahead over 144, that of pieces is from a
dozen.
"""

from __future__ import annotations

import math

from roller.lowering.simt.cooperative_fill import MOST_REPEATED
from roller.lowering.simt.fragments import narrower_widths, read_registers
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
PLACES = 6  # registers beside what a thread reads for a further step, of windows half of it
SPARE, MANY = 1.15, 96  # times the registers predicted that a thread may take, where they are few; and where they are many …
FREE = 40  # … registers beyond them: with fewer a thread of many results reads late, with more small tiles take all that there are
BATCH = 16  # results of which a thread without a reduction reads the inputs at a time


def wanted_registers(spec: HardwareSpec, program: StageProgram, machine: Machine) -> int:
    """Registers that a thread would take if it might have any number."""
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
        reserved //= 2  # no places in panels, or those of one step
    tile = reserved + -(-held // REGISTER_BYTES)
    started = sum(min(n, MOST_REPEATED) for n in started_copies(program, machine)) // 2
    apart = PIECE * narrower_widths(program) if program.atom.kind != "matrix" else 0
    return tile + registers_ahead(program, machine) + started + apart


def told_registers(spec: HardwareSpec, program: StageProgram, machine: Machine, kernel: GridKernel) -> tuple[int, int]:
    """Registers of a thread where the assembler is told how many blocks share a multiprocessor, and that number; 0: it is told
    nothing. Untold it supposes that others hide what a warp waits for, and reads operands just before it uses them; told, it
    reads those of further steps ahead, into registers that cost no block.
    """
    wanted = predicted_registers(spec, program, machine, kernel.threads)
    if not program.staged or machine.in_place(program.atom):
        return wanted, 0
    each = -(-kernel.blocks // spec.unit.count)
    blocks = min(resident_blocks(spec, kernel.threads, wanted, kernel.shared_bytes), each)
    if not blocks:
        return wanted, 0
    ahead = math.ceil(read_registers(program) / (2 if program.windowed else 1)) + PLACES if reads_ahead(program, machine) else 0
    several = max(wanted, wanted_registers(spec, program, machine) + ahead)  # what is filled between steps has left before these
    taken = min(several, limit(spec, blocks * kernel.threads))
    if program.atom.kind == "matrix":
        return taken, blocks
    most = taken + FREE if taken >= MANY else math.ceil(SPARE * taken)
    return taken, max(blocks, resident_blocks(spec, kernel.threads, min(MOST, most), 0))


def predicted_registers(spec: HardwareSpec, program: StageProgram, machine: Machine, threads: int) -> int:
    """Registers of a thread in a block of so many: what it wants, or what there is; and while that costs no block, what it fills
    between steps at a time.
    """
    wanted = wanted_registers(spec, program, machine)
    if program.staged and not machine.in_place(program.atom):
        wanted = max(wanted, min(wanted + registers_at_once(program, machine), free_registers(spec, threads)))
    return min(limit(spec, threads), wanted)
