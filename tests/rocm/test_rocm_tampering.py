"""Emitted kernels with one thing wrong: the emulator refuses them, or they give other numbers than NumPy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import roller
from roller import ops, verify
from roller.errors import LaunchError, WrongResultError
from roller.kernel import Kernel
from roller.runtime.arrays import aligned_empty
from roller.runtime.artifact import Artifact
from roller.target.catalog import list_specs
from roller_rocm.emulator.emulator import Emulator
from roller_rocm.toolchain import assembly, waits
from snippets import needs_cxx, needs_linker

pytestmark = [needs_cxx, needs_linker]
Edit = Callable[[str], str]


CHIPS = sorted({"mi50", "mi300x", "rx7900xtx"} & {entry.chip for entry in list_specs("rocm")})
EXTENTS = [(390, 260, 140)]  # m, n, k: ragged, so that lanes are switched off
kernels = pytest.mark.parametrize(("chip", "extents"), [(chip, extents) for chip in CHIPS for extents in EXTENTS])
Extents = tuple[int, int, int]


@cache
def kernel(chip: str, extents: Extents) -> Kernel:
    """A product whose panels lie in local memory, where several waves fill them and lanes have several results."""
    m, n, k = extents
    op = ops.matmul(ops.tensor((m, k), name="a"), ops.tensor((k, n), name="b"))
    for built in roller.compile_top(op, f"rocm:{chip}", top_k=24):
        (stage,) = built.program.stages
        once = all(stage.unit_tile[d] >= stage.nest.extents[d] for d in stage.nest.reduce)
        if once and stage.lanes > built.spec.unit.lane_group and math.prod(stage.inner) > 1:
            return built
    raise AssertionError("no candidate is filled by several waves")


def checked(kernel: Kernel, artifact: Artifact) -> Emulator:
    """Run an artifact on random numbers and compare with the reference."""
    arrays = verify.random_inputs(kernel.expr, 1, False)
    out = aligned_empty(kernel.expr.output.shape, verify.numpy_dtype(kernel.expr.output.dtype))
    out.reshape(-1).view(np.uint8)[...] = 0xFF
    emulator = Emulator(artifact)
    emulator.run(tuple(np.ascontiguousarray(arrays[t.name]) for t in kernel.expr.inputs), out)
    verify.check(kernel.expr, arrays, out)
    return emulator


def edited(artifact: Artifact, edit: Edit) -> Artifact:
    """The artifact with other assembly."""
    text = str(artifact.launch["assembly"])
    assert edit(text) != text, "nothing to edit"
    launch = {**artifact.launch, "assembly": edit(text)}
    return Artifact(artifact.format, artifact.data, launch, artifact.resources, artifact.device, artifact.spec)


def replaced(pattern: str, by: str, at: int = 0) -> Edit:
    """One of the places that a pattern finds, counted from the end where `at` is negative."""

    def edit(text: str) -> str:
        places = list(re.finditer(pattern, text, re.MULTILINE))
        found = places[at]
        return text[: found.start()] + found.expand(by) + text[found.end() :]

    return edit


def everywhere(pattern: str, by: str) -> Edit:
    """All of the places that a pattern finds."""
    return lambda text: re.sub(pattern, by, text, flags=re.MULTILINE)


def ended(text: str) -> str:
    """The longest loop without its way back; shorter ones may have one trip only."""
    labels = {found[1]: found.start() for found in re.finditer(r"^(\.L\w+):", text, re.MULTILINE)}
    branches = re.finditer(r"^\ts_cbranch_scc[01] (\.L\w+)\n", text, re.MULTILINE)
    back = [(found.start() - labels[found[1]], found) for found in branches if labels[found[1]] < found.start()]
    _, longest = max(back, key=lambda item: item[0])
    return text[: longest.start()] + text[longest.end() :]


BARRIER = r"^\ts_barrier\n"
# What is done to the kernel, and what comes of it: a fault that the emulator names, or wrong numbers.
EDITS: dict[str, tuple[Edit, str]] = {
    "no barriers": (everywhere(BARRIER, ""), "fault: depend on the order"),
    "no waits for local memory": (everywhere(r"lgkmcnt\(\d+\)", "lgkmcnt(15)"), "fault: before its load|under way"),
    "no wait before a barrier": (
        everywhere(r"lgkmcnt\(0\)\n(?=(?:\t(?!ds_|s_barrier).*\n)*\ts_barrier)", r"lgkmcnt(15)\n"),
        "fault: under way|before its load",
    ),
    "no waits for global memory": (everywhere(r"vmcnt\(\d+\)", "vmcnt(63)"), "fault: before its load"),
    "a wait that leaves one more": (replaced(r"vmcnt\(0\)", "vmcnt(1)"), "fault: before its load"),
    "a scalar too early": (replaced(r"^(\ts_load_.*\n(?:.*\n)*?)\ts_waitcnt lgkmcnt\(0\)\n", r"\1"), "fault: before its load"),
    "another offset of a read": (replaced(r"^(\tds_(?:read|load).* offset1?):(\d+)$", r"\1:\g<2>1", -1), "wrong or fault"),
    "another place of a write": (replaced(r"^(\tds_(?:write|store)\S+) v(\d+)", r"\1 v1\2", -1), "wrong or fault"),
    "another factor": (replaced(r"^(\tv_(?:pk_|dual_)?fmac?_f32\S* v\S+ )v(\[?)(\d+)", r"\1v\g<2>0", -1), "wrong or fault"),
    "lanes that stay off": (everywhere(r"^\ts_or_b(64|32) exec\w*, exec.*\n", ""), "wrong or fault"),
    "lanes that stay on": (everywhere(r"^\ts_and_saveexec_b(\d+) (\S+), .*\n", r"\ts_mov_b\1 \2 exec\n"), "wrong or fault"),
    "a loop that ends at once": (ended, "wrong or fault"),
    "a store elsewhere": (replaced(r"^(\tglobal_store\S+ .*?)(?: offset:\d+)?$", r"\1 offset:4", -1), "wrong or fault"),
}


@kernels
def test_the_kernel_itself_is_right(chip: str, extents: Extents) -> None:
    checked(kernel(chip, extents), kernel(chip, extents).artifact)


@kernels
@pytest.mark.parametrize("what", EDITS)
def test_one_thing_wrong_is_noticed(what: str, chip: str, extents: Extents) -> None:
    edit, said = EDITS[what]
    whole = kernel(chip, extents)
    try:
        changed = edited(whole.artifact, edit)
    except (IndexError, AssertionError):
        pytest.skip("the kernel has no such place")
    expected = said.partition("fault: ")[2]
    try:
        checked(whole, changed)
    except WrongResultError:
        assert said.startswith("wrong")
    except LaunchError as error:
        assert "fault" in said and re.search(expected, str(error)), error
    else:
        pytest.fail("nothing was noticed")


@kernels
def test_the_check_without_running_finds_every_wait_that_matters(chip: str, extents: Extents) -> None:
    """Without any of the waits that stand between writes to local memory and a barrier, something is found."""
    text = str(kernel(chip, extents).artifact.launch["assembly"])
    whole = assembly.parsed(text).kernels.values()
    assert not [found for k in whole for found in waits.unwaited(k)]
    without = assembly.parsed(re.sub(r"lgkmcnt\(\d+\)", "lgkmcnt(15)", text)).kernels.values()
    barriers = sum(i.name == "s_barrier" for k in whole for i in k.instructions)
    assert barriers and [found for k in without for found in waits.unwaited(k)]
