"""The simulated IPUs' machine and its cycles: published points, refusals, properties. No IPU, nothing is timed."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.common import figures
from bench.ipu import points
from roller.frozen import thaw
from roller.ir.scalar import ARITHMETIC, COMPARISON, LOGICAL, UNARY
from roller.plugin import CodegenError, HardwareSpec, SpecError, find_spec
from roller.target.catalog import PROVENANCE
from roller_ipu_sim.chip.cycles import AmpShape, MapShape, amp, copied, exchanged, filled, mapped, reduced, relaid
from roller_ipu_sim.chip.machine import Machine, machine

CHIPS = points.CHIPS
MK2 = ("gc200", "bow", "c600")
POINTS = points.points()


@cache
def chip(name: str = "bow") -> Machine:
    return machine(find_spec("ipu_sim", name))


def product(rows: int, k: int = 1, n: int = 1, dtype: str = "float16", acc: str = "float32", **more: Any) -> AmpShape:
    """Blocks of a product on one tile; a single run from zero, unless told otherwise."""
    shape = AmpShape(dtype, acc, 1, rows, k, n, (), 1, True, False)
    return shape._replace(**more)


def elementwise(n: int, *ops: str, dtype: str = "float16", loads: int = 1, vector: int | None = None) -> int:
    width = chip().vector_type(dtype).width if vector is None else vector
    return mapped(chip(), MapShape(dtype, n, 1, width, loads, ops, 0, (), False))


# Published points. Values, formulas and sources of each stand in bench/ipu/points.py.


@pytest.mark.parametrize("point", [p for p in POINTS if p.limit is not None], ids=lambda p: f"{p.chip}: {p.check}: {p.name}")
def test_published_points_are_met(point: points.Point) -> None:
    assert abs(point.error) <= 0.03, f"{point.published} {point.unit} by {point.source}; ours {point.ours} by {point.formula}"


def test_all_points_are_there() -> None:
    counts = {check: sum(p.check == check for p in POINTS) for check in dict.fromkeys(p.check for p in POINTS)}
    assert [counts[c] for c in ("1 matrix vertex", "2 several blocks", "3 reduction", "3b hand-written vertex")] == [8, 2, 5, 6]
    assert (counts["9 peak"], counts["7 exchange"]) == (7, 4)
    assert all(p.source.split(":")[0] in (*PROVENANCE, "calculated") and p.formula for p in POINTS)


@pytest.mark.parametrize(
    ("rows", "cycles"), [*zip((16, 32, 64, 128, 256, 512, 1024, 2048), (409, 457, 577, 841, 1345, 2377, 4417, 8521), strict=True)]
)
def test_the_matrix_vertex_is_the_published_formula(rows: int, cycles: int) -> None:
    """Values worked out by others from PopLibs' estimator, not measurements."""
    assert amp(chip(), product(rows)) == cycles


def test_several_blocks_are_the_published_formula() -> None:
    assert amp(chip("c600"), product(365, 5)) == 8577
    assert amp(chip("c600"), product(365, 5, interleaved=True)) == 8417
    assert amp(chip(), product(64, 4, 4)) == 7663


@pytest.mark.parametrize("name", CHIPS)
def test_peaks_and_exchange_are_exactly_those_of_the_spec(name: str) -> None:
    spec, made = find_spec("ipu_sim", name), chip(name)
    for atom in spec.atoms:
        if atom.kind == "matrix":
            assert points.peak(made, atom.in_dtype) == pytest.approx(atom.gflops, rel=1e-6)
    assert points.aggregate(made) == pytest.approx(4 * made.tiles * made.clock_ghz, rel=1e-12)
    assert points.aggregate(made) == pytest.approx(spec.level("SRAM").bandwidth_gbps, rel=1e-4)


# Elementwise work: the formulas as published, with their own numbers.


@pytest.mark.parametrize("n", [1, 4, 23, 24, 25, 96, 2152])
def test_one_operation_costs_what_is_published(n: int) -> None:
    def vectors(width: int) -> int:
        return math.ceil(math.ceil(n / 6) / width)

    assert elementwise(n, "floor") == 11 + 9 + 6 * (17 + vectors(4) * (2 + 4))
    assert elementwise(n, "exp") == 11 + 9 + 6 * (33 + vectors(4) * 4)
    assert elementwise(n, "exp", dtype="float32") == 11 + 9 + 6 * (33 + vectors(2) * 6)
    assert elementwise(n, "tanh", dtype="float32") == 11 + 9 + 6 * (17 + vectors(2) * 12)
    assert elementwise(n, "add", loads=2) == 11 + 6 * (58 + vectors(4) * 3)
    assert elementwise(n, "div", dtype="float32", loads=2) == 11 + 6 * (58 + vectors(2) * 10)
    assert elementwise(n, "max", loads=2) == 11 + 6 * (58 + vectors(4) * 4)
    assert elementwise(n, "max") == 11 + 9 + 6 * (17 + vectors(4) * 3)
    assert elementwise(n, "add", dtype="int32", loads=2) == 11 + 6 * (58 + math.ceil(n / 6) * 7)
    assert elementwise(n, "cast", dtype="float32") == 12 + 6 * (19 + vectors(2) + 18)


@pytest.mark.parametrize(("dtype", "wide", "width"), [("float16", 8, 4), ("float32", 4, 2)])
@pytest.mark.parametrize(("outputs", "points"), [(1, 1), (48, 6), (2624, 6), (100, 363)])
def test_a_contiguous_reduction_costs_what_is_published(dtype: str, wide: int, width: int, outputs: int, points: int) -> None:
    loops = math.ceil(outputs / (6 * wide))
    published = 33 + 6 * (20 + (2 * points + 10) * loops)
    assert mapped(chip(), MapShape(dtype, outputs, points, width, 1, ("add",), 0, (), True)) == published


def test_several_operations_add_up_and_never_cost_less() -> None:
    """Ours, an estimate: accesses, loop decision, operations and what they take beyond a cycle."""
    assert elementwise(96, "add", "max", loads=2) == 11 + 6 * (58 + 4 * (3 + 2 + 2 + 1))
    fused = MapShape("float16", 96, 1, 4, 1, ("mul",), 1, ("add", "max"), False)
    assert mapped(chip(), fused) == elementwise(96, "mul", "add", "max", loads=2)
    chain = [elementwise(960, *(["add"] * n)) for n in range(1, 6)]
    assert all(a < b for a, b in pairwise(chain))


def test_an_epilogue_is_charged_once_a_result() -> None:
    plain = MapShape("float32", 24, 9, 2, 1, ("max",), 0, (), True)
    ended = plain._replace(epilogue_loads=1, epilogue_ops=("add", "tanh"))
    sets, vectors = math.ceil(24 / 6 / 4), 2
    assert mapped(chip(), ended) - mapped(chip(), plain) == 6 * sets * vectors * (1 + 2 + 10)


def test_single_results_of_less_than_a_word_cost_more() -> None:
    one = elementwise(60, "add", dtype="float16", vector=1)
    assert one - elementwise(60, "add", dtype="float32", vector=1) == 6 * 10 * 3


def test_every_scalar_operation_has_its_cycles() -> None:
    every = UNARY - {"rounded"} | ARITHMETIC | COMPARISON | LOGICAL | {"select", "cast", "index"}
    for name in CHIPS:
        for dtype in ("float16", "float32"):
            assert set(chip(name).vector_type(dtype).operations) == every
        whole = {"neg", "abs", "not", "select", "cast", "index"} | COMPARISON | LOGICAL | ARITHMETIC - {"pow"}
        for dtype in ("int64", "int32", "int16", "int8", "uint8", "bool"):
            assert set(chip(name).vector_type(dtype).operations) == whole


# The other vertices, and the exchange.


def test_partial_results_are_added_by_the_pipelined_loop() -> None:
    assert [reduced(chip(), "float16", n, p) for n, p in ((2624, 6), (2208, 4), (576, 15), (1, 1))] == [7212, 4974, 3090, 348]
    assert reduced(chip(), "float32", 24, 6) == reduced(chip(), "float16", 48, 6) == 282 + 6 * 21


def test_moves_inside_a_tile() -> None:
    assert [copied(chip(), n) for n in (1, 8, 9, 8000)] == [289, 289, 290, 1288]
    assert [relaid(chip(), 1000, atom) for atom in (1, 2, 4, 6, 8, 64)] == [587 + n for n in (10300, 5150, 3125, 3125, 440, 440)]
    assert filled(chip(), "float16", 1000) == 6 * (26 + 42)
    assert filled(chip(), "float32", 1000) == 6 * (23 + 84)
    assert filled(chip(), "float32", 1) == 6 * 23


def test_a_phase_is_its_busiest_part_and_what_starts_it() -> None:
    start = 52 + 2 * 11 + 250
    assert exchanged(chip(), 0, 0, 0) == start
    assert exchanged(chip(), 100, 70, 30) == start + 100
    assert exchanged(chip(), 70, 100, 30) == start + 100
    assert exchanged(chip(), 70, 80, 40) == start + 120
    paired = chip().model_copy(update={"exchange": chip().exchange.model_copy(update={"bus_pairing": True})})
    assert [exchanged(paired, *w, 1) - start for w in ((101, 0), (0, 101), (101, 101))] == [51, 101, 101]


# Several runs and kernel positions.


def published_1x1(shape: AmpShape) -> int:
    """PopLibs' estimator of ConvPartial1x1 for 16 units with its own numbers, in another form: block by block."""
    single, more = shape.in_dtype == "float32", -(-shape.run_rows // 6)

    def worker(rows: int, zero: bool) -> int:
        first = [24, 47, 46, 46] if single else [n + (1 if zero else 2) for n in (20, 31, 40, 36)]
        return first[min(rows, 3)] + max(0, rows - 3) * (8 if single else 4) + (2 + 8 * rows if single and zero and rows else 0)

    def inner(zero: bool) -> int:
        taken = [worker(rows, zero) - (0 if single else 7) for rows in (shape.run_rows // 6, more)]
        return max(6 * max(taken), 6 * min(taken) + 14)

    load = 32 if shape.interleaved else 64
    total = 50 + (0 if single else 6 * (7 + 3 * (shape.k_blocks * shape.groups - 1)))
    for _ in range(shape.groups):
        total += 13
        for k in range(shape.k_blocks):
            total += 15 if k else 11
            for _ in range(shape.n_blocks):
                total += 25 + load + inner(shape.zero and not k)
    return total


SMALL = st.integers(1, 5)


@given(st.integers(0, 700), SMALL, SMALL, SMALL, st.booleans(), st.booleans(), st.sampled_from(["float16", "float32"]))
def test_one_run_is_the_published_formula(
    rows: int, k: int, n: int, groups: int, zero: bool, interleaved: bool, dtype: str
) -> None:
    shape = product(rows, k, n, dtype, groups=groups, zero=zero, interleaved=interleaved)
    assert amp(chip(), shape) == published_1x1(shape)


def published_nx1(shape: AmpShape) -> int:
    """PopLibs' estimator of ConvPartialnx1 for float16 to float32 with its own numbers; rows are dealt to workers one by one."""
    total = shape.runs * shape.run_rows
    worklists: list[dict[int, int]] = [{} for _ in range(6)]
    for worker, work in enumerate(worklists):
        for row in range(total * worker // 6, total * (worker + 1) // 6):
            work[row // shape.run_rows] = work.get(row // shape.run_rows, 0) + 1
    taken = [17 + sum(3 + {1: 29, 2: 33}.get(n, 34 + 4 * (n - 3)) - 9 for n in work.values()) for work in worklists]
    rows = max(6 * max(taken), 6 * min(taken) + 9)
    inner = shape.taps[-1] if shape.taps else 1
    outer = math.prod(shape.taps) // inner
    kernel = outer * (14 + inner * (12 + (32 if shape.interleaved else 64) + 15 + 3)) + outer * inner * rows
    groups, k, n = shape.groups, shape.k_blocks, shape.n_blocks
    around = 109 + 6 * 9 + groups * (16 + k * (14 + n * (14 + kernel)))
    if not shape.zero:
        return around
    zeroing = (math.ceil(math.ceil(total * 16 / 6) / 2) + 14 - 9) * 6 * n * groups
    return around + 6 * 9 + groups * (n * 17 + (n - 1) * 6 + 1) + (groups - 1) * 6 + 1 + zeroing


@given(st.integers(1, 12), st.integers(1, 40), SMALL, SMALL, st.lists(SMALL, min_size=0, max_size=3), SMALL, st.booleans())
def test_several_runs_and_taps_are_the_published_formula(
    runs: int, rows: int, k: int, n: int, taps: list[int], groups: int, zero: bool
) -> None:
    shape = product(rows, k, n, runs=runs, taps=tuple(taps), groups=groups, zero=zero)
    if runs > 1 or math.prod(taps) > 1:
        assert amp(chip(), shape) == published_nx1(shape)


@given(st.integers(1, 8), st.integers(1, 300), SMALL, SMALL, st.sampled_from([(), (3, 3)]), st.sampled_from(CHIPS))
def test_better_conditions_never_cost_more(runs: int, rows: int, k: int, n: int, taps: tuple[int, ...], name: str) -> None:
    for dtype in ("float16", "float32"):
        shape = product(rows, k, n, dtype, runs=runs, taps=taps)
        here = amp(chip(name), shape)
        assert amp(chip(name), shape._replace(interleaved=True)) < here < amp(chip(name), shape._replace(conflict=True))
        assert here < amp(chip(name), shape._replace(k_blocks=k + 1))
        assert here < amp(chip(name), shape._replace(n_blocks=n + 1))
        assert here <= amp(chip(name), shape._replace(run_rows=rows + 6))
        passes = chip(name).amp_type(dtype, "float32").passes
        assert amp(chip(name), shape._replace(zero=False)) <= here + 6 * n * passes  # a cycle a worker, where nothing is saved


def test_golden_cycles() -> None:
    """Changed only by hand."""
    single, half = {"dtype": "float32"}, {"acc": "float16"}
    shapes = [
        product(256, 6, 4), product(256, 6, 4, interleaved=True), product(256, 6, 4, conflict=True), product(256, 6, 4, **single),
        product(14, 4, 2, runs=14), product(14, 4, 2, runs=14, taps=(3, 3)), product(14, 4, 2, runs=14, taps=(3, 3), **half),
        product(7, 4, 2, runs=7, taps=(3, 3), **single), product(49, 2, 1, groups=8),
    ]  # fmt: skip
    assert {name: [amp(chip(name), shape) for shape in shapes] for name in ("gc2", "bow")} == GOLDEN


GOLDEN = {
    "gc2": [57525, 56757, 105141, 116193, 23567, 182255, 181553, 118559, 12666],
    "bow": [29897, 29129, 54473, 63293, 13967, 95855, 94721, 62831, 7330],
}


# What specs say of the machine.


@pytest.mark.parametrize("name", CHIPS)
def test_the_machine_is_the_specs(name: str) -> None:
    spec, made = find_spec("ipu_sim", name), chip(name)
    assert (made.tiles, made.workers, made.tile_bytes) == (spec.unit.count, 6, spec.level("SRAM").capacity_bytes)
    assert made.memory.region0_bytes + made.memory.region1_bytes == made.tile_bytes
    assert made.data_bytes == spec.level("SRAM").usable_bytes
    for atom in spec.atoms:
        if atom.kind == "matrix":
            unit = made.amp_type(atom.in_dtype, atom.acc_dtype)
            assert (unit.grain, unit.columns) == (atom.extents["k"], atom.extents["n"])
            assert unit.row_cycles * unit.passes == atom.row_cycles
        else:
            made.vector_type(atom.in_dtype)


def test_the_second_generation_shares_its_constants() -> None:
    found = [thaw(find_spec("ipu_sim", name).options) for name in MK2]
    assert found[0] == found[1] == found[2]


def numbers(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from numbers(item, f"{path}.{key}" if path else key)
    elif isinstance(value, bool | int | float | tuple | list):
        yield path


@pytest.mark.parametrize("name", CHIPS)
def test_every_constant_has_a_source_and_every_source_a_constant(name: str) -> None:
    options = thaw(find_spec("ipu_sim", name).options)
    sources, found = options.pop("sources"), list(numbers(options))
    assert [path for path in found if not any(fnmatchcase(path, pattern) for pattern in sources)] == []
    assert [pattern for pattern in sources if not any(fnmatchcase(path, pattern) for path in found)] == []
    assert all(text.partition(": ")[0] in PROVENANCE and text.partition(": ")[2] for text in sources.values())


def test_memory_elements() -> None:
    made = chip()
    assert made.interleaved_from == 13 * 16384
    assert made.elements(0, 1) == range(0, 1)
    assert made.elements(16383, 1) == range(0, 1) and made.elements(16383, 2) == range(0, 2)
    assert made.elements(made.interleaved_from - 1, 1) == range(12, 13)
    assert made.elements(made.interleaved_from, 32768) == range(13, 14)
    assert made.elements(made.interleaved_from + 32767, 2) == range(13, 15)
    assert made.elements(made.tile_bytes - 1, 1) == range(25, 26)
    assert made.elements(0, made.tile_bytes) == range(0, 26)


def edited(**changes: Any) -> HardwareSpec:
    """Bow with options changed: dotted fields, None to take one away."""
    spec = find_spec("ipu_sim", "bow")
    options = copy.deepcopy(thaw(spec.options))
    for path, value in changes.items():
        *tables, last = path.split("__")
        table = options
        for step in tables:
            table = table[step]
        if value is None:
            del table[last]
        else:
            table[last] = value
    return spec.model_copy(update={"options": type(spec.options)(options)})


@pytest.mark.parametrize(
    ("change", "value", "field", "said"),
    [
        ("exchange", None, "options.exchange", "missing"),
        ("exchange__sync_cycles", None, "options.exchange.sync_cycles", "missing"),
        ("exchange__sink_cycles", 250, "options.exchange.sink_cycles", "unknown key"),
        ("exchange__word_bytes", 0, "options.exchange.word_bytes", "greater than or equal to 1"),
        ("exchange__word_bytes", 4.5, "options.exchange.word_bytes", "found 4.5"),
        ("exchange__multicast", 1, "options.exchange.multicast", "boolean"),
        ("amp__types__float16__float32__adding", [1, 2, 3], "options.amp.types.float16.float32.adding", "missing"),
        ("amp__types__float16__float32__taps__wait", -1, "options.amp.types.float16.float32.taps.wait", "greater than or equal"),
        ("vector__types", {}, "options.vector.types", "names nothing"),
        ("vector__types__half__operations__exp", "fast", "options.vector.types.half.operations.exp", "integer"),
        ("memory__region1_bytes", 16384, "options.memory.region1_bytes", "638976"),
        ("memory__element_bytes", 10000, "options.memory.region0_bytes", "not a multiple"),
        ("layout__millicycles", {"two": 1}, "options.layout.millicycles.two", "a number of bytes"),
        ("tiles", 100, "options.tiles", "a field of the spec itself"),
        ("workers", 6, "options.workers", "a field of the spec itself"),
    ],
)
def test_bad_options_are_refused_with_the_field(change: str, value: Any, field: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        machine(edited(**{change: value}))
    assert caught.value.field is not None and caught.value.field.startswith(field)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_chips_of_other_devices_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^levels\.SRAM: "):
        machine(find_spec("cuda", "a100"))


def test_types_that_a_chip_has_not_are_refused() -> None:
    with pytest.raises(CodegenError, match="bow do not multiply int8 to int32; they do float16 to float16"):
        amp(chip(), product(16, dtype="int8", acc="int32"))
    with pytest.raises(CodegenError, match="bow does not compute in bfloat16; it does in float16, float32, int32"):
        elementwise(16, "add", dtype="bfloat16", vector=1)
    with pytest.raises(CodegenError, match="no cycles are known of 'wink' in float16 on bow; of add"):
        elementwise(16, "wink")


# The benchmark that prints the points.


def test_the_benchmark_writes_what_it_prints_and_fails_where_a_point_is_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ipu" / "points.json"
    assert points.main(["--out", str(path)]) == 0
    assert "BEYOND" not in capsys.readouterr().out
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["benchmark"] == "ipu_points" and found["summary"]["beyond"] == 0 and len(found["points"]) == len(POINTS)
    monkeypatch.setattr(points, "points", lambda: [POINTS[0]._replace(ours=1.04 * POINTS[0].published)])
    assert points.main(["--out", str(path)]) == 1
    assert "BEYOND" in capsys.readouterr().out


def test_the_committed_points_are_those_of_now() -> None:
    found = json.loads(points.FILE.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(figures.rounded(points.body(POINTS)["points"])))
    assert found["points"] == now and found["command"].startswith("python -m bench.ipu.points")
