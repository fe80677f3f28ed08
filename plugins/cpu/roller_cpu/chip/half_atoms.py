"""Atoms of processors whose vectors compute in float16: AVX512-FP16, and FEAT_FP16 of Arm.

A vector holds twice as many halves as float32 values and starts as often, so its rate is twice that of float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from roller_cpu.chip.instructions import plain_name

# Alternatives, each an instruction set by LLVM's and by Linux's name.
INSTRUCTION_SETS = frozenset({"avx512fp16", "fullfp16", "asimdhp"})


def half_atoms(plain: Sequence[Mapping[str, Any]], features: Collection[str]) -> list[dict[str, Any]]:
    """Returns the tables of the atoms that compute in float16, made from those of float32 among `plain`.

    Returns none for a processor without one of these instruction sets.
    """
    if INSTRUCTION_SETS.isdisjoint(map(plain_name, features)):
        return []
    return [_halves(table) for table in plain if table["acc_dtype"] == "float32" and table["kind"] in ("vector", "scalar")]


def _halves(table: Mapping[str, Any]) -> dict[str, Any]:
    lanes = {role: 2 * extent for role, extent in table["roles"].items()}
    rate = (table["flops_per_cycle_per_unit"] or 1.0) * (2 if lanes else 1)
    name = "f16" + "".join(f"x{extent}" for extent in lanes.values())
    types = {"in_dtype": "float16", "acc_dtype": "float16"}
    return dict(table) | types | {"name": name, "roles": lanes, "flops_per_cycle_per_unit": rate}
