"""Analysis of a kernel's machine code: its loops, and the instruction mix and memory traffic of the hottest one.

Loops are found by branches to earlier addresses. Their trip counts are unknown: the hot loop is the one with the most arithmetic,
where an instruction counts `TURNS` times as much for every loop around it. A loop that the compiler has unrolled completely is
none: the hot stretch is then the rest, up to the whole kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roller_cuda.toolchain import control_flow, cubin, disassembly
from roller_cuda.toolchain.disassembly import Instruction
from roller_cuda.toolchain.register_contents import leading, repeated, targets

TURNS = 8
LANES = 32
JUMPS = ("BRA", "CALL", "BRX", "JMP")
ARITHMETIC = frozenset({"FFMA", "FMUL", "FADD", "DFMA", "DADD", "DMUL", "HFMA2", "HADD2", "HMUL2", "FMNMX", "MUFU", "IDP", "FFMA2"})
MATRIX = frozenset({"HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA"})
MATRIX_WORK = 16  # arithmetic instructions that a matrix instruction counts as
NOTHING = frozenset({"NOP"})
WIDTHS = {"8": 1, "16": 2, "U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
MMA_SHAPES = {
    "884": (8, 8, 4),
    "1688": (16, 8, 8),
    "16816": (16, 8, 16),
    "16832": (16, 8, 32),
    "8816": (8, 8, 16),
    "1684": (16, 8, 4),
}
DIVISION_CALL = re.compile(r"\$__internal_\d+_\$__cuda_sm\d+x?_(div|rem)_[su]\d+")


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: instructions `first` to `last`, both included, and the loops around it."""

    first: int
    last: int
    depth: int


@dataclass(frozen=True)
class Stretch:
    """The instructions of a loop or a kernel. Counts are static: each instruction counts once, whatever the trip count."""

    instructions: tuple[Instruction, ...]
    is_loop: bool

    @property
    def bases(self) -> Mapping[str, int]:
        """Instructions by name without modifiers; those that never run, and padding, are left out."""
        return Counter(i.base for i in self.running)

    @property
    def running(self) -> tuple[Instruction, ...]:
        """Instructions that can have an effect."""
        return tuple(i for i in self.instructions if i.base not in NOTHING and i.predicate not in ("@!PT", "@!UPT"))

    def share(self, base: str) -> float:
        """The share of instructions of one name."""
        return self.bases.get(base, 0) / max(len(self.running), 1)

    @property
    def local_accesses(self) -> int:
        """Loads from and stores to local memory: spills, and arrays that did not become registers."""
        return sum(self.bases.get(name, 0) for name in ("LDL", "STL"))

    @property
    def divisions(self) -> int:
        """Integer divisions and remainders: calls, and reciprocals rounded up, which the 32-bit idiom contains."""
        called = sum(i.base == "CALL" and bool(DIVISION_CALL.fullmatch(i.operands[-1])) for i in self.running)
        return called + sum(i.base == "I2F" and "RP" in i.modifiers for i in self.running)

    @property
    def constant_divisions(self) -> int:
        """Products whose high half is used: the idiom of divisions by constants and by loop invariants."""
        return sum(_is_high_product(i, self.running[n + 1 :]) for n, i in enumerate(self.running))

    @property
    def repeated_fragments(self) -> int:
        """`ldmatrix` of data that the stretch has read already."""
        return repeated(self.running, "LDSM")

    @property
    def repeated_shared_reads(self) -> int:
        """Other reads from shared memory of data that the stretch has read already."""
        return repeated(self.running, "LDS")

    @property
    def matrix_products(self) -> Mapping[str, int]:
        """Tensor-core instructions by name."""
        return Counter(i.name for i in self.running if i.base in MATRIX)

    @property
    def matrix_work(self) -> int:
        """Multiply-adds of a warp's `mma.sync` instructions."""
        return sum(_volume(i) for i in self.running if i.base in ("HMMA", "IMMA", "DMMA"))

    @property
    def fragment_bytes(self) -> int:
        """Bytes that a warp reads with `ldmatrix`."""
        return sum(_ldmatrix_bytes(i) for i in self.running if i.base == "LDSM")

    def bytes_of(self, base: str) -> int:
        """Returns the bytes that a warp moves with accesses of one name, such as LDS, LDG or LDGSTS."""
        return sum(access_bytes(i) * LANES for i in self.running if i.base == base)

    @property
    def drains(self) -> int:
        """Waits for all asynchronous matrix products (WGMMA) at once."""
        return sum(i.name.startswith("WARPGROUP.DEPBAR") and i.operands[-1] == "0x0" for i in self.running)


@dataclass(frozen=True)
class Code:
    """A kernel's machine code."""

    kernel: cubin.BinaryKernel
    instructions: tuple[Instruction, ...]

    @property
    def whole(self) -> Stretch:
        """The whole kernel as a stretch."""
        return Stretch(self.instructions, False)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The kernel's loops, in order of address, outer ones first."""
        ends: dict[int, int] = {}
        for first, last in control_flow.back_edges(self.instructions, _target):
            ends[first] = max(ends.get(first, 0), last)
        spans = sorted(ends.items(), key=lambda span: (span[0], -span[1]))
        return tuple(Loop(a, b, sum(c <= a and b <= d for c, d in spans)) for a, b in spans)

    @property
    def hot(self) -> Stretch:
        """The loop with the most arithmetic, or the whole kernel where that is in none."""
        depths, owners = [0] * len(self.instructions), [-1] * len(self.instructions)
        loops = self.loops
        for number, loop in enumerate(loops):  # an inner loop comes after those around it
            for at in range(loop.first, loop.last + 1):
                depths[at], owners[at] = loop.depth, number
        work = Counter[int]()
        for instruction, depth, owner in zip(self.instructions, depths, owners, strict=True):
            work[owner] += _work(instruction) * TURNS**depth
        best = max(work, key=lambda owner: (work[owner], owner))
        if best < 0:
            return self.whole
        return Stretch(self.instructions[loops[best].first : loops[best].last + 1], True)


def read(data: bytes) -> dict[str, Code]:
    """Returns the kernels of a cubin; `DeviceUnavailableError` without a disassembler, `CodegenError` for other bytes."""
    known = cubin.kernels(data)
    return {name: Code(known[name], found) for name, found in disassembly.instructions(data).items() if name in known}


def access_bytes(instruction: Instruction) -> int:
    """Returns the bytes of a lane's access."""
    return next((WIDTHS[m] for m in instruction.modifiers if m in WIDTHS), 4)


def _target(instruction: Instruction) -> int | None:
    """Returns the target of a jump; calls of named functions, which return, are no jumps."""
    if instruction.base not in JUMPS or not instruction.operands[-1].startswith("0x"):
        return None
    return int(instruction.operands[-1], 16)


def _is_high_product(product: Instruction, later: Sequence[Instruction]) -> bool:
    """True for a 32-bit product whose high half is used: a product of that half, or a wide one whose low half is never read."""
    if product.base in ("IMAD", "UIMAD") and "HI" in product.modifiers:
        return True
    if not product.name.startswith("IMAD.WIDE"):
        return False
    low = product.operands[0]
    for instruction in later:
        if any(re.search(rf"\b{low}\b", operand) for operand in instruction.operands[len(leading(instruction)) :]):
            return False
        if low in targets(instruction) and not instruction.predicate:
            return True
    return False


def _work(instruction: Instruction) -> int:
    return MATRIX_WORK if instruction.base in MATRIX else int(instruction.base in ARITHMETIC)


def _volume(instruction: Instruction) -> int:
    shape: Sequence[int] = next((MMA_SHAPES[m] for m in instruction.modifiers if m in MMA_SHAPES), (0, 0, 0))
    return shape[0] * shape[1] * shape[2]


def _ldmatrix_bytes(instruction: Instruction) -> int:
    """Returns the bytes of its matrices of 8 rows of 16 bytes: one matrix, or the number in the last modifier."""
    return 8 * 16 * next((int(m) for m in instruction.modifiers if m in ("2", "4")), 1)
