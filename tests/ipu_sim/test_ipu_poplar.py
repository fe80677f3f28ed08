"""The printed Poplar program: both texts compile with a host's compiler against stand-ins, and compute what NumPy does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ipu_random as random
from ipu_manifests import Product, bow
from ipu_poplar_cases import (
    Case,
    buffers,
    compute,
    convolution,
    manifest,
    multicast,
    needs_compiler,
    odds,
    place,
    plain,
    pooling,
    product,
    ref,
    same,
    split_reduction,
)
from roller.plugin import CodegenError, DeviceUnavailableError, LaunchError
from roller_ipu_sim.chip.machine import machine
from roller_ipu_sim.manifest.affine import nests, total
from roller_ipu_sim.manifest.check import check
from roller_ipu_sim.manifest.models import Manifest, from_json, to_json
from roller_ipu_sim.poplar.fields import Access, dealt, fields_of
from roller_ipu_sim.poplar.host_check import run_on_host
from roller_ipu_sim.poplar.host_program import PoplarProgram, generate
from roller_ipu_sim.simulator.execute import execute

pytestmark = pytest.mark.usefixtures("headers_read_once")

CASES: Mapping[str, Callable[[np.random.Generator], Case]] = {
    "pooling": pooling,
    "split reduction": split_reduction,
    "multicast": multicast,
    "convolution": convolution,
    "odds": odds,
    "product to float32": lambda rng: product(rng, 13, 3, "float16", "float32"),
    "product to float16": lambda rng: product(rng, 8, 2, "float16", "float16"),
    "product of float32": lambda rng: product(rng, 7, 4, "float32", "float32"),
}
WORKERS = 6


@pytest.mark.one_in(2)
@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_programs_give_the_numbers_of_numpy_and_of_the_simulator(name: str) -> None:
    case = CASES[name](np.random.default_rng(6))
    found = run_on_host(case.manifest, case.inputs)
    simulated = execute(case.manifest, bow(), case.inputs).outputs
    assert found.keys() == case.expected.keys() == simulated.keys()
    for output, expected in case.expected.items():
        same(found[output], expected)
        same(simulated[output], expected)


@needs_compiler
@pytest.mark.parametrize("accumulated", ["float16", "float32"])
def test_a_product_cut_along_all_dimensions_rounds_as_the_simulator_does(accumulated: str) -> None:
    rng, wanted = np.random.default_rng(7), Product(50, 40, 90, 3, 2, 2, acc_dtype=accumulated)
    made = wanted.manifest()
    inputs = {"a": rng.normal(0, 1, (50, 90)).astype(np.float16), "b": rng.normal(0, 1, (90, 40)).astype(np.float16)}
    found = run_on_host(made, inputs, generate(made, machine(bow())))["out"]
    simulated = execute(made, bow(), inputs).outputs["out"]
    unit = 2.0 ** (-10 if accumulated == "float16" else -23)
    assert np.mean(found == simulated) > 0.99
    np.testing.assert_allclose(found.astype(np.float64), simulated.astype(np.float64), rtol=unit, atol=unit)
    exact = inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0, atol=unit * 90)


def agrees(case: random.Case) -> None:
    """The program computes what the simulator does, NaN for NaN."""
    found = run_on_host(case.manifest, case.inputs, generate(case.manifest, machine(case.spec)))
    simulated = execute(case.manifest, case.spec, case.inputs).outputs
    for name, expected in simulated.items():
        same(found[name], expected)


@needs_compiler
@settings(max_examples=4, derandomize=True, deadline=None, database=None)
@given(st.one_of(random.manifests(), random.products()))
def test_random_programs_agree_with_the_simulator(case: random.Case) -> None:
    agrees(case)


@needs_compiler
@pytest.mark.long
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.one_of(random.manifests(), random.products()))
def test_many_random_programs_agree_with_the_simulator(case: random.Case) -> None:
    agrees(case)


# --- text --------------------------------------------------------------------------------------------------------------


def test_text_is_the_same_every_time_and_names_nothing_of_this_machine() -> None:
    chip = machine(bow())
    for make in CASES.values():
        case = make(np.random.default_rng(6))
        first, again = generate(case.manifest, chip), generate(from_json(to_json(case.manifest)), chip)
        assert first == again
        for text in (first.host, first.codelets):
            assert text.isascii()
            assert not any(place in text for place in (str(Path.cwd()), str(Path.home()), tempfile.gettempdir()))


def test_a_whole_chip_is_a_few_loops() -> None:
    made = Product(1024, 1024, 1024, 32, 46).manifest()
    program = generate(made, machine(bow()))
    body = program.host[program.host.index("static void build") :]
    assert len(body.splitlines()) < 60
    assert program.codelets.count("class ") == 1 + program.codelets.count("struct ")


def test_vertices_carry_the_simulated_cycles_and_interleaved_weights_are_asked_for_as_such() -> None:
    case, chip = product(np.random.default_rng(6), 12, 2, "float16", "float16"), machine(bow())
    first = chip.memory.region0_bytes
    moved = [b.model_copy(update={"address": first}) if b.name == "w" else b for b in case.manifest.buffers]
    made = case.manifest.model_copy(update={"buffers": tuple(moved)})
    check(made, chip)
    plain_program, wide_program = generate(case.manifest, chip), generate(made, chip)
    assert "Input<Vector<half, VectorLayout::SPAN, 8>> w;" in plain_program.codelets
    assert "Input<Vector<half, VectorLayout::SPAN, 16, true>> w;" in wide_program.codelets
    profiles = [execute(one, bow(), case.inputs).profile for one in (case.manifest, made)]
    cycles = [next(step.cycles for step in profile.supersteps if step.kind == "compute") for profile in profiles]
    assert cycles[0] > cycles[1]
    for program, count in zip((plain_program, wide_program), cycles, strict=True):
        assert f"graph.setPerfEstimate(vertex, {count});" in program.host
    assert "setPerfEstimate" not in generate(made).host


def test_operands_of_a_product_are_kept_apart() -> None:
    text = generate(product(np.random.default_rng(6), 12, 2, "float16", "float16").manifest).codelets
    assert '[[poplar::constraint("elem(*a) != elem(*w)", "elem(*a) != elem(*out)", "elem(*w) != elem(*out)")]]' in text


@needs_compiler
def test_any_names_will_do() -> None:
    tiles = [[0, 1, 1]]
    names = ["a b", "a_b", 'quote " \\ back', "größe", "int", "*/ //", "new\nline"]
    held = buffers(1, **dict.fromkeys(names, ("float32", 4, tiles)))
    steps, tensors, arrays = [], [], {}
    for number, name in enumerate(names):
        output = number % 2
        tensors.append(plain(name, "float32", "output" if output else "input", (4,), [place(0, name, [0], [4])]))
        if output:
            copied = {"kind": "copy", "from": ref(names[number - 1]), "to": ref(name), "elements": 4}
            steps.append(compute(name, tiles, copied))
        else:
            arrays[name] = np.arange(4, dtype=np.float32) + number
    for buffer in held:
        buffer["live"] = [0, len(steps) - 1]
    found = run_on_host(manifest(1, held, tensors, steps), arrays)
    assert {name: array.tolist() for name, array in found.items()} == {
        names[n]: (np.arange(4) + n - 1.0).tolist() for n in range(1, len(names), 2)
    }


def test_no_type_that_a_tree_names_is_left_without_one_in_poplar() -> None:
    from roller_ipu_sim.manifest.models import BYTES
    from roller_ipu_sim.poplar.host_program import TYPES
    from roller_ipu_sim.poplar.scalars import ELEMENT_TYPES, STORED_TYPES

    assert set(BYTES) == set(TYPES) == set(ELEMENT_TYPES) == set(STORED_TYPES)


# --- what the stand-ins refuse -----------------------------------------------------------------------------------------


def changed(program: PoplarProgram, host: tuple[str, str] = ("", ""), codelets: tuple[str, str] = ("", "")) -> PoplarProgram:
    """The program with a piece of text replaced, which must be there."""
    assert host[0] in program.host and codelets[0] in program.codelets
    return replace(program, host=program.host.replace(*host), codelets=program.codelets.replace(*codelets))


FAULTS: Mapping[str, tuple[str, dict[str, tuple[str, str]], type[Exception], str]] = {
    "the compiler refuses": ("pooling", {"codelets": ("half folded", "hulf folded")}, CodegenError, "hulf"),
    "a warning is an error": ("pooling", {"codelets": ("half folded", "int unused; half folded")}, CodegenError, "unused"),
    "outside a field": ("pooling", {"codelets": ("x0[18 * i0", "x0[99 * i0")}, LaunchError, "leaves what its field"),
    "two workers in one word": (
        "odds", {"codelets": ("2 * int(worker)", "1 * int(worker)")}, LaunchError, "two workers store to one word",
    ),
    "a field on another tile": ("pooling", {"host": ("b_x.part(tile", "b_x.part(1")}, LaunchError, "lies on another tile"),
    "vertices that disturb": ("multicast", {"host": ("tile = i0", "tile = 0 * i0")}, LaunchError, "disturb one another in v"),
    "no such codelet": ("pooling", {"host": ('"Map1"', '"Map9"')}, LaunchError, "no codelet named Map9"),
    "no such tile": ("pooling", {"host": ("{{1, 4, 2}}", "{{1, 4, 3}}")}, LaunchError, "no such tile"),
    "a field is forgotten": ("pooling", {"host": ('{"x0", b_x.part(tile, 0, 81)}, ', "")}, LaunchError, "nothing is connected"),
    "another type": ("pooling", {"host": ("b_x(graph, HALF", "b_x(graph, FLOAT")}, LaunchError, "another type"),
    "a copy onto itself": (
        "split reduction",
        {"host": ("b_all, {{2, 1, 1}}, 12 * i0", "b_partial, {{2, 1, 1}}, 0 * i0")}, LaunchError, "target of a copy",
    ),
    "unmapped": ("pooling", {"host": ("graph.setTileMapping(variable[row], all[row]);", "")}, LaunchError, "on no tile"),
}  # fmt: skip


@pytest.mark.one_in(3)
@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_in_a_text_does_not_pass(name: str) -> None:
    which, change, error, words = FAULTS[name]
    case = CASES[which](np.random.default_rng(6))
    with pytest.raises(error, match=words):
        run_on_host(case.manifest, case.inputs, changed(generate(case.manifest), **change))


@needs_compiler
def test_arrays_that_do_not_fit_are_refused() -> None:
    case = pooling(np.random.default_rng(6))
    with pytest.raises(LaunchError, match="no array for 'x'"):
        run_on_host(case.manifest, {})
    with pytest.raises(LaunchError, match="float32"):
        run_on_host(case.manifest, {"x": case.inputs["x"].astype(np.float32)})


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    case = pooling(np.random.default_rng(6))
    with pytest.raises(DeviceUnavailableError, match=r"g\+\+ or clang\+\+"):
        run_on_host(case.manifest, case.inputs)


# --- parts -------------------------------------------------------------------------------------------------------------


ROWS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 9)), max_size=30)


@settings(max_examples=200, derandomize=True)
@given(ROWS)
def test_nests_are_the_rows(rows: list[tuple[int, ...]]) -> None:
    assert sorted(row for nest in nests(rows) for row in nest.rows()) == sorted(rows)


@pytest.mark.parametrize("grid", [(5, 4, 3), (2, 2, 2), (46, 2, 7), (1, 9, 2)])
def test_a_grid_is_one_nest(grid: tuple[int, int, int]) -> None:
    rows = [(100 * i + 7 * j + k, k, 1000 - i) for i in range(grid[0]) for j in range(grid[1]) for k in range(grid[2])]
    assert len(nests(rows)) == 1


def test_rows_that_alternate_between_two_shapes_are_two_nests() -> None:
    rows = [(100 * i + j if j < 4 else 7 * i, int(j == 4)) for i in range(16) for j in range(5)]
    assert len(nests(rows)) == 2


@settings(max_examples=100, derandomize=True)
@given(st.integers(-20, 20), st.lists(st.integers(-3, 3), max_size=3), st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_sums_read_as_they_are_meant(constant: int, factors: list[int], values: list[int]) -> None:
    names = ["x", "y", "z"][: len(factors)]
    text = total(constant, zip(factors, names, strict=True))
    given_values = dict(zip(names, values, strict=False))
    expected = constant + sum(f * given_values[n] for f, n in zip(factors, names, strict=True))
    assert eval(text, {"__builtins__": {}}, given_values) == expected


@st.composite
def results(draw: st.DrawFn) -> Access:
    """A result of a few loops, its elements apart from one another."""
    extents = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    strides, step = [], 1
    for extent in reversed(extents):
        strides.insert(0, step * draw(st.sampled_from((1, 1, 1, 2, 4))))
        step = strides[0] * extent + draw(st.integers(0, 2))
    order = draw(st.permutations(range(len(extents))))
    kind = draw(st.sampled_from(("float32", "float16", "int8")))
    strides_, extents_ = tuple(strides[n] for n in order), tuple(extents[n] for n in order)
    return Access("out", "b", kind, draw(st.integers(0, 8)), extents_, strides_)


@settings(max_examples=300, derandomize=True)
@given(results())
def test_workers_never_share_a_word(out: Access) -> None:
    deal = dealt(out, range(len(out.extents)))
    per_word = {"float32": 1, "float16": 2, "int8": 4}[out.dtype]
    index = np.indices(out.extents).reshape(len(out.extents), -1)
    place = out.offset + np.tensordot(out.strides, index, 1)
    worker = np.zeros_like(place) if deal.loop is None else index[deal.loop] // deal.chunk % WORKERS
    owners: dict[int, int] = {}
    for word, one in zip((place // per_word).tolist(), worker.tolist(), strict=True):
        assert owners.setdefault(word, one) == one
    assert deal.loop is not None or per_word > 1 or max(out.extents) == 1


def test_rows_of_an_odd_length_are_dealt_in_pairs() -> None:
    assert dealt(Access("out", "b", "float16", 0, (8, 5), (5, 1)), [0, 1]).chunk == 2
    assert dealt(Access("out", "b", "float16", 1, (8, 5), (5, 1)), [0, 1]).loop is None
    assert dealt(Access("out", "b", "float16", 0, (8, 6), (6, 1)), [0, 1]).chunk == 1


def test_pieces_of_a_buffer_that_overlap_share_a_field() -> None:
    def piece(name: str, low: int, high: int, writes: bool = False, buffer: str = "b") -> Access:
        return Access(name, buffer, "float32", low, (high - low,), (1,), not writes, writes)

    found = fields_of(
        [piece("x", 0, 8), piece("y", 6, 12), piece("z", 12, 16), piece("out", 4, 7, True), piece("v", 0, 8, buffer="c")]
    )
    assert {name: (f.name, f.low, f.high, f.direction) for name, f in found.items()} == {
        "x": ("out", 0, 12, "InOut"), "y": ("out", 0, 12, "InOut"), "out": ("out", 0, 12, "InOut"), "z": ("z", 12, 16, "Input"),
        "v": ("v", 0, 8, "Input"),
    }  # fmt: skip
    apart = fields_of([piece("x", 0, 4), piece("out", 4, 8, True)])
    assert [f.direction for f in apart.values()] == ["Input", "Output"]
    assert fields_of([Access("out", "b", "float32", 0, (4,), (2,), False, True)])["out"].direction == "InOut"


def test_manifests_are_the_ones_that_the_simulator_takes() -> None:
    chip = machine(bow())
    made: list[Manifest] = [make(np.random.default_rng(6)).manifest for make in CASES.values()]
    for one in made:
        check(one, chip)
