"""Instruction sets of this machine, by LLVM's names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module

from roller_cpu.chip.topology import machine

_RENAMED = {
    "pni": "sse3",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
}  # Linux's names
_PUNCTUATION = re.compile(r"[-_.]")


def missing(wanted: Iterable[str]) -> tuple[str, ...]:
    """Returns those of the wanted instruction sets that this machine does not have.

    The system's list is short of some on some machines (in containers, for example), so the processor itself is asked about those
    that it lacks: through LLVM, which takes a second to import.
    """
    lacking = [name for name in wanted if plain_name(name) not in _listed()]
    if not lacking:
        return ()
    own = import_module("roller_cpu.toolchain.processors").host_features()
    return tuple(sorted(name for name in lacking if name not in own))


@cache
def _listed() -> frozenset[str]:
    return frozenset(plain_name(_RENAMED.get(name, name)) for name in machine().features)


def plain_name(name: str) -> str:
    """Returns the name of an instruction set without the punctuation in which LLVM and Linux differ."""
    return _PUNCTUATION.sub("", name)
