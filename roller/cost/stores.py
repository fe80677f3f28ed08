"""Stores past the caches (non-temporal): no core waits for the lines of an output that no cache keeps."""

from __future__ import annotations

from roller.cost.parameters import CostParameters
from roller.ir.elementwise import Extent, Value
from roller.program.halo import lane_step
from roller.program.rprogram import StageProgram
from roller.program.stored_runs import in_lines
from roller.target.hardware import HardwareSpec


def past_caches(spec: HardwareSpec, parameters: CostParameters, program: StageProgram, elements: Extent, run: Extent) -> Value:
    """Returns whether the results of innermost tiles are stored past the caches; for one tile or an array of them.

    `elements`, `run`: the results of a tile, and those that are contiguous. They go past the caches in whole lines, or all in one
    run. Only vectors do: those that lie along the output, or are transposed to do so.
    """
    output, last = program.nest.output, len(program.nest.accesses) - 1
    if output.tensor.name not in parameters.past_caches or not (program.sides or lane_step(program, last) == 1):
        return False
    line = spec.levels[1].transaction_bytes
    return in_lines(output, elements, run, line)
