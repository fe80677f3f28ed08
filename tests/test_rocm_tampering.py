"""Emitted kernels with one thing wrong: the emulator refuses them, or they give other numbers than NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from snippets import needs_cxx, needs_linker

import roller
from roller import ops, verify
from roller.arrays import aligned_empty
from roller.compiled import Kernel
from roller.errors import LaunchError, WrongResultError
from roller.kernel import Artifact
from roller_rocm import assembly, waits
from roller_rocm.emulator import Emulator

pytestmark = [needs_cxx, needs_linker]
Edit = Callable[[str], str]


@cache
def kernel(chip: str, dtype: str = "float32") -> Kernel:
    """A product whose tile lies in local memory, ragged so that lanes are switched off."""
    op = ops.matmul(ops.tensor((130, 70), dtype, name="a"), ops.tensor((70, 100), dtype, name="b"))
    return roller.compile(op, device=f"rocm:{chip}", top_k=3)


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


BARRIER = r"^\ts_barrier\n"
# What is done to the kernel, and what comes of it: a fault that the emulator names, or wrong numbers.
EDITS: dict[str, tuple[Edit, str]] = {
    "no barriers": (everywhere(BARRIER, ""), "fault: depend on the order"),
    "a barrier less": (replaced(BARRIER, "", -1), "fault: depend on the order|wait at"),
    "no waits for local memory": (everywhere(r"lgkmcnt\(\d+\)", "lgkmcnt(15)"), "fault: before its load|under way"),
    "no wait before a barrier": (
        replaced(r"lgkmcnt\(0\)\n(?=(?:\t(?!ds_|s_barrier).*\n)*\ts_barrier)", r"lgkmcnt(15)\n"),
        "fault: under way",
    ),
    "no waits for global memory": (everywhere(r"vmcnt\(\d+\)", "vmcnt(63)"), "fault: before its load"),
    "a wait that leaves one more": (replaced(r"vmcnt\(0\)", "vmcnt(1)"), "fault: before its load"),
    "another offset of a read": (replaced(r"^(\tds_read.* offset1?):(\d+)$", r"\1:\g<2>1", -1), "wrong or fault: local memory"),
    "another offset of a write": (
        replaced(r"^(\tds_write.*)$", r"\1 offset:4", -1),
        "wrong or fault: local memory|depend|does not know",
    ),
    "another factor": (replaced(r"^(\tv_(?:pk_)?fmac?_f32\S* v\S+, )v(\[?)\d+", r"\1v\g<2>0", -1), "wrong or fault: depend"),
    "another sum": (replaced(r"^\tv_add_f32", "\tv_sub_f32", -1), "wrong"),
    "lanes that stay off": (everywhere(r"^\ts_or_b64 exec, exec, .*\n", ""), "wrong or fault: depend|wait"),
    "another branch": (
        replaced(r"s_cbranch_scc0", "s_cbranch_scc1", -1),
        "wrong or fault: too many|depend|lies in|of argument|before|local",
    ),
    "a store elsewhere": (replaced(r"^(\tglobal_store\S+ .*)$", r"\1 offset:4", -1), "wrong or fault: of argument"),
    "a scalar too early": (replaced(r"^(\ts_load_dword.*\n(?:.*\n)*?)\ts_waitcnt lgkmcnt\(0\)\n", r"\1"), "fault: before its load"),
}


@pytest.mark.parametrize("chip", ["mi50", "mi300x"])
def test_the_kernel_itself_is_right(chip: str) -> None:
    checked(kernel(chip), kernel(chip).artifact)


@pytest.mark.parametrize("chip", ["mi50", "mi300x"])
@pytest.mark.parametrize("what", EDITS)
def test_one_thing_wrong_is_noticed(what: str, chip: str) -> None:
    edit, said = EDITS[what]
    whole = kernel(chip)
    try:
        changed = edited(whole.artifact, edit)
    except (IndexError, AssertionError):
        pytest.skip("the kernel has no such place")
    expected = said.removeprefix("wrong or ").removeprefix("fault: ")
    try:
        checked(whole, changed)
    except WrongResultError:
        assert said.startswith("wrong")
    except LaunchError as error:
        assert "fault" in said and re.search(expected, str(error)), error
    else:
        pytest.fail("nothing was noticed")


@pytest.mark.parametrize("chip", ["mi50", "mi300x"])
def test_the_check_without_running_finds_every_wait_that_matters(chip: str) -> None:
    """Without any of the waits that stand between writes to local memory and a barrier, something is found."""
    text = str(kernel(chip).artifact.launch["assembly"])
    whole = assembly.parsed(text).kernels.values()
    assert not [found for k in whole for found in waits.unwaited(k)]
    without = assembly.parsed(re.sub(r"lgkmcnt\(\d+\)", "lgkmcnt(15)", text)).kernels.values()
    barriers = sum(i.name == "s_barrier" for k in whole for i in k.instructions)
    assert barriers and [found for k in without for found in waits.unwaited(k)]
