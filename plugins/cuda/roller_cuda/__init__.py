"""NVIDIA GPUs as a device. Each hook loads the module that answers it, and with it TVM, compilers and drivers, only when asked."""

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
    """The attached chip, else the A100."""
    return _module("chip.default").default_spec()  # type: ignore[no-any-return]


@hookimpl
def roller_atoms(spec: HardwareSpec, expr: TensorExpr) -> Sequence[ComputeAtom]:
    """The CUDA cores."""
    return _module("codegen.machine").atoms(spec, expr)  # type: ignore[no-any-return]


@hookimpl
def roller_cost_parameters(spec: HardwareSpec) -> CostParameters:
    """How often warps that fill panels wait for memory, and what storing takes where nobody computes meanwhile."""
    return _module("cost.parameters").cost_parameters(spec)  # type: ignore[no-any-return]


@hookimpl
def roller_refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """More shared memory than a block may have."""
    return _module("codegen.limits").refusal(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """CUDA C++."""
    return _module("codegen.generator").generate(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """A cubin."""
    return _module("toolchain.compiling").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """The cubin on the attached GPUs."""
    return _module("runtime.runner").CudaRunner(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_emulate(artifact: Artifact) -> Runner:
    """The kernel's text on the CPU."""
    return _module("emulator.emulator").Emulator(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_measure_spec() -> HardwareSpec:
    """The first GPU, by small kernels."""
    return _module("chip.calibration").measure_spec()  # type: ignore[no-any-return]


@hookimpl
def roller_assembly(artifact: Artifact) -> str:
    """The machine code, as `nvdisasm` shows it."""
    return _module("toolchain.disassembly").text(artifact.data) if artifact.data else ""


@hookimpl
def roller_build_problem(spec: HardwareSpec) -> str | None:
    """No compiler, or none that compiles for the chip."""
    return _module("toolchain.compiling").build_problem(spec)  # type: ignore[no-any-return]


@hookimpl
def roller_requirements() -> tuple[str, ...]:
    """A compiler, a driver and a GPU."""
    return (*_module("toolchain.compiling").problems(), *_module("runtime.runner").problems())
