"""compile(), compile_top() and load(): from an operator or a file to a kernel."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from roller.cache.entry import Kept
from roller.cache.kernels import fetch
from roller.cache.key import key_of
from roller.device.chip import SpecLike, resolve
from roller.device.plan import Plan
from roller.errors import ExpressionError
from roller.ir.expr import FLOATS, Tensor, TensorExpr
from roller.kernel import Kernel, restored
from roller.ops import SymbolicTensor, expression
from roller.precision import permitted
from roller.runtime.arrays import Wanted, admit, numpy_dtype
from roller.runtime.artifact import Artifact, BuildOptions
from roller.target.subset import limited

Op = SymbolicTensor | TensorExpr

_step = logging.getLogger("roller.step")  # progress messages of a long compilation


def compile(
    op: Op,
    device: str | None = None,
    *,
    spec: SpecLike | None = None,
    top_k: int = 10,
    measure: bool = False,
    verify: bool = False,
    constants: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "ieee",
    math: str = "ieee",
    debug: bool = False,
) -> Kernel:
    """Compiles an operator to a kernel, constructed for a chip; the chip need not be present.

    `device`: "name" or "name:chip" (default: that of `spec`, else "cpu"); `spec`: a spec or its file instead of a chip.
    `top_k`: how many programs to keep. `measure`: build and time them all here, and return the fastest. `verify`: compare the
    kernel with the reference. `constants`: values of constant inputs, packed once and omitted from calls. `threads`: max number
    of units, for devices whose units get runs of tiles (not for GPUs).
    `precision`: "ieee", or "tf32", which permits a kernel to round the factors of float32 products. `math`: "ieee"; "strict", which
    forbids fused multiply-adds outside reductions; or "fast", which permits more than IEEE 754 does (both: `roller.precision`).
    Every failure is a `RollerError`. The logger "roller.step" reports progress.
    """
    expr = permitted(expression_of(op), precision, math)
    plan, expr = planned(expr, device, spec, constants, threads, debug)
    key = key_of(plan.device, plan.chip, expr, plan.options, top_k, measure)
    kept = fetch(key, lambda: _built(plan, expr, top_k, measure))
    artifact = kept.of(plan.chip, plan.fixed)
    if verify:
        _step.info("comparing with the reference")
        from roller import trial  # noqa: PLC0415  (as below)

        trial.verify(artifact, expr)
    return Kernel(artifact, kept.expr, plan.device, kept.choices)


def _built(plan: Plan, expr: TensorExpr, top_k: int, measure: bool) -> Kept:
    from roller import pipeline  # noqa: PLC0415  (a kept kernel needs none of its modules, whose import takes a while)

    chosen, choices = pipeline.built(plan, expr, top_k, measure)
    return Kept(replace(chosen.artifact, constants={}), chosen.choice.program.expr, lambda: choices)


def compile_top(
    op: Op,
    device: str | None = None,
    *,
    spec: SpecLike | None = None,
    top_k: int = 10,
    constants: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "ieee",
    math: str = "ieee",
    debug: bool = False,
) -> tuple[Kernel, ...]:
    """Compiles the `top_k` best programs, built in parallel on all cores; the kernel that `compile` would return is the first.

    None of them is run: measure them elsewhere, on the machine that they are for. All else is as for `compile`; the error of a
    program that does not build has a note that names it.
    """
    from roller import pipeline  # noqa: PLC0415  (as above)

    expr = permitted(expression_of(op), precision, math)
    plan, expr = planned(expr, device, spec, constants, threads, debug)
    attempts = pipeline.all_built(plan, expr, top_k)
    rated = [attempt.choice for attempt in attempts]
    return tuple(
        Kernel(a.artifact, a.choice.program.expr, plan.device, (a.choice, *rated[:n], *rated[n + 1 :]))
        for n, a in enumerate(attempts)
    )


def planned(
    expr: TensorExpr,
    device: str | None,
    spec: SpecLike | None,
    constants: Mapping[str, Any] | None,
    threads: int | None,
    debug: bool,
) -> tuple[Plan, TensorExpr]:
    """Returns the context in which programs are built, from checked arguments, and the expression with what constants tell."""
    plugin, chip = resolve(device, spec)
    fixed = _constants(expr, {} if constants is None else constants)
    plan = Plan(plugin, limited(chip, threads), BuildOptions(threads, tuple(fixed), debug), fixed)
    return plan, TensorExpr(tuple(replace(t, finite=_finite(t, fixed.get(t.name))) for t in expr.inputs), expr.stages)


def load(path: str | os.PathLike[str]) -> Kernel:
    """Loads the kernel that `Kernel.save` wrote, in any process, without constructing it again.

    A saved kernel is code: load only files that you trust. `KernelError`, with the file's name, if it cannot be loaded.
    """
    return restored(Artifact.load(path), os.fspath(path))


def expression_of(op: Op) -> TensorExpr:
    """Returns the tensor expression of an operator to compile; `ExpressionError` for anything else."""
    if isinstance(op, TensorExpr):
        return op
    if isinstance(op, SymbolicTensor):
        return expression(op)
    kind = type(op).__name__
    raise ExpressionError(f"an operator expected, such as ops.matmul(a, b) of roller.tensor(...); got {kind}")


def _constants(expr: TensorExpr, given: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the row-major bytes of the constant inputs, in the expression's order."""
    if not isinstance(given, Mapping):
        raise ExpressionError(f'constants: {{"name of an input": array}} expected, got {type(given).__name__}')
    tensors = {t.name: t for t in expr.inputs}
    for name in given:
        if name not in tensors:
            raise ExpressionError(f"constants: no input is called {name!r}; inputs: {', '.join(tensors)}")
    wanted = [Wanted(t.name, t.shape, numpy_dtype(t.dtype)) for t in expr.inputs if t.name in given]
    return {w.name: admit(given[w.name], w)[0].tobytes() for w in wanted}


def _finite(tensor: Tensor, value: bytes | None) -> bool:
    """True if an input has no element that is infinite or a NaN, as far as its value is known."""
    if value is None or tensor.dtype not in FLOATS:
        return tensor.finite
    return bool(np.isfinite(np.frombuffer(value, numpy_dtype(tensor.dtype))).all())
