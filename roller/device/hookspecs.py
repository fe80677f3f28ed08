"""The contract with device plugins: their hooks, with what each takes and gives.

A plugin is a module (or any object) behind an entry point of the group `roller.devices`; the entry's name is the device's. It
sets `ROLLER_API` to the version below and marks its functions with `roller.plugin.hookimpl`. An implementation may take
fewer arguments than are listed here. All values are frozen; hooks answer from their arguments alone, except for those
that say that they look at the machine. `roller_codegen` and `roller_build` are called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pluggy

from roller.cost.parameters import CostParameters
from roller.ir.expr import TensorExpr
from roller.program.alignment import Multiple
from roller.program.estimate import Estimate
from roller.program.rprogram import RProgram, StageProgram
from roller.runtime.artifact import Artifact, BuildOptions, KernelSource, Runner
from roller.target.hardware import ComputeAtom, HardwareSpec

API_VERSION = 1
GROUP = "roller.devices"
REQUIRED = ("roller_default_spec", "roller_codegen", "roller_build", "roller_load_kernel")

hookspec = pluggy.HookspecMarker("roller")
hookimpl = pluggy.HookimplMarker("roller")


@hookspec(firstresult=True)
def roller_default_spec() -> HardwareSpec:  # type: ignore[empty-body]
    """Required. The chip to compile for when none is named: the attached one, else a documented default."""


@hookspec(firstresult=True)
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:  # type: ignore[empty-body]
    """Required. The program as source text. Pure: the same input gives the same text, on any machine.

    A plugin that knows several languages gives the one that `options.language` names; all others need not look at it.
    """


@hookspec(firstresult=True)
def roller_build(spec: HardwareSpec, source: KernelSource, options: BuildOptions) -> Artifact:  # type: ignore[empty-body]
    """Required. Source to binary, with the resources that the toolchain reports. Needs no such device.

    Resources have names of the plugin's choice; some mean something to the engine: what ends in "spilled_bytes", of values that
    are computed with in memory, what ends in "added_waits", of waits that the program does not have;
    "<stage>.resident_tiles", the tiles of a stage that a unit has room for at a time, and "<stage>.copies", the copies that there
    are of what is filled from step to step. `explain` tells how kernels are launched: "<kernel>.blocks", "<kernel>.threads" of a
    block, and where they are given "<kernel>.shared_bytes" of a block and "<kernel>.registers" of a thread.
    """


@hookspec(firstresult=True)
def roller_load_kernel(spec: HardwareSpec, artifact: Artifact) -> Runner:  # type: ignore[empty-body]
    """Required. The artifact ready to run on this machine; `DeviceUnavailableError` where it has no such device."""


@hookspec(firstresult=True)
def roller_atoms(spec: HardwareSpec, expr: TensorExpr) -> Sequence[ComputeAtom] | None:
    """The atoms worth trying for an expression. Default: all of the spec."""


@hookspec(firstresult=True)
def roller_tile_multiples(spec: HardwareSpec, expr: TensorExpr, level: int) -> Mapping[str, Multiple] | None:
    """Which extents tiles may have at a level of the spec, by dimension name. Default: whole transactions (rule 2)."""


@hookspec(firstresult=True)
def roller_cost_parameters(spec: HardwareSpec, expr: TensorExpr) -> CostParameters | None:
    """What the cost model needs beyond the spec. Default: `CostParameters()`."""


@hookspec(firstresult=True)
def roller_estimate(spec: HardwareSpec, program: StageProgram | RProgram, worth: float) -> Estimate | None:
    """The device's own prediction, where the core's model cannot be its model: for one stage's program, as if it were alone, and
    for a whole one of several stages, or the first few of them (its expression ends there). Default: the core's model.

    Asked for every stage's program that is ranked, so it must answer that within a fraction of a millisecond; for the whole
    ones, of which there are some dozens a stage, it may take a few. Infinite seconds: it cannot run; the only term's name is the
    rule, `reason` says why, and where memory is short, `short_bytes` by how much. `clock_ghz`: seconds are those of a simulator's
    cycles.

    `worth`: a program that takes so many seconds or more is of no use to who asks; any number of seconds from there up to its own
    will do for such a one. A plugin may do without this argument.
    """


@hookspec(firstresult=True)
def roller_refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Why the device cannot run a program that fits: a short rule and a reason. Default: it can (None)."""


@hookspec(firstresult=True)
def roller_spec_dirs() -> Sequence[str | Path] | None:
    """Folders with the plugin's own spec files, each `<device>/<chip>.toml` inside. Default: none."""


@hookspec(firstresult=True)
def roller_requirements() -> Sequence[str] | None:
    """What this machine lacks to build or run, one readable line each; looks at the machine. Default: nothing."""


@hookspec(firstresult=True)
def roller_build_problem(spec: HardwareSpec) -> str | None:
    """Why no kernel for a chip can be built on this machine, and what to do; asked before anything is constructed. Default: one can
    be (None).
    """


@hookspec(firstresult=True)
def roller_measure_spec() -> HardwareSpec | None:
    """The attached chip measured now, and remembered for `roller_default_spec`. Default: it cannot be measured (None)."""


@hookspec(firstresult=True)
def roller_emulate(spec: HardwareSpec, artifact: Artifact) -> Runner | None:
    """The artifact ready to run without its device, slowly. Default: it cannot be emulated (None)."""


@hookspec(firstresult=True)
def roller_assembly(spec: HardwareSpec, artifact: Artifact) -> str | None:
    """The machine code of an artifact as readable text. Default: it cannot be shown (None)."""
