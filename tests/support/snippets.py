"""Hand-written AMDGPU assembly on the emulator: words in, words out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from roller.plugin import find_spec
from roller.runtime.artifact import Artifact
from roller.target.hardware import HardwareSpec
from roller_rocm.emulator.emulator import ORDERS, Emulator, Order
from roller_rocm.toolchain import assembly, launching, linkers

needs_cxx = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="the emulator needs g++ or clang++"
)
needs_linker = pytest.mark.skipif(bool(linkers.problems()), reason="; ".join(linkers.problems()))

Words = npt.NDArray[np.uint32]
FIRST, RESULT = 10, 40  # registers of the first input and of the first result
DIRECTIVES = """
	.section	.rodata,"a",@progbits
	.amdhsa_kernel k
		.amdhsa_group_segment_fixed_size {shared}
		.amdhsa_private_segment_fixed_size {scratch}
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_wavefront_size32 {narrow}
		.amdhsa_next_free_vgpr 256
		.amdhsa_accum_offset {accumulators}
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
	.end_amdhsa_kernel
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .name:           k
    .sgpr_count:     100
    .vgpr_count:     256
amdhsa.target:   none
...
	.end_amdgpu_metadata
"""


def spec() -> HardwareSpec:
    """Some chip; the emulator asks it for the size of a line."""
    return find_spec("rocm", "mi300x")


def listing(body: str, arch: str, shared: int = 0, scratch: int = 0) -> str:
    """A kernel `k` of the given instructions, one on each line."""
    lines = [line.strip() for line in body.strip().splitlines()]
    text = "\n".join(["k:", *(line if line.endswith(":") else "\t" + line for line in lines if line), "\ts_endpgm"])
    files = 128 if arch in ("gfx90a", "gfx942") else 0
    return text + DIRECTIVES.format(shared=shared, scratch=scratch, narrow=int(lanes(arch) == 32), accumulators=files)


def parsed(body: str) -> assembly.AsmKernel:
    """The kernel of these instructions."""
    return assembly.parsed(listing(body, "gfx90a")).kernels["k"]


def artifact(text: str, given: Words, results: int, arch: str = "gfx90a", waves: int = 1, blocks: int = 1) -> Artifact:
    """A kernel that gets inputs and results as rows of words."""
    launch: dict[str, Any] = {
        "kernels": [{"name": "k", "arguments": ["x", "y"], "blocks": blocks, "threads": lanes(arch) * waves, "shared_bytes": 0}],
        "workspaces": [],
        "inputs": ["x"],
        "tensors": [{"name": "x", "shape": list(given.shape), "dtype": "uint32"}],
        "output": "y",
        "arch": arch,
        "assembly": text,
    }
    return Artifact(launching.FORMAT, b"none", launch, {}, "rocm", spec())


def run(
    body: str,
    given: Words,
    results: int,
    arch: str = "gfx90a",
    waves: int = 1,
    shared: int = 0,
    scratch: int = 0,
    orders: Sequence[Order] = ORDERS,
) -> Words:
    """The words that instructions leave in v40, v41 and on, for the rows of `given` in v10, v11 and on.

    Rows are as long as there are threads. v0 is the thread, v1 its place in a row; s[4:7] hold the places of both arrays.
    """
    return emulated(body, given, results, arch, waves, shared, scratch, orders)[0]


def emulated(
    body: str,
    given: Words,
    results: int,
    arch: str = "gfx90a",
    waves: int = 1,
    shared: int = 0,
    scratch: int = 0,
    orders: Sequence[Order] = ORDERS,
) -> tuple[Words, Emulator]:
    """The same with the emulator that ran them."""
    row = 4 * given.shape[1]
    load, store = "global_load_dword", "global_store_dword"  # the emulator takes the names of all generations on each
    before = [
        "s_load_dwordx4 s[4:7], s[0:1], 0x0",
        "v_and_b32_e32 v0, 0x3ff, v0",
        "v_lshlrev_b32_e32 v1, 2, v0",
        "s_waitcnt lgkmcnt(0)",
    ]
    before += [f"{load} v{FIRST + n}, v1, s[4:5] offset:{row * n}" for n in range(given.shape[0])]
    after = [f"{store} v1, v{RESULT + n}, s[6:7] offset:{row * n}" for n in range(results)]
    text = listing("\n".join([*before, "s_waitcnt vmcnt(0)", body, *after]), arch, shared, scratch)
    out = np.full((results, given.shape[1]), 0xFFFFFFFF, np.uint32)
    emulator = Emulator(artifact(text, given, results, arch, waves), orders)
    emulator.run((np.ascontiguousarray(given),), out)
    return out, emulator


def lanes(arch: str) -> int:
    """Of a wave."""
    return 32 if arch.startswith("gfx1") else 64


def floats(words: Words) -> npt.NDArray[np.float32]:
    """The words as single precision."""
    return words.view(np.float32)


def halves(words: Words) -> npt.NDArray[np.float16]:
    """The lower halves of words as half precision."""
    return words.astype(np.uint16).view(np.float16)


def doubles(low: Words, high: Words) -> npt.NDArray[np.float64]:
    """Pairs of words as double precision."""
    return (low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)).view(np.float64)
