"""One operator of `bench.emulated.cases` on one chip: compiled, run on the emulator, compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import roller
from bench.emulated.cases import EmulatedCase
from roller import ops, verify
from roller.device.chip import resolve
from roller.device.plugins import load_device
from roller.errors import ConstructionError, DeviceUnavailableError, ExpressionError, LaunchError, RollerError, WrongResultError
from roller.ir.expr import TensorExpr
from roller.ir.nest import variants
from roller.program.rprogram import RProgram
from roller.runtime.arrays import aligned_empty
from roller.runtime.artifact import Artifact, BuildOptions, Runner
from roller.runtime.worker import run_isolated
from roller.search.construct import construct
from roller.search.tile_space import unsuited
from roller.target.hardware import HardwareSpec
from roller_cuda.toolchain import compiling

TOP_K = 60  # programs among which a kind of matrix unit is looked for
GUARD, GUARDS = 0xFB, 256  # what lies behind an output, and how many bytes of it
DEADLINE_SECONDS = 300.0  # for one operator on one chip
NAN = 0xFF  # of an output's bytes before a kernel runs: a NaN in every floating type
# What a compiler that is at fault may raise: one operator that fails must not cost the others' results.
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

Row = tuple[str, str, str, str]  # case; right, refused, skipped, wrong or failed; the atoms of its programs; what was said


def computed(expr: TensorExpr, artifact: Artifact, arrays: dict[str, Any], runner: Runner | None = None) -> np.ndarray[Any, Any]:
    """The result of a kernel on its device's emulator, from an output full of NaN; `LaunchError` where it wrote beyond it."""
    dtype = verify.numpy_dtype(expr.output.dtype)
    size = math.prod(expr.output.shape) * dtype.itemsize
    raw = aligned_empty((size + GUARDS,), np.dtype(np.uint8))
    raw[:size], raw[size:] = NAN, GUARD
    out = raw[:size].view(dtype).reshape(expr.output.shape)
    inputs = tuple(np.ascontiguousarray(arrays[t.name]) for t in expr.inputs if t.name not in artifact.constants)
    (load_device(artifact.device).emulate(artifact) if runner is None else runner).run(inputs, out)
    if (raw[size:] != GUARD).any():
        raise LaunchError("written beyond the output")
    return out


def contained(case: EmulatedCase, chip: str, device: str = "cuda") -> Row:
    """What becomes of one operator on one chip, in a process that may crash or hang."""
    try:
        return run_isolated(ran, case, chip, device, deadline_s=DEADLINE_SECONDS)
    except RollerError as error:
        return case.id, "failed", "", f"{type(error).__name__}: {error}"


def ran(case: EmulatedCase, chip: str, device: str = "cuda") -> Row:
    """What becomes of one operator on one chip of a device."""
    atoms: list[str] = []
    try:
        expr, fixed = ops.expression(case.make()), case.constants()
        for artifact, program in programs(case, chip, device):
            atoms.append("+".join(dict.fromkeys(s.atom.name for s in program.stages)))
            for integer, special in ((True, False), (False, False), (False, True)):
                arrays = {**verify.random_inputs(expr, 1, integer, special=special), **fixed}
                verify.check(expr, arrays, computed(program.expr, artifact, arrays))
    except (RollerError, *FAULTS) as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return case.id, _status(error), ", ".join(atoms), said
    return case.id, "right", ", ".join(atoms), ""


def _status(error: Exception) -> str:
    if isinstance(error, WrongResultError | LaunchError):
        return "wrong"
    if isinstance(error, ExpressionError | ConstructionError):
        return "refused"
    return "skipped" if isinstance(error, DeviceUnavailableError) else "failed"


def programs(case: EmulatedCase, chip: str, device: str) -> Iterator[tuple[Artifact, RProgram]]:
    """The kernel that a user gets; then the best program of each other kind of unit that suits."""
    op, fixed = case.make(), case.constants()
    kernel = roller.compile(op, device=f"{device}:{chip}", constants=fixed)
    yield kernel.artifact, kernel.program
    expr, chosen = kernel.expr, kinds(kernel.program)
    suited = {kind for kind in kinds_of(kernel.spec) if suits(expr, kernel.spec, kind)}
    for wanted in [{kind} for kind in sorted(suited)] + ([set[str]()] if suited else []):
        program = None if wanted == chosen else best(expr, kernel.spec, wanted, frozenset(fixed))
        if program is not None:
            constants = {name: np.ascontiguousarray(value).tobytes() for name, value in fixed.items()}
            yield replace(built(kernel.spec, program), constants=constants), program


def built(spec: HardwareSpec, program: RProgram) -> Artifact:
    """A program's artifact; where the emulator reads the source, without the binary that it would not look at."""
    plugin, options = load_device(spec.device), BuildOptions()
    source = plugin.codegen(spec, program, options)
    if source.language != "cuda-c++":
        return plugin.build(spec, source, options)
    return Artifact(compiling.FORMAT, b"none", {**source.launch, "text": source.text}, {}, spec.device, spec)


def kind_of(atom: str) -> str:
    """The kind of a matrix unit's instruction: `mma`, `wmma`, `wgmma`."""
    return atom.partition("_")[0]


def kinds(program: RProgram) -> set[str]:
    """The kinds of matrix units that a program uses."""
    return {kind_of(s.atom.name) for s in program.stages if s.atom.kind == "matrix"}


def kinds_of(spec: HardwareSpec) -> set[str]:
    """The kinds of matrix units that a chip has."""
    return {kind_of(a.name) for a in spec.atoms if a.kind == "matrix"}


def only(spec: HardwareSpec, wanted: set[str]) -> HardwareSpec:
    """The chip without the matrix units of other kinds."""
    return spec.model_copy(update={"atoms": tuple(a for a in spec.atoms if a.kind != "matrix" or kind_of(a.name) in wanted)})


def suits(expr: TensorExpr, spec: HardwareSpec, kind: str) -> bool:
    """Whether a stage of the expression suits a kind of matrix unit."""
    plugin, _ = resolve(spec.device, spec)
    atoms = plugin.rules(spec, expr).atoms
    matrix = [a for a in atoms if a.kind == "matrix" and kind_of(a.name) == kind]
    nests = [nest for stage in expr.stages for nest in variants(stage, expr.tensors)]
    return any(unsuited(nest, atom, atoms) is None for nest in nests for atom in matrix)


def best(expr: TensorExpr, spec: HardwareSpec, wanted: set[str], constants: frozenset[str]) -> RProgram | None:
    """The best program that uses just these kinds of matrix units; None where none of the best does."""
    plugin, less = resolve(spec.device, only(spec, wanted))
    found = construct(expr, less, plugin.rules(less, expr), plugin.cost_parameters(less, expr), TOP_K, constants)
    suitable = (c.program for c in found if kinds(c.program) == wanted and plugin.refusal(less, c.program) is None)
    return next(suitable, None)
