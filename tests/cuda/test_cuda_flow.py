"""Loops of machine code: backward jumps to what every way into them goes through."""

from __future__ import annotations

from roller_cuda.toolchain import control_flow, disassembly
from roller_cuda.toolchain.disassembly import Instruction


def code(*lines: str) -> list[Instruction]:
    """Instructions 16 bytes apart: "name", "@P0 name" or "name 3" for one that jumps to the third."""
    found = []
    for number, line in enumerate(lines):
        predicate, _, rest = line.rpartition("@")[2].partition(" ") if line.startswith("@") else ("", "", line)
        name, _, goal = rest.partition(" ")
        operands = (hex(int(goal) * disassembly.BYTES),) if goal else ()
        found.append(Instruction(number * disassembly.BYTES, f"@{predicate}" if predicate else "", name, operands))
    return found


def edges(*lines: str) -> list[tuple[int, int]]:
    def target(instruction: Instruction) -> int | None:
        return int(instruction.operands[0], 16) if instruction.operands else None

    return sorted(control_flow.back_edges(code(*lines), target))


def test_loops_are_what_their_heads_dominate() -> None:
    assert edges("FFMA", "FFMA", "@P0 BRA 1", "EXIT") == [(1, 2)]
    assert edges("FFMA", "FADD", "FFMA", "@P0 BRA 2", "@P1 BRA 1", "EXIT") == [(1, 4), (2, 3)]
    assert edges("FFMA", "BRA 0") == [(0, 1)]
    assert edges("@P0 BRA 2", "EXIT", "EXIT") == []
    # A wait inside the loop 1 to 4 that spins behind the kernel's end, and jumps back into the loop's middle.
    assert edges("MOV", "SYNCS", "@P0 BRA 6", "HGMMA", "@P1 BRA 1", "EXIT", "SYNCS", "@P0 BRA 6", "BRA 3") == [(1, 4), (6, 7)]


def test_code_that_no_way_leads_to_is_in_no_loop() -> None:
    assert edges("EXIT", "FFMA", "BRA 1") == []
