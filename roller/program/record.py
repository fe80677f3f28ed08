"""Programs and estimates as plain JSON values, and back: an artifact's record of its construction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any

from pydantic import ValidationError

from roller.errors import KernelError
from roller.ir.expr import TensorExpr
from roller.ir.nest import Nest, over_rows, variants
from roller.ir.row_groups import group_of
from roller.program.dispatch import Dispatch
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram, StageProgram, Staging
from roller.target.hardware import ComputeAtom

STAGE_COUNT = "together"  # the number of stages that a stage's program computes, where there are several


def program_to_json(program: RProgram) -> dict[str, Any]:
    """Returns the values that, together with the program's expression, define the program."""
    return {"stages": [_stage_to_json(s) for s in program.stages]}


def program_from_json(data: Mapping[str, Any], expr: TensorExpr) -> RProgram:
    """Returns the program that `program_to_json` wrote; `KernelError` where this version of roller cannot rebuild it."""
    try:
        tables, ends = data["stages"], list(accumulate(table.get(STAGE_COUNT, 1) for table in data["stages"]))
        if ends[-1:] != [len(expr.stages)]:
            raise ValueError(f"it has {sum(ends[-1:])} stages, not {len(expr.stages)}")
        return RProgram(expr, tuple(_stage_from_json(table, end, expr) for table, end in zip(tables, ends, strict=True)))
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
        raise KernelError(f"the saved program does not fit its expression: {error}; compile the operator again") from error


def _stage_to_json(program: StageProgram) -> dict[str, Any]:
    """Returns the fields of a stage's program, those of its `Dispatch` among them."""
    special = {
        "nest": [[axis.name for axis in dim.members] for dim in program.nest.dims],
        "atom": program.atom.model_dump(mode="json"),
        "staged": [asdict(s) for s in program.staged],
    }
    together = {STAGE_COUNT: len(program.nest.stages)} if program.nest.before else {}
    plain = {f.name: getattr(program, f.name) for f in fields(program) if f.name not in (*special, "dispatch")}
    return special | plain | asdict(program.dispatch) | together


def _stage_from_json(table: Mapping[str, Any], end: int, expr: TensorExpr) -> StageProgram:
    values = {name: _tuples(value) for name, value in table.items() if name != STAGE_COUNT}
    values["nest"] = _nest(table["nest"], end - table.get(STAGE_COUNT, 1), end, expr)
    values["atom"] = ComputeAtom.model_validate({k: dict(v) if isinstance(v, Mapping) else v for k, v in table["atom"].items()})
    values["staged"] = tuple(Staging(**entry) for entry in table["staged"])
    dispatch = Dispatch(**{f.name: values.pop(f.name) for f in fields(Dispatch)})
    return StageProgram(**values, dispatch=dispatch)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _nest(dims: Any, start: int, end: int, expr: TensorExpr) -> Nest:
    names = [list(members) for members in dims]
    for nest in _nests(start, end, expr):
        if [[axis.name for axis in dim.members] for dim in nest.dims] == names:
            return nest
    raise ValueError(f"no nest of {expr.stages[end - 1].name!r} has the dimensions {names}")


def _nests(start: int, end: int, expr: TensorExpr) -> Iterable[Nest]:
    """Returns the nests of the stages between two numbers."""
    if end - start == 1:
        return (*variants(expr.stages[start], expr.tensors), *variants(expr.stages[start], expr.tensors, boxes=True))
    group = group_of(expr, start, end)
    return () if group is None else (over_rows(group, expr.tensors),)


def estimate_to_json(estimate: Estimate) -> dict[str, Any]:
    """Returns seconds, terms and utilisation; for a simulated machine also its clock."""
    simulated = {} if estimate.clock_ghz is None else {"clock_ghz": estimate.clock_ghz}
    return {"seconds": estimate.seconds, "terms": dict(estimate.terms), "utilisation": dict(estimate.utilisation), **simulated}


def estimate_from_json(data: Mapping[str, Any]) -> Estimate:
    """Returns the estimate that `estimate_to_json` wrote; `KernelError` for anything else."""
    try:
        parts = [tuple((name, float(value)) for name, value in data[key].items()) for key in ("terms", "utilisation")]
        clock = data.get("clock_ghz")
        return Estimate(float(data["seconds"]), parts[0], parts[1], clock_ghz=None if clock is None else float(clock))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise KernelError(f"the saved estimate cannot be read: {error}; compile the operator again") from error


@dataclass(frozen=True, slots=True)
class Choice:
    """A program that was considered: its prediction, its seconds where it was measured, and a note on its binary.

    The note gives properties of the binary that were not predicted.
    """

    program: RProgram
    estimate: Estimate
    measured_s: float | None = None
    note: str = ""
