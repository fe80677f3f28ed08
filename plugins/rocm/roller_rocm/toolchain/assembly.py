"""Parser of LLVM's AMDGPU assembly: instructions, labels, and the launch parameters and resources of each kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_LABEL = re.compile(r"([.\w$]+):")
_END = (".section", ".Lfunc_end", ".amdhsa_kernel", ".amdgpu_metadata")
_DIRECTIVES = re.compile(r"^\s*\.amdhsa_kernel (\S+)\n(.*?)^\s*\.end_amdhsa_kernel", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^\s*\.amdhsa_(\w+) (-?\w+)$", re.MULTILINE)


class AsmInstruction(NamedTuple):
    """An instruction: its line in the listing (from 1), its name, its operands as text.

    `paired`: it issues together with the next one, which is on the same line.
    """

    line: int
    name: str
    operands: str
    paired: bool = False

    @property
    def text(self) -> str:
        """The instruction as LLVM writes it."""
        return f"{self.name} {self.operands}".strip()


@dataclass(frozen=True, slots=True)
class AsmKernel:
    """One kernel.

    `facts`: the numbers in its metadata, by LLVM's names without the dot. `directives`: its launch parameters, by the names of the
    `.amdhsa_` directives. `labels`: positions among the instructions.
    """

    name: str
    facts: Mapping[str, int]
    directives: Mapping[str, int] = field(default_factory=dict)
    instructions: tuple[AsmInstruction, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listing:
    """The assembly of a module."""

    kernels: Mapping[str, AsmKernel]


def parsed(text: str) -> Listing:
    """Returns the kernels of a module by name."""
    found = {}
    directives = {name: _numbers(body) for name, body in _DIRECTIVES.findall(text)}
    bodies = _bodies(text, set(directives))
    notes = text.partition(".amdgpu_metadata")[2].partition(".end_amdgpu_metadata")[0]
    for entry in re.split(r"^  - (?=\.\w+:)", notes, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^(?: {4})?\.(\w+): +(\S+)$", entry, re.MULTILINE))
        name = fields["name"]
        facts = {key: int(value) for key, value in fields.items() if value.isdigit()}
        instructions, labels = bodies.get(name, ((), {}))
        found[name] = AsmKernel(name, facts, directives.get(name, {}), tuple(instructions), labels)
    return Listing(found)


def _numbers(directives: str) -> dict[str, int]:
    return {key: int(value, 0) for key, value in _DIRECTIVE.findall(directives) if value.lstrip("-")[0].isdigit()}


def _bodies(text: str, names: set[str]) -> dict[str, tuple[list[AsmInstruction], dict[str, int]]]:
    """Returns the instructions and labels of each of the kernels."""
    found: dict[str, tuple[list[AsmInstruction], dict[str, int]]] = {}
    instructions: list[AsmInstruction] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition(";")[0].strip()
        label = _LABEL.match(line)
        if label and label[1] in names:
            instructions, labels = found[label[1]] = ([], {})
        elif line.startswith(_END):
            instructions = None
        elif instructions is not None and label:
            labels[label[1]] = len(instructions)
        elif instructions is not None and line and not line.startswith("."):
            parts = line.split(" :: ")
            instructions += [_instruction(number, part, part is not parts[-1]) for part in parts]
    return found


def _instruction(line: int, text: str, paired: bool) -> AsmInstruction:
    name, _, operands = text.strip().replace("\t", " ").partition(" ")
    return AsmInstruction(line, name, operands.strip(), paired)
