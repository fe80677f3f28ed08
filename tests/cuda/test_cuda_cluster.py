"""Clusters of warp groups' blocks: which programs have them, that they are right, that faults are caught, what the model says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import roller
from emulating import expression, needs_compiler, needs_cxx, text_of
from roller import ops
from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.device.chip import resolve
from roller.ir.fusion import fuse
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram
from roller.runtime.artifact import Artifact
from roller.search.construct import construct
from roller.target.hardware import HardwareSpec
from roller_cuda.codegen import limits
from warp_groups import GROUPS, ORDERS, SPEC, T, broken, kernel_text, noticed, of_groups, right


def with_clusters(spec: HardwareSpec) -> HardwareSpec:
    """The chip as it would be where clusters cost nothing and save all that they can, so that the best programs have them."""
    levels = tuple(level.model_copy(update={"multicast_saves": 1.0}) for level in spec.levels)
    return spec.model_copy(update={"levels": levels, "unit": spec.unit.model_copy(update={"cluster_overhead_us": 0.0})})


MULTICASTING = with_clusters(SPEC)


def clustered(op: ops.SymbolicTensor, count: int = 800) -> Iterator[RProgram]:
    """Programs in clusters, drawn from all that fit."""
    return (p for p in of_groups(op, count) if p.stages[0].dispatch.cluster > 1)


# Products whose panels boxes bring to both blocks; a tile is moved back in some, reaches beyond the problem in others.
PRODUCTS: dict[str, Callable[[], ops.SymbolicTensor]] = {
    "plain": lambda: ops.matmul(T("a", 256, 192), T("b", 192, 256)),
    "both turned": lambda: ops.matmul(T("a", 192, 256), T("b", 256, 192), transpose_a=True, transpose_b=True),
    "ragged": lambda: ops.matmul(T("a", 200, 152), T("b", 152, 232)),
    "bytes": lambda: ops.matmul(T("a", 192, 128, dtype="int8"), T("b", 256, 128, dtype="int8"), transpose_b=True),
    "fused": lambda: ops.relu(ops.matmul(T("a", 256, 64), T("b", 64, 256)) + T("bias", 256)),
    "one side carried": lambda: ops.matmul(ops.relu(T("a", 256, 64)), T("b", 64, 256)),
    "batched": lambda: ops.batch_matmul(T("a", 2, 128, 64), T("b", 2, 64, 256)),
}


@pytest.mark.one_in(2)
@needs_cxx
@pytest.mark.parametrize("name", PRODUCTS)
def test_clusters_are_right(name: str) -> None:
    op = PRODUCTS[name]()
    drawn = list(itertools.islice(clustered(op), 3))
    assert drawn, "no program in clusters"
    for number, program in enumerate(drawn):
        artifact = text_of(SPEC, program)
        assert artifact.launch["kernels"][0]["cluster"] == 2
        right(op, artifact, *ORDERS[number % len(ORDERS)])


ODD: dict[str, Callable[[], ops.SymbolicTensor]] = {
    "three by two": lambda: ops.matmul(T("a", 192, 64), T("b", 64, 128)),
    "ragged": lambda: ops.matmul(T("a", 168, 72), T("b", 72, 104)),
    "fused": lambda: ops.relu(ops.matmul(T("a", 192, 64), T("b", 128, 64), transpose_b=True) + T("bias", 128)),
}


@needs_cxx
@pytest.mark.parametrize("name", ODD)
def test_an_odd_number_of_tiles_is_right_in_clusters(name: str) -> None:
    """The last band goes beyond the end: its tiles there are the last one again, in blocks that bring their share all the same."""
    op, found = ODD[name](), 0
    for drawn in of_groups(op, 200):
        stage = drawn.stages[0].dispatched(band=(0, 2), cluster=2)
        program = RProgram(drawn.expr, (stage,))
        if stage.repeated and not stage.parted and limits.refusal(SPEC, program) is None:
            right(op, text_of(SPEC, program), *ORDERS[found])
            found += 1
        if found == len(ORDERS):
            return
    raise AssertionError("too few programs in clusters go beyond the end")


@cache
def ringing() -> tuple[ops.SymbolicTensor, Artifact]:
    """A product in clusters with more steps than copies of its panels, and several tiles for each block."""
    op = ops.matmul(T("a", 128, 512), T("b", 512, 256))
    few = SPEC.model_copy(update={"unit": SPEC.unit.model_copy(update={"count": 2})})
    for program in clustered(op, 3000):
        (stage,) = program.stages
        steps = max((lp.trips for lp in stage.loops if lp.over == "time"), default=1)
        if steps > 3 and all(s.depth > 1 for s in stage.staged) and stage.dispatch.split == 1:
            artifact = text_of(few, program)
            (kernel,) = artifact.launch["kernels"]
            if kernel["blocks"] < stage.unit_tiles:
                return op, artifact
    raise AssertionError("no program walks its rings several times")


@needs_cxx
def test_the_program_whose_faults_are_caught_is_right() -> None:
    assert not noticed(*ringing())


@needs_cxx
@pytest.mark.parametrize(
    ("before", "after", "number"),
    [
        ("roller_cluster_join()", "__syncthreads()", 0),  # the other block's signals are not set up yet
        ("roller_spread_box_2<2>", "roller_spread_box_2<1>", 0),  # the other block never gets its share
        ("roller_signal_arrive_at(", "(void)(", 0),  # a copy is given back to nobody
        ("((int)threadIdx.x) & 31) < 2", "((int)threadIdx.x) & 31) < 1", 0),  # … to one's own block alone
        ("((int)blockIdx.x) * {share}", "0 * {share}", -1),  # both bring the same share
    ],
)
def test_faults_of_clusters_are_caught(before: str, after: str, number: int) -> None:
    op, artifact = ringing()
    share = re.findall(r"roller_spread_box_2<2>.*?\(\(int\)blockIdx\.x\) \* (\d+)", kernel_text(artifact))[0]
    assert noticed(op, broken(artifact, before.replace("{share}", share), after.replace("{share}", share), number))


@needs_cxx
def test_a_copy_is_not_written_while_the_other_block_reads_it() -> None:
    """Signals that are content with one block's arrivals."""
    op, artifact = ringing()
    text = kernel_text(artifact)
    full, empty = re.findall(r"roller_signals\([^;]*?, (\d+), (\d+)\);", text)[0]
    assert int(empty) % 2 == 0
    assert noticed(op, broken(artifact, f", {full}, {empty});", f", {full}, {int(empty) // 2});", 0))


def test_a_program_without_boxes_has_no_clusters() -> None:
    """Rows that are not aligned are carried by lanes, which bring them to their own block only."""
    op = ops.matmul(T("a", 256, 77), T("b", 77, 250))
    drawn = [p for p in roller.enumerate_programs(op, "cuda", spec=GROUPS).sample(300) if p.stages[0].dispatch.cluster > 1]
    reasons = {reason[0] for p in drawn if (reason := limits.refusal(SPEC, p)) is not None}
    assert drawn and "cluster" in reasons
    assert all(limits.refusal(SPEC, p) is not None for p in drawn)
    assert all(c.program.stages[0].dispatch.cluster == 1 for c in roller.compile(op, "cuda", spec=GROUPS).candidates)


@given(st.integers(1, 160), st.integers(1, 40), st.integers(1, 160))
@settings(max_examples=3)
@example(26, 131, 37)  # 13 x 10 tiles in clusters along the 13, when orders were tried after clusters
@example(100, 68, 123)
def test_clusters_lie_along_one_dimension(m: int, k: int, n: int) -> None:
    """A cluster that ends in the next row of tiles would bring its second block what the first one needs."""
    op = ops.matmul(T("a", 64 * m, 64 * k), T("b", 64 * k, 64 * n))
    plugin, spec = resolve("cuda", MULTICASTING)
    expr = fuse(ops.expression(op))
    for candidate in construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 10):
        (stage,) = candidate.program.stages
        assert not stage.parted, stage.describe()


def test_a_cluster_that_ends_in_the_next_row_of_tiles_is_refused() -> None:
    op = ops.matmul(T("a", 256, 64), T("b", 64, 384))
    (stage,) = next(clustered(op)).stages
    last = [lp for lp in stage.loops if lp.over == "units"][-1]
    parted = stage.dispatched(cluster=2 * last.trips)
    assert parted.parted and not stage.parted
    refused = limits.refusal(SPEC, RProgram(expression(op), (parted,)))
    assert refused is not None and refused[0] == "cluster" and "end in the next one" in refused[1]


def test_the_model_counts_once_what_a_cluster_brings_once() -> None:
    op = ops.matmul(T("a", 4096, 4096), T("b", 4096, 4096))
    best = roller.compile(op, "cuda", spec=with_clusters(GROUPS)).candidates[0].program.stages[0]
    assert best.dispatch.cluster == 2 and "cluster 2" in best.describe()
    model = Model(MULTICASTING, CostParameters(), Geometry(best.nest))
    rated = {c: dict(model.estimate(best.dispatched(cluster=c)).terms) for c in (1, 2)}
    units = [lp for lp in best.loops if lp.over == "units"]
    m, n = best.unit_tile[0], best.unit_tile[1]
    shared = n if units[-1].dim == 0 else m
    assert rated[2]["shared"] / rated[1]["shared"] == pytest.approx((m + n - shared / 2) / (m + n), rel=0.02)


@needs_compiler
def test_the_binary_multicasts() -> None:
    kernel = roller.compile(ops.matmul(T("a", 1024, 1024), T("b", 1024, 1024)), "cuda", spec=with_clusters(GROUPS))
    assert kernel.artifact.launch["kernels"][0]["cluster"] == 2
    loads = re.findall(r"\bUTMALDG\.2D(\.MULTICAST)?", kernel.assembly)
    assert set(loads) == {"", ".MULTICAST"}, "one panel is brought to both blocks, the other to one"
    assert kernel.artifact.resources["stage0_kernel.spilled_bytes"] == 0
