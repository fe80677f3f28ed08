"""Programs by hand on chips with one small cache, and what the model says of them."""

from __future__ import annotations

from roller.cost.loops import NestWalk
from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.ir.expr import TensorExpr
from roller.ir.nest import variants
from roller.program.estimate import Estimate
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram, tiled_levels
from roller.target.hardware import HardwareSpec
from roller.testing import toy_atom, toy_level, toy_spec


def by_hand(
    expr: TensorExpr, spec: HardwareSpec, *tiles: tuple[int, ...], orders: tuple[tuple[int, ...], ...] = ()
) -> StageProgram:
    """A scalar program with these tiles on the nest whose axes are not fused."""
    nest = variants(expr.stages[0], expr.tensors)[0]
    atom = next(a for a in spec.atoms if a.kind == "scalar")
    everywhere = tuple(range(len(nest.dims)))
    return StageProgram(nest, atom, (), tiled_levels(spec), tiles, orders or (everywhere,) * len(tiles))


def predicted(program: StageProgram, spec: HardwareSpec, **known: float) -> Estimate:
    """The prediction with these cost parameters."""
    return Model(spec, CostParameters(**known), Geometry(program.nest)).estimate(program)  # type: ignore[arg-type]


def walk_of(program: StageProgram, spec: HardwareSpec, **known: object) -> NestWalk:
    """The walk over a program's loops with these cost parameters."""
    return NestWalk(program, spec, Geometry(program.nest), CostParameters(**known))  # type: ignore[arg-type]


def cached(capacity: int, sets: int | None = None, units: int = 1) -> HardwareSpec:
    """A chip with one cache of so many bytes and sets."""
    banks = {"banks": {"count": sets, "width_bytes": 64}} if sets else {}
    level = toy_level("cache", capacity, 16, units, managed=False, latency_ns=100.0, **{"transaction_bytes": 64}, **banks)
    return toy_spec([level, toy_level("register", 256, 64 * units, units)], [toy_atom("scalar", 2.0)], count=units)
