"""Writes to local memory that a barrier does not find done, found without running: on straight lines, branches and loops."""

from __future__ import annotations

import pytest

from roller.errors import CodegenError
from roller_rocm.toolchain import waits
from snippets import parsed

WRITE, READ, WAIT, BARRIER = "ds_write_b32 v1, v10", "ds_read_b32 v40, v1", "s_waitcnt lgkmcnt(0)", "s_barrier"


def broken(*lines: str) -> list[str]:
    """What is found, without the lines' numbers."""
    return [text for _, text in waits.unwaited(parsed("\n".join(lines)))]


@pytest.mark.parametrize(
    "lines",
    [
        (WRITE, WAIT, BARRIER),
        (BARRIER, WRITE),  # nobody meets behind it
        (WRITE, READ, "s_waitcnt lgkmcnt(1)", BARRIER),  # the read alone may be under way
        (WRITE, "ds_bpermute_b32 v41, v2, v10", "s_waitcnt lgkmcnt(1)", BARRIER),
        (WRITE, "s_waitcnt vmcnt(3) lgkmcnt(0)", BARRIER),
        (WRITE, "s_waitcnt 0", BARRIER),
        (READ, BARRIER),
        ("ds_bpermute_b32 v41, v2, v10", BARRIER),
        ("global_store_dword v1, v10, s[6:7]", BARRIER),
        (WRITE, "s_cbranch_scc0 .L1", WAIT, "s_branch .L2", ".L1:", WAIT, ".L2:", BARRIER),
        (".L1:", WAIT, BARRIER, WRITE, "s_cbranch_scc1 .L1"),
        (WRITE, "s_cbranch_scc0 .L1", WAIT, BARRIER, ".L1:"),  # the path without a wait has no barrier
        (WRITE, "s_branch .L1", BARRIER, ".L1:"),  # nobody comes to the barrier
        (WRITE, WAIT, ".L1:", BARRIER, READ, "s_cbranch_scc1 .L1"),
    ],
)
def test_what_is_waited_for_passes(lines: tuple[str, ...]) -> None:
    assert broken(*lines) == []


@pytest.mark.parametrize(
    "lines",
    [
        (WRITE, BARRIER),
        ("ds_store_b128 v1, v[10:13]", BARRIER),
        ("ds_write2st64_b32 v1, v10, v11 offset1:1", BARRIER),
        ("ds_add_u32 v1, v10", BARRIER),  # what is not known counts as a write
        (WRITE, "s_waitcnt vmcnt(0)", BARRIER),
        (WRITE, "s_waitcnt lgkmcnt(1)", BARRIER),
        (READ, WRITE, "s_waitcnt lgkmcnt(1)", BARRIER),  # what came before the write helps nobody
        (WRITE, "s_load_dword s8, s[4:5], 0x0", "s_waitcnt lgkmcnt(1)", BARRIER),  # which may come first
        (WAIT, WRITE, BARRIER),
        (WRITE, "s_cbranch_scc0 .L1", WAIT, ".L1:", BARRIER),  # waited for on one of two paths
        (WRITE, READ, "s_cbranch_scc0 .L1", READ, ".L1:", "s_waitcnt lgkmcnt(2)", BARRIER),  # one read behind it, or two
        (WAIT, ".L1:", BARRIER, WRITE, "s_cbranch_scc1 .L1"),  # around a loop
        (".L1:", BARRIER, "s_cbranch_vccz .L2", WRITE, ".L2:", "s_cbranch_scc1 .L1"),
        (WRITE, "s_barrier_signal -1"),
    ],
)
def test_what_is_not_waited_for_is_found(lines: tuple[str, ...]) -> None:
    assert len(broken(*lines)) == 1


def test_a_finding_names_barrier_and_write() -> None:
    kernel = parsed("\n".join(["v_nop", WRITE, "v_nop", BARRIER]))
    assert waits.unwaited(kernel) == [(5, "s_barrier: line 3, 'ds_write_b32 v1, v10', may be under way")]
    with pytest.raises(CodegenError, match=r"kernel 'k'.*line 5, s_barrier: line 3"):
        waits.check([kernel])
    waits.check([parsed("\n".join([WRITE, WAIT, BARRIER]))])


def test_every_write_is_named() -> None:
    assert len(broken(WRITE, "ds_write_b32 v2, v11", BARRIER)) == 2
    assert len(broken(WRITE, "ds_write_b32 v2, v11", "s_waitcnt lgkmcnt(1)", BARRIER)) == 1
