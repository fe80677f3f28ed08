"""Programs of tiles that a test gives."""

from __future__ import annotations

from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.device.chip import load_spec
from roller.ir.expr import TensorExpr
from roller.ir.nest import Nest, variants
from roller.program.alignment import Rules
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram
from roller.search.choices import program_of
from roller.search.tile_space import TileSpace

Tiles = tuple[tuple[int, ...], tuple[int, ...]]


def nest_of(expr: TensorExpr, dims: int) -> Nest:
    return next(n for n in variants(expr.stages[0], expr.tensors) if len(n.dims) == dims)


def given_tiles(expr: TensorExpr, tiles: Tiles, chip: str = "cuda:a100") -> RProgram:
    """The program of these tiles as construction would have it: panels, copies, padding."""
    spec = load_spec(chip)
    nest = nest_of(expr, len(tiles[0]))
    model, fit = Model(spec, CostParameters(), Geometry(nest)), Fit(spec, nest, Geometry(nest))
    atom = next(a for a in spec.atoms if a.name == "f32")
    space = TileSpace(model, fit, Rules((atom,), {}), nest, atom, ())
    return RProgram(expr, (program_of(space, space.levels, tiles),))
