"""The contract with device plugins: their hooks, with arguments and results.

A plugin is a module (or any object) behind an entry point of the group `roller.devices`; the entry's name is the device's. It sets
`ROLLER_API` to the version below and marks its functions with `roller.plugin.hookimpl`. An implementation may take fewer arguments
than are listed here. All values are frozen. A hook's result depends on its arguments only, except for hooks that are documented to
look at the machine. `roller_codegen` and `roller_build` are called from several threads at once.
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
    """Required. Returns the chip to compile for if none is named: the attached one, else a documented default."""


@hookspec(firstresult=True)
def roller_codegen(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:  # type: ignore[empty-body]
    """Required. Returns the program as source text. Pure: the same input gives the same text, on any machine.

    A plugin with several languages returns the one that `options.language` names; all others may ignore it.
    """


@hookspec(firstresult=True)
def roller_build(spec: HardwareSpec, source: KernelSource, options: BuildOptions) -> Artifact:  # type: ignore[empty-body]
    """Required. Compiles source to binary, with the resources that the toolchain reports. Needs no such device.

    The plugin chooses the names of resources. The engine uses some of them. Names that end in "spilled_bytes" are bytes of values
    spilled to memory. Names that end in "added_waits" are waits that the toolchain added to the program. "<stage>.resident_tiles"
    is a stage's occupancy: the tiles that are resident on a unit at a time. "<stage>.copies" is the number of copies (pipeline
    stages) of panels that are filled from step to step. `explain` shows launches: "<kernel>.blocks", "<kernel>.threads" of a block,
    and, if given, "<kernel>.shared_bytes" of a block and "<kernel>.registers" of a thread.
    """


@hookspec(firstresult=True)
def roller_load_kernel(spec: HardwareSpec, artifact: Artifact) -> Runner:  # type: ignore[empty-body]
    """Required. Returns the artifact ready to run on this machine; `DeviceUnavailableError` if it has no such device."""


@hookspec(firstresult=True)
def roller_atoms(spec: HardwareSpec, expr: TensorExpr) -> Sequence[ComputeAtom] | None:
    """Returns the candidate atoms for an expression. Default: all atoms of the spec."""


@hookspec(firstresult=True)
def roller_tile_multiples(spec: HardwareSpec, expr: TensorExpr, level: int) -> Mapping[str, Multiple] | None:
    """Returns the permitted extents of tiles at a level of the spec, by dimension name. Default: whole transactions (rule 2)."""


@hookspec(firstresult=True)
def roller_cost_parameters(spec: HardwareSpec, expr: TensorExpr) -> CostParameters | None:
    """Returns parameters of the cost model beyond the spec. Default: `CostParameters()`."""


@hookspec(firstresult=True)
def roller_estimate(spec: HardwareSpec, program: StageProgram | RProgram, worth: float) -> Estimate | None:
    """Returns the device's own prediction, if the core's model does not fit it. Default: the core's model.

    `program` is one stage's program, rated as if it were alone, or a whole program of several stages, or its first few stages (its
    expression ends there). The hook is called for every stage's program that is ranked, so that call must take at most a fraction
    of a millisecond. Whole programs, some dozens a stage, may take a few milliseconds. Infinite seconds: the device cannot run it;
    then the only term's name is the rule, `reason` is the reason and, if memory is short, `short_bytes` the shortage. `clock_ghz`:
    the seconds are cycles of a simulator, at this clock.

    `worth`: a cutoff in seconds. For a program that takes `worth` seconds or more, the hook may return any number of seconds from
    `worth` up to the true prediction. A plugin may omit this argument.
    """


@hookspec(firstresult=True)
def roller_refusal(spec: HardwareSpec, program: RProgram) -> tuple[str, str] | None:
    """Returns why the device cannot run a program that fits: a short rule and a reason. Default: it can (None)."""


@hookspec(firstresult=True)
def roller_spec_dirs() -> Sequence[str | Path] | None:
    """Returns folders with the plugin's own spec files, each `<device>/<chip>.toml` inside. Default: none."""


@hookspec(firstresult=True)
def roller_requirements() -> Sequence[str] | None:
    """Returns what this machine lacks to build or run, one readable line each; looks at the machine. Default: nothing."""


@hookspec(firstresult=True)
def roller_build_problem(spec: HardwareSpec) -> str | None:
    """Returns why no kernel for a chip can be built on this machine, and what to do. Default: one can be built (None).

    It is called before anything is constructed.
    """


@hookspec(firstresult=True)
def roller_toolchain(spec: HardwareSpec) -> Mapping[str, str] | None:
    """Returns what a build for a chip depends on outside of roller, TVM and the plugin's package: names and texts; looks at the
    machine.

    Examples are versions of compilers and linkers, environment variables that change what they do, and the instruction sets of this
    machine where the spec is its own. The kernel cache calls it for every compilation, so it takes at most a millisecond or two.
    Default: not known (None): then kernels are kept for the process that compiled them only.
    """


@hookspec(firstresult=True)
def roller_measure_spec() -> HardwareSpec | None:
    """Measures the attached chip now, and stores the result for `roller_default_spec`. Default: it cannot be measured (None)."""


@hookspec(firstresult=True)
def roller_emulate(spec: HardwareSpec, artifact: Artifact) -> Runner | None:
    """Returns the artifact ready to run without its device, slowly. Default: it cannot be emulated (None)."""


@hookspec(firstresult=True)
def roller_assembly(spec: HardwareSpec, artifact: Artifact) -> str | None:
    """Returns the machine code of an artifact as readable text. Default: it cannot be shown (None)."""
