"""Dot-product atoms of the host: those whose instruction sets the processor has, as wide as its vectors.

Their rates are measured. Where they cannot be, an instruction starts as often as a float32 multiply-add, unless the shipped spec of
the nearest chip says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from roller.plugin import ComputeAtom, HardwareSpec
from roller_cpu.chip import tile_atoms
from roller_cpu.chip.instructions import plain_name

_VNNI = {
    512: (frozenset({"avx512vnni"}),),
    256: (frozenset({"avxvnni"}), frozenset({"avx512vnni", "avx512vl"})),
}
# Instruction → bits of a vector → alternatives, each the instruction sets that it takes, by LLVM's names.
INSTRUCTION_SETS: Mapping[str, Mapping[int, tuple[frozenset[str], ...]]] = {
    "vpdpbusd": _VNNI,
    "vpdpwssd": _VNNI,
    "vpmaddwd": {512: (frozenset({"avx512bw"}),), 256: (frozenset({"avx2"}),)},
    "vdpbf16ps": {512: (frozenset({"avx512bf16"}),), 256: (frozenset({"avx512bf16", "avx512vl"}),)},
}
NOTHING: Mapping[str, float] = MappingProxyType({})
OPERANDS: Mapping[str, dict[str, Any]] = {
    "vpdpbusd": {"in_dtype": "int8", "acc_dtype": "int32", "n_dtype": "uint8", "depth": 4},
    "vpdpwssd": {"in_dtype": "int16", "acc_dtype": "int32", "depth": 2},
    "vpmaddwd": {"in_dtype": "int16", "acc_dtype": "int32", "depth": 2},
    "vdpbf16ps": {"in_dtype": "bfloat16", "acc_dtype": "float32", "depth": 2},
}


def names(features: Collection[str], vector_bytes: int) -> list[str]:
    """Returns the names of the atoms of a processor with these instruction sets, in LLVM's or in Linux's words.

    Of two that do the same, it is the one that adds, too.
    """
    plain = {plain_name(feature) for feature in features}
    every = [(name, widths.get(8 * vector_bytes, ())) for name, widths in INSTRUCTION_SETS.items()]
    found = [name for name, ways in every if any(wanted <= plain for wanted in ways)]
    return [f"{name}_{8 * vector_bytes}" for name in found if name != "vpmaddwd" or "vpdpwssd" not in found]


def _table(name: str) -> dict[str, Any]:
    """Returns what an atom's name, such as vpdpbusd_512, says of it."""
    instruction, _, bits = name.partition("_")
    table = dict(OPERANDS[instruction])
    roles = {"n": int(bits) // 32, "k": table.pop("depth")}
    return table | {"name": name, "kind": "vector", "roles": roles}


def able_atoms(spec: HardwareSpec) -> tuple[ComputeAtom, ...]:
    """Returns the atoms of a spec for which the device has code: dot products and tile instructions as their names say."""
    known = {f"{name}_{bits}": partial(_table, f"{name}_{bits}") for name, widths in INSTRUCTION_SETS.items() for bits in widths}
    known |= {name: partial(tile_atoms.table, name) for name in tile_atoms.INSTRUCTIONS}
    return tuple(a for a in spec.atoms if not a.sums or (a.name in known and _is(a, known[a.name]())))


def _is(atom: ComputeAtom, table: dict[str, Any]) -> bool:
    return atom == ComputeAtom.model_validate(atom.model_dump() | table)


def dot_atoms(
    base: HardwareSpec, features: Collection[str], vector_bytes: int, per_cycle: float, measured: Mapping[str, float] = NOTHING
) -> list[dict[str, Any]]:
    """Returns the tables of the atoms, without their rates in GFLOP/s.

    `per_cycle`: float32 operations per cycle of a core. `measured`: how many of each start while a multiply-add starts.
    """
    found = []
    for name in names(features, vector_bytes):
        table = _table(name)
        depth = table["roles"]["k"]
        ratio = measured[name] * depth if name in measured else _ratio(base, name, depth)
        found.append(table | {"flops_per_cycle_per_unit": per_cycle * ratio})
    return found


def _ratio(base: HardwareSpec, name: str, depth: int) -> float:
    """Returns the atom's rate over that of float32 vectors on the nearest shipped chip."""
    rates = {atom.name: atom.flops_per_cycle_per_unit for atom in base.atoms}
    plain = [a.flops_per_cycle_per_unit for a in base.atoms if a.kind == "vector" and a.in_dtype == "float32"]
    rate = rates.get(name)
    return rate / plain[0] if rate and plain and plain[0] else float(depth)
