"""Plugin manifest of NVIDIA GPUs. Each hook imports its module, and with it TVM, compilers and drivers, only when called."""

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
    KernelSource,
    RProgram,
    Runner,
    TensorExpr,
    hookimpl,
)

ROLLER_API = 1


def _module(name: str) -> Any:
    return import_module(f"roller_cuda.{name}")


@hookimpl
def roller_default_spec() -> HardwareSpec:
    """Returns the attached chip, else the A100."""
    return _module("chip.default").default_spec()  # type: ignore[no-any-return]


@hookimpl
def roller_atoms(spec: HardwareSpec, expr: TensorExpr) -> Sequence[ComputeAtom]:
    """Returns the atoms of the CUDA cores and the supported tensor cores."""
    return _module("codegen.machine").atoms(spec, expr)  # type: ignore[no-any-return]


@hookimpl
def roller_cost_parameters(spec: HardwareSpec) -> CostParameters:
    """Returns the model's parameters, such as the memory waits of producer warps and the cost of stores that nothing overlaps."""
    return _module("cost.parameters").cost_parameters(spec)  # type: ignore[no-any-return]


@hookimpl
def roller_refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Refuses programs that need more shared memory than a block may have."""
    return _module("codegen.limits").refusal(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """Returns the program as CUDA C++."""
    return _module("codegen.generator").generate(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns a cubin."""
    return _module("toolchain.compiling").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """Returns a runner of the cubin on the attached GPUs."""
    return _module("runtime.runner").CudaRunner(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_emulate(artifact: Artifact) -> Runner:
    """Returns a runner of the kernel's text on the CPU."""
    return _module("emulator.emulator").Emulator(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_measure_spec() -> HardwareSpec:
    """Returns the spec of the first GPU, measured by small kernels."""
    return _module("chip.calibration").measure_spec()  # type: ignore[no-any-return]


@hookimpl
def roller_assembly(artifact: Artifact) -> str:
    """Returns the machine code as `nvdisasm` output."""
    return _module("toolchain.disassembly").text(artifact.data) if artifact.data else ""


@hookimpl
def roller_build_problem(spec: HardwareSpec) -> str | None:
    """Returns why no compiler for the chip is there; None if there is one."""
    return _module("toolchain.compiling").build_problem(spec)  # type: ignore[no-any-return]


@hookimpl
def roller_toolchain() -> dict[str, str]:
    """Returns the compiler and the disassembler in use."""
    return _module("toolchain.identity").toolchain()  # type: ignore[no-any-return]


@hookimpl
def roller_requirements() -> tuple[str, ...]:
    """Returns one sentence for each of compiler, driver and GPU that is missing."""
    return (*_module("toolchain.compiling").problems(), *_module("runtime.runner").problems())
