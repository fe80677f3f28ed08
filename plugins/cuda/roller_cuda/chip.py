"""Which chip kernels are for, and what of it they use."""

from __future__ import annotations

from collections.abc import Sequence

from roller.plugin import ComputeAtom, HardwareSpec, TensorExpr, find_spec, list_specs
from roller_cuda import runtime, tensor_cores

DEFAULT = "a100"  # where no GPU is attached


def default_spec() -> HardwareSpec:
    """The shipped spec of the attached GPU's compute capability, else of the nearest below it; the A100's without a GPU."""
    capability = runtime.attached()
    known = [find_spec("cuda", entry.chip) for entry in list_specs("cuda")]
    fitting = [
        s for s in known if capability is not None and capability_of(s)[0] == capability[0] and capability_of(s) <= capability
    ]
    return max(fitting, key=capability_of, default=find_spec("cuda", DEFAULT))


def capability_of(spec: HardwareSpec) -> tuple[int, int]:
    """The compute capability that a spec names."""
    major, minor = spec.options["compute_capability"]
    return int(major), int(minor)


def atoms(spec: HardwareSpec, _: TensorExpr) -> Sequence[ComputeAtom]:
    """What kernels are printed for."""
    return tuple(atom for atom in spec.atoms if tensor_cores.supported(atom))
