"""Dot-product atoms of the host: those whose instruction sets the processor has, as wide as its vectors.

Their rates are measured. Where they cannot be, an instruction starts as often as a float32 multiply-add, unless the shipped spec of
the nearest chip says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from roller.plugin import HardwareSpec

# Instruction → bits of a vector → alternatives, each the instruction sets that it takes, by LLVM's names.
INSTRUCTION_SETS: Mapping[str, Mapping[int, tuple[frozenset[str], ...]]] = {
    "vpdpbusd": {
        512: (frozenset({"avx512vnni"}),),
        256: (frozenset({"avxvnni"}), frozenset({"avx512vnni", "avx512vl"})),
    },
    "vpdpwssd": {
        512: (frozenset({"avx512vnni"}),),
        256: (frozenset({"avxvnni"}), frozenset({"avx512vnni", "avx512vl"})),
    },
    "vpmaddwd": {512: (frozenset({"avx512bw"}),), 256: (frozenset({"avx2"}),)},
    "vdpbf16ps": {512: (frozenset({"avx512bf16"}),), 256: (frozenset({"avx512bf16", "avx512vl"}),)},
}
NOTHING: Mapping[str, float] = MappingProxyType({})
OPERANDS: Mapping[str, dict[str, Any]] = {
    "vpdpbusd": {"in_dtype": "int8", "acc_dtype": "int32", "compensated": True, "depth": 4},
    "vpdpwssd": {"in_dtype": "int16", "acc_dtype": "int32", "depth": 2},
    "vpmaddwd": {"in_dtype": "int16", "acc_dtype": "int32", "depth": 2},
    "vdpbf16ps": {"in_dtype": "bfloat16", "acc_dtype": "float32", "depth": 2},
}


def names(features: Collection[str], vector_bytes: int) -> list[str]:
    """Returns the names of the atoms of a processor with these instruction sets, in LLVM's or in Linux's words.

    Of two that do the same, it is the one that adds, too.
    """
    plain = {feature.replace("-", "").replace("_", "") for feature in features}
    every = [(name, widths.get(8 * vector_bytes, ())) for name, widths in INSTRUCTION_SETS.items()]
    found = [name for name, ways in every if any(wanted <= plain for wanted in ways)]
    return [f"{name}_{8 * vector_bytes}" for name in found if name != "vpmaddwd" or "vpdpwssd" not in found]


def dot_atoms(
    base: HardwareSpec, features: Collection[str], vector_bytes: int, per_cycle: float, measured: Mapping[str, float] = NOTHING
) -> list[dict[str, Any]]:
    """Returns the tables of the atoms, without their rates in GFLOP/s.

    `per_cycle`: float32 operations per cycle of a core. `measured`: how many of each start while a multiply-add starts.
    """
    found = []
    for name in names(features, vector_bytes):
        table = dict(OPERANDS[name.partition("_")[0]])
        depth = table.pop("depth")
        ratio = measured[name] * depth if name in measured else _ratio(base, name, depth)
        table |= {"name": name, "kind": "vector", "roles": {"n": vector_bytes // 4, "k": depth}}
        found.append(table | {"flops_per_cycle_per_unit": per_cycle * ratio})
    return found


def _ratio(base: HardwareSpec, name: str, depth: int) -> float:
    """Returns the atom's rate over that of float32 vectors on the nearest shipped chip."""
    rates = {atom.name: atom.flops_per_cycle_per_unit for atom in base.atoms}
    plain = [a.flops_per_cycle_per_unit for a in base.atoms if a.kind == "vector" and a.in_dtype == "float32"]
    rate = rates.get(name)
    return rate / plain[0] if rate and plain and plain[0] else float(depth)
