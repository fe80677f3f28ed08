"""Resources of a warp-specialised block: shared memory (panels, barriers, staged results) and registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from roller.ir.expr import ELEMENT_BYTES
from roller.lowering.simt.machine import Machine
from roller.lowering.simt.matrix_atoms import SIDES, GroupBlock
from roller.lowering.simt.stage_kernel import workspace_of
from roller.lowering.specialised.bulk_copies import bulk_of
from roller.lowering.specialised.staged_store import StoreBuffer, outlet_of
from roller.lowering.specialised.swizzle import SwizzledPanel, swizzled_panel
from roller.lowering.tir.builder import Buffer, shared_buffer
from roller.lowering.tir.loads import Reader
from roller.program.rprogram import StageProgram

SIGNALS_BYTES = 1024  # enough for the barriers of any program
OTHER_REGISTERS = 40  # of a consumer lane: addresses, counters, operands of the epilogue


@dataclass(frozen=True)
class Layout:
    """The layout of a block's shared memory: panels, one after another, then barriers, then staged results."""

    panels: list[SwizzledPanel]
    arena: Buffer
    signals: int  # address of the first one, in elements of the arena
    store_buffer: StoreBuffer | None

    @property
    def bytes(self) -> int:
        """Returns the total size."""
        return int(self.arena.shape[0]) * ELEMENT_BYTES[str(self.arena.dtype)]


def layout_of(block: GroupBlock, machine: Machine) -> Layout:
    """Returns the layout of a block's shared memory."""
    program = block.program
    dtype = program.atom.stored_dtype
    size, found, start = ELEMENT_BYTES[dtype], [], 0
    for staging in program.staged:
        panel = swizzled_panel(program, staging, None, start)
        found.append(panel)
        start += panel.size * panel.copies
    taken = start * size + SIGNALS_BYTES
    store_buffer = _store_buffer(block, machine, taken)
    buffer = shared_buffer("panels", (taken + (0 if store_buffer is None else store_buffer.bytes)) // size, dtype)
    return Layout([swizzled_panel(program, p.staging, buffer, p.start) for p in found], buffer, start, store_buffer)


def _store_buffer(block: GroupBlock, machine: Machine, taken: int) -> StoreBuffer | None:
    """Returns the staged epilogue store that fits beside `taken` bytes; None if there is none."""
    program, departures, producers = block.program, machine.departures, machine.producers
    if departures is None or producers is None:
        return None
    output, space = program.nest.output.tensor, workspace_of(program)
    array = (output.name, output.dtype, 1) if space is None else (space.name, space.dtype, program.dispatch.split)
    room = departures.room(block.threads + producers.lanes, registers_of(program, block), taken)
    return outlet_of(block, block.panel_unit, departures, array, room, taken)


def shared_bytes(program: StageProgram, machine: Machine) -> int:
    """Returns the bytes of a block's shared memory."""
    return layout_of(block_of(program, machine), machine).bytes


def refusal(program: StageProgram, machine: Machine) -> tuple[str, str] | None:
    """Returns why a program with an atom that reads panels has no warp-specialised kernel; None if it has, and for other atoms."""
    name, atom = program.nest.stage.name, program.atom
    if not machine.in_place(atom):
        return None
    producers, block = machine.producers, block_of(program, machine)
    assert producers is not None, "panels that atoms read are filled by producers"
    if {role for role, _ in program.mapping} != {*SIDES, "k"}:
        return "roles", f"{atom.name} wants rows, columns and a reduction of {name!r}"
    if any(lp.over == "lanes" and program.nest.dims[lp.dim].is_reduce for lp in program.loops):
        return "lanes", f"groups of {atom.name} share no reduction, those of {name!r} would"
    if program.parted:
        return "cluster", f"some clusters of {name!r} would begin at the end of a row of tiles and end in the next one"
    if program.dispatch.cluster > 1 and not any(_spread(program, block, machine)):
        return "cluster", f"{name!r} has nothing that boxes bring to all blocks of a cluster"
    wanted = registers_of(program, block)
    room = producers.registers(block.threads // atom.lanes)
    if wanted > room:
        return "registers", f"a lane of {name!r} takes about {wanted} registers beside those that fill panels, it may have {room}"
    return None


def _spread(program: StageProgram, block: GroupBlock, machine: Machine) -> Iterator[bool]:
    """Yields for each panel whether boxes bring it to all blocks of a cluster (multicast)."""
    reader = Reader(program.nest, {})
    for panel in layout_of(block, machine).panels:
        bulk = bulk_of(block, panel, reader)
        yield bulk is not None and bulk.cluster > 1


def registers_of(program: StageProgram, block: GroupBlock) -> int:
    """Returns the registers of a consumer lane: accumulators, and an allowance for the rest."""
    return block.accumulators + OTHER_REGISTERS


def block_of(program: StageProgram, machine: Machine) -> GroupBlock:
    """Returns the block of consumer lanes."""
    return GroupBlock(program, machine.group, functions=machine.functions, unit=machine.panel_units[program.atom.name])
