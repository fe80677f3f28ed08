"""Results of warp groups that leave through shared memory as boxes: which ones do, that they are right, that faults are caught."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

import roller
from emulating import needs_compiler, needs_cxx, text_of
from roller import ops
from roller.cost.model import Model
from roller.cost.occupancy import unit_efficiency
from roller.device.chip import resolve
from roller.ir.fusion import fuse
from roller.lowering.specialised import shared_memory
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram
from roller.runtime.artifact import Artifact
from roller.search.construct import construct
from roller_cuda.codegen import generator, machine
from roller_cuda.cost import parameters
from roller_cuda.toolchain import compiling, disassembly
from warp_groups import GROUPS, ORDERS, SPEC, T, broken, conv, kernel_text, noticed, of_groups, right


@cache
def leaving(places: int, boxes: int = 3) -> tuple[ops.SymbolicTensor, Artifact]:
    """A product whose lanes in step send several boxes away, from so many places."""
    op = ops.matmul(T("a", 128, 128), T("b", 128, 512))
    for program in of_groups(op, 2000):
        artifact = text_of(SPEC, program)
        text = str(artifact.launch["text"])
        waits = set(re.findall(r"roller_leaving_wait<(\d)>\(\);", text))
        if text.count("roller_leave_box_2(") > boxes and waits == {"0", str(places - 1)} and program.stages[0].dispatch.split == 1:
            return op, artifact
    raise AssertionError(f"no program whose results leave from {places} places")


@needs_cxx
@pytest.mark.parametrize("places", [1, 2])
def test_the_programs_whose_faults_are_caught_are_right(places: int) -> None:
    assert not noticed(*leaving(places))


@pytest.mark.one_in(3)
@needs_cxx
@pytest.mark.parametrize("places", [1, 2])
@pytest.mark.parametrize(
    ("before", "after", "number"),
    [
        ("roller_leaving_wait<{last}>()", "roller_leaving_wait<{last} + 1>()", 2),  # laid over rows that have yet to leave
        ("roller_leaving_wait<0>()", "(void)0", -1),  # the end, with rows under way
        ("roller_warp_together()", "(void)0", 4),  # laid before it was waited for
        ("roller_warp_together()", "(void)0", 1),  # sent away before all rows are laid
        ("roller_leave_box_2(", "(void)(", 0),  # a box that never leaves
        ("roller_leaving_close()", "(void)0", 0),  # a group less to wait for
        ("roller_lay(", "(void)(", 3),
    ],
)
def test_faults_of_results_that_leave_are_caught(places: int, before: str, after: str, number: int) -> None:
    op, artifact = leaving(places)
    last = str(places - 1)
    assert noticed(op, broken(artifact, before.replace("{last}", last), after.replace("{last}", last), number))


@needs_cxx
@pytest.mark.parametrize(
    "field, value", [("swizzle_bytes", 0), ("strides_bytes", (1008,)), ("extents", (504, 128)), ("box", (64, 8))]
)
def test_faults_in_the_description_of_the_output_are_caught(field: str, value: object) -> None:
    op, artifact = leaving(2)
    (kernel,) = artifact.launch["kernels"]
    changed = {**kernel, "maps": {**kernel["maps"], "map_out": {**kernel["maps"]["map_out"], field: value}}}
    assert kernel["maps"]["map_out"][field] != value
    assert noticed(op, replace(artifact, launch={**artifact.launch, "kernels": [changed]}))


def test_stored_rows_are_seen_before_their_copy_starts() -> None:
    """The emulator does not know of the fence between what lanes store and what copies read: its place is looked at."""
    _, artifact = leaving(2)
    calls = re.findall(r"\b(roller_(?:lay|stores_visible|warp_together|leave_box_2|leaving_close))\b(?=\()", kernel_text(artifact))
    order = " ".join(calls)
    assert order.count("roller_leave_box_2") == order.count(
        "roller_lay roller_stores_visible roller_warp_together roller_leave_box_2 roller_leaving_close"
    )


# For each product whether its results leave as boxes: rows of the array must be whole pieces of 16 bytes.
LEAVING: dict[str, tuple[Callable[[], ops.SymbolicTensor], bool]] = {
    "ragged, aligned": (lambda: ops.matmul(T("a", 200, 64), T("b", 64, 136)), True),
    "rows that are not aligned": (lambda: ops.matmul(T("a", 128, 64), T("b", 64, 100)), False),
    "float32 out": (lambda: ops.matmul(T("a", 70, 64), T("b", 64, 72), out_dtype="float32"), True),
    "whole numbers": (lambda: ops.matmul(T("a", 96, 128, dtype="int8"), T("b", 72, 128, dtype="int8"), transpose_b=True), True),
    "turned": (lambda: ops.einsum("mk,kn->nm", T("a", 128, 64), T("b", 64, 128)), True),
    "batched": (lambda: ops.batch_matmul(T("a", 3, 72, 64), T("b", 3, 64, 80)), True),
    "fused": (lambda: ops.relu(ops.matmul(T("a", 100, 64), T("b", 64, 72)) + T("bias", 72)), True),
    "added": (lambda: ops.matmul(T("a", 100, 64), T("b", 64, 72)) + T("c", 100, 72), True),
    "channels last": (lambda: conv("NHWC"), True),
}


@pytest.mark.one_in(2)
@needs_cxx
@pytest.mark.parametrize("name", LEAVING)
def test_results_leave_as_boxes(name: str) -> None:
    made, wanted = LEAVING[name]
    op, found = made(), []
    for number, program in zip(range(6), of_groups(op), strict=False):
        artifact = text_of(SPEC, program)
        found.append(any("map_out" in kernel.get("maps", {}) for kernel in artifact.launch["kernels"]))
        right(op, artifact, *ORDERS[number % 4])
    assert any(found) == wanted


@needs_cxx
def test_parts_of_a_reduction_leave_as_boxes() -> None:
    op = ops.matmul(T("a", 64, 4096), T("b", 4096, 64))
    found = [c.program for c in roller.compile(op, "cuda", spec=GROUPS, top_k=100).candidates]
    program = next(p for p in found if p.stages[0].dispatch.split > 1 and dict(p.stages[0].mapping)["n"] == 1)  # as results lie
    artifact = text_of(SPEC, program)
    described = [kernel["maps"]["map_out"]["tensor"] for kernel in artifact.launch["kernels"] if "maps" in kernel]
    assert described == ["matmul_partial"]
    for order in ORDERS:
        right(op, artifact, *order)


@needs_compiler
@pytest.mark.parametrize("m, n, k", [(1024, 1024, 1024), (65536, 4096, 1024)])
def test_no_lane_stores_what_leaves_as_boxes(m: int, n: int, k: int) -> None:
    """Read from the machine code: results are stored by the copy engine alone, and nothing is spilled for it, neither by lanes that
    compute nor by those that fill (in the second product they count tiles in registers that were too few).
    """
    choices = roller.compile(ops.matmul(T("a", m, k), T("b", k, n)), "cuda", spec=GROUPS, top_k=10).candidates
    sources = (generator.generate(SPEC, choice.program) for choice in choices)
    artifact = compiling.build(SPEC, next(s for s in sources if "map_out" in s.launch["kernels"][0].get("maps", {})))
    stores = re.findall(r"\b(STG|UTMASTG|STL)\b", disassembly.text(artifact.data))
    assert set(stores) == {"UTMASTG"}
    assert artifact.resources["stage0_kernel.spilled_bytes"] == 0


def stored(made: ops.SymbolicTensor, chosen: Callable[[StageProgram], bool]) -> tuple[float, StageProgram]:
    """Accesses for each result of a drawn program, as the model is told."""
    accesses = parameters.cost_parameters(SPEC).store_accesses
    assert accesses is not None
    for program in of_groups(made, 3000):
        (stage,) = program.stages
        if chosen(stage) and stage.dispatch.split == 1:
            return accesses(stage) / (stage.unit_tile[0] * stage.unit_tile[1]), stage
    raise AssertionError("no such program was drawn")


def leaves(stage: StageProgram) -> bool:
    known = machine.machine(SPEC)
    return shared_memory.layout_of(shared_memory.block_of(stage, known), known).store_buffer is not None


def test_the_model_knows_what_storing_results_takes() -> None:
    """Rows of 128 bytes where they leave as boxes; else a group of 32 lanes stands in eight rows with two results each, or, where
    the atom lies the other way, in four columns with one: 16 bytes of each at a time, less than what memory is written in.
    """
    op = ops.matmul(T("a", 256, 128), T("b", 128, 512))
    assert stored(op, leaves)[0] == 2 / 128
    straight = stored(op, lambda s: not leaves(s) and dict(s.mapping)["n"] == 1)
    across = stored(op, lambda s: not leaves(s) and dict(s.mapping)["n"] == 0)
    assert straight[0] == parameters.PARTLY * 8 / (32 * 2) and across[0] == parameters.PARTLY * 4 / 32
    spec, geometry = SPEC, Geometry(across[1].nest)
    told, silent = parameters.cost_parameters(spec), replace(parameters.cost_parameters(spec), store_accesses=None)
    found = [Model(spec, parameters, geometry).estimate(across[1]).seconds for parameters in (told, silent)]
    results = across[1].unit_tiles * across[1].unit_tile[0] * across[1].unit_tile[1]
    busy = unit_efficiency(across[1], spec)
    rate = (spec.level("register").bandwidth_gbps or math.nan) * 1e9
    assert found[0] - found[1] == pytest.approx(parameters.PARTLY * results / 8 * 128 / (rate * busy))


def test_large_products_take_the_tile_that_is_known_to_be_fast() -> None:
    """Two warp groups with 192 x 128 results each, three copies of 64 steps, tiles in bands, results that leave as boxes: 1549 us
    on an H200, where 128 x 256 took 1594, in clusters of two 1633 (docs/cuda.md).
    """
    plugin, spec = resolve("cuda:h100")
    expr = fuse(ops.expression(ops.matmul(T("a", 8192, 8192), T("b", 8192, 8192))))
    (best,) = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 1)
    (stage,) = best.program.stages
    assert stage.tiles == ((192, 256, 64), (192, 128, 16)) and stage.atom.name == "wgmma_m64n128k16_f16"
    assert {s.depth for s in stage.staged} == {3} and stage.dispatch.cluster == 1 and stage.in_bands and leaves(stage)
