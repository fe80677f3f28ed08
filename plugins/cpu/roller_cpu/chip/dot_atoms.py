"""Dot-product atoms of the host: those whose instruction sets the processor has, as wide as its vectors.

An instruction starts as often as a float32 multiply-add, unless the shipped spec of the nearest chip says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from roller.plugin import HardwareSpec

# Instruction → bits of a vector → alternatives, each the instruction sets that it takes, by LLVM's names.
INSTRUCTION_SETS: Mapping[str, Mapping[int, tuple[frozenset[str], ...]]] = {
    "vpdpbusd": {
        512: (frozenset({"avx512vnni"}),),
        256: (frozenset({"avxvnni"}), frozenset({"avx512vnni", "avx512vl"})),
    },
    "vdpbf16ps": {512: (frozenset({"avx512bf16"}),), 256: (frozenset({"avx512bf16", "avx512vl"}),)},
}
OPERANDS: Mapping[str, dict[str, Any]] = {
    "vpdpbusd": {"in_dtype": "int8", "acc_dtype": "int32", "compensated": True, "depth": 4},
    "vdpbf16ps": {"in_dtype": "bfloat16", "acc_dtype": "float32", "depth": 2},
}


def dot_atoms(base: HardwareSpec, features: Collection[str], vector_bytes: int, per_cycle: float) -> list[dict[str, Any]]:
    """Returns the tables of the atoms, without their rates in GFLOP/s; `per_cycle`: float32 operations per cycle of a core."""
    plain, found = {feature.replace("-", "").replace("_", "") for feature in features}, []
    for instruction, widths in INSTRUCTION_SETS.items():
        if not any(wanted <= plain for wanted in widths.get(8 * vector_bytes, ())):
            continue
        table = dict(OPERANDS[instruction])
        depth, name = table.pop("depth"), f"{instruction}_{8 * vector_bytes}"
        table |= {"name": name, "kind": "vector", "roles": {"n": vector_bytes // 4, "k": depth}}
        found.append(table | {"flops_per_cycle_per_unit": per_cycle * _ratio(base, name, depth)})
    return found


def _ratio(base: HardwareSpec, name: str, depth: int) -> float:
    """Returns the atom's rate over that of float32 vectors on the nearest shipped chip."""
    rates = {atom.name: atom.flops_per_cycle_per_unit for atom in base.atoms}
    plain = [a.flops_per_cycle_per_unit for a in base.atoms if a.kind == "vector" and a.in_dtype == "float32"]
    rate = rates.get(name)
    return rate / plain[0] if rate and plain and plain[0] else float(depth)
