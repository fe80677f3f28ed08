"""Programs of Hopper's warp groups for tests: drawn from all that fit, run on the emulator, with words of their text exchanged."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import roller
from emulating import emulated, expression
from roller import ops, verify
from roller.device.chip import load_spec
from roller.errors import LaunchError, WrongResultError
from roller.ir.expr import TensorExpr
from roller.program.rprogram import RProgram
from roller.runtime.artifact import Artifact
from roller_cuda.codegen import limits

SPEC = load_spec("cuda:h100")
GROUPS = SPEC.model_copy(update={"atoms": tuple(a for a in SPEC.atoms if a.name.startswith("wgmma"))})  # nothing else to draw
MOST_BLOCKS = 24  # of a random program: the emulator runs thread after thread
ORDERS = [(backwards, eager) for backwards in (False, True) for eager in (False, True)]


def T(name: str, *shape: int, dtype: str = "float16") -> ops.SymbolicTensor:
    return ops.tensor(shape, dtype, name=name)


def of_groups(op: ops.SymbolicTensor, count: int = 400, seed_: int = 0) -> Iterator[RProgram]:
    """Programs of warp groups among so many that are drawn from all that fit."""
    for program in itertools.islice(roller.enumerate_programs(op, "cuda", spec=GROUPS).drawn(seed_), count):
        blocks = math.prod(lp.trips for lp in program.stages[0].loops if lp.over == "units")
        if "wgmma" in program.stages[0].atom.name and limits.refusal(SPEC, program) is None and blocks <= MOST_BLOCKS:
            yield program


def right(op: ops.SymbolicTensor, artifact: Artifact, backwards: bool, eager: bool) -> None:
    expr, arrays, expected = _expected(op)
    expected.check(emulated(expr, artifact, arrays, backwards, eager))


@lru_cache(4)  # one operator after another is run in several orders of events
def _expected(op: ops.SymbolicTensor) -> tuple[TensorExpr, dict[str, Any], verify.Expected]:
    expr = expression(op)
    arrays = verify.random_inputs(expr, 7)
    return expr, arrays, verify.Expected.of(expr, arrays)


def maps_of(artifact: Artifact) -> set[str]:
    """The inputs that come as boxes."""
    described = {m["tensor"] for kernel in artifact.launch["kernels"] for m in kernel.get("maps", {}).values()}
    return described & set(artifact.launch["inputs"])


def conv(layout: str, padding: int = 1, stride: int = 1) -> ops.SymbolicTensor:
    x = T("x", 1, 64, 12, 10) if layout == "NCHW" else T("x", 1, 12, 10, 64)
    w = T("w", 72, 64, 3, 3) if layout == "NCHW" else T("w", 3, 3, 64, 72)
    return ops.conv2d(x, w, padding=padding, stride=stride, layout=layout)


def kernel_text(artifact: Artifact) -> str:
    """The kernels without what stands above them."""
    text = str(artifact.launch["text"])
    return text[text.index("{", text.rindex('extern "C"')) :]


def broken(artifact: Artifact, before: str, after: str, number: int) -> Artifact:
    """The kernel with one word of it exchanged, where it stands for the `number`-th time."""
    text = str(artifact.launch["text"])
    start = text.index("{", text.rindex('extern "C"'))
    places = [m.start() for m in re.finditer(re.escape(before), text[start:])]
    at = start + places[number]
    return replace(artifact, launch={**artifact.launch, "text": text[:at] + after + text[at + len(before) :]})


def noticed(op: ops.SymbolicTensor, artifact: Artifact) -> bool:
    """True if a kernel is wrong, or is reported, in some order of events."""
    for backwards, eager in ORDERS:
        try:
            right(op, artifact, backwards, eager)
        except (WrongResultError, LaunchError):
            return True
    return False
