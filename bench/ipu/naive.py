"""The mapping of ROLLER's public IPU path, as far as its sources show it: one compiled codelet a part of the results.

What is public of that path (microsoft/nnfusion, branch osdi22_artifact, and microsoft/antares, backend c-ipu): output axes are cut
in parts, a vertex each; vertices are dealt to tiles in turn, at most six a tile in a compute set; inputs are connected as slices of
arrays that are mapped linearly, so that all of a slice is exchanged; no matrix unit. Here: one element at a time, as compiled code
was seen to reach; every cut of the results, each rated by the same model; reductions whole, or walked in steps where a slice would
not fit. No IPU was used; that path's own figures are not public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.ipu.planner import Family, Planned, best
from roller.device.chip import resolve
from roller.errors import ConstructionError
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import Tile, variants
from roller.program.alignment import Multiple, even_extents
from roller.program.rprogram import StageProgram
from roller.search.tile_space import start, tile_spaces
from roller.target.hardware import HardwareSpec

MOST_VERTICES = 6  # of a tile in a compute set
MOST_STEPS = 256


@dataclass(frozen=True)
class Naive(Family):
    """Every cut of the results; the longest reduction whole or halved again and again, step by step."""

    @property
    def most_turns(self) -> int:
        """Vertices of a tile follow one another, six at most."""
        return MOST_VERTICES

    @property
    def reduced(self) -> None:
        """No reduction is split over tiles."""
        return

    def _extents(self, dim: int) -> list[int]:
        nest = self.space.nest
        if not nest.dims[dim].is_reduce:
            return even_extents(nest.extents[dim], self.steps[dim], Multiple())
        return list(_halves(nest.extents[dim])) if dim == nest.reduce[0] else [nest.extents[dim]]

    def _allowed(self, tile: Tile) -> bool:
        return True

    def program(self, tile: Tile) -> StageProgram:
        """Steps over a reduction follow one another."""
        return super().program(tile).dispatched(split=1)


def _halves(extent: int) -> Iterator[int]:
    step = 1
    while step <= min(MOST_STEPS, max(extent, 1)):
        yield max(1, -(-extent // step))
        step *= 2


def planned(expr: TensorExpr, spec: HardwareSpec) -> list[Planned]:
    """The best such program of each stage; `ConstructionError` where one has none."""
    whole, made = fuse(expr), []
    device, _ = resolve(f"{spec.device}:{spec.chip}")
    rules, parameters = device.rules(spec, whole), device.cost_parameters(spec, whole)
    for stage in whole.stages:
        nests = variants(stage, whole.tensors, spec.spread)
        single = [s for s in tile_spaces(nests, spec, rules, parameters) if s.atom.kind == "scalar"]
        rated = [best(Naive(s, "naive", start(s))) for s in single]
        if not any(rated):
            raise ConstructionError(f"no cut of {stage.name!r} fits {spec.device}:{spec.chip}", {"cuts": 0})
        made.append(min((p for p in rated if p is not None), key=lambda p: p.cycles))
    return made
