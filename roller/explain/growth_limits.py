"""The limits of a tile's growth: the next aligned extent of each dimension, and the rule or the predicted time against it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from roller.cost.model import Model
from roller.cost.parameters import CostParameters
from roller.ir.nest import Tile
from roller.ir.sliding_windows import taps_at_once
from roller.program.alignment import LANES, Rules, next_aligned
from roller.program.capacity import Fit
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram
from roller.program.words import word_dim
from roller.target.hardware import HardwareSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """One dimension of a tile: the next extent it could have (None: it has none), and why it does not."""

    dim: str
    extent: int | None
    reason: str


def level_name(spec: HardwareSpec, index: int) -> str:
    """Returns a tiled level's name; "atom" for the atoms' level inside the only memory of a unit."""
    return spec.levels[index].name if index < len(spec.levels) else "atom"


@dataclass(frozen=True)
class Growth:
    """One stage of a program on a chip, with the rules and models that limit its tiles."""

    program: StageProgram
    spec: HardwareSpec
    rules: Rules
    model: Model
    fit: Fit

    @staticmethod
    def of(program: StageProgram, spec: HardwareSpec, rules: Rules, parameters: CostParameters) -> Growth:
        """Returns the stage with its rules and models."""
        geometry = Geometry(program.nest)
        limits = rules.limits(program.nest, len(spec.levels) + 1)
        fit = Fit(spec, program.nest, geometry, program.cooperate, program.windowed, limits)
        return Growth(program, spec, rules, Model(spec, parameters, geometry), fit)

    def inner(self, position: int) -> Tile:
        """Returns the tile inside the one at this position; inside the innermost, the atom's smallest step, 1."""
        tiles = self.program.tiles
        return tiles[position + 1] if position + 1 < len(tiles) else tuple(self._step(d) for d in range(len(tiles[-1])))

    def _step(self, dim: int) -> int:
        if self.program.windowed and dim in taps_at_once(self.program.nest):
            return self.program.inner[dim]
        lying = [role for role, place in self.program.mapping if place == dim]
        extent = next((size for role, size in self.program.atom.roles.items() if role in lying), 1)
        if not isinstance(extent, int):
            return 1
        whole = self.spec.spread or not self.program.atom.loads  # other atoms shrink to their dimension
        return extent if whole else min(extent, max(self.program.nest.dims[dim].extent, 1), self.program.inner[dim])

    def broken(self) -> str | None:
        """Returns the first rule that the program's tiles break, from the innermost outwards; None if they are legal."""
        program, levels = self.program, self.program.levels
        for position in reversed(range(len(levels))):
            tile, inner = program.tiles[position], self.inner(position)
            unaligned = self._unaligned(position, tile, inner)
            if unaligned is not None:
                return unaligned
            if levels[position] == len(self.spec.levels):
                continue  # an atom's tile lies in the memory of the tile around it
            refused = self._refused(position, tile, inner)
            if refused is not None:
                return refused
        return None

    def _refused(self, position: int, tile: Tile, inner: Tile) -> str | None:
        """Returns the rule by which a level refuses an aligned tile; caches hold any tile that the device allows."""
        program, levels = self.program, self.program.levels
        given = (levels, position, tile, inner, program.mapping, program.atom)
        level = self.spec.levels[levels[position]]
        fits = self.fit.fits(*given) if level.managed else self.fit.within(levels[position], tile, inner)
        if fits:
            return self.fit.legal(*given)
        lanes = self.fit.lanes(tile, inner, program.atom) if program.lane_level is not None and position < len(levels) - 1 else 0
        if lanes > self.spec.unit.lanes_max and self.fit.footprint(*given[:4], program.atom) <= self.fit.usable_bytes(level):
            return LANES
        return self.fit.rule(levels, position)

    def _unaligned(self, position: int, tile: Tile, inner: Tile) -> str | None:
        level = level_name(self.spec, self.program.levels[position])
        for dim, extent, step in zip(self.program.nest.dims, tile, inner, strict=True):
            multiple = self.rules.multiple(self.program.levels[position], dim.name)
            if extent % step:
                return f"{level}: {dim.name} = {extent} is no multiple of the {step} inside it"
            # A tile equal to the one inside it is aligned like that one; reductions contain any number of inner tiles.
            unaligned = extent % multiple.step and extent != step and not dim.is_reduce
            base = math.lcm(max(step, 1), multiple.step)
            if extent > max(step, -(-dim.extent // base) * base):
                return f"{level}: {dim.name} = {extent}, more than the dimension's {dim.extent}"
            if unaligned or (multiple.limit is not None and extent > multiple.limit):
                return f"{level}: {dim.name} = {extent} is no multiple of {multiple.step}, or more than allowed"
        return None

    def stops(self, position: int) -> tuple[Stop, ...]:
        """Returns for every dimension of the tile at this position the reason why it ends there."""
        return tuple(self._stop(position, dim) for dim in range(len(self.program.nest.dims)))

    def _stop(self, position: int, dim: int) -> Stop:
        program = self.program
        nest, tile, inner = program.nest, program.tiles[position], self.inner(position)
        name = nest.dims[dim].name
        if position == len(program.levels) - 1 and dim == word_dim(program.atom, program.mapping):
            return Stop(name, None, "one word" if program.atom.registers is None else "one register")
        multiple = self.rules.multiple(program.levels[position], name)
        extent = next_aligned(nest.extents[dim], inner[dim], tile[dim], multiple)
        if extent is None or tile[dim] >= nest.extents[dim]:
            whole = tile[dim] >= nest.extents[dim]
            return Stop(name, None, "whole" if whole else f"at most {multiple.limit}")
        grown = (*tile[:dim], extent, *tile[dim + 1 :])
        return Stop(name, extent, self._refusal(position, grown, inner) or self._slower(position, dim, extent))

    def _refusal(self, position: int, grown: Tile, inner: Tile) -> str | None:
        program = self.program
        refused = self._refused(position, grown, inner)
        if refused is not None:
            return refused
        units = self.spec.unit.count
        if position == 0 and program.dispatch.parallel and self.fit.tiles(grown) < units <= self.fit.tiles(program.tiles[0]):
            return f"fewer tiles than {units} {self.spec.unit.name}s"
        return None

    def _slower(self, position: int, dim: int, extent: int) -> str:
        """Returns the change of the predicted time; outer tiles grow as well where they must."""
        tiles = list(self.program.tiles)
        for outer in range(position, -1, -1):
            wanted = extent if outer == position else extent * -(-tiles[outer][dim] // extent)
            tiles[outer] = (*tiles[outer][:dim], wanted, *tiles[outer][dim + 1 :])
            extent = wanted
        now = self.model.estimate(self.program).seconds
        then = self.model.estimate(replace(self.program, tiles=tuple(tiles))).seconds
        change = (then / now - 1) * 100 if now else 0.0
        return f"predicted {change:+.1f} %" if abs(change) >= 0.05 else "predicted the same"
