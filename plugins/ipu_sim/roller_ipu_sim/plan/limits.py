"""Programs that tiles cannot run, each with a rule's name and the reason."""

from __future__ import annotations

from roller.plugin import Cast, Const, HardwareSpec, Load, Nest, Scalar, walk
from roller_ipu_sim.chip.machine import TILE_MEMORY
from roller_ipu_sim.manifest.nodes import BYTES
from roller_ipu_sim.plan import split_in_tile
from roller_ipu_sim.plan.bodies import coordinates_in
from roller_ipu_sim.plan.heap import Memory
from roller_ipu_sim.plan.stage_plan import GRAIN_BYTES, ArrayPlan, Plan
from roller_ipu_sim.plan.windows import dims_apart
from roller_ipu_sim.plan.work import operands

TYPES = frozenset({"float32", "float16", "int32", "int16", "int8", "uint8", "bool"})  # element types of arrays and of arithmetic
CAPACITY = f"{TILE_MEMORY} capacity"  # the engine's name of it
UNREADABLE = "indices", "an array's index is no sum of loops"


def full(memory: Memory) -> tuple[str, str]:
    """Returns the refusal of a program that exceeds a tile's memory: all tiles have their buffers at the same addresses."""
    return CAPACITY, f"tile 0 would need {memory.needed} bytes, {memory.excess} more than the {memory.room} that it has"


def refusal(plan: Plan, spec: HardwareSpec) -> tuple[str, str] | None:
    """Returns why tiles cannot run a program: a short rule and a reason; None if there is none."""
    nest = plan.nest
    program, stage = plan.program, nest.stage
    if not program.dispatch.parallel:
        return "one tile", "a single tile would do all the work"
    types = [a.access.tensor.dtype for a in (*plan.arrays, plan.output)] + [stage.body.dtype]
    on_the_way = [node.dtype for root in (stage.body, stage.result) for node in walk(root) if isinstance(node, Cast | Const)]
    unknown = [t for t in types if t not in TYPES] + [t for t in on_the_way if t not in BYTES]
    if unknown:
        return "element type", f"tiles do not compute with {unknown[0]}"
    if _merged(nest):
        return "coordinates", "an index is computed with that follows merged loops"
    if not plan.output.plain:
        return "scattered results", "results do not lie side by side"
    if program.atom.kind == "matrix" and not all(_bare(factor, program.atom.in_dtype) for factor in nest.factors):
        return "bare factors", "the matrix unit multiplies arrays as they are, not functions of them"
    if program.atom.kind == "matrix":
        n, k = program.role("n"), program.role("k")
        streamed, stationary = operands(plan)
        lying = [(streamed, k), (stationary, n), (stationary, k), (plan.output, n)]
        if n is None or k is None or not all(_walked(array, dim) for array, dim in lying):
            return "matrix operands", "columns and the reduction must each walk a dimension of their arrays from end to end"
    if program.lane is not None and not all(_beside(a, program.lane) for a in (*plan.arrays, plan.output)):
        return "vectors", "what a vector takes does not lie side by side"
    if split_in_tile.vector_along(plan) and not split_in_tile.applies(plan):
        return "vector along the reduction", "partial results in a vector's lanes are added up once, after a single step"
    if any(lp.serial > 1 and nest.dims[lp.dim].is_reduce for lp in plan.grid.loops):
        return "parts in turn", "parts of a reduction are for tiles side by side"
    refused = _ring_refusal(plan)
    if refused is not None:
        return refused
    for array in (*plan.arrays, plan.output):
        refused = _uneven(array, array is plan.output)
        if refused is not None:
            return refused
    return None


def _uneven(array: ArrayPlan, written: bool) -> tuple[str, str] | None:
    """Returns why parts of an array cannot be stored and moved as a program requires; None if they can."""
    name, last = repr(array.access.tensor.name), array.dims[-1] if array.dims else None
    ends = last is not None and last.plain(array.nest.extents)
    if ends and last is not None and array.box[-1] != last.reach(array.tile) and (written or array.grid.last(last.terms[0][0])):
        return "whole grains", f"rows of {name} are no whole number of {GRAIN_BYTES} bytes"
    if array.plain:
        return None
    if not dims_apart(array):
        return "dimensions apart", f"one loop walks two dimensions of {name}"
    if last is not None and array.element_bytes < array.word_bytes and not ends:
        return "exchange words", f"rows of {name} would not begin at words"
    return None


def _bare(factor: Scalar, dtype: str) -> bool:
    """Returns True if a factor is an element of an array of a type, unchanged or widened."""
    value = factor.value if isinstance(factor, Cast) else factor
    return isinstance(value, Load) and value.dtype == dtype


def _beside(array: ArrayPlan, dim: int) -> bool:
    """Returns True if an array does not depend on a dimension, or is contiguous along it."""
    return not array.touches(dim) or array.step(dim) == 1


def _ring_refusal(plan: Plan) -> tuple[str, str] | None:
    """Returns why parts cannot rotate around rings of tiles; None if they can, or if there are no rings."""
    if not plan.shifting:
        return None
    serial, grid = plan.grid.serial, plan.grid
    if plan.program.atom.kind != "matrix" or len(serial) != 1 or serial[0].unit:
        return "rings", "parts are handed on in the steps of one reduction only, by products"
    step = serial[0]
    for array in plan.shifting:
        reduced = [lp for lp in grid.loops if plan.nest.dims[lp.dim].is_reduce and not array.touches(lp.dim)]
        if not array.plain or not array.touches(step.dim) or array.sharers != step.trips or reduced:
            return "rings", "as many tiles must share an array as its reduction has steps"
    for array in plan.arrays:
        if array.shifts or not array.touches(step.dim):
            continue
        if not array.plain or any(not array.touches(grid.loops[axis].dim) for axis in plan.ring):
            return "rings", "tiles that share an array must be at the same step"
    return None


def _walked(array: ArrayPlan, dim: int | None) -> bool:
    """Returns True if a dimension of the nest walks one of the array's from end to end, and no other."""
    mine = [d for d in array.dims if any(n == dim for n, _ in d.terms)]
    return len(mine) == 1 and mine[0].plain(array.nest.extents)


def _merged(nest: Nest) -> bool:
    """Returns True if a coordinate depends on a loop that is merged with others."""
    stage = nest.stage
    trees = [stage.body] if stage.epilogue is None else [stage.body, stage.epilogue]
    followed = {name for tree in trees for node in coordinates_in(tree) for name, _ in node.index.terms}
    return any(axis.name in followed for dim in nest.dims if len(dim.members) > 1 for axis in dim.members)
