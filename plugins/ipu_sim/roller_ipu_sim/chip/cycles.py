"""Simulated cycles of one vertex on one tile, and of one exchange phase; `cost` and `simulator` share this module and the machine.

Formulas are published ones: PopLibs' cycle estimators (graphcore/poplibs, MIT) and measurements of osmarks/ipu-stack on a C600, in
our own words. Where we go beyond them, the docstring says *generalised*, and the figure is an estimate. Every constant is the
spec's. A tile's cycles are the longest worker's times the number of workers, as each issues in every sixth cycle, plus the
supervisor's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from roller.plugin import ELEMENT_BYTES, CodegenError
from roller_ipu_sim.chip.machine import AmpType, Loops, Machine, VectorType

__all__ = ["AmpShape", "MapShape", "amp", "copied", "exchanged", "filled", "mapped", "reduced", "relaid"]


class AmpShape(NamedTuple):
    """One vertex of the matrix units on one tile: out[rows, n] (+)= sum over taps and k of a * w."""

    in_dtype: str
    acc_dtype: str
    runs: int  # runs of consecutive rows; rows of a run are a constant step apart
    run_rows: int
    k_blocks: int  # blocks of a grain of input channels
    n_blocks: int  # blocks of a block's columns of output channels
    taps: tuple[int, ...]  # extents of the other reduce loops (kernel positions); () or all 1: none
    groups: int  # independent products in sequence
    zero: bool  # starts from zero; else accumulates into the stored values
    interleaved: bool  # the weights lie in the interleaved region
    conflict: bool = False  # operands share a memory element


class MapShape(NamedTuple):
    """Elementwise work, with or without a reduction, on one tile."""

    dtype: str  # the type of the arithmetic; for a conversion the wider of the two
    outputs: int
    points: int  # for each result; 1 without reduction
    vector: int  # elements of a vector; 1: scalar
    loads: int  # arrays read at a point
    ops: tuple[str, ...]  # at a point
    epilogue_loads: int  # for a result
    epilogue_ops: tuple[str, ...]
    reduces: bool  # the last operation of a point reduces


_FIRST_OF_KIND = MapShape._fields.index("vector")  # from here on fields describe the kind of work, not its amount


def amp(machine: Machine, shape: AmpShape) -> int:
    """Computes the cycles of a vertex of the matrix units, all workers.

    One run of rows without taps is PopLibs' ConvPartial1x1, anything else ConvPartialnx1 with a filter height of 1. Rows are
    divided evenly among the workers. Generalised: `zero` False (PopLibs' vertex always zeroes), and a conflict, which doubles the
    stream of loads.
    """
    unit = machine.amp_type(shape.in_dtype, shape.acc_dtype)
    taps = math.prod(shape.taps)
    return _one_run(machine, unit, shape) if shape.runs == 1 and taps == 1 else _several_runs(machine, unit, shape)


def _up(amount: int, size: int) -> int:
    """Returns the quotient of the two, rounded up."""
    return -(-amount // size)


def _one_run(machine: Machine, unit: AmpType, shape: AmpShape) -> int:
    """Computes PopLibs' getConvPartial1x1SupervisorOuterLoopCycleEstimateHalfFloat and its inner loop."""
    about, load = unit.supervisor, _load(machine, unit, shape)
    first = about.first_block + load + _rows(machine, unit, shape, shape.zero)
    other = about.block + load + _rows(machine, unit, shape, False)
    further = about.k_block + shape.n_blocks * (about.n_block + unit.passes * other)
    start = about.first_k_block + shape.n_blocks * (about.first_n_block + unit.passes * first)
    kept = unit.kept + unit.kept_group * (shape.k_blocks * shape.groups - 1)
    return about.entry + machine.workers * kept + shape.groups * (about.group + (shape.k_blocks - 1) * further + start)


def _load(machine: Machine, unit: AmpType, shape: AmpShape) -> int:
    """Computes the cycles to load the weights of one pass."""
    rate = machine.amp.interleaved_load_bytes if shape.interleaved else machine.amp.load_bytes
    return _up(unit.units * unit.block_bytes, rate) * _factor(machine, shape)


def _factor(machine: Machine, shape: AmpShape) -> int:
    return machine.amp.conflict_factor if shape.conflict else 1


def _rows(machine: Machine, unit: AmpType, shape: AmpShape, zero: bool) -> int:
    """Computes the cycles of the workers for the rows of one pass."""
    least, more = divmod(shape.run_rows, machine.workers)
    starts, row = (unit.zeroing, unit.zero_row_cycles) if zero else (unit.adding, 0)
    taken = [
        _started(starts, rows, unit.row_cycles * _factor(machine, shape)) + row * rows - unit.kept
        for rows in (least, least + (more > 0))
    ]
    return _turns(machine, taken, machine.amp.wait)


def _started(starts: tuple[int, int, int, int], rows: int, row_cycles: int) -> int:
    """Computes the cycles of a worker for consecutive rows: three are in flight at a time."""
    return starts[min(rows, 3)] + row_cycles * max(0, rows - 3)


def _turns(machine: Machine, taken: list[int], wait: int) -> int:
    return max(machine.workers * max(taken), machine.workers * min(taken) + wait)


def _several_runs(machine: Machine, unit: AmpType, shape: AmpShape) -> int:
    """Computes PopLibs' getConvPartialnx1Supervisor...CycleEstimateHalfFloat: innermost taps in one loop, the others around it."""
    about, workers = unit.taps, machine.workers
    inner = shape.taps[-1] if shape.taps else 1
    outer = math.prod(shape.taps[:-1])
    taken = [about.worker + sum(_run(machine, unit, shape, rows) * n for rows, n in part) for part in _dealt(machine, shape)]
    rows = _turns(machine, taken, about.wait) * unit.passes * inner * outer
    blocks = outer * (about.row + inner * (about.tap + unit.passes * (_load(machine, unit, shape) + about.block)))
    loops = about.group + shape.k_blocks * (about.k_block + shape.n_blocks * (about.n_block + blocks + rows))
    total = about.entry + workers * about.kept + shape.groups * loops
    return total + (_zeroed(machine, unit, shape) if shape.zero else 0)


def _run(machine: Machine, unit: AmpType, shape: AmpShape, rows: int) -> int:
    about = unit.taps
    return about.run + _started(about.runs, rows, unit.row_cycles * _factor(machine, shape)) - about.kept


def _dealt(machine: Machine, shape: AmpShape) -> Iterator[list[tuple[int, int]]]:
    """Yields for each worker the lengths of its pieces of runs, with their counts: all rows in order, divided evenly."""
    rows, length = shape.runs * shape.run_rows, shape.run_rows
    for worker in range(machine.workers):
        begin, end = (rows * w // machine.workers for w in (worker, worker + 1))
        if begin == end:
            yield []
            continue
        head = min(end, _up(begin, length) * length) - begin
        whole, tail = divmod(end - begin - head, length)
        yield [(n, count) for n, count in ((head, 1), (length, whole), (tail, 1)) if n and count]


def _zeroed(machine: Machine, unit: AmpType, shape: AmpShape) -> int:
    """Computes PopLibs' getZeroSupervisorVertexCycleEstimate for every group of columns, and the supervisor's loops around it."""
    about = unit.taps
    width = machine.vector_type(shape.acc_dtype).width
    share = _up(shape.runs * shape.run_rows * unit.columns, machine.workers)
    loops = shape.n_blocks * about.zero_n_block + (shape.n_blocks - 1) * about.zero_again + 1
    supervisor = machine.workers * about.zero_kept + shape.groups * loops + (shape.groups - 1) * about.zero_again + 1
    worker = _up(share, width) + about.zero_worker - about.zero_kept
    return supervisor + machine.workers * worker * shape.groups * shape.n_blocks


def mapped(machine: Machine, shape: MapShape) -> int:
    """Computes the cycles of elementwise work, all workers, among which results are divided.

    Without reduction a vector takes a cycle for each array read or written, and the table's cycles of an operation beyond the one
    that overlaps an access: PopLibs' UnaryOp1D, BinaryOp1DInPlace or Cast1D. Generalised: several operations are a compiled loop
    with a loop condition, in which nothing overlaps an access, as PopLibs counts those. With a reduction a worker keeps a set of
    results and walks their points. Each point takes a cycle for each array or for each operation, whichever are more: for a plain
    sum PopLibs' contiguous reduction, otherwise generalised.
    """
    fixed, together, first, point = _pace(machine, shape)
    return fixed + _up(shape.outputs, together) * (first + shape.points * point)


def _pace(machine: Machine, shape: MapShape) -> tuple[int, int, int, int]:
    """Returns the costs of elementwise work that do not depend on its extents.

    These are the cycles around it, the results that all workers take at a time, and their cycles for these, at first and for each
    point.
    """
    key = shape.dtype, shape[_FIRST_OF_KIND:]
    found: tuple[int, int, int, int] | None = machine.choices.get(key)
    if found is None:
        unit = machine.vector_type(shape.dtype)
        found = machine.choices[key] = _reducing(machine, unit, shape) if shape.reduces else _pointwise(machine, unit, shape)
    return found


def _pointwise(machine: Machine, unit: VectorType, shape: MapShape) -> tuple[int, int, int, int]:
    ops, loads = shape.ops + shape.epilogue_ops, shape.loads + shape.epilogue_loads
    loops = machine.vector.several if loads > 1 else machine.vector.one
    if len(ops) == 1 and loads == 1:
        loops = unit.alone.get(ops[0], loops)
    taken = loops.vector
    if taken is None:
        taken = loads + 1 + _beyond(machine, shape, ops) + _narrow(machine, shape)
        taken += len(ops) + machine.vector.loop if len(ops) > 1 else 0
    return _around(machine, loops, ops), machine.workers * shape.vector, machine.workers * taken, 0


def _beyond(machine: Machine, shape: MapShape, ops: tuple[str, ...]) -> int:
    """Returns the cycles of a worker for one vector beyond a cycle for each operation."""
    known = machine.vector_type(shape.dtype).operations
    for name in ops:
        if name not in known:
            raise CodegenError(
                f"no cycles are known of {name!r} in {shape.dtype} on {machine.chip}; of {', '.join(known)} they are"
            )
    return sum(known[name] for name in ops)


def _narrow(machine: Machine, shape: MapShape) -> int:
    """Returns the additional cycles to store a single result that is less than a word: it is read, merged and written."""
    narrow = shape.vector == 1 and ELEMENT_BYTES[shape.dtype] < machine.vector.narrow_bytes
    return machine.vector.narrow_store if narrow else 0


def _around(machine: Machine, loops: Loops, ops: tuple[str, ...]) -> int:
    starts = sum(machine.vector.starts.get(name, 0) for name in set(ops))
    return loops.supervisor + machine.workers * (loops.start + starts)


def _reducing(machine: Machine, unit: VectorType, shape: MapShape) -> tuple[int, int, int, int]:
    loops = machine.vector.reducing
    kept = max(unit.accumulate // unit.width, 1) if shape.vector > 1 else 1  # vectors that a worker holds in accumulators
    point = max(shape.loads, len(shape.ops)) + _beyond(machine, shape, shape.ops[:-1])
    result = shape.epilogue_loads + len(shape.epilogue_ops) + _beyond(machine, shape, shape.epilogue_ops)
    first = machine.workers * ((loops.vector or 0) + kept * (result + _narrow(machine, shape)))
    around = _around(machine, loops, shape.ops + shape.epilogue_ops)
    return around, machine.workers * kept * shape.vector, first, machine.workers * kept * point


def reduced(machine: Machine, dtype: str, outputs: int, partials: int) -> int:
    """Computes the cycles to add partial results: osmarks/ipu-stack's pipelined loop, measured for fp16, others generalised."""
    sets = _up(outputs, machine.workers * machine.vector_type(dtype).accumulate)
    about = machine.reduce
    return about.start + machine.workers * sets * (about.first + about.partial * (partials - 1))


def filled(machine: Machine, dtype: str, elements: int) -> int:
    """Computes the cycles to fill memory: PopLibs' getFill1DCycleEstimate, divided among workers as in its modelContiguousFill."""
    unit = machine.vector_type(dtype)
    share = max(_up(elements, unit.fill_width * machine.workers), machine.copying.fill_vectors) * unit.fill_width
    return machine.workers * (unit.fill_start + min(share, elements) // unit.fill_width)


def copied(machine: Machine, nbytes: int) -> int:
    """Computes the cycles to copy contiguous bytes inside a tile: measured by osmarks/ipu-stack."""
    return machine.copying.start + _up(nbytes, machine.copying.bytes_per_cycle)


def relaid(machine: Machine, nbytes: int, atom_bytes: int) -> int:
    """Computes the cycles to change a layout inside a tile where `atom_bytes` stay together: PopLibs' regression.

    Generalised: atoms between the published ones cost as much as the next smaller one; atoms below the smallest cost proportionally
    more.
    """
    sizes = sorted(int(name) for name in machine.layout.millicycles)
    size = max((s for s in sizes if s <= atom_bytes), default=sizes[0])
    milli = machine.layout.millicycles[str(size)] * nbytes * max(1, size // max(atom_bytes, 1))
    return machine.layout.start + _up(milli, 1000)


def exchanged(machine: Machine, words_in: int, words_out: int, fragments: int) -> int:
    """Computes the cycles of an exchange phase with its sync.

    The inputs are the busiest tile's words in, words out (multicast once) and fragments. This sum predicted osmarks/ipu-stack's
    scheduled phases; their order inside the phase is not modelled.
    """
    about = machine.exchange
    rate = 2 if about.bus_pairing else 1
    busy = max(
        _up(words_in * about.word_bytes, about.in_bytes * rate),
        _up(words_out * about.word_bytes, about.out_bytes),
        about.fragment_cycles * fragments,
    )
    return busy + about.route_cycles + about.row_cycles * about.rows + about.sync_cycles
