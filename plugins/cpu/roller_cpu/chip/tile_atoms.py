"""Matrix atoms of x86: tile instructions (AMX), where processor and system let this process use them.

Linux gives tiles to a process that asks. Their rate is not measured: an instruction starts every 16 cycles.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from roller_cpu.chip.instructions import plain_name

REQUEST_PERMISSION, TILE_DATA = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of arch_prctl
ARCH_PRCTL = 158  # its number among the system calls of x86-64
CYCLES, LATENCY = 16, 52  # from one instruction to the next, and to its sums (Intel's optimization manual)
ROWS, WORDS, TILES = 16, 16, 8
# Instruction → instruction set by LLVM's name, operand, sum, operands of a word.
INSTRUCTIONS: Mapping[str, tuple[str, str, str, int]] = {
    "tdpbf16ps": ("amxbf16", "bfloat16", "float32", 2),
    "tdpbssd": ("amxint8", "int8", "int32", 4),
    "tdpfp16ps": ("amxfp16", "float16", "float32", 2),
}


@cache
def permitted() -> bool:
    """Asks the system for tiles, once a process, and returns whether it gave them."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return int(ctypes.CDLL(None, use_errno=True).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)) == 0


def names(features: Collection[str]) -> list[str]:
    """Returns the names of the atoms of a processor with these instruction sets, in LLVM's or in Linux's words."""
    plain = {plain_name(feature) for feature in features}
    return [name for name, (wanted, *_) in INSTRUCTIONS.items() if {"amxtile", wanted} <= plain]


def tile_atoms(features: Collection[str]) -> list[dict[str, Any]]:
    """Returns the tables of the atoms, without their rates in GFLOP/s."""
    return [table(name) | {"flops_per_cycle_per_unit": _operations(name) / CYCLES} for name in names(features)]


def table(name: str) -> dict[str, Any]:
    """Returns what an atom's name says of it."""
    _, operand, total, depth = INSTRUCTIONS[name]
    return {
        "name": name,
        "kind": "matrix",
        "roles": {"m": ROWS, "n": WORDS, "k": WORDS * depth},
        "in_dtype": operand,
        "acc_dtype": total,
        "operand_interleave": depth,
        "registers": TILES,
        "chains": -(-LATENCY // CYCLES),
    }


def _operations(name: str) -> int:
    return 2 * ROWS * WORDS * WORDS * INSTRUCTIONS[name][3]
