"""Plugin manifest of simulated Graphcore IPUs: a program becomes supersteps, and a simulator runs them and counts cycles.

No IPU is used. Each hook imports its module only when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from roller.plugin import (
    Artifact,
    BuildOptions,
    ComputeAtom,
    Estimate,
    HardwareSpec,
    KernelSource,
    Multiple,
    RProgram,
    Runner,
    StageProgram,
    TensorExpr,
    find_spec,
    hookimpl,
)

ROLLER_API = 1


def _module(name: str) -> Any:
    return import_module(f"roller_ipu_sim.{name}")


@hookimpl
def roller_default_spec() -> HardwareSpec:
    """Returns the Bow."""
    return find_spec("ipu_sim", "bow")


@hookimpl
def roller_atoms(spec: HardwareSpec, expr: TensorExpr) -> Sequence[ComputeAtom]:
    """Returns the atoms of the matrix unit, vectors and scalars."""
    return spec.atoms


@hookimpl
def roller_tile_multiples(spec: HardwareSpec, expr: TensorExpr, level: int) -> Mapping[str, Multiple]:
    """Returns the alignment rules: exchanged rows are whole grains of 8 bytes; any number of equal parts is allowed."""
    return _module("plan.alignment").tile_multiples(spec, expr, level)  # type: ignore[no-any-return]


@hookimpl
def roller_estimate(spec: HardwareSpec, program: StageProgram | RProgram, worth: float) -> Estimate:
    """Computes simulated cycles in closed form."""
    return _module("cost.model").estimate(spec, program, worth)  # type: ignore[no-any-return]


@hookimpl
def roller_refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Refuses programs that tiles cannot run, or that do not fit their memory."""
    return _module("codegen.generator").refusal(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """Returns the manifest."""
    return _module("codegen.generator").generate(spec, program, options)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns the checked manifest."""
    return _module("toolchain.compiling").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_toolchain() -> dict[str, str]:
    """Returns nothing: manifests depend on no other program."""
    return {}


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """Returns the simulator."""
    return _module("runtime.runner").Simulator(artifact)  # type: ignore[no-any-return]
