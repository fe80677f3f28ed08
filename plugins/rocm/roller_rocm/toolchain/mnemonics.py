"""Names of instructions: the emulator's names for those that differ between generations of GPUs, and memory properties by name."""

from __future__ import annotations

import re
from typing import NamedTuple

SIGN, D16_LOW, D16_HIGH, TWO, WRITES, BUFFER, NARROWS = 1, 2, 4, 8, 16, 32, 64
GLOBAL, LOCAL, CONSTANT = 1, 2, 3
F32, F16, BF16, I8, F64 = range(5)

# RDNA 3's names that differ from GCN's and CDNA's.
RENAMED = {
    "v_add_nc_u32": "v_add_u32",
    "v_sub_nc_u32": "v_sub_u32",
    "v_subrev_nc_u32": "v_subrev_u32",
    "v_add_nc_i32": "v_add_i32",
    "v_sub_nc_i32": "v_sub_i32",
    "v_add_nc_u16": "v_add_u16",
    "v_sub_nc_u16": "v_sub_u16",
    "v_add_nc_i16": "v_add_i16",
    "v_sub_nc_i16": "v_sub_i16",
    "v_add_co_ci_u32": "v_addc_co_u32",
    "v_sub_co_ci_u32": "v_subb_co_u32",
    "v_subrev_co_ci_u32": "v_subbrev_co_u32",
    "v_mul_dx9_zero_f32": "v_mul_legacy_f32",
    "v_cvt_pk_rtz_f16_f32": "v_cvt_pkrtz_f16_f32",
}
# 16-bit instructions of GCN whose result leaves the upper half of its register unchanged; the others clear it.
KEEPING = re.compile(r"v_(mac|fmac|madak|madmk|fmaak|fmamk|fma|mad)_f16|v_(min3|max3|med3)_[iuf]16|v_mad_[iu]16|v_div_fixup_f16")
_ENCODING = re.compile(r"_(e32|e64|sdwa|dpp|e64_dpp|dpp8)$")
_SIZES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16, "u8": 1, "i8": 1, "u16": 2, "i16": 2}
_SIZES |= {"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2}
_SIZES |= {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "dwordx8": 32, "dwordx16": 64, "b256": 32, "b512": 64}
_VECTOR_MEMORY = re.compile(r"(global|scratch|buffer)_(load|store)_(?:(d16_hi|d16)_)?([a-z0-9]+?)(?:_(d16_hi|d16))?$")
_LOCAL = re.compile(r"ds_(read|load|write|store)(2|_2addr)?(st64|_stride64)?_([a-z]\d+)(?:_(d16_hi|d16))?$")
_SCALAR = re.compile(r"s_(?:load|buffer_load)_(dword\w*|b\d+)$")
_MATRIX = re.compile(r"v_mfma_(f32|i32|f64)_(\d+)x(\d+)x(\d+)_?(bf16|f16|f32|f64|i8)(_1k)?$")
_WAVE_MATRIX = re.compile(r"v_wmma_(f32|i32)_16x16x16_(f16|bf16|iu8)$")


class Meaning(NamedTuple):
    """The emulator's view of an instruction: its name there, and the properties of its access or its product.

    For memory: the bytes of an access, their treatment, the kind of memory, and the bytes by which offsets count. For matrix
    instructions: extents and element type.
    """

    name: str
    width: int = 0
    extra: int = 0
    unit: int = 0
    scale: int = 1
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)


def plain(name: str) -> str:
    """Returns the name without its encoding, as in GCN."""
    bare = _ENCODING.sub("", name.replace("v_dual_", "v_", 1))
    return RENAMED.get(bare, bare)


def meaning(name: str) -> Meaning:
    """Returns the meaning of an instruction, by its name."""
    bare = plain(name)
    if bare.startswith(("global_", "scratch_", "buffer_")):
        return _vector_memory(bare)
    if bare.startswith("ds_"):
        return _local(bare)
    if bare.startswith("s_") and (found := _SCALAR.match(bare)):
        return Meaning("s_load", _SIZES[found[1]], 0, CONSTANT)
    if bare.startswith(("v_mfma", "v_wmma")):
        return _matrix(bare)
    if bare.startswith("v_cmpx_"):
        return Meaning(bare.replace("cmpx", "cmp", 1), extra=NARROWS)
    return Meaning("s_waitcnt" if bare.startswith("s_waitcnt_") and not bare.endswith("depctr") else bare)


def _kept(d16: str | None) -> int:
    return {None: 0, "d16": D16_LOW, "d16_hi": D16_HIGH}[d16]


def _vector_memory(name: str) -> Meaning:
    found = _VECTOR_MEMORY.match(name)
    if found is None or found[4] not in _SIZES:
        return Meaning(name)
    where, way, before, size, after = found.groups()
    extra = _kept(before or after) | (SIGN if size in ("sbyte", "sshort", "i8", "i16") else 0)
    extra |= (WRITES if way == "store" else 0) | (BUFFER if where == "buffer" else 0)
    return Meaning("global" if where == "global" else "scratch", _SIZES[size], extra, GLOBAL)


def _local(name: str) -> Meaning:
    found = _LOCAL.match(name)
    if found is None:
        return Meaning(name, 4, 0, LOCAL)
    way, two, stride, size, d16 = found.groups()
    width = _SIZES[size]
    extra = _kept(d16) | (SIGN if size in ("i8", "i16") else 0) | (TWO if two else 0) | (WRITES if way in ("write", "store") else 0)
    return Meaning("local", width, extra, LOCAL, width * (64 if stride else 1) if two else 1)


def _matrix(name: str) -> Meaning:
    types = {"bf16": BF16, "f16": F16, "f32": F32, "f64": F64, "i8": I8, "iu8": I8}
    if found := _WAVE_MATRIX.match(name):
        return Meaning("wmma", shape=(16, 16, 16, types[found[2]]))
    found = _MATRIX.match(name)
    if found is None or found[2] != found[3]:
        return Meaning(name)
    m, n, k = int(found[2]), int(found[3]), int(found[4])
    one_block = (m, k) in ONE_BLOCK[types[found[5]]]
    return Meaning(("mfma_f64" if found[5] == "f64" else "mfma") if one_block else name, shape=(m, n, k, types[found[5]]))


# Rows and inner extents of the matrix instructions that compute one product, not several side by side.
ONE_BLOCK = {
    F32: {(16, 4), (32, 2)},
    F16: {(16, 16), (32, 8)},
    BF16: {(16, 8), (32, 4), (16, 16), (32, 8)},
    I8: {(16, 16), (32, 8), (16, 32), (32, 16)},
    F64: {(16, 4)},
}
