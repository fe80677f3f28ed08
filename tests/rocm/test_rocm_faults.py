"""What the emulator of AMDGPU assembly notices: each fault in a kernel of a few lines."""

from __future__ import annotations

import numpy as np
import pytest

from roller.errors import LaunchError
from roller_rocm.emulator import emulator
from roller_rocm.emulator.emulator import Emulator, Order
from snippets import artifact, emulated, listing, needs_cxx, run

pytestmark = needs_cxx
ZEROS = np.zeros((2, 64), np.uint32)
TWO_WAVES = np.arange(2 * 128, dtype=np.uint32).reshape(2, 128)

FAULTS = {
    "a load beyond an array": (
        "global_load_dword v40, v1, s[4:5] offset:512\ns_waitcnt vmcnt(0)",
        "byte 512 of argument 0, which has 512",
    ),
    "a load before an array": ("global_load_dword v40, v1, s[4:5] offset:-4\ns_waitcnt vmcnt(0)", "lies in no array|of argument"),
    "a store beyond an array": ("v_mov_b32_e32 v40, 0\nglobal_store_dword v1, v40, s[6:7] offset:4000", "of argument 1"),
    "a store to an input": ("v_mov_b32_e32 v40, 0\nglobal_store_dword v1, v40, s[4:5]", "argument 0, which is only read"),
    "a load that nobody waits for": ("global_load_dword v40, v1, s[4:5]\nv_add_u32_e32 v40, 1, v40", "v40 is used before its load"),
    "a load that overwrites": ("global_load_dword v40, v1, s[4:5]\nv_mov_b32_e32 v40, 1", "v40 is used before its load"),
    "a wait that leaves too many": (
        "global_load_dword v40, v1, s[4:5]\nglobal_load_dword v41, v1, s[4:5]\ns_waitcnt vmcnt(1)\nv_mov_b32_e32 v2, v41",
        "v41 is used before its load",
    ),
    "a wait for other memory": (
        "global_load_dword v40, v1, s[4:5]\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v2, v40",
        "v40 is used before",
    ),
    "scalar loads come in any order": (
        "s_load_dword s8, s[4:5], 0x0\ns_load_dword s9, s[4:5], 0x4\ns_waitcnt lgkmcnt(1)\nv_mov_b32_e32 v40, s8",
        "s8 is used before its load",
    ),
    "beyond local memory": (
        "ds_read_b32 v40, v1 offset:64\ns_waitcnt lgkmcnt(0)",
        "byte 256 of local memory, of which there are 256",
    ),
    "a write that passes a barrier": (
        "ds_write_b32 v1, v10\ns_barrier\nv_mov_b32_e32 v40, 0",
        "a barrier with a write to local memory",
    ),
    "beyond scratch": ("scratch_load_dword v40, off, off offset:8\ns_waitcnt vmcnt(0)", "byte 8 of scratch, of which there are 8"),
    "a register beyond those taken": ("v_mov_b32_e32 v200, 0\nv_mov_b32_e32 v40, v200", "takes 128 vector registers"),
    "an unknown instruction": ("v_frobnicate_b32 v40, v10", "v_frobnicate_b32 v40, v10.*does not support this instruction"),
    "an unknown modifier": ("v_mfma_f32_16x16x4f32 v[40:43], v10, v11, 0 cbsz:1", "does not support cbsz:1"),
    "what was never written": ("v_add_u32_e32 v40, v10, v99", "results depend on the order of events"),
    "what local memory never held": ("ds_read_b32 v40, v1\ns_waitcnt lgkmcnt(0)", "results depend on the order of events"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_faults_are_noticed(what: str) -> None:
    body, said = FAULTS[what]
    with pytest.raises(LaunchError, match=said):
        run(body, ZEROS, 1, shared=256, scratch=8)


def test_a_fault_names_the_kernel_the_line_and_the_instruction() -> None:
    with pytest.raises(
        LaunchError, match=r"kernel 'k', line 9: 'global_load_dword v40, v1, s\[4:5\] offset:9999'.*workgroup 0, wave 0"
    ):
        run("global_load_dword v40, v1, s[4:5] offset:9999", ZEROS, 1)


NEIGHBOURS = """
    ds_write_b32 v1, v10
    s_waitcnt lgkmcnt(0)
    s_barrier
    v_xor_b32_e32 v2, 0x100, v1
    ds_read_b32 v40, v2
    s_waitcnt lgkmcnt(0)
"""


def test_waves_read_what_others_wrote_behind_a_barrier() -> None:
    found = run(NEIGHBOURS, TWO_WAVES, 1, waves=2, shared=512)
    assert (found[0] == np.roll(TWO_WAVES[0], 64)).all()


def test_without_the_barrier_results_depend_on_the_order() -> None:
    with pytest.raises(LaunchError, match="depend on the order of events"):
        run(NEIGHBOURS.replace("s_barrier", "s_nop 0"), TWO_WAVES, 1, waves=2, shared=512)


def test_a_read_that_another_wave_overtakes_is_noticed() -> None:
    """A read that is under way across a barrier sees what another wave writes behind it."""
    body = NEIGHBOURS.replace("ds_read_b32 v40, v2", "ds_read_b32 v40, v2\ns_barrier\nds_write_b32 v1, v11")
    with pytest.raises(LaunchError, match="depend on the order of events"):
        run(body, TWO_WAVES, 1, waves=2, shared=512)
    right = body.replace("v40, v2\ns_barrier", "v40, v2\ns_waitcnt lgkmcnt(0)\ns_barrier")
    assert (run(right, TWO_WAVES, 1, waves=2, shared=512)[0] == np.roll(TWO_WAVES[0], 64)).all()


@pytest.mark.parametrize(("register", "word"), [("v40", 3), ("v41", 7)])
def test_a_pair_may_lie_at_any_byte(register: str, word: int) -> None:
    """LLVM joins loads of two 16-bit numbers each, which begin at odd ones, as unaligned mode permits."""
    body = f"""
        ds_write_b32 v1, v10
        v_mov_b32_e32 v2, 2
        s_waitcnt lgkmcnt(0)
        ds_read2_b32 v[40:41], v2 offset0:3 offset1:7
        s_waitcnt lgkmcnt(0)
        v_mov_b32_e32 v40, {register}
    """
    words = np.arange(1, 65, dtype=np.uint32).reshape(1, 64) * 0x10003
    halves = words.view(np.uint16)[0]
    assert (run(body, words, 1, shared=256)[0] == int(halves[2 * word + 1]) + (int(halves[2 * word + 2]) << 16)).all()


def test_waves_meet_at_the_same_barrier() -> None:
    alone = "v_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc0 .L1\n{}\n.L1:\nv_mov_b32_e32 v40, 0"
    with pytest.raises(LaunchError, match="1 waves wait at a barrier for 1 that have ended"):
        run(alone.format("s_barrier"), TWO_WAVES, 1, waves=2)
    with pytest.raises(LaunchError, match="different barriers"):
        run(alone.format("s_barrier\ns_branch .L2") + "\ns_barrier\n.L2:", TWO_WAVES, 1, waves=2)


def test_a_kernel_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "MOST_STEPS", 10_000)
    with pytest.raises(LaunchError, match="too many steps"):
        run(".L1:\ns_branch .L1", ZEROS, 0)


@pytest.mark.parametrize("directive", ["float_denorm_mode_32", "float_denorm_mode_16_64"])
def test_flushed_denormals_are_refused(directive: str) -> None:
    text = listing("s_nop 0", "gfx90a").replace(f".amdhsa_{directive} 3", f".amdhsa_{directive} 0")
    with pytest.raises(LaunchError, match="denormals"):
        Emulator(artifact(text, ZEROS, 1))


def test_stores_count_apart_on_rdna() -> None:
    """There `vmcnt` says nothing of stores, on CDNA it does."""
    body = """
        v_mov_b32_e32 v40, v10
        global_store_b32 v1, v40, s[6:7]
        global_load_b32 v41, v1, s[4:5]
        s_waitcnt vmcnt({})
        v_mov_b32_e32 v40, v41
        s_waitcnt_vscnt null, 0x0
    """
    small = np.arange(64, dtype=np.uint32).reshape(2, 32)
    assert (run(body.format(0), small, 1, "gfx1100")[0] == small[0]).all()
    with pytest.raises(LaunchError, match="v41 is used before"):
        run(body.format(1), small, 1, "gfx1100")


# --- counters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "load", "ideal", "actual"),
    [
        ("v_lshlrev_b32_e32 v2, 2, v0", "ds_read_b32 v40, v2", 2, 2),  # neighbours
        ("v_mov_b32_e32 v2, 0", "ds_read_b32 v40, v2", 2, 2),  # all the same word
        ("v_lshlrev_b32_e32 v2, 5, v0", "ds_read_b32 v40, v2", 2, 16),  # every eighth word: 32 lanes on 4 banks
        ("v_lshlrev_b32_e32 v2, 7, v0", "ds_read_b32 v40, v2", 2, 64),  # all on one bank
        ("v_lshlrev_b32_e32 v2, 3, v0", "ds_read_b64 v[40:41], v2", 4, 4),
        ("v_lshlrev_b32_e32 v2, 4, v0", "ds_read_b128 v[40:43], v2", 8, 8),
        ("v_lshlrev_b32_e32 v2, 4, v0", "ds_read2_b32 v[40:41], v2 offset1:1", 4, 16),  # every fourth word, twice
        ("v_lshlrev_b32_e32 v2, 7, v0", "ds_read_b128 v[40:43], v2", 8, 64),
    ],
)
def test_bank_conflicts_are_counted(address: str, load: str, ideal: int, actual: int) -> None:
    body = f"{address}\n{load}\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v40, 0"
    counts = emulated(body, ZEROS, 1, shared=8192, orders=[Order(False, False)])[1].counts()["k"]
    assert (counts.rest.lds_reads.ideal, counts.rest.lds_reads.actual) == (ideal, actual)
    assert counts.rest.lds_writes.actual == 0 and counts.loop_lines is None


def test_lines_are_counted_and_loops_told_apart() -> None:
    body = """
        s_mov_b32 s8, 0
        v_lshlrev_b32_e32 v2, 3, v0
        .L1:
        global_load_dword v40, v1, s[4:5]
        ds_write_b32 v2, v10
        s_add_i32 s8, s8, 1
        s_waitcnt vmcnt(0) lgkmcnt(0)
        s_cmp_lt_u32 s8, 5
        s_cbranch_scc1 .L1
    """
    counts = emulated(body, ZEROS, 1, shared=512, orders=[Order(False, True)])[1].counts()["k"]
    loads, stores = counts.loop.loads, counts.rest.stores
    assert (loads.bytes, loads.lines_64, loads.lines) == (5 * 256, 5 * 4, 5 * 2)  # lines of 128 bytes
    assert (stores.bytes, stores.lines_64, stores.lines) == (256, 4, 2)
    assert (counts.loop.lds_writes.ideal, counts.loop.lds_writes.actual) == (5 * 2, 5 * 4)
    assert counts.loop_lines == (12, 17)
    assert counts.classes["branch"] == 5 and counts.names["global_load_dword"] == 2 + 5
