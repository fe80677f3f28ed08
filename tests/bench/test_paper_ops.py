"""The paper's operators: all of them build, and count as the paper counts."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections import Counter
from pathlib import Path

import pytest

from roller import ops
from roller.ir.expr import TensorExpr, body_operations
from roller.ir.fusion import fuse

SPEC = importlib.util.spec_from_file_location("paper_ops", Path(__file__).parents[2] / "bench" / "common" / "paper_ops.py")
assert SPEC is not None and SPEC.loader is not None
paper_ops = importlib.util.module_from_spec(SPEC)
sys.modules["paper_ops"] = paper_ops
SPEC.loader.exec_module(paper_ops)

PAPER = paper_ops.paper_operators()
OTHER = paper_ops.other_operators()


def flops_without_epilogue(expr: TensorExpr) -> int:
    """Operations of the reduction's body, or of everything where there is no reduction."""
    stages = [s for s in expr.stages if s.reducer is not None] or expr.stages
    return sum(body_operations(s) * math.prod(s.extents.values()) for s in stages)


def test_there_are_119_by_the_papers_ids() -> None:
    assert len(PAPER) == 119
    assert Counter(o.id[0] for o in PAPER) == {"C": 44, "E": 28, "D": 23, "P": 13, "M": 7, "R": 4}
    assert all("roller_top10" in o.paper_ms for o in PAPER)


@pytest.mark.parametrize("operator", PAPER, ids=lambda o: o.id)
def test_an_operator_builds_with_the_papers_flops(operator: object) -> None:
    expr = ops.expression(operator.build())  # type: ignore[attr-defined]
    assert flops_without_epilogue(expr) == operator.flops  # type: ignore[attr-defined]
    assert len(fuse(expr).stages) == 1


def test_the_others_build_with_their_flops() -> None:
    assert len(OTHER) == 381
    for operator in OTHER:
        expr = ops.expression(operator.build())
        assert len(fuse(expr).stages) == 1, operator
        if operator.flops:
            assert flops_without_epilogue(expr) == operator.flops, operator


def test_building_is_deterministic() -> None:
    assert [ops.expression(o.build()) for o in PAPER] == [ops.expression(o.build()) for o in paper_ops.paper_operators()]


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["paper_ops.py"])
    monkeypatch.setenv("COLUMNS", "220")
    paper_ops.main()
    printed = capsys.readouterr().out
    assert "119 operators" in printed and "M6" in printed and "65536x30522" in printed
