"""Defaults of optional hooks, derived from the spec and the expression alone."""

from __future__ import annotations

from roller.cost.parameters import CostParameters
from roller.ir.expr import TensorExpr
from roller.ir.nest import variants
from roller.program.alignment import Multiple, transaction_step
from roller.program.rprogram import tiled_levels
from roller.target.hardware import ComputeAtom, HardwareSpec


def atoms(spec: HardwareSpec, expr: TensorExpr) -> tuple[ComputeAtom, ...]:
    """Returns all atoms of the chip; the engine drops those whose types or roles do not suit the expression."""
    return spec.atoms


def tile_multiples(spec: HardwareSpec, expr: TensorExpr, level: int) -> dict[str, Multiple]:
    """Returns whole transactions along contiguous dimensions (rule 2), for managed memories: a cache fetches lines anyway.

    The innermost level follows the atom. A name of several dimensions gets the min of their steps.
    """
    if level == tiled_levels(spec)[-1] or not spec.levels[level].managed:
        return {}
    place = spec.levels[level]
    steps: dict[str, int] = {}
    for stage in expr.stages:
        for nest in variants(stage, expr.tensors, spec.spread):
            for position, dim in enumerate(nest.dims):
                step = transaction_step(nest, place, position)
                step = step if step <= dim.extent else 1
                steps[dim.name] = min(step, steps.get(dim.name, step))
    return {name: Multiple(step) for name, step in steps.items() if step > 1}


def cost_parameters(spec: HardwareSpec, expr: TensorExpr) -> CostParameters:
    """Returns the cost model's own defaults."""
    return CostParameters()
