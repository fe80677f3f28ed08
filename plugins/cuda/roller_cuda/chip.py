"""Which chip kernels are for, and what of it they use."""

from __future__ import annotations

from collections.abc import Sequence

from roller.plugin import ComputeAtom, DeviceUnavailableError, HardwareSpec, TensorExpr, find_spec
from roller_cuda import calibrate, gpu, tensor_cores

DEFAULT = "a100"  # where no GPU is attached


def default_spec() -> HardwareSpec:
    """The attached GPU as it was measured, else the shipped chip most like it; the A100 without a GPU of a known architecture."""
    try:
        facts = gpu.facts_of(gpu.attached())
        return calibrate.remembered(facts) or calibrate.nearest(facts, calibrate.shipped())
    except DeviceUnavailableError:
        return find_spec("cuda", DEFAULT)


def atoms(spec: HardwareSpec, _: TensorExpr) -> Sequence[ComputeAtom]:
    """What kernels are printed for."""
    return tuple(atom for atom in spec.atoms if tensor_cores.supported(atom))
