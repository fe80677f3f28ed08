"""What is compared on the simulated IPUs: a planner's programs and the constructed one, with their simulated cycles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import machine, report
from bench.ipu import planner
from bench.ipu.planner import Planned
from roller import ops
from roller.device.chip import resolve
from roller.errors import ConstructionError, RollerError
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ops import SymbolicTensor
from roller.program.rprogram import StageProgram, staged_tensors
from roller.search.construct import construct
from roller.target.hardware import HardwareSpec

NO_IPU = "No IPU and no Poplar SDK was used: cycles are simulated ones, from the specs of ipu_sim."
TOP_K = 10


@dataclass(frozen=True)
class Side:
    """One side's programs for an operator: simulated cycles and their kinds, a line about each stage, seconds to find them."""

    cycles: int
    terms: Mapping[str, int]
    programs: tuple[str, ...]
    seconds: float

    def row(self) -> dict[str, Any]:
        """As plain data."""
        return {"cycles": self.cycles, "terms": dict(self.terms), "programs": list(self.programs), "seconds": self.seconds}


def baseline(op: SymbolicTensor, spec: HardwareSpec) -> Side:
    """The planner of `bench.ipu.planner`."""
    return of_planner(op, spec, planner.planned)


def of_planner(op: SymbolicTensor, spec: HardwareSpec, planned: Callable[[TensorExpr, HardwareSpec], list[Planned]]) -> Side:
    """What a planner finds for every stage."""
    begin = time.perf_counter()
    found = planned(ops.expression(op), spec)
    terms = {name: sum(p.terms.get(name, 0) for p in found) for name in dict.fromkeys(n for p in found for n in p.terms)}
    programs = tuple([about(p.program) for p in found])
    return Side(sum(p.cycles for p in found), terms, programs, time.perf_counter() - begin)


def constructed(op: SymbolicTensor, spec: HardwareSpec) -> Side:
    """roller's best program that the device can run."""
    begin = time.perf_counter()
    device, _ = resolve(f"{spec.device}:{spec.chip}")
    expr = fuse(ops.expression(op))
    for candidate in construct(expr, spec, device.rules(spec, expr), device.cost_parameters(spec, expr), TOP_K):
        if device.refusal(spec, candidate.program) is None:
            hertz = spec.clock_ghz * 1e9
            terms = {name: round(seconds * hertz) for name, seconds in candidate.estimate.terms if seconds}
            programs = tuple([about(stage) for stage in candidate.program.stages])
            return Side(round(candidate.estimate.seconds * hertz), terms, programs, time.perf_counter() - begin)
    raise ConstructionError(f"{spec.device}:{spec.chip} can run none of the {TOP_K} best programs", {"refused": TOP_K})


def tried(side: Callable[..., Side], op: SymbolicTensor, *more: Any) -> tuple[Side | None, str]:
    """A side, or None and why there is none."""
    try:
        return side(op, *more), ""
    except RollerError as error:
        return None, f"{type(error).__name__}: {error}"


def about(program: StageProgram) -> str:
    """How a stage is cut: the atom, the dimension that rows are streamed along, parts of each dimension, the unit tile."""
    nest, tile = program.nest, program.unit_tile
    shares = {program.dispatch.share[0]: program.dispatch.share[1]} if program.dispatch.share is not None else {}
    parts = [
        -(-d.extent // shares.get(n, tile[n])) if not d.is_reduce or program.dispatch.split > 1 else 1
        for n, d in enumerate(nest.dims)
    ]
    rows = program.role("m") if program.atom.kind == "matrix" else None
    streamed = f", rows along {nest.dims[rows].name}" if rows is not None else ""
    handed = [name for s in program.staged if s.shifts for name in staged_tensors(nest, s)]
    cut = " x ".join(f"{d.name} {p}" for d, p in zip(nest.dims, parts, strict=True))
    shifted = f", {' and '.join(handed)} shifted" if handed else ""
    return f"{program.atom.name}{streamed}: {cut} parts of {' x '.join(map(str, tile))}{shifted}"


def write(path: Path, name: str, body: Mapping[str, Any]) -> None:
    """A file of results with its provenance, whole or not at all."""
    head = report.provenance(name) | {"versions": machine.versions(), "about": NO_IPU}
    report.store(path, head | dict(body))
