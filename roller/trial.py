"""Trials of built kernels in the worker process: correctness and run time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roller.device.plugins import Device, load_device
from roller.errors import DeviceUnavailableError, KernelError, RollerError
from roller.ir.expr import TensorExpr
from roller.ir.serialization import expr_from_json
from roller.runtime.arrays import Array, aligned_empty, numpy_dtype, ready
from roller.runtime.artifact import Artifact, Runner
from roller.runtime.worker import run_isolated
from roller.verify import check, random_inputs, sample_points

MEASURE_SECONDS = 2.0  # total timing of all candidates
SAMPLE_SECONDS = 1e-3  # a faster kernel runs several times for one sample
TRIAL_SECONDS = 300.0
ROUNDS = 3  # minimum, even if it takes longer
WHOLE_WORK = 2e8  # max operations for which every element is checked
POINTS = 512


def measure(artifacts: Sequence[Artifact], seconds: float = MEASURE_SECONDS) -> list[float | None]:
    """Returns the median seconds of each kernel, timed in turns; None for one that crashes, hangs or raises.

    `DeviceUnavailableError` if the device is not present: then none of them runs. `KernelError` if the device is simulated: the run
    time of a simulator means nothing.
    """
    simulated = next((a for a in artifacts if a.estimate.get("clock_ghz") is not None), None)
    if simulated is not None:
        raise KernelError(f"{simulated.device} is simulated: there is nothing to time; Kernel.profile() gives the simulated cycles")
    raw = [replace(a, resources=a.known_resources).to_bytes() for a in artifacts]  # resources not computed yet are not needed
    try:
        return list(run_isolated(_timed, raw, seconds, deadline_s=TRIAL_SECONDS))
    except DeviceUnavailableError:
        raise
    except RollerError:
        return [_alone(one, seconds / len(raw)) for one in raw]  # one of them fails: find out which


def _alone(raw: bytes, seconds: float) -> float | None:
    try:
        return run_isolated(_timed, [raw], seconds, deadline_s=TRIAL_SECONDS)[0]
    except RollerError:
        return None


def verify(artifact: Artifact, expr: TensorExpr, emulate: bool = False) -> None:
    """Compares the kernel with the reference on random floats, integers and special values; `WrongResultError` if it is wrong.

    If factors may be rounded to a narrower format, it also uses numbers that this format represents, so that any narrower one
    fails.

    `expr` is the operator as the user wrote it. Large operators are checked at sampled points. `emulate`: on the plugin's emulator
    instead of the device, which is slow; `DeviceUnavailableError` if there is none.
    """
    run_isolated(_verified, artifact.to_bytes(), expr, emulate, deadline_s=TRIAL_SECONDS)


def _timed(raw: Sequence[bytes], seconds: float) -> list[float]:
    calls = [_call(Artifact.from_bytes(one)) for one in raw]
    repeats = [_repeats(call) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(samples[0]) < ROUNDS or time.perf_counter() < end:
        for call, count, taken in zip(calls, repeats, samples, strict=True):
            begin = time.perf_counter()
            for _ in range(count):
                call()
            taken.append((time.perf_counter() - begin) / count)
    return [statistics.median(taken) for taken in samples]


def _repeats(call: Callable[[], None]) -> int:
    call()  # the first call starts threads and touches memory
    begin = time.perf_counter()
    call()
    return max(1, int(SAMPLE_SECONDS / max(time.perf_counter() - begin, 1e-7)))


def _call(artifact: Artifact) -> Callable[[], None]:
    """Returns a call of the kernel on random inputs."""
    expr = expr_from_json(artifact.expr)
    runner = load_device(artifact.device).load_kernel(artifact)
    inputs = _inputs(artifact, random_inputs(expr))
    out = _poisoned(expr)
    return lambda: runner.run(inputs, out)


def _inputs(artifact: Artifact, arrays: dict[str, Array]) -> tuple[Array, ...]:
    return tuple(ready(a) for name, a in arrays.items() if name not in artifact.constants)


def _poisoned(expr: TensorExpr) -> Array:
    """Returns output memory with a pattern that no correct kernel leaves unchanged."""
    out = aligned_empty(expr.output.shape, numpy_dtype(expr.output.dtype))
    out.reshape(-1).view(np.uint8)[...] = 0xFB
    return out


def _verified(raw: bytes, expr: TensorExpr, emulate: bool) -> None:
    artifact = Artifact.from_bytes(raw)
    plugin = load_device(artifact.device)
    runner = plugin.emulate(artifact) if emulate else _loaded(plugin, artifact)
    points = None if expr.flops <= WHOLE_WORK else sample_points(expr, POINTS)
    formats = dict.fromkeys(s.factor_dtype for s in expr.stages if s.factor_dtype is not None)
    draws: list[dict[str, Any]] = [{}, {"integer": True}, {"special": True}, *({"held": held} for held in formats)]
    for drawn in draws:
        arrays = {**random_inputs(expr, **drawn), **_constants(artifact, expr)}
        check(expr, arrays, _result(runner, artifact, expr, arrays), points)


def _loaded(plugin: Device, artifact: Artifact) -> Runner:
    """Returns the kernel on its device; if there is no device, the error suggests the emulator."""
    try:
        return plugin.load_kernel(artifact)
    except DeviceUnavailableError as error:
        hint = "; `roller verify --emulate` compares it on the emulator" if plugin.emulates else ""
        raise DeviceUnavailableError(f"{error}{hint}") from error


def _constants(artifact: Artifact, expr: TensorExpr) -> dict[str, Array]:
    tensors = [t for t in expr.inputs if t.name in artifact.constants]
    return {t.name: np.frombuffer(artifact.constants[t.name], numpy_dtype(t.dtype)).reshape(t.shape) for t in tensors}


def _result(runner: Runner, artifact: Artifact, expr: TensorExpr, arrays: dict[str, Array]) -> Array:
    out = _poisoned(expr)
    if out.size:
        runner.run(_inputs(artifact, arrays), out)
    return out
