"""The host CPU as a device: LLVM through TVM. Forwards each hook to the module that answers it, which loads TVM only then."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from roller.plugin import (
    Artifact,
    BuildOptions,
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
    """The machine this runs on, measured once and remembered."""
    return _module("chip.host").default_spec()  # type: ignore[no-any-return]


@hookimpl
def roller_cost_parameters(spec: HardwareSpec, expr: TensorExpr) -> CostParameters:
    """Overheads of loops and tiles."""
    return _module("cost.parameters").cost_parameters(spec, expr)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """LLVM IR."""
    _module("toolchain.pins").check()  # before TVM is imported: another version may fail there in any way
    return _module("codegen.generator").generate(spec, program, options)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """The IR, checked, with what its assembly shows."""
    return _module("toolchain.compiling").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """The IR compiled in memory."""
    return _module("runtime.runner").CpuRunner(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_assembly(artifact: Artifact) -> str:
    """The assembly that LLVM makes of the IR."""
    return _module("toolchain.compiling").assembly(artifact.data.decode())  # type: ignore[no-any-return]


@hookimpl
def roller_requirements() -> tuple[str, ...]:
    """The pinned versions of TVM."""
    return _module("toolchain.pins").problems()  # type: ignore[no-any-return]


@hookimpl
def roller_measure_spec() -> HardwareSpec:
    """The machine this runs on, measured now."""
    return _module("chip.host").measure_spec()  # type: ignore[no-any-return]
