"""Simulated Graphcore IPUs: a program becomes supersteps, a simulator computes them and counts their cycles. No IPU is used.

Forwards each hook to the module that answers it.
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
    """The Bow."""
    return find_spec("ipu_sim", "bow")


@hookimpl
def roller_atoms(spec: HardwareSpec, expr: TensorExpr) -> Sequence[ComputeAtom]:
    """The matrix unit, vectors and scalars."""
    return spec.atoms


@hookimpl
def roller_tile_multiples(spec: HardwareSpec, expr: TensorExpr, level: int) -> Mapping[str, Multiple]:
    """Rows that are exchanged are whole grains of 8 bytes; any number of equal parts."""
    return _module("plan.alignment").tile_multiples(spec, expr, level)  # type: ignore[no-any-return]


@hookimpl
def roller_estimate(spec: HardwareSpec, program: StageProgram | RProgram, worth: float) -> Estimate:
    """Simulated cycles, in closed form."""
    return _module("cost.model").estimate(spec, program, worth)  # type: ignore[no-any-return]


@hookimpl
def roller_refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """What tiles cannot run, or hold."""
    return _module("codegen.generator").refusal(spec, program)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """The manifest."""
    return _module("codegen.generator").generate(spec, program, options)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """The manifest, checked."""
    return _module("toolchain.compiling").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """The simulator."""
    return _module("runtime.runner").Simulator(artifact)  # type: ignore[no-any-return]
