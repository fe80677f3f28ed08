"""Which chip kernels are for, and what of it they use."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from roller.plugin import (
    ComputeAtom,
    CostParameters,
    Deferred,
    DeviceUnavailableError,
    HardwareSpec,
    TensorExpr,
    Unrolling,
    find_spec,
)
from roller_rocm import gpu, likeness, matrix_cores
from roller_rocm.gpu import Facts

DEFAULT = "mi300x"  # where no GPU is attached
UNROLLING = Unrolling(256)  # multiply-adds of a lane one after another: LLVM reads ahead for all of them at once


def default_spec() -> HardwareSpec:
    """The shipped chip most like the GPU that the calling thread uses, with a warning that says in what they differ; the MI300X
    where no GPU is attached.
    """
    try:
        facts = gpu.current().facts()
    except DeviceUnavailableError:
        return find_spec("rocm", DEFAULT)
    return chosen(facts, likeness.shipped())


def chosen(facts: Facts, known: Iterable[HardwareSpec]) -> HardwareSpec:
    """The chip most like a GPU; warns where it is not that chip."""
    try:
        best = likeness.nearest(facts, known)
    except DeviceUnavailableError as error:
        warnings.warn(f"{error}; kernels are compiled for {DEFAULT}, and the attached GPU cannot run them", stacklevel=2)
        return find_spec("rocm", DEFAULT)
    differing = likeness.differences(facts, best)
    if differing:
        warnings.warn(
            f"no spec describes the attached GPU; {best.chip} is the nearest. The GPU has {', '.join(differing)}. "
            f"Kernels are right, but their tiles are chosen for {best.chip}: write a spec file for it",
            stacklevel=2,
        )
    return best


def atoms(spec: HardwareSpec, _: TensorExpr) -> Sequence[ComputeAtom]:
    """What kernels are made for."""
    return tuple(atom for atom in spec.atoms if matrix_cores.supported(atom))


def cost_parameters(spec: HardwareSpec) -> CostParameters:
    """What the model needs beyond the spec."""
    resident_tiles = Deferred("roller_rocm.codegen", "resident_tiles", spec)
    return CostParameters(unrolling=UNROLLING, resident_tiles=resident_tiles, row_groups=True)
