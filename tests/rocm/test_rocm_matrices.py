"""Matrix instructions on the emulator against products in float64, from layouts written down here once more."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from roller.errors import LaunchError
from snippets import Words, lanes, needs_cxx, run

pytestmark = needs_cxx

# Instruction, architecture, type of the operands, rows, inner extent, words that a lane holds of an operand.
MFMA = [
    ("v_mfma_f32_16x16x4f32", "gfx908", "float32", 16, 4, 1),
    ("v_mfma_f32_32x32x2_f32", "gfx942", "float32", 32, 2, 1),
    ("v_mfma_f32_16x16x16f16", "gfx90a", "float16", 16, 16, 2),
    ("v_mfma_f32_32x32x8_f16", "gfx942", "float16", 32, 8, 2),
    ("v_mfma_f32_16x16x8bf16", "gfx908", "bfloat16", 16, 8, 1),
    ("v_mfma_f32_32x32x4bf16", "gfx908", "bfloat16", 32, 4, 1),
    ("v_mfma_f32_16x16x16bf16_1k", "gfx90a", "bfloat16", 16, 16, 2),
    ("v_mfma_f32_32x32x8_bf16", "gfx942", "bfloat16", 32, 8, 2),
    ("v_mfma_i32_16x16x16i8", "gfx90a", "int8", 16, 16, 1),
    ("v_mfma_i32_32x32x8i8", "gfx908", "int8", 32, 8, 1),
    ("v_mfma_i32_16x16x32_i8", "gfx942", "int8", 16, 32, 2),
    ("v_mfma_i32_32x32x16_i8", "gfx942", "int8", 32, 16, 2),
]


def numbers(seed: int, shape: tuple[int, ...], dtype: str) -> npt.NDArray[np.generic]:
    """Operands of a type: whole numbers for integers."""
    generator = np.random.default_rng(seed)
    if dtype == "int8":
        return generator.integers(-128, 128, shape, np.int8)
    return generator.standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def as_words(per_lane: npt.NDArray[np.generic]) -> Words:
    """What each lane holds, as rows of words."""
    return np.ascontiguousarray(np.ascontiguousarray(per_lane).view(np.uint32).T)


def places(side: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and column of register r in lane l."""
    r, lane = np.arange(side * side // 64)[:, None], np.arange(64)[None, :]
    rows = 4 * (lane // 16) + r if side == 16 else 8 * (r // 4) + 4 * (lane // 32) + r % 4
    return rows, np.broadcast_to(lane % side, rows.shape)


def check(found: Words, a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], c: Words, rows: object, columns: object) -> None:
    """A result is the sum of the product of A's rows and B's columns, and of what was there before."""
    wide = a.astype(np.float64) @ b.astype(np.float64).T
    if a.dtype == np.int8:
        assert (found.view(np.int32) == wide[rows, columns].astype(np.int64) + c.view(np.int32)).all()
    else:
        np.testing.assert_allclose(found.view(np.float32), wide[rows, columns] + c.view(np.float32), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("name", "arch", "dtype", "side", "k", "words"), MFMA, ids=[line[0] for line in MFMA])
def test_products_of_a_wave_of_64(name: str, arch: str, dtype: str, side: int, k: int, words: int) -> None:
    a, b = numbers(1, (side, k), dtype), numbers(2, (side, k), dtype)
    lane, each = np.arange(64), k * side // 64
    held = [m[lane % side][np.arange(64)[:, None], lane[:, None] // side * each + np.arange(each)] for m in (a, b)]
    results = side * side // 64
    before = numbers(3, (results, 64), "int8").astype(np.int32 if dtype == "int8" else np.float32).view(np.uint32)
    given = np.concatenate([*(as_words(h) for h in held), before])
    span = (lambda n: f"v[{n}:{n + words - 1}]") if words > 1 else (lambda n: f"v{n}")
    body = [f"v_accvgpr_write_b32 a{n}, v{10 + 2 * words + n}" for n in range(results)]
    body += [f"{name} a[0:{results - 1}], {span(10)}, {span(10 + words)}, a[0:{results - 1}]"]
    body += [f"v_accvgpr_read_b32 v{40 + n}, a{n}" for n in range(results)]
    check(run("\n".join(body), given, results, arch), a, b, before, *places(side))


@pytest.mark.parametrize(
    ("kind", "dtype", "words"),
    [("f32_16x16x16_f16", "float16", 8), ("f32_16x16x16_bf16", "bfloat16", 8), ("i32_16x16x16_iu8", "int8", 4)],
)
def test_products_of_a_wave_of_32(kind: str, dtype: str, words: int) -> None:
    a, b = numbers(4, (16, 16), dtype), numbers(5, (16, 16), dtype)
    lane = np.arange(lanes("gfx1100"))
    before = numbers(6, (8, 32), "int8").astype(np.int32 if dtype == "int8" else np.float32).view(np.uint32)
    given = np.concatenate([as_words(a[lane % 16]), as_words(b[lane % 16]), before])
    first, last = 10 + 2 * words, 10 + 2 * words + 7
    signs = " neg_lo:[1,1,0]" if dtype == "int8" else ""
    body = f"v_wmma_{kind} v[40:47], v[10:{9 + words}], v[{10 + words}:{9 + 2 * words}], v[{first}:{last}]{signs}"
    rows = 2 * np.arange(8)[:, None] + lane // 16
    check(run(body, given, 8, "gfx1100"), a, b, before, rows, np.broadcast_to(lane % 16, rows.shape))


def test_bytes_without_signs() -> None:
    a, b = (np.random.default_rng(seed).integers(0, 256, (16, 16), np.uint8) for seed in (1, 2))
    lane = np.arange(32)
    given = np.concatenate([as_words(a[lane % 16]), as_words(b[lane % 16])])
    found = run("v_wmma_i32_16x16x16_iu8 v[40:47], v[10:13], v[14:17], 0 neg_lo:[0,1,0]", given, 8, "gfx1100")
    wanted = a.astype(np.int64) @ b.view(np.int8).astype(np.int64).T
    assert (found.view(np.int32) == wanted[2 * np.arange(8)[:, None] + lane // 16, lane % 16]).all()


def test_both_halves_of_a_wave_of_32_hold_the_same() -> None:
    given = np.random.default_rng(7).integers(0, 2**14, (16, 32), np.uint32)
    with pytest.raises(LaunchError, match="halves of the wave hold different operands"):
        run("v_wmma_f32_16x16x16_f16 v[40:47], v[10:17], v[18:25], 0", given, 8, "gfx1100")


def test_products_of_doubles() -> None:
    a, b = numbers(8, (16, 4), "float64"), numbers(9, (16, 4), "float64")
    lane = np.arange(64)
    given = np.concatenate([as_words(m[lane % 16, lane // 16][:, None]) for m in (a, b)])
    found = run("v_mfma_f64_16x16x4f64 v[40:47], v[10:11], v[12:13], 0", given, 8)
    doubles = np.ascontiguousarray(found.T).view(np.float64).T
    np.testing.assert_allclose(doubles, (a @ b.T)[4 * np.arange(4)[:, None] + lane // 16, lane % 16], rtol=1e-14, atol=1e-14)
