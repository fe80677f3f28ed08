"""AMDGPU assembly as LLVM writes it: instructions, labels, and what each kernel is launched with and takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_FUNCTION = re.compile(r"^(\w[\w.$]*):")
_ENTRY = re.compile(r"^\s+- \.agpr_count:.*?(?=^\s+- \.agpr_count:|^amdhsa\.target)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^    \.?-? ?\.?(\w+): +(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AsmKernel:
    """One kernel: what the metadata says of it, as numbers, by LLVM's names without the dot."""

    name: str
    facts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Listing:
    """The assembly of a module."""

    kernels: Mapping[str, AsmKernel]


def parsed(text: str) -> Listing:
    """The kernels of a module by name."""
    found = {}
    notes = text.partition(".amdgpu_metadata")[2].partition(".end_amdgpu_metadata")[0]
    for entry in re.split(r"^  - (?=\.\w+:)", notes, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^(?: {4})?\.(\w+): +(\S+)$", entry, re.MULTILINE))
        name = fields["name"]
        found[name] = AsmKernel(name, {key: int(value) for key, value in fields.items() if value.isdigit()})
    return Listing(found)
