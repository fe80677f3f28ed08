"""Plugin manifest of AMD GPUs: LLVM IR, code objects from TVM's LLVM and a linker, and an emulator of the assembly.

Each hook imports its module only when called. No AMD hardware was used to make it.
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
WRITERS = {None: "generator", "llvm-ir": "generator", "hip-c++": "hip_source"}  # modules by requested language


def _module(name: str) -> Any:
    return import_module(f"roller_rocm.{name}")


@hookimpl
def roller_default_spec() -> HardwareSpec:
    """Returns the attached chip, else the MI300X."""
    return _module("chip.default").default_spec()  # type: ignore[no-any-return]


@hookimpl
def roller_atoms(spec: HardwareSpec, expr: TensorExpr) -> Sequence[ComputeAtom]:
    """Returns the atoms of the vector units, and those of the supported matrix units."""
    return _module("codegen.machine").atoms(spec, expr)  # type: ignore[no-any-return]


@hookimpl
def roller_cost_parameters(spec: HardwareSpec) -> CostParameters:
    """Returns the occupancy of a compute unit; the spec holds all other parameters."""
    return _module("cost.parameters").cost_parameters(spec)  # type: ignore[no-any-return]


@hookimpl
def roller_refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Refuses programs that need more local memory or lanes than a workgroup may have."""
    return _module("codegen.limits").refusal(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """Returns the program as LLVM IR, or as HIP C++ on request."""
    if options.language not in WRITERS:
        languages = " and ".join(name for name in WRITERS if name is not None)
        raise KernelError(f"the rocm device writes {languages}, not {options.language!r}")
    return _module(f"codegen.{WRITERS[options.language]}").generate(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns a code object."""
    return _module("toolchain.compiling").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """Returns a runner of the code object on the attached GPUs."""
    return _module("runtime.runner").RocmRunner(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_emulate(artifact: Artifact) -> Runner:
    """Returns a runner of the kernel's assembly on the CPU."""
    return _module("emulator.emulator").Emulator(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_assembly(artifact: Artifact) -> str:
    """Returns the machine code as LLVM's assembly."""
    return str(artifact.launch.get("assembly", ""))


@hookimpl
def roller_build_problem() -> str | None:
    """Returns why there is no linker; None if there is one."""
    return next(iter(_module("toolchain.linkers").problems()), None)


@hookimpl
def roller_toolchain() -> dict[str, str]:
    """Returns the linker in use."""
    return _module("toolchain.linkers").toolchain()  # type: ignore[no-any-return]


@hookimpl
def roller_requirements() -> tuple[str, ...]:
    """Returns one sentence for each of linker, driver and GPU that is missing."""
    return (*_module("toolchain.linkers").problems(), *_module("runtime.runner").problems())
