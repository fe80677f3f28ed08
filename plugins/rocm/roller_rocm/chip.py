"""Which chip kernels are for, and what of it they use."""

from __future__ import annotations

from collections.abc import Sequence

from roller.plugin import ComputeAtom, HardwareSpec, TensorExpr, find_spec
from roller_rocm import matrix_cores

DEFAULT = "mi300x"  # where no GPU is attached


def default_spec() -> HardwareSpec:
    """The MI300X."""
    return find_spec("rocm", DEFAULT)


def atoms(spec: HardwareSpec, _: TensorExpr) -> Sequence[ComputeAtom]:
    """What kernels are made for."""
    return tuple(atom for atom in spec.atoms if matrix_cores.supported(atom))
