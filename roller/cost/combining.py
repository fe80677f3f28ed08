"""The cost of combining partial results: of a vector's lanes, of lanes that share a reduction, and of units (split-K)."""

from __future__ import annotations

import math

from roller.cost.formulas import exchange_seconds, outputs_of
from roller.cost.parameters import Rates
from roller.ir.elementwise import Extents, Value, each, least, where
from roller.ir.expr import ELEMENT_BYTES, Stage
from roller.program.rprogram import LEAST_BLOCK, StageProgram
from roller.program.tile_registers import blocks

FOLD_SLOTS = 3  # vector operations that fold two vectors into one: two shuffles and the reducer's operation


def fold_seconds(rates: Rates, program: StageProgram, busy: float) -> float:
    """Computes the seconds of the horizontal reduction: combining the partial results in a vector's lanes."""
    slots = fold_slots(program, program.inner)
    return float(slots) / (rates.vector_slots * max(busy, 1e-9)) if slots else 0.0


def fold_slots(program: StageProgram, inner: Extents) -> Value:
    """Returns the issue slots of the horizontal reductions of a stage, for one innermost tile or for an array of them.

    Folding two vectors into one takes two shuffles and one operation. So does each halving of the last vector. A store follows.
    `program` has the same atom and mapping, but any tiles.
    """
    lane = program.lane
    if lane is None or not program.nest.dims[lane].is_reduce or program.lane_level is not None:
        return 0.0
    width, length, together = outputs_of(program.atom), inner[lane], 1
    outputs = math.prod([program.nest.extents[i] for i in program.nest.spatial])
    for dim in reversed(program.sides):
        together = where((inner[dim] >= LEAST_BLOCK) & (length % width == 0), least(width, inner[dim]), together)
    pairs = each(lambda rows: (1 << (rows - 1).bit_length()) - 1, together)
    halvings = math.log2(width) - each(lambda count: math.log2(count + 1), pairs)
    vectors = FOLD_SLOTS * (pairs + halvings) + 1 + together * where(length >= width, length // width - 1, 0)
    return outputs / together * width * vectors


def combine_seconds(rates: Rates, program: StageProgram, busy: float, resident: int) -> float:
    """Computes the seconds of reducing partial results.

    Over units (split-K) that is a write, a read and one more launch. Over lanes it is a tree of exchanges of all results.
    """
    outputs = math.prod([program.nest.extents[i] for i in program.nest.spatial])
    seconds = 0.0
    if program.dispatch.split > 1:
        seconds += cut_seconds(rates, program.dispatch.split * outputs * program.nest.accumulator_bytes)
    reducing = [stage for stage in program.nest.stages if stage.reducer is not None]
    return seconds + sum([_exchange_seconds(rates, program, stage, busy, resident) for stage in reducing])


def cut_seconds(rates: Rates, partial_bytes: Value) -> Value:
    """Computes the seconds in which units write and read so many bytes of partial results (split-K), and of the second launch.

    Where stores allocate lines, these are fetched before they are written.
    """
    unit, moves = rates.spec.unit, 2 + rates.parameters.write_allocate
    return moves * partial_bytes / rates.from_outside(1.0) + (unit.launch_overhead_us * 1e-6 + unit.sync_ns * 1e-9)


def _exchange_seconds(rates: Rates, program: StageProgram, stage: Stage, busy: float, resident: int) -> float:
    """Computes the seconds of a tree reduction over the lanes that share a reduction: each round exchanges all results."""
    nest = program.nest
    shared = math.prod([lp.trips for lp in program.loops if lp.over == "lanes" and lp.dim in nest.columns])
    if shared == 1:
        return 0.0
    rounds = -(-program.unit_tiles // (rates.spec.unit.count * resident))
    results = math.prod([program.inner[i] for i in nest.rows])
    passed = program.unit_tiles * program.lanes * results * ELEMENT_BYTES[stage.body.dtype]
    return float(exchange_seconds(rates, shared, rounds, passed, max(busy, 1e-9)))


def accumulating(program: StageProgram, inner: Extents) -> Value:
    """Returns the independent accumulating operations of one innermost tile, or of an array of them.

    They are its outputs, times reduce points that a vector atom keeps apart, over those of one atom.
    """
    if program.atom.registers is not None:
        return blocks(program.nest, program.atom, program.mapping, inner, (True,) * len(program.nest.dims))
    apart = program.lane is not None and program.nest.dims[program.lane].is_reduce
    dims = (*program.nest.spatial, *(program.nest.reduce if apart else ()))
    return math.prod([inner[i] for i in dims]) / outputs_of(program.atom)
