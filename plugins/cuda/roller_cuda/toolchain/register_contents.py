"""Value numbering of registers: which memory accesses of a stretch of machine code have the same address.

A value has a number; instructions without side effects give the same number for the same name, modifiers and operands. Sums with a
constant are kept apart as number and constant. Where several paths join, the stretch is read in order of address.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from roller_cuda.toolchain.disassembly import Instruction

Value = tuple[Hashable, int]  # its origin, and a constant to add
_REGISTER = re.compile(r"\b(U?R(?:\d+|Z)|U?P(?:\d+|T))\b")
_PREDICATE = re.compile(r"U?P(\d+|T)")
_NUMBER = re.compile(r"(-?0x[0-9a-f]+)$")
_PLACE = re.compile(r"\[(.*)\]")
FRESH = frozenset(
    {"S2R", "S2UR", "CS2R", "SHFL", "VOTE", "LD", "LDG", "LDS", "LDL", "LDC", "ULDC", "LDSM", "ATOM", "ATOMS", "ATOMG"}
)
WRITE_NONE = frozenset({"ST", "STG", "STS", "STL", "LDGSTS", "RED", "BRA", "EXIT", "BAR", "CALL", "RET", "MEMBAR", "DEPBAR"})
WIDE = {"64": 2, "128": 4, "4": 4, "2": 2, "WIDE": 2}
MATRIX = frozenset({"HMMA", "IMMA", "DMMA", "BMMA"})


@dataclass
class Registers:
    """The known values of registers at a point of a stretch of code."""

    _values: dict[str, Value] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _fresh: int = 0

    def value(self, register: str) -> Value:
        """Returns the value of a register; a value from before the stretch has its own name."""
        name = register.strip("-~|!")
        return (0, 0) if name in ("RZ", "URZ") else self._values.get(name, (name, 0))

    def address(self, place: str) -> Hashable:
        """Returns the address that an operand such as `[R12.X4+UR4+0x80]` names."""
        inside = _PLACE.search(place)
        words = inside.group(1) if inside else place
        offset, parts = 0, []
        for word in words.replace("+-", "+\\-").split("+"):
            plain = word.replace("\\", "")
            if _NUMBER.fullmatch(plain):
                offset += int(plain, 16)
                continue
            register, _, scale = plain.partition(".")
            origin, constant = self.value(register)
            times = int(scale[1:]) if re.fullmatch(r"X\d+", scale) else 1
            parts.append((origin, scale))
            offset += constant * times
        return frozenset(parts), offset

    def run(self, instruction: Instruction) -> None:
        """Records the values that an instruction writes."""
        written = targets(instruction)
        if not written:
            return
        value = self._result(instruction, written)
        for number, register in enumerate(written):
            found = value if number == 0 else ((value, number), 0)
            if instruction.predicate:
                found = (self._number(("if", self._key(instruction.predicate), found, self.value(register))), 0)
            self._values[register] = found

    def _result(self, instruction: Instruction, written: list[str]) -> Value:
        if instruction.base in FRESH or instruction.base in MATRIX:
            self._fresh += 1
            return ("fresh", self._fresh), 0
        sources = instruction.operands[len(leading(instruction)) :]
        moved = _plain_sum(instruction, sources)
        if moved is not None:
            origin, constant = self.value(moved[0])
            return origin, constant + moved[1]
        return self._number((instruction.name, len(written), tuple(self._key(s) for s in sources))), 0

    def _key(self, operand: str) -> Hashable:
        plain = operand.replace(".reuse", "")
        return (_REGISTER.sub("?", plain), tuple(self.value(r) for r in _REGISTER.findall(plain)))

    def _number(self, key: Hashable) -> Hashable:
        return ("value", self._numbers.setdefault(key, len(self._numbers)))


def targets(instruction: Instruction) -> list[str]:
    """Returns the registers that an instruction writes; of a wide result all general ones."""
    found = []
    for operand in leading(instruction):
        name = operand.replace(".64", "").replace(".reuse", "")
        match = re.fullmatch(r"(U?R)(\d+)", name)
        if match:
            first = int(match.group(2))
            found += [f"{match.group(1)}{first + n}" for n in range(_width(instruction))]
        elif _PREDICATE.fullmatch(name) and not name.endswith("T"):
            found.append(name)
    return found


def leading(instruction: Instruction) -> tuple[str, ...]:
    """Returns the operands that are written: the first, and predicates right behind it; none of those that only store or jump."""
    if instruction.base in WRITE_NONE or not instruction.operands:
        return ()
    count = 1
    while count < len(instruction.operands) and _PREDICATE.fullmatch(instruction.operands[count]):
        count += 1
    return instruction.operands[:count]


def _width(instruction: Instruction) -> int:
    if instruction.base in MATRIX:
        return 4
    if instruction.base.startswith("LD") or "WIDE" in instruction.modifiers:
        return max((WIDE[m] for m in instruction.modifiers if m in WIDE), default=1)
    return 2 if instruction.base in ("CS2R", "DADD", "DMUL", "DFMA") else 1


def _plain_sum(instruction: Instruction, sources: tuple[str, ...]) -> tuple[str, int] | None:
    """Returns the register and the constant where an instruction only moves one register, or adds a constant to it."""
    words = [s.replace(".reuse", "") for s in sources]
    if instruction.base in ("MOV", "UMOV") or instruction.name.startswith("IMAD.MOV"):
        words = words[-1:]
    elif instruction.name.startswith("IMAD.IADD") and len(words) == 3 and words[1] == "0x1":
        words = [words[0], words[2]]
    elif instruction.name not in ("IADD3", "UIADD3") or len(words) != 3:
        return None
    words = [w for w in words if w not in ("RZ", "URZ")]
    registers = [w for w in words if re.fullmatch(r"U?R\d+", w)]
    numbers = [int(w, 16) for w in words if _NUMBER.fullmatch(w)]
    return (registers[0], sum(numbers)) if len(registers) == 1 and len(numbers) == len(words) - 1 else None


def repeated(stretch: Iterable[Instruction], base: str) -> int:
    """Counts reads of a kind (`LDSM`, `LDS`) from an address read before in the stretch, with no store or wait in between."""
    registers, seen, count = Registers(), set(), 0
    for instruction in stretch:
        if instruction.base == base and instruction.predicate != "@!PT":
            key = instruction.name, registers.address(instruction.operands[1])
            count += key in seen
            seen.add(key)
        elif instruction.base in ("STS", "BAR", "LDGSTS", "SYNCS", "ATOMS"):
            seen.clear()
        registers.run(instruction)
    return count
