"""AMD GPUs as a device: LLVM IR from the program, a code object from TVM's LLVM and a linker, an emulator of its assembly.

Each hook loads the module that answers it only when asked. No AMD hardware was used to make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from roller.plugin import (
    Artifact,
    BuildOptions,
    ComputeAtom,
    CostParameters,
    HardwareSpec,
    KernelError,
    KernelSource,
    RProgram,
    Runner,
    TensorExpr,
    hookimpl,
)

ROLLER_API = 1
WRITERS = {None: "generator", "llvm-ir": "generator", "hip-c++": "hip_source"}  # modules, by the language that is asked for


def _module(name: str) -> Any:
    return import_module(f"roller_rocm.{name}")


@hookimpl
def roller_default_spec() -> HardwareSpec:
    """The attached chip, else the MI300X."""
    return _module("chip.default").default_spec()  # type: ignore[no-any-return]


@hookimpl
def roller_atoms(spec: HardwareSpec, expr: TensorExpr) -> Sequence[ComputeAtom]:
    """The vector units, and the matrix units that kernels are made for."""
    return _module("codegen.machine").atoms(spec, expr)  # type: ignore[no-any-return]


@hookimpl
def roller_cost_parameters(spec: HardwareSpec) -> CostParameters:
    """The spec says it all, but for what a compute unit has room for at a time."""
    return _module("cost.parameters").cost_parameters(spec)  # type: ignore[no-any-return]


@hookimpl
def roller_refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """More local memory or lanes than a workgroup may have."""
    return _module("codegen.limits").refusal(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """LLVM IR; HIP C++ where that is asked for."""
    if options.language not in WRITERS:
        languages = " and ".join(name for name in WRITERS if name is not None)
        raise KernelError(f"the rocm device writes {languages}, not {options.language!r}")
    return _module(f"codegen.{WRITERS[options.language]}").generate(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """A code object."""
    return _module("toolchain.compiling").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """The code object on the attached GPUs."""
    return _module("runtime.runner").RocmRunner(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_emulate(artifact: Artifact) -> Runner:
    """The kernel's assembly on the CPU."""
    return _module("emulator.emulator").Emulator(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_assembly(artifact: Artifact) -> str:
    """The machine code, as LLVM writes it."""
    return str(artifact.launch.get("assembly", ""))


@hookimpl
def roller_build_problem() -> str | None:
    """No linker."""
    return next(iter(_module("toolchain.compiling").problems()), None)


@hookimpl
def roller_requirements() -> tuple[str, ...]:
    """A linker, a driver and a GPU."""
    return (*_module("toolchain.compiling").problems(), *_module("runtime.runner").problems())
