"""One operator compiled for one chip, in a process of its own: what a case's file says, and its binaries."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

import roller
from bench.gpu.expressions import expression
from bench.gpu.operators import Operator, from_json
from bench.gpu.package import SCHEMA
from bench.gpu.platform import Platform, known
from roller import building
from roller.device.plan import Plan
from roller.device.plugins import load_device
from roller.program.record import Choice
from roller.runtime.artifact import Artifact
from roller.target.hardware import HardwareSpec

TOP = 10
SOURCES = (".py", ".cuh", ".h", ".ll")
# What a compiler that is at fault may raise: one operator that fails must not cost the others' kernels.
FAILURES = (roller.RollerError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


Built = tuple[dict[str, Any], bytes, dict[str, bytes]]  # what an entry says of a program, its binary, the values of its constants


def compiled(device: str, table: Mapping[str, Any], chip: str) -> list[Built]:
    """The programs of an operator, the chosen one first; `RollerError` where it does not compile.

    Of the ten best, one that does not compile says why and has no binary.
    """
    op = from_json(table)
    began = time.perf_counter()
    precision = op.options.get("precision", "ieee")
    kernel = roller.compile(expression(op), device=f"{device}:{chip}", top_k=TOP, precision=precision)
    artifact, chosen = kernel.artifact, kernel.candidates[0]
    seconds = round(time.perf_counter() - began, 3)
    program, binary, constants = built(artifact, chosen)
    found = [({**program, "compile_s": seconds}, binary, constants)]
    others = kernel.candidates[1:] if op.ten else ()
    outcomes = building.attempts(Plan(load_device(device), kernel.spec), others)
    return found + [_told(*pair) for pair in zip(others, outcomes, strict=True)]


def _told(choice: Choice, outcome: building.Attempt | roller.RollerError) -> Built:
    if isinstance(outcome, roller.RollerError):
        return {"reason": said(outcome), **_said_of(choice)}, b"", {}
    return built(outcome.artifact, outcome.choice)


def built(artifact: Artifact, choice: Choice) -> Built:
    """A program as it is packed; the text of its kernels stays here."""
    emulated = known(artifact.device).emulated
    launch = json.loads(json.dumps({k: v for k, v in artifact.launch.items() if k not in emulated}, default=_plain))
    program = {"launch": launch, "resources": dict(artifact.resources), **_said_of(choice)}
    return program, artifact.data, dict(artifact.constants)


def _said_of(choice: Choice) -> dict[str, Any]:
    return {"predicted_s": choice.estimate.seconds, "bound_by": choice.estimate.bound_by, "program": choice.program.describe()}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)


def said(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def roofline(op: Operator, spec: HardwareSpec) -> float:
    """Seconds that the chip's peaks allow: the fastest units for the type of a product, every byte once over memory."""
    matrix = spec.peaks_gflops.get(f"{op.factor_dtype}_matrix")
    peak = matrix or spec.peaks_gflops["float32"]
    bandwidth = spec.levels[1].bandwidth_gbps or float("inf")
    return max(op.flops / (peak * 1e9), op.moved / (bandwidth * 1e9))


def fingerprint(platform: Platform, op: Operator, spec: HardwareSpec) -> str:
    """Changes whenever the kernel might: with the operator, the chip's spec, roller's own text, and the tools' versions."""
    parts = [json.dumps(op.to_json(), sort_keys=True), json.dumps(spec.model_dump(mode="json"), sort_keys=True)]
    parts += [_text(platform.device, platform.tools), str(SCHEMA)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def versions(tools: tuple[str, ...]) -> dict[str, str]:
    """Of roller and of the tools that kernels are made with."""
    return {"roller-compiler": roller.__version__} | {name: metadata.version(name) for name in tools if _installed(name)}


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


@cache
def _text(device: str, tools: tuple[str, ...]) -> str:
    """A digest of everything that kernels are made by."""
    digest = hashlib.sha256(json.dumps(versions(tools), sort_keys=True).encode())
    for path in _files(("roller", f"roller_{device}")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(packages: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for package in packages:
        spec = util.find_spec(package)
        assert spec is not None and spec.origin is not None, package
        found += [p for p in Path(spec.origin).parent.rglob("*") if p.suffix in SOURCES]
    return sorted(found)
