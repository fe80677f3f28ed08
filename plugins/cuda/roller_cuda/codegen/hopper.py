"""Hopper's own code path: warp-specialised kernels with `wgmma`, TMA copies and `mbarrier`.

Consumer warp groups multiply both operands directly from shared memory (`wgmma`). The tensor memory accelerator (TMA) copies boxes.
Barriers (`mbarrier`) synchronise producer warps, which start the copies, and consumer warps, which start the products. The layouts
are those of the PTX manual ("Asynchronous warpgroup level matrix multiply-accumulate instructions"): of 64 x n results a warp has
16 rows. In them a lane has rows l / 4 and l / 4 + 8, and columns 2 (l mod 4) and the next one of every eight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tvm import tirx

from roller.lowering.simt.machine import InPlace
from roller.lowering.tir.builder import Expr, Stmt, called, index
from roller.plugin import ComputeAtom, HardwareSpec

GROUP = 128  # lanes of a warp group
WARP = 32
FILLING_REGISTERS = 40  # min registers of a producer lane
GRANULE = 8  # allocation granularity of registers
MOST_REGISTERS = 255
MOST_ARRIVALS = (1 << 20) - 1  # max arrivals of a barrier
ATOM = re.compile(r"wgmma_m64n(\d+)k\d+_(f16|bf16|s8|tf32)")
CALL = re.compile(r"\broller_wgmma_n(\d+)_(f16|bf16|s8|tf32)\b")


class Kind(NamedTuple):
    """The properties of an operand's type.

    Its name in C++, that of results, the depth of one product, the names of both in PTX, and the text behind the operands: factors,
    and for 16 bits whether rows lie across the reduction.
    """

    element: str
    result: str
    depth: int
    types: str
    constraint: str
    tail: str


KINDS: Mapping[str, Kind] = {
    "f16": Kind("half", "float", 16, "f32.f16.f16", "f", ", 1, 1, {a}, {b}"),
    "bf16": Kind("nv_bfloat16", "float", 16, "f32.bf16.bf16", "f", ", 1, 1, {a}, {b}"),
    "tf32": Kind("emulator::Truncated", "float", 8, "f32.tf32.tf32", "f", ", 1, 1"),
    "s8": Kind("signed char", "int", 32, "s32.s8.s8", "r", ""),
}


@dataclass(frozen=True)
class WarpGroupMma:
    """One `wgmma` of a warp group: 64 x `columns` results with a depth of 32 bytes."""

    columns: int
    dtype: str
    rows: int = 16

    @cached_property
    def results(self) -> Mapping[str, tuple[int, ...]]:
        """Rows and columns of a lane's results."""
        return {"m": (0, 8), "n": tuple(8 * block + one for block in range(self.columns // 8) for one in (0, 1))}

    def first(self, role: str, lane: Expr) -> Expr:
        """Returns the row or column of a lane's first result."""
        if role == "n":
            return tirx.floormod(lane, index(4)) * index(2)
        warp, within = tirx.floordiv(lane, index(WARP)), tirx.floormod(lane, index(WARP))
        return warp * index(16) + tirx.floordiv(within, index(4))

    @property
    def rounds(self) -> bool:
        """True for tf32: `wgmma` drops the bits that tf32 does not have."""
        return self.dtype == "tf32"

    def taken(self, value: Expr) -> Expr:
        """Converts a value for its store into a panel."""
        return tirx.call_extern("float32", "roller_tf32_value", value) if self.rounds else value

    def begin(self) -> Stmt:
        """`wgmma.fence`."""
        return called("roller_products_begin")

    def settled(self, results: Expr, count: int) -> Stmt:
        """Returns a fence for the compiler, which does not model that started products are still in flight."""
        return called(f"roller_products_settled<{count}>", results)

    def multiply(self, results: Expr, steps: tuple[int, int], first: InPlace, second: InPlace) -> Stmt:
        """One `wgmma.mma_async`."""
        kinds = ", ".join(str(n) for side in (first, second) for n in (side.row_bytes, side.across_bytes, int(side.turned)))
        name = f"roller_wgmma_n{self.columns}_{self.dtype}<{steps[0]}, {steps[1]}, {kinds}>"
        return called(name, results, first.base, index(first.offset), index(second.offset))

    def close(self) -> Stmt:
        """`wgmma.commit_group`."""
        return called("roller_products_close")

    def wait(self, open_groups: int) -> Stmt:
        """`wgmma.wait_group`."""
        return called(f"roller_products_wait<{open_groups}>")


@dataclass(frozen=True)
class Producers:
    """A producer warp group, which fills panels by TMA where possible."""

    spec: HardwareSpec
    lanes: int = GROUP

    def blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Returns the resident blocks of all multiprocessors."""
        return self.spec.unit.count * self.resident(threads, registers, shared_bytes)

    def resident(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Returns the resident blocks of one multiprocessor (occupancy)."""
        unit, shared = self.spec.unit, self.spec.levels[-2]
        most = (unit.resident_lanes_max or unit.lanes_max) // threads
        stored = unit.lane_storage_bytes // (threads * registers * 4)
        return max(1, min(most, stored, shared.capacity_bytes // (shared_bytes + shared.reserved_bytes)))

    def _shares(self, groups: int) -> bool:
        """True if a block has so many lanes that an even share of the registers is below the max of a lane."""
        return self._even(groups) < MOST_REGISTERS - GRANULE

    def _even(self, groups: int) -> int:
        all_lanes = (groups + 1) * GROUP
        return self.spec.unit.lane_storage_bytes // 4 // all_lanes // GRANULE * GRANULE

    def registers(self, groups: int) -> int:
        """Returns the registers of a consumer lane; 0 where a block would have more lanes than it may."""
        if (groups + 1) * GROUP > self.spec.unit.lanes_max:
            return 0
        if not self._shares(groups):
            return MOST_REGISTERS
        return min((self._pool(groups) - FILLING_REGISTERS) // groups // GRANULE * GRANULE, MOST_REGISTERS // GRANULE * GRANULE)

    def _pool(self, groups: int) -> int:
        """Returns the registers of one lane of each group at the block's launch: the total that can be reallocated."""
        return self._even(groups) * (groups + 1)

    def divide(self, groups: int, producing: bool, registers: int) -> list[Stmt]:
        """Returns `setmaxnreg`, if an even share is not enough."""
        if not self._shares(groups) or registers <= self._even(groups):
            return []
        computing = self.registers(groups)
        count = min(self._pool(groups) - groups * computing, self._even(groups)) if producing else computing
        return [called(f"roller_registers_{'fewer' if producing else 'more'}<{count}>")]

    def signals(self, pair: Expr, full: int, empty: int) -> Stmt:
        """`mbarrier.init`; a barrier without arrivals to wait for gets the max that it can count, more than there ever are."""
        return called("roller_signals", pair, index(full), index(empty or MOST_ARRIVALS))

    def ready(self) -> Stmt:
        """`fence.mbarrier_init`."""
        return called("roller_signals_ready")

    def wait(self, signal: Expr, phase: Expr) -> Stmt:
        """`mbarrier.try_wait.parity`."""
        return called("roller_signal_wait", signal, phase)

    def expect(self, signal: Expr, size: int, arrive: bool) -> Stmt:
        """`mbarrier.expect_tx`."""
        return called("roller_signal_arrive_expecting" if arrive else "roller_signal_expect", signal, index(size))

    def arrive(self, signal: Expr) -> Stmt:
        """`mbarrier.arrive`."""
        return called("roller_signal_arrive", signal)

    def copy(self, target: Expr, source: Expr, signal: Expr, corner: Sequence[Expr]) -> Stmt:
        """`cp.async.bulk.tensor`."""
        return called(f"roller_copy_box_{len(corner)}", target, source, signal, *corner)

    def arrive_at(self, signal: Expr, rank: Expr) -> Stmt:
        """`mapa` and `mbarrier.arrive` there."""
        return called("roller_signal_arrive_at", signal, rank)

    def join(self) -> Stmt:
        """`barrier.cluster`."""
        return called("roller_cluster_join")

    def spread(self, target: Expr, source: Expr, signal: Expr, corner: Sequence[Expr], cluster: int) -> Stmt:
        """`cp.async.bulk.tensor` with `multicast`."""
        return called(f"roller_spread_box_{len(corner)}<{cluster}>", target, source, signal, *corner)

    def visible(self) -> Stmt:
        """`fence.proxy.async`."""
        return called("roller_stores_visible")


@dataclass(frozen=True)
class Departures:
    """Epilogue stores of boxes, staged through shared memory (TMA store)."""

    spec: HardwareSpec

    def room(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Returns the bytes left in a block's share of a multiprocessor's shared memory."""
        shared = self.spec.levels[-2]
        resident = Producers(self.spec).resident(threads, registers, shared_bytes)
        return min(shared.usable_bytes, shared.capacity_bytes // resident - shared.reserved_bytes) - shared_bytes

    def lay(self, place: Expr, values: Sequence[Expr]) -> Stmt:
        """One store to shared memory."""
        return called("roller_lay", place, *values)

    def together(self) -> Stmt:
        """`__syncwarp`."""
        return called("roller_warp_together")

    def visible(self) -> Stmt:
        """`fence.proxy.async`."""
        return called("roller_stores_visible")

    def leave(self, place: Expr, target: Expr, corner: Sequence[Expr]) -> Stmt:
        """`cp.async.bulk.tensor` from shared memory."""
        return called(f"roller_leave_box_{len(corner)}", place, target, *corner)

    def close(self) -> Stmt:
        """`cp.async.bulk.commit_group`."""
        return called("roller_leaving_close")

    def wait(self, open_groups: int) -> Stmt:
        """`cp.async.bulk.wait_group.read`."""
        return called(f"roller_leaving_wait<{open_groups}>")


def unit_of(atom: ComputeAtom) -> WarpGroupMma | None:
    """Returns the warp-group unit of an atom's products; None for other atoms."""
    found = ATOM.fullmatch(atom.name)
    return WarpGroupMma(int(found.group(1)), found.group(2)) if found else None


def products(kernels: str) -> str:
    """Returns the functions of the kernels' products; `up`, `over`: steps from a lane's result to its next row and column."""
    wanted = sorted({(int(columns), dtype) for columns, dtype in CALL.findall(kernels)})
    return "\n".join(_product(columns, dtype) for columns, dtype in wanted)


def _product(columns: int, dtype: str) -> str:
    kind, count = KINDS[dtype], columns // 2
    places = [f"{number // 2 % 2} * up + {number // 4 * 2 + number % 2} * over" for number in range(count)]
    names = ", ".join(f"%{n}" for n in range(count))
    held = ", ".join(f'"+{kind.constraint}"(d[{place}])' for place in places)
    a, b, *turned = (f"%{count + n}" for n in range(4))
    text = f"wgmma.mma_async.sync.aligned.m64n{columns}k{kind.depth}.{kind.types}"
    tail = kind.tail.format(a=turned[0], b=turned[1])
    turns = "{a}" in kind.tail
    numbers = ', "n"(turned_a), "n"(turned_b)' if turns else ""
    refused = "" if turns else '\n    static_assert(!turned_a && !turned_b, "rows of both lie along the reduction");'
    return f"""#ifndef ROLLER_EMULATED
template <int up, int over, int row_a, int across_a, int turned_a, int row_b, int across_b, int turned_b>
__device__ __forceinline__ void roller_wgmma_n{columns}_{dtype}({kind.result} *d, const void *panels, int a, int b) {{{refused}
    asm volatile("{text} {{{names}}}, {a}, {b}, 1{tail};"
                 : {held}
                 : "l"(roller_operand<row_a, across_a>(panels, a)), "l"(roller_operand<row_b, across_b>(panels, b)){numbers});
}}
#else
template <int... layout> inline void roller_wgmma_n{columns}_{dtype}({kind.result} *d, const void *panels, int a, int b) {{
    const char *base = static_cast<const char *>(panels);
    emulator::start_product({{emulator::wgmma<{kind.element}, {kind.result}, {columns}, layout...>, d, base + a, base + b}});
}}
#endif"""
