"""Single AMDGPU instructions on the emulator against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets import Words, doubles, floats, halves, lanes, needs_cxx, run

pytestmark = needs_cxx
SEEDS = st.integers(0, 2**32 - 1)
EDGES = np.array(
    [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3C003C00, 0x00000FFF],
    np.uint32,
)


def random_words(seed: int, rows: int, arch: str = "gfx90a") -> Words:
    """Words of all sizes, with edges among them."""
    generator = np.random.default_rng(seed)
    found = generator.integers(0, 2**32, (rows, lanes(arch)), np.uint32) >> generator.integers(
        0, 32, (rows, lanes(arch)), np.uint32
    )
    edges = generator.random(found.shape) < 0.2
    return np.where(edges, generator.choice(EDGES, found.shape), found).astype(np.uint32)


def random_floats(seed: int, rows: int) -> Words:
    """Numbers of usual sizes."""
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((rows, 64)) * 8).astype(np.float32).view(np.uint32)


def signed(words: Words) -> np.ndarray:
    return words.view(np.int32)


def like_top(words: Words, bit: np.ndarray | int) -> np.ndarray:
    """How many bits from the top on are `bit`; all ones where every one is."""
    text = [f"{word:032b}" for word in words.tolist()]
    other = ["10"[int(b)] for b in np.broadcast_to(bit, words.shape)]
    return np.array([t.find(o) for t, o in zip(text, other, strict=True)], np.int64).astype(np.int32).view(np.uint32)


WHOLE = {
    "v_add_u32_e32 v40, v10, v11": lambda a, b, c: a + b,
    "v_sub_u32_e32 v40, v10, v11": lambda a, b, c: a - b,
    "v_subrev_u32_e32 v40, v10, v11": lambda a, b, c: b - a,
    "v_mul_lo_u32 v40, v10, v11": lambda a, b, c: a * b,
    "v_mul_hi_u32 v40, v10, v11": lambda a, b, c: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32),
    "v_mul_hi_i32 v40, v10, v11": lambda a, b, c: (signed(a).astype(np.int64) * signed(b) >> 32).astype(np.int32).view(np.uint32),
    "v_mul_u32_u24_e32 v40, v10, v11": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mad_u32_u24 v40, v10, v11, v12": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_and_b32_e32 v40, v10, v11": lambda a, b, c: a & b,
    "v_or3_b32 v40, v10, v11, v12": lambda a, b, c: a | b | c,
    "v_xor_b32_e32 v40, 0xff00ff, v10": lambda a, b, c: a ^ np.uint32(0xFF00FF),
    "v_lshlrev_b32_e32 v40, v11, v10": lambda a, b, c: a << (b & 31),
    "v_lshrrev_b32_e32 v40, 7, v10": lambda a, b, c: a >> 7,
    "v_ashrrev_i32_e32 v40, v11, v10": lambda a, b, c: (signed(a) >> (b & 31).astype(np.int32)).view(np.uint32),
    "v_lshl_add_u32 v40, v10, 5, v12": lambda a, b, c: (a << 5) + c,
    "v_add_lshl_u32 v40, v10, v11, 2": lambda a, b, c: (a + b) << 2,
    "v_and_or_b32 v40, v10, v11, v12": lambda a, b, c: (a & b) | c,
    "v_bfe_u32 v40, v10, 3, 5": lambda a, b, c: a >> 3 & 31,
    "v_bfe_i32 v40, v10, 8, 8": lambda a, b, c: (a >> 8).astype(np.int8).astype(np.int32).view(np.uint32),
    "v_bfi_b32 v40, v10, v11, v12": lambda a, b, c: (a & b) | (~a & c),
    "v_alignbit_b32 v40, v10, v11, 8": lambda a, b, c: a << 24 | b >> 8,
    "v_min_i32_e32 v40, v10, v11": lambda a, b, c: np.minimum(signed(a), signed(b)).view(np.uint32),
    "v_max3_u32 v40, v10, v11, v12": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "v_med3_i32 v40, v10, v11, v12": lambda a, b, c: (
        np.median([signed(a), signed(b), signed(c)], 0).astype(np.int32).view(np.uint32)
    ),
    "v_add_u16_e32 v40, v10, v11": lambda a, b, c: (a + b) & 0xFFFF,
    "v_mul_lo_u16_e32 v40, 63, v10": lambda a, b, c: (a & 0xFFFF) * 63 & 0xFFFF,
    "v_lshlrev_b16_e32 v40, 3, v10": lambda a, b, c: a << 3 & 0xFFFF,
    "v_max_i16_e32 v40, v10, v11": lambda a, b, c: np.maximum(a.astype(np.int16), b.astype(np.int16)).view(np.uint16),
    "v_pk_add_u16 v40, v10, v11": lambda a, b, c: ((a >> 16) + (b >> 16) & 0xFFFF) << 16 | (a + b) & 0xFFFF,
    "v_pk_add_u16 v40, v10, v11 op_sel:[1,0] op_sel_hi:[0,1]": lambda a, b, c: (
        (a + (b >> 16) & 0xFFFF) << 16 | (a >> 16) + b & 0xFFFF
    ),
    "v_pack_b32_f16 v40, v10, v11 op_sel:[0,1]": lambda a, b, c: a & 0xFFFF | b & 0xFFFF0000,
    "v_perm_b32 v40, v10, v11, 0x7060302": lambda a, b, c: a & 0xFFFF0000 | b >> 16,
    "v_add_u32_sdwa v40, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1": lambda a, b, c: (
        (a >> 16 & 255) + (b >> 16)
    ),
    "v_sub_co_u32_sdwa v40, vcc, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_0": lambda a, b, c: (
        a - (b & 0xFF)
    ),
    "v_max_i32_sdwa v40, sext(v10), v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:DWORD": lambda a, b, c: (
        np.maximum(a.astype(np.int8).astype(np.int32), signed(b)).view(np.uint32)
    ),
    "v_mov_b32_dpp v40, v10 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf": lambda a, b, c: a[np.arange(64) ^ 1],
    "v_mov_b32_dpp v40, v10 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:0": lambda a, b, c: np.where(
        np.arange(64) % 16 == 0, 0, np.roll(a, 1)
    ),
    "v_dot4_i32_i8 v40, v10, v11, v12": lambda a, b, c: (
        c
        + np.sum(a.view(np.int8).reshape(64, 4).astype(np.int32) * b.view(np.int8).reshape(64, 4), 1, dtype=np.int32).view(
            np.uint32
        )
    ),
    "v_sub_u32_e64 v40, v10, v11 clamp": lambda a, b, c: np.where(a > b, a - b, 0),
    "v_add_i16 v40, v10, v11 clamp": lambda a, b, c: (
        np.clip(a.astype(np.int16).astype(np.int32) + b.astype(np.int16), -32768, 32767) & 0xFFFF
    ),
    "v_ffbh_u32_e32 v40, v10": lambda a, b, c: like_top(a, 0),
    "v_ffbh_i32_e32 v40, v10": lambda a, b, c: like_top(a, a >> 31),
    "v_bfrev_b32_e32 v40, v10": lambda a, b, c: np.array([int(f"{x:032b}"[::-1], 2) for x in a.tolist()], np.uint32),
}


@pytest.mark.parametrize("text", WHOLE)
@given(seed=SEEDS)
def test_whole_numbers(text: str, seed: int) -> None:
    words = random_words(seed, 3)
    assert (run(text, words, 1)[0] == WHOLE[text](*words).astype(np.uint32)).all()


@given(seed=SEEDS)
def test_bits_like_the_sign_on_newer_chips_and_scalars(seed: int) -> None:
    words = random_words(seed, 1, "gfx1100")
    wanted = like_top(words[0], words[0] >> 31)
    assert (run("v_cls_i32_e32 v40, v10", words, 1, "gfx1100")[0] == wanted).all()
    for arch, name in (("gfx90a", "s_flbit_i32"), ("gfx1100", "s_cls_i32")):
        text = f"v_readfirstlane_b32 s20, v10\n{name} s21, s20\nv_mov_b32_e32 v40, s21"
        words = random_words(seed, 1, arch)
        assert (run(text, words, 1, arch)[0] == like_top(words[0], words[0] >> 31)[0]).all()


SINGLE = {
    "v_add_f32_e32 v40, v10, v11": lambda a, b, c: a + b,
    "v_sub_f32_e64 v40, v10, |v11|": lambda a, b, c: a - abs(b),
    "v_mul_f32_e64 v40, -v10, v11": lambda a, b, c: -a * b,
    "v_mul_f32_e32 v40, 0.5, v10": lambda a, b, c: a * np.float32(0.5),
    "v_max_f32_e64 v40, v10, v11 clamp": lambda a, b, c: np.clip(np.maximum(a, b), 0, 1),
    "v_add_f32_e64 v40, v10, v11 mul:2": lambda a, b, c: (a + b) * 2,
    "v_min3_f32 v40, v10, v11, v12": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "v_floor_f32_e32 v40, v10": lambda a, b, c: np.floor(a),
    "v_rndne_f32_e32 v40, v10": lambda a, b, c: np.rint(a),
    "v_cvt_f32_i32_e32 v40, v10": lambda a, b, c: a.view(np.int32).astype(np.float32),
    "v_ldexp_f32 v40, v10, 3": lambda a, b, c: a * 8,
    "v_fma_f32 v40, v10, v11, -v12": lambda a, b, c: (a.astype(np.float64) * b - c).astype(np.float32),
    "v_mad_f32 v40, v10, v11, v12": lambda a, b, c: a * b + c,
    "v_cvt_f32_ubyte1_e32 v40, v10": lambda a, b, c: (a.view(np.uint32) >> 8 & 255).astype(np.float32),
    "v_fma_mix_f32 v40, v10, v11, v12 op_sel:[1,0,0] op_sel_hi:[1,0,0]": lambda a, b, c: (
        halves(a.view(np.uint32) >> 16).astype(np.float64) * b + c
    ).astype(np.float32),
}


@pytest.mark.parametrize("text", SINGLE)
@given(seed=SEEDS)
def test_single_precision(text: str, seed: int) -> None:
    words = random_floats(seed, 3)
    found, wanted = floats(run(text, words, 1)[0]), SINGLE[text](*floats(words))
    np.testing.assert_array_equal(found, wanted)


FUNCTIONS = {
    "v_exp_f32_e32": np.exp2,
    "v_log_f32_e32": lambda a: np.log2(np.abs(a)),
    "v_rcp_f32_e32": lambda a: 1 / a,
    "v_sqrt_f32_e32": lambda a: np.sqrt(np.abs(a)),
    "v_rsq_f32_e32": lambda a: 1 / np.sqrt(np.abs(a)),
    "v_sin_f32_e32": lambda a: np.sin(2 * np.pi * a),
    "v_cos_f32_e32": lambda a: np.cos(2 * np.pi * a),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(seed=SEEDS)
def test_functions(name: str, seed: int) -> None:
    words = random_floats(seed, 1)
    source = "v10" if name in ("v_exp_f32_e32", "v_rcp_f32_e32", "v_sin_f32_e32", "v_cos_f32_e32") else "|v10|"
    found = floats(run(f"{name.replace('e32', 'e64')} v40, {source}", words, 1)[0])
    np.testing.assert_allclose(found, FUNCTIONS[name](floats(words)[0].astype(np.float64)), rtol=2e-7, atol=2e-7)


@given(seed=SEEDS)
def test_halves_and_doubles(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pairs = generator.standard_normal((3, 64, 2)).astype(np.float16)
    words = np.ascontiguousarray(pairs).view(np.uint32).reshape(3, 64)
    a, b, c = pairs
    both = run("v_pk_fma_f16 v40, v10, v11, v12 neg_lo:[0,0,1] neg_hi:[0,0,0]", words, 1).view(np.float16).reshape(64, 2)
    wanted = a.astype(np.float64) * b + c * [-1, 1]
    np.testing.assert_array_equal(both, wanted.astype(np.float16))
    sums = halves(
        run("v_add_f16_sdwa v40, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD", words, 1)[0]
    )
    np.testing.assert_array_equal(sums, a[:, 1] + b[:, 0])
    x, y = generator.standard_normal((2, 64))
    given_words = np.concatenate([x.view(np.uint32).reshape(64, 2).T, y.view(np.uint32).reshape(64, 2).T])
    product = doubles(*run("v_mul_f64 v[40:41], v[10:11], -v[12:13]", given_words, 2))
    np.testing.assert_array_equal(product, x * -y)
    product = doubles(*run("v_mul_f64 v[40:41], v[10:11], 0x40080000", given_words, 2))
    np.testing.assert_array_equal(product, x * 3)


@given(seed=SEEDS)
def test_pairs_of_words(seed: int) -> None:
    words = random_floats(seed, 4)
    a, b, c, d = floats(words)
    found = floats(run("v_pk_fma_f32 v[40:41], v[10:11], v[12:13], v[12:13] op_sel_hi:[0,1,1]", words, 2))
    wide = [x.astype(np.float64) for x in (a, b, c, d)]
    np.testing.assert_array_equal(found, np.stack([wide[0] * wide[2] + wide[2], wide[0] * wide[3] + wide[3]]).astype(np.float32))
    found = run("v_pk_mov_b32 v[40:41], v[10:11], v[12:13] op_sel:[1,0]", words, 2)
    assert (found == words[[1, 2]]).all()


def test_comparisons_make_masks_and_masks_choose() -> None:
    words = random_words(5, 2)
    body = """
        v_cmp_lt_i32_e64 s[8:9], v10, v11
        v_cndmask_b32_e64 v40, v10, v11, s[8:9]
        v_cmp_gt_u32_e32 vcc, v10, v11
        v_cndmask_b32_e32 v41, v10, v11, vcc
        v_add_co_u32_e32 v42, vcc, v10, v11
        v_addc_co_u32_e32 v43, vcc, 0, v10, vcc
    """
    found = run(body, words, 4)
    a, b = words
    carry = (a.astype(np.uint64) + b >> np.uint64(32)).astype(np.uint32)
    wanted = [np.where(signed(a) < signed(b), b, a), np.where(a > b, b, a), a + b, a + carry]
    assert (found == np.stack(wanted)).all()


@pytest.mark.parametrize("half", [".l", ".h"])
def test_halves_of_registers_on_rdna(half: str) -> None:
    words = random_words(6, 2, "gfx1100")
    found = run(f"v_mov_b32_e32 v40, v11\nv_add_nc_u16 v40{half}, v10.h, 5", words, 1, "gfx1100")[0]
    result = (words[0] >> 16) + 5 & 0xFFFF
    assert (found == (words[1] & 0xFFFF0000 | result if half == ".l" else words[1] & 0xFFFF | result << 16)).all()


def test_two_instructions_at_once_read_before_they_write() -> None:
    words = random_words(7, 2, "gfx1100")
    body = "v_mov_b32_e32 v40, v10\nv_mov_b32_e32 v41, v11\nv_dual_mov_b32 v40, v41 :: v_dual_mov_b32 v41, v40"
    assert (run(body, words, 2, "gfx1100") == words[::-1]).all()


def test_lanes_hand_values_to_one_another() -> None:
    words = random_words(8, 1)
    body = """
        v_mbcnt_lo_u32_b32 v2, -1, 0
        v_mbcnt_hi_u32_b32 v2, -1, v2
        v_xor_b32_e32 v2, 8, v2
        v_lshlrev_b32_e32 v2, 2, v2
        ds_bpermute_b32 v40, v2, v10
        v_readfirstlane_b32 s8, v10
        v_mov_b32_e32 v41, s8
        s_waitcnt lgkmcnt(0)
    """
    found = run(body, words, 2)
    assert (found[0] == words[0][np.arange(64) ^ 8]).all() and (found[1] == words[0][0]).all()


def test_lanes_that_are_off_keep_what_they_have() -> None:
    words = random_words(9, 1)
    body = """
        v_mov_b32_e32 v40, 7
        v_cmp_gt_u32_e32 vcc, 20, v0
        s_and_saveexec_b64 s[8:9], vcc
        v_mov_b32_e32 v40, v10
        s_or_b64 exec, exec, s[8:9]
    """
    assert (run(body, words, 1)[0] == np.where(np.arange(64) < 20, words[0], 7)).all()


def test_scratch_belongs_to_each_lane() -> None:
    words = random_words(10, 2)
    body = """
        scratch_store_dword off, v10, off offset:4
        scratch_store_dword off, v11, off offset:8
        s_waitcnt vmcnt(0)
        scratch_load_dwordx2 v[40:41], off, off offset:4
        s_waitcnt vmcnt(0)
    """
    assert (run(body, words, 2, scratch=12) == words).all()
