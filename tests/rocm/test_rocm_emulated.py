"""Operators of every family, element type and shape on the emulator of AMD assembly: a sample here, all of them in the long run."""

from __future__ import annotations

import random

import pytest

from bench.emulated import emulating
from bench.emulated.cases import FAMILIES, EmulatedCase, cases
from bench.rocm.emulated import PROGRAMME

SAMPLE, PARTS = 6, 2  # of all cases on all chips, and in how many tests: side by side where several processes test


def told(rows: list[emulating.Row]) -> list[emulating.Row]:
    """The rows that are not right."""
    return [row for row in rows if row[1] != "right"]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_is_right(part: int) -> None:
    pairs = [(case, chip) for case in cases() for chip in PROGRAMME.chips]
    drawn = random.Random(5).sample(pairs, SAMPLE)[part::PARTS]
    assert not told([emulating.ran(case, chip, "rocm") for case, chip in drawn])


@pytest.mark.parametrize(
    ("case", "chip"),
    [
        (EmulatedCase("matmul", "tn", "int8", "tall"), "mi300x"),  # an array shared by name lost where it lies
        (EmulatedCase("avg_pool2d", "", "float16", "prime"), "mi300x"),
        (EmulatedCase("attention", "", "float16", "tall"), "mi300x"),  # rounded once in one tile, twice in its neighbour
    ],
    ids=lambda value: getattr(value, "id", value),
)
def test_what_was_wrong_once_is_right(case: EmulatedCase, chip: str) -> None:
    assert case in cases()
    assert emulating.ran(case, chip, "rocm")[1] == "right"


@pytest.mark.long
@pytest.mark.parametrize("chip", PROGRAMME.chips)
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_right(family: str, chip: str) -> None:
    assert not told([emulating.contained(case, chip, "rocm") for case in cases() if case.family == family])
