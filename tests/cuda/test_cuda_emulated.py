"""Operators of every family, element type and shape on the emulator: a sample here, all of them in the long run."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import roller
from bench.cuda.emulated import PROGRAMME
from bench.emulated import command, emulating, makers
from bench.emulated.cases import FAMILIES, EmulatedCase, cases
from emulating import needs_compiler, needs_cxx
from roller import ops, verify
from roller.errors import LaunchError

CHIPS = PROGRAMME.chips
NO_OPERATORS = {"SymbolicTensor", "expression", "from_te", "tensor"}
SAMPLE, PARTS = 8, 2  # of all cases on all chips, and in how many tests: side by side where several processes test


def told(rows: list[emulating.Row]) -> list[emulating.Row]:
    """The rows that are not right."""
    return [row for row in rows if row[1] != "right"]


@needs_compiler
@needs_cxx
@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_is_right(part: int) -> None:
    pairs = [(case, chip) for case in cases() for chip in CHIPS]
    drawn = random.Random(3).sample(pairs, SAMPLE)[part::PARTS]
    assert not told([emulating.ran(case, chip) for case, chip in drawn])


@needs_compiler
@needs_cxx
@pytest.mark.parametrize(
    "case",
    [
        EmulatedCase("matmul", "nn", "int64", "ragged"),  # NVRTC has no int64_t of its own
        EmulatedCase("movement", "padded, turned", "bool", "aligned"),  # TVM prints vectors of bool in words of two bytes for each
        EmulatedCase("reduce of truths", "min over all", "bool", "ragged"),
        EmulatedCase("max_pool2d", "stride 1, same", "bool", "ragged"),
        EmulatedCase("functions", "gelu by tanh", "float16", "ragged"),  # an inexact tanh of an infinity, times infinity
        EmulatedCase("movement", "reversed", "float16", "one"),  # a vector atom alone computes in float16
        EmulatedCase("max_pool2d", "stride 1, same", "bfloat16", "prime"),  # TVM prints an infinite bfloat16 as "inff"
        EmulatedCase("reduce", "sum over two", "float64", "ragged"),  # parts along two dimensions, room for those of one
    ],
    ids=lambda case: case.id,
)
def test_what_was_wrong_once_is_right(case: EmulatedCase) -> None:
    atom = {"float16": "f16x2", "bfloat16": "f32", "float64": "f64"}.get(case.dtype, "i32")
    assert emulating.ran(case, "a100")[1:] == ("right", atom, "")


@needs_compiler
@needs_cxx
def test_wide_pieces_keep_their_places_where_these_are_swizzled() -> None:
    """Sixteen bytes become sixteen halves: two pieces of a swizzled panel, which do not lie one behind the other."""
    found = emulating.ran(EmulatedCase("more and matmul", "of bytes", "float16", "aligned"), "h100")
    assert found[1] == "right" and "wgmma" in found[2]


@needs_compiler
@needs_cxx
@pytest.mark.parametrize(
    ("case", "chip"), [(("matmul", "nn", "float16", "deep"), "v100"), (("einsum", "mhk,nhk->hmn", "int8", "tall"), "a100")]
)
def test_values_of_lane_groups_lie_in_front_of_panels(case: tuple[str, str, str, str], chip: str) -> None:
    """Twenty-two lane groups share a sum: what they exchange takes 88 bytes, and the panel behind it begins at the 128th."""
    assert emulating.ran(EmulatedCase(*case), chip)[1] == "right"


@needs_compiler
@needs_cxx
@pytest.mark.long
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_right(family: str, chip: str) -> None:
    assert not told([emulating.contained(case, chip) for case in cases() if case.family == family])


# --- what is declared ------------------------------------------------------------------------------------------------


def test_every_operator_is_in_a_family() -> None:
    text = Path(makers.__file__).read_text(encoding="utf-8")
    used = set(re.findall(r"\bops\.(\w+)", text)) | {*makers.NAMES, *makers.COMPARISONS}
    assert set(ops.__all__) - NO_OPERATORS <= used


def test_every_type_of_a_family_meets_every_shape_and_every_variant_is_there() -> None:
    found = cases()
    assert len({case.id for case in found}) == len(found)
    for name, family in FAMILIES.items():
        mine = [case for case in found if case.family == name]
        assert {(c.dtype, c.shape) for c in mine} >= {(d, s) for d in family.dtypes for s in family.shapes}, name
        assert {c.variant for c in mine} == set(family.variants), name
        if family.crossed:
            assert len(mine) == (len(family.dtypes) * len(family.shapes) + len(family.rare)) * len(family.variants)


def test_every_case_is_an_operator() -> None:
    for case in cases():
        ops.expression(case.make())


def test_constants_are_the_same_every_time() -> None:
    (case, *_) = [c for c in cases() if FAMILIES[c.family].constants and c.shape == "ragged"]
    first, again = case.constants(), case.constants()
    assert first and all((first[name] == again[name]).all() for name in first)


# --- what is noticed -------------------------------------------------------------------------------------------------

SUM = EmulatedCase("element by element", "add", "float32", "ragged")


def broken(monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> emulating.Row:
    """What is said of a kernel with one piece of its text exchanged."""
    original = emulating.programs

    def tampered(case: EmulatedCase, chip: str, device: str):
        for artifact, program in original(case, chip, device):
            text = str(artifact.launch["text"])
            start = text.rindex('extern "C"')
            assert before in text[start:]
            changed = text[:start] + text[start:].replace(before, after)
            yield replace(artifact, launch={**artifact.launch, "text": changed}), program

    monkeypatch.setattr(emulating, "programs", tampered)
    return emulating.ran(SUM, "a100")


@needs_compiler
@needs_cxx
def test_wrong_numbers_and_stores_elsewhere_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case, status, atoms, said = broken(monkeypatch, " + ((int)threadIdx.x)", " + 1 + ((int)threadIdx.x)")
    assert (case, status) == (SUM.id, "wrong") and atoms == "f32"
    assert "written beyond the output" in said or "elements are wrong" in said


@needs_compiler
@needs_cxx
def test_stores_beyond_the_output_are_an_error() -> None:
    kernel = roller.compile(SUM.make(), device="cuda:a100")
    text = str(kernel.artifact.launch["text"])
    start = text.rindex('extern "C"')
    shifted = text[:start] + text[start:].replace("add_ptr + ", "add_ptr + 4 + ").replace("add_ptr[", "add_ptr[1 + ")
    artifact = replace(kernel.artifact, launch={**kernel.artifact.launch, "text": shifted})
    with pytest.raises(LaunchError, match="written beyond the output"):
        emulating.computed(kernel.expr, artifact, verify.random_inputs(kernel.expr))


def test_what_does_not_compile_is_told_by_its_error() -> None:
    case, status, _, said = emulating.ran(replace(SUM, dtype="float31"), "a100")
    assert status == "refused" and said.startswith("ExpressionError: ") and case == "element by element / add / float31 / ragged"
    assert emulating.ran(SUM, "h1000")[1] == "failed"


# --- reports ---------------------------------------------------------------------------------------------------------


def test_reports_count_and_are_gone_on_with(tmp_path: Path) -> None:
    first, second, third = (case.id for case in cases()[:3])
    rows: dict[str, emulating.Row] = {
        second: (second, "right", "f32, mma_m16n8k16_f16", ""),
        first: (first, "refused", "", "ExpressionError: no"),
        third: (third, "wrong", "f32", "WrongResultError: 3 of 4"),
        "gone / case": ("gone / case", "right", "f32", ""),
    }
    path = tmp_path / "there" / "a100.json"
    body = PROGRAMME.write(path, "a100", rows)
    assert json.loads(path.read_text(encoding="utf-8"))["summary"] == body["summary"]
    counts = body["summary"]
    assert (counts["declared"], counts["run"], counts["programs"]) == (len(cases()), 3, 3)
    assert (counts["right"], counts["refused"], counts["wrong"]) == (1, 1, 1)
    assert counts["refused_with"] == {"ExpressionError": 1}
    assert counts["families"] == {"matmul": {"refused": 1, "right": 1, "wrong": 1}}
    assert list(command.read(path)) == [first, second, third]  # in the order of the cases; what is no longer one has left
    assert command.read(path)[second] == rows[second]
    assert [p.name for p in path.parent.iterdir()] == ["a100.json"]
    assert command.read(tmp_path / "none.json") == {}


@needs_compiler
@needs_cxx
def test_a_run_goes_on_where_one_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    family = "matmul of integers into others"
    *done, last = [case.id for case in cases() if case.family == family]
    PROGRAMME.write(tmp_path / "a100.json", "a100", {id: (id, "right", "told before", "") for id in done})
    words = ["--chips", "a100", "--families", family, "--jobs", "1", "--out", str(tmp_path)]
    assert PROGRAMME.main(words) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")] == [f"[1/1] a100: {last}: right i32"]
    rows = command.read(tmp_path / "a100.json")
    assert [row[2] for row in rows.values()] == ["told before"] * len(done) + ["i32"]


@needs_compiler
@needs_cxx
def test_a_run_that_is_ended_keeps_what_it_has_and_leaves_no_process(tmp_path: Path) -> None:
    family = "matmul of integers into others"
    words = ["--chips", "a100", "--families", family, "--jobs", "1", "--out", str(tmp_path)]
    started = [sys.executable, "-m", "bench.cuda.emulated", *words]
    with subprocess.Popen(started, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None and run.stdout is not None
        while not run.stderr.readline().startswith("[1/"):
            assert run.poll() is None
        run.terminate()
        run.stderr.read()  # to the end: nobody holds it any more
    assert run.returncode == 128 + signal.SIGTERM
    rows = command.read(tmp_path / "a100.json")
    assert 0 < len(rows) < sum(case.family == family for case in cases())
