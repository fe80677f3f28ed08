"""docs/model.md: its worked example is what the model says, and it names every formula."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from roller import ops
from roller.cost import formulas
from roller.cost.model import Model
from roller.cost.traffic import level_traffic
from roller.device.chip import resolve
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.search.choices import program_of
from roller.search.tile_space import tile_spaces

PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def shown(row: str) -> list[float]:
    """The numbers in the last cell of a row of the worked example."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.replace("*", "").startswith(f"| {row}")]
    assert len(lines) == 1, row
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", lines[0].split("|")[-2])]


@cache
def example() -> tuple[Model, dict[str, float]]:
    """The model and the microseconds of all terms of the worked example."""
    device, spec = resolve("cuda:a100")
    expr = fuse(ops.expression(ops.matmul(ops.tensor((1024, 1024)), ops.tensor((1024, 1024)))), spec.spread)
    stage = expr.stages[0]
    rules, parameters = device.rules(spec, expr).of(stage.name), device.cost_parameters(spec, expr)
    spaces = tile_spaces(variants(stage, expr.tensors), spec, rules, parameters)
    space = next(s for s in spaces if s.atom.name == "f32" and not s.fit.cooperate and len(s.nest.dims) == 3)
    program = program_of(space, space.levels, ((80, 64, 32), (10, 4, 1)))
    program = replace(program, staged=tuple(replace(s, depth=3) for s in program.staged))
    walk = space.model.walk(program)
    found = space.model.estimate(program)
    terms = {name: seconds * 1e6 for name, seconds in found.terms} | {"seconds": found.seconds * 1e6}
    counted = {"busy": walk.busy, "resident": walk.resident, "steps": space.model.steps(walk), "tiles": program.unit_tiles}
    traffic = {f"{level.name}_bytes": level_traffic(walk, n).bytes for n, level in enumerate(spec.levels) if n}
    losses = {f"loss{n}": loss for n, loss in enumerate(space.model.losses(walk))}
    lanes = {"lanes": program.lanes, "launch": space.model.launch_seconds(program) * 1e6}
    return space.model, terms | counted | traffic | losses | lanes


def test_the_worked_example_is_what_the_model_says() -> None:
    _, real = example()
    for row, name in {"unit tiles": "tiles", "occupancy": "resident", "steps s": "steps"}.items():
        assert shown(row) == [real[name]], row
    assert shown("busy share") == [pytest.approx(real["busy"], abs=5e-4)]
    assert shown("lanes, lane groups") == [real["lanes"], real["lanes"] / 32]
    times = {"of which tail": "tail"} | {name: name for name in ("L2", "shared", "register", "launch", "seconds")}
    for row, term in times.items():
        assert shown(row) == [pytest.approx(real[term], abs=5.1e-3)], row
    assert shown("compute") == [pytest.approx(real["compute"] + real["tail"], abs=5.1e-3)]
    assert shown("steps of shared") == [pytest.approx(real["overhead"] - real["launch"], abs=5.1e-3)]
    assert shown("body") == [pytest.approx(real["seconds"] - real["overhead"], abs=5.1e-3)]
    assert shown("waits") == [pytest.approx(real["latency"], abs=5.1e-3)]
    assert real["loss0"] == real["loss1"] == real["loss2"]
    assert shown("overlap losses") == [pytest.approx(real[f"loss{number}"]) for number in (0, 3)]
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"{real[f'{level}_bytes']:.0f}" in text for level in ("L2", "shared", "register"))


def test_the_page_names_every_formula_and_is_short() -> None:
    text = PAGE.read_text(encoding="utf-8")
    tree = ast.parse(Path(formulas.__file__).read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(names) >= 15 and [name for name in names if not re.search(rf"\b{name}\b", text)] == []
    assert len(text.splitlines()) <= 200
