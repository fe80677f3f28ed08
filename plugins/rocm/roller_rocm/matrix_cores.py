"""Matrix units of CDNA (MFMA) and of RDNA 3 (WMMA)."""

from __future__ import annotations

from collections.abc import Mapping

from roller.plugin import ComputeAtom
from roller.schedule.machine import MatrixUnit

UNITS: Mapping[str, MatrixUnit] = {}


def supported(atom: ComputeAtom) -> bool:
    """True for atoms that kernels are made for."""
    return atom.kind != "matrix" or atom.name in UNITS
