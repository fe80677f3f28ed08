"""Plugin manifest of the host CPU, compiled by LLVM through TVM. Each hook imports its module, and so TVM, only when called."""

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
    return import_module(f"roller_cpu.{name}")


@hookimpl
def roller_default_spec() -> HardwareSpec:
    """Returns the spec of this machine, measured once and stored."""
    return _module("chip.host").default_spec()  # type: ignore[no-any-return]


@hookimpl
def roller_atoms(spec: HardwareSpec) -> Sequence[ComputeAtom]:
    """Returns the atoms for which there is code: scalars, vectors and known dot products."""
    return _module("chip.dot_atoms").able_atoms(spec)  # type: ignore[no-any-return]


@hookimpl
def roller_cost_parameters(spec: HardwareSpec, expr: TensorExpr) -> CostParameters:
    """Returns the overheads of loops and tiles."""
    return _module("cost.parameters").cost_parameters(spec, expr)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """Returns the program as LLVM IR."""
    _module("toolchain.pins").check()  # before TVM is imported: another version may fail there in any way
    return _module("codegen.generator").generate(spec, program, options)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns the IR as machine code, with the resources that its assembly shows."""
    return _module("toolchain.compiling").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """Returns a runner for the machine code, mapped into memory."""
    return _module("runtime.runner").CpuRunner(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_emulate(artifact: Artifact) -> Runner:
    """Returns a runner on this machine for a kernel of another x86-64 processor, dot products in plain arithmetic."""
    return _module("runtime.emulation").emulate(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_assembly(artifact: Artifact) -> str:
    """Returns the assembly that LLVM generates from the IR."""
    return _module("toolchain.compiling").assembly(artifact.source)  # type: ignore[no-any-return]


@hookimpl
def roller_toolchain(spec: HardwareSpec) -> dict[str, str]:
    """Returns versions of what links kernels, and the instruction sets of this machine for its own spec."""
    return _module("chip.identity").toolchain(spec)  # type: ignore[no-any-return]


@hookimpl
def roller_requirements() -> tuple[str, ...]:
    """Returns one sentence for each pinned version of TVM that is not installed."""
    return _module("toolchain.pins").problems()  # type: ignore[no-any-return]


@hookimpl
def roller_measure_spec() -> HardwareSpec:
    """Returns the spec of this machine, measured now."""
    return _module("chip.host").measure_spec()  # type: ignore[no-any-return]
