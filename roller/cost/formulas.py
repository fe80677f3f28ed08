"""The formulas of the micro-performance model, each once; docs/model.md explains them with a worked example.

Every argument that is a `Value` is a number of one program, or an array with one number for each of many. The model
(`roller.cost.model`) counts loops and bytes of one program for them, the screens (`roller.search.funnel`) those of many chains of
tiles at a time. Times are in seconds. `busy`: the share of all units that work; `working`: the number of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from roller.cost.parameters import CostParameters, Rates
from roller.ir.elementwise import Value, each, largest, least, where
from roller.target.hardware import ComputeAtom, HardwareSpec

MOST_SPARE = 4  # spare copies, beside the one in use, that absorb a late fill; more do not help (estimate)


def overlapped(terms: Sequence[Value], steps: Value, losses: Sequence[Value]) -> Value:
    """Returns the time of `steps` equal steps whose terms (given as totals) overlap.

    The first and the last step are not hidden. The result rises with every term.
    """
    lost: Value = sum([loss * term for term, loss in zip(terms, losses, strict=True)])
    longest: Value = reduce(largest, [(1 - loss) * term for term, loss in zip(terms, losses, strict=True)], 0.0)
    return sum(terms) / steps + (steps - 1) / steps * (lost + longest)


def losses(spec: HardwareSpec, staged: int, copies: Value) -> list[Value]:
    """Returns the overlap numbers of compute and of the levels.

    With one copy of one tile, filling and using it take turns: all are 1. Two copies, or tiles, overlap as the spec gives. With N,
    the one in use has N - 1 spare ones that absorb a late fill: the loss of compute and of the levels up to the `staged` one is
    the spec's over N - 1, or over `MOST_SPARE`.
    """
    spare = least(largest(copies - 1, 1), MOST_SPARE)
    found = [spec.loss(level) / (spare if n <= staged else 1) for n, level in enumerate(spec.levels[1:], 1)]
    return [where(copies == 1, 1.0, loss) for loss in (spec.overlap_loss / spare, *found)]


def exposed(operations: Value, window: int) -> Value:
    """Returns the share of a visit's ends that the next visit does not hide, for so many operations a visit.

    An out-of-order core begins the next visit while the last `window` operations are in flight.
    """
    return operations / (operations + window) if window else 1.0


# --- computing


def outputs_of(atom: ComputeAtom) -> int:
    """Returns the outputs of one atom: one accumulating operation is one atom."""
    return math.prod([extent for role, extent in atom.roles.items() if role != "k" and isinstance(extent, int)])


def first_points(extents: Sequence[int], steps: Sequence[Value], trips: Sequence[Value], tiles: Value) -> Value:
    """Returns the points of some dimensions in the first `tiles` of the tiles into which loops cut them, the last loop fastest.

    Cut-off boundary tiles are the last of their loop, and units take consecutive tiles, so that the first share is the largest.
    """
    found: Value = 0
    around: Value = 1
    inside: Value = math.prod(trips)
    for position, (extent, step, count) in enumerate(zip(extents, steps, trips, strict=True)):
        inside = inside // count
        whole, tiles = tiles // inside, tiles % inside
        done = least(whole * step, extent)
        found = found + around * done * float(math.prod(extents[position + 1 :]))
        around = around * least(step, extent - done)
    return found


def idle_lanes(spec: HardwareSpec, groups: Value, lanes: Value, resident: Value) -> Value:
    """Returns the factor by which lanes without work lengthen computing.

    Two kinds of lane have no work: those that pad a tile's last lane group, and those of partitions that have fewer lane groups of
    the resident tiles than others.
    """
    together, parts = groups * resident, spec.partitions
    return groups * spec.unit.lane_group / lanes * -(-together // parts) * parts / together


def start_up(atom: ComputeAtom, rows: Value) -> Value:
    """Returns the factor by which loading its stationary block lengthens an atom that streams so many rows."""
    assert atom.row_cycles is not None
    work = largest(rows, 1) * atom.row_cycles
    return (work + atom.startup_cycles) / work


def crowding(spec: HardwareSpec, atom: ComputeAtom, beside: Value, steps: Value) -> Value:
    """Returns the factor by which `beside` other instructions for `steps` arithmetic ones lengthen computing.

    It is 1 where arithmetic leaves enough issue slots free.
    """
    arithmetic = (atom.flops_per_cycle_per_unit or 0.0) / 2 / outputs_of(atom) / spec.unit.lane_group
    return largest(1.0, arithmetic / (spec.unit.issue_groups or 1) * (1 + beside / largest(steps, 1)))


def alone_seconds(
    spec: HardwareSpec, given: CostParameters, atom: ComputeAtom, slots: Value, filling: Value, trips: Value
) -> Value:
    """Returns the seconds in which one lane group, alone on its partition, issues everything of a tile with so many trips.

    `slots`: of the arithmetic of one innermost tile; `filling`: of filling panels for it.
    """
    rate = (atom.flops_per_cycle_per_unit or 0.0) / 2 / spec.partitions  # multiply-adds of a partition a cycle
    arithmetic = slots * (1 if atom.kind == "matrix" else spec.unit.lane_group) / rate if rate else 0.0
    visit = arithmetic * given.arithmetic_cycles + filling * given.serial_cycles
    return trips * visit / (spec.clock_ghz * 1e9)


def waiting(cycles: float, groups: Value, resident: Value, partitions: int) -> Value:
    """Returns the factor by which dependent instructions take longer where a partition has too few lane groups to issue others.

    `cycles`: from one of these instructions to the next.
    """
    return largest(1.0, cycles / largest(1.0, groups * resident / partitions))


# --- around it


def around_tiles(
    given: CostParameters, tiles: Value, operations: Value | None, visits: Value, unit_tiles: Value, working: Value
) -> Value:
    """Returns the seconds of starting and finishing innermost tiles, the loops around them, and dispatch.

    `operations`: of one visit to an innermost tile, None where nothing is summed; `visits`: of each.
    """
    finish = given.tile_overhead_ns * exposed(operations, given.short_visit) * (2 * visits - 1) if operations is not None else 0.0
    unit_tile = given.unit_overhead_ns + where(visits > 1, given.scratch_overhead_ns, 0.0)
    return (tiles * (finish + given.trip_overhead_ns * visits) + unit_tiles * unit_tile) * 1e-9 / working


def exchange_seconds(rates: Rates, shared: Value, rounds: Value, passed: Value, busy: Value) -> Value:
    """Returns the seconds of a tree reduction over `shared` lanes: each round exchanges all results, `passed` bytes."""
    level = rates.spec.levels[-1]
    return each(math.log2, largest(shared, 1)) * (rounds * level.latency_ns * 1e-9 + passed / rates.into(level, busy))


# --- waiting


def latency_seconds(spec: HardwareSpec, index: int, share: Value) -> Value:
    """Returns a transfer's latency: the level's, plus the next outer one's for the share that comes from there."""
    further = spec.levels[index - 1].latency_ns if index > 1 else 0.0
    return (spec.levels[index].latency_ns + share * further) * 1e-9


def filling_seconds(rates: Rates, index: int, filled: Value, outside: Value, busy: Value) -> Value:
    """Returns the seconds of the transfers that fill panels at a level, `outside` bytes of them from the next outer level."""
    seconds = filled / rates.into(rates.spec.levels[index], busy)
    return largest(seconds, least(filled, outside) / rates.into(rates.spec.levels[index - 1], busy)) if index > 1 else seconds


def ring_seconds(
    filling: Value, using: Value, moving: Value, copies: Value, resident: Value, in_turn: Value, serial: Value = 0.0
) -> Value:
    """Returns the seconds of waiting for panels in a circular buffer of so many copies, in each of the resident tiles.

    All but one of the copies are in flight. `in_turn`: each copy cycles through filling and using, and producers take `serial`
    seconds for all fills, one after another. A single copy does so, too.
    """
    ahead = filling / (resident * largest(1, copies - 1))
    closed = largest(largest((filling + using) / (resident * copies), ahead), serial / resident)
    ahead = where((copies == 1) | in_turn, closed, ahead)
    return largest(0.0, ahead - where(resident * copies == 1, using + moving, largest(using, moving)))


def reading_seconds(waits: Value, using: Value, moving: Value, share: Value, parts: Value, loss: float) -> Value:
    """Returns the seconds in which lanes wait for unstaged reads.

    Each of `share` tiles, and each of the `parts` of a tile, cycles through waiting, moving and using.
    """
    cycle, others = waits / share + (using + moving) / (share * parts), largest(using, moving)
    return largest(0.0, cycle - others) + loss * least(cycle, others)


def operand_seconds(
    begun: Value, waits: Value, using: Value, moving: Value, together: Value, groups: Value, resident: Value
) -> Value:
    """Returns the seconds in which the lane groups of a partition wait for reads from panels.

    `waits`: for the first of the reads of `together` unrolled steps; `begun`: after a fill, before the first product.
    """
    cycle = begun + largest(waits + (using + moving / together) / groups, using)
    return largest(0.0, cycle / resident - largest(using, moving))


def lost_seconds(moving: Value, lost: Value, compute: Value) -> Value:
    """Returns what a level loses from row to row, `lost`, less what computing hides: all, where it takes as long as `moving`.

    Between two lines a nest that computes more gives its requests more time. Of 30 GB/s on a Zen 4, sums over 64 rows of 192 bytes
    in turn reach 15 to 20, products of 8 rows of results with the same rows 23.
    """
    longer = moving > compute
    return where(longer, lost * (moving - compute) / where(longer, moving, 1.0), 0.0)
