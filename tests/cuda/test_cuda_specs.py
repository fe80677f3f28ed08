"""The shipped NVIDIA chips: what the architecture fixes is the same in all of them, and rates follow from lanes and clocks."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest

from roller.target.catalog import find_spec, list_specs
from roller.target.hardware import HardwareSpec
from roller.target.linting import lint

KIB = 1024
CHIPS = [entry.chip for entry in list_specs("cuda")]


class Architecture(NamedTuple):
    """What a compute capability fixes, of one SM: threads, blocks, KiB of shared memory of the SM and of a block, registers,
    flop a cycle on the CUDA cores and, where all its chips agree, on the tensor cores from float16 into float32.
    """

    arch: str
    threads: int
    blocks: int
    shared_kib: int
    block_kib: int
    registers: int
    f32: int
    f64: int
    f16: int | None
    i32: int
    tensor: int | None = None


# CUDA C++ Programming Guide: "Compute Capabilities", and the table of throughputs of native arithmetic instructions.
KNOWN = {
    (3, 7): Architecture("sm_37", 2048, 16, 112, 48, 131072, 384, 128, None, 64),
    (7, 0): Architecture("sm_70", 2048, 32, 96, 96, 65536, 128, 64, 256, 128, 1024),
    (8, 0): Architecture("sm_80", 2048, 32, 164, 163, 65536, 128, 64, 512, 128, 2048),
    (8, 6): Architecture("sm_86", 1536, 16, 100, 99, 65536, 256, 4, 256, 128),
    (8, 9): Architecture("sm_89", 1536, 24, 100, 99, 65536, 256, 4, 256, 128),
    (9, 0): Architecture("sm_90a", 2048, 32, 228, 227, 65536, 256, 128, 512, 128, 4096),
}
GEFORCE = {"rtx3090": 512, "rtx4090": 512}  # half the rate where float16 products add up in float32
# What tells chips of one die apart, as their vendor says it: SMs, GHz, GB/s, GB of memory, MiB of L2, TFLOP/s (float32, tensor).
SOLD_AS = {
    "v100": (80, 1.53, 900, 16, 6, 15.7, 125),
    "v100-pcie": (80, 1.38, 900, 16, 6, 14, 112),
    "a100": (108, 1.41, 1555, 40, 40, 19.5, 312),
    "a100-80gb": (108, 1.41, 2039, 80, 40, 19.5, 312),
    "rtx3090": (82, 1.695, 936, 24, 6, 35.6, 71),
    "rtx4090": (128, 2.52, 1008, 24, 72, 82.6, 165.2),
    "l4": (58, 2.04, 300, 24, 48, 30.3, 121),
    "l40s": (142, 2.52, 864, 48, 48, 91.6, 362),
    "h100": (132, 1.98, 3350, 80, 50, 67, 989),
    "h100-pcie": (114, 1.755, 2039, 80, 50, 51.2, 756),
    "h200": (132, 1.98, 4800, 141, 50, 67, 989),
}


def shipped(chip: str) -> tuple[HardwareSpec, Architecture]:
    spec = find_spec("cuda", chip)
    major, minor = spec.options["compute_capability"]
    return spec, KNOWN[major, minor]


LEAST = 0.8  # of what the vendor says, where a number was measured: no chip keeps its boost clock at full power


def is_measured(spec: HardwareSpec, path: str) -> bool:
    """Whether a source that covers a number says that it was measured, on this chip or on one of the same die."""
    return any("measured" in text for pattern, text in spec.sources.items() if fnmatchcase(path, pattern))


def per_cycle(spec: HardwareSpec, name: str) -> float | None:
    return next((atom.flops_per_cycle_per_unit for atom in spec.atoms if atom.name == name), None)


def test_every_chip_of_the_project_is_there() -> None:
    assert set(CHIPS) == {"k80", *SOLD_AS}


@pytest.mark.parametrize("chip", CHIPS)
def test_what_the_architecture_fixes(chip: str) -> None:
    spec, known = shipped(chip)
    unit, shared, register = spec.unit, spec.level("shared"), spec.level("register")
    assert spec.options["arch"] == known.arch
    assert (unit.lane_group, unit.lanes_max) == (32, 1024)
    assert (unit.resident_lanes_max, unit.resident_tiles_max) == (known.threads, known.blocks)
    assert unit.lane_storage_bytes == 4 * known.registers
    assert unit.lane_storage_max_bytes == 4 * 255
    assert unit.lane_storage_granule * unit.lane_group == 4 * 256  # 256 registers of a warp at a time
    assert shared.capacity_bytes == known.shared_kib * KIB
    assert shared.usable_bytes == known.block_kib * KIB
    assert shared.banks is not None
    assert shared.banks.count == 32
    assert shared.instances == unit.count
    assert (register.instances, register.capacity_bytes) == (4 * unit.count, unit.lane_storage_bytes // 4)
    if known.arch != "sm_37":
        assert shared.reserved_bytes == (KIB if known.arch >= "sm_80" else 0)
        assert shared.banks.width_bytes == 4
    assert lint(spec) == []


@pytest.mark.parametrize("chip", CHIPS)
def test_rates_follow_from_lanes_and_clocks(chip: str) -> None:
    spec, known = shipped(chip)
    assert (per_cycle(spec, "f32"), per_cycle(spec, "f64"), per_cycle(spec, "i32")) == (known.f32, known.f64, known.i32)
    assert per_cycle(spec, "f16x2") == known.f16
    for atom in spec.atoms:
        assert atom.flops_per_cycle_per_unit is not None
        rate = atom.flops_per_cycle_per_unit * spec.unit.count * (atom.clock_ghz or spec.clock_ghz)
        assert atom.gflops == pytest.approx(rate, rel=1e-4), atom.name
        assert atom.lanes in ({1} if atom.kind != "matrix" else {32, 128})
    register, shared = spec.level("register"), spec.level("shared")
    assert shared.banks is not None
    served = shared.banks.count * shared.banks.width_bytes * spec.unit.count * spec.clock_ghz
    low = LEAST if is_measured(spec, "levels.register.bandwidth_gbps") else 1 - 1e-4
    assert low * served <= register.bandwidth_gbps <= (1 + 1e-4) * served


@pytest.mark.parametrize("chip", [chip for chip in CHIPS if chip != "k80"])
def test_tensor_cores_of_the_architecture(chip: str) -> None:
    """The dense rate, each type once; sparsity doubles what vendors like to quote."""
    spec, known = shipped(chip)
    matrix = {atom.name: atom for atom in spec.atoms if atom.kind == "matrix"}
    tensor = known.tensor or GEFORCE.get(chip, 1024)
    fastest = {
        dtype: max((a.flops_per_cycle_per_unit or 0.0) for a in matrix.values() if a.in_dtype == dtype)
        for dtype in {atom.in_dtype for atom in matrix.values()}
    }
    assert fastest.pop("float16") == tensor
    if known.arch == "sm_70":
        assert set(matrix) == {"wmma_m16n16k16"}
        assert fastest == {}
        return
    assert {"mma_m16n8k16_f16", "mma_m16n8k16_bf16", "mma_m16n8k8_tf32"} <= set(matrix)
    bytes_ = 2048 if known.arch in {"sm_86", "sm_89"} else 2 * tensor
    assert fastest == {"bfloat16": tensor, "tfloat32": tensor / 2, "int8": bytes_}
    half, tf32 = (spec.peaks_gflops[f"{dtype}_matrix"] for dtype in ("float16", "tfloat32"))
    assert tf32 == pytest.approx(half / 2, rel=0.1 if is_measured(spec, "atoms.wgmma_m64n256k16_f16.clock_ghz") else 0.02)
    for name in ("wgmma_m64n256k16_f16", "wgmma_m64n256k8_tf32"):
        assert (name in matrix) == (known.arch == "sm_90a")
    assert ("mma_m16n8k32_s8" in matrix) == (known.arch != "sm_90a")


@pytest.mark.parametrize("chip", SOLD_AS)
def test_what_tells_chips_apart(chip: str) -> None:
    spec, _ = shipped(chip)
    count, clock, bandwidth, memory, cache, f32, tensor = SOLD_AS[chip]
    assert (spec.unit.count, spec.clock_ghz) == (count, clock)
    low = LEAST if is_measured(spec, "levels.L2.bandwidth_gbps") else 0.995
    assert low * bandwidth <= spec.level("L2").bandwidth_gbps <= 1.005 * bandwidth
    assert spec.outermost.capacity_bytes == memory << 30
    assert spec.level("L2").capacity_bytes == cache << 20
    assert spec.peaks_gflops["float32"] == pytest.approx(1000 * f32, rel=0.01)
    low = LEAST if is_measured(spec, "atoms.wgmma_m64n256k16_f16.clock_ghz") else 0.98
    assert low * 1000 * tensor <= spec.peaks_gflops["float16_matrix"] <= 1.02 * 1000 * tensor


def test_modules_and_cards_of_one_die_differ_where_they_are_known_to() -> None:
    """The memory alone tells the H200 from the H100 and the two A100s apart; the H100 card is another chip."""
    memory = {"capacity_bytes", "bandwidth_gbps"}
    for one, other in (("h100", "h200"), ("a100", "a100-80gb")):
        left, right = find_spec("cuda", one), find_spec("cuda", other)
        assert (left.unit, left.atoms, left.levels[2:]) == (right.unit, right.atoms, right.levels[2:])
        for mine, its in zip(left.levels[:2], right.levels[:2], strict=True):
            assert mine.model_dump(exclude=memory) == its.model_dump(exclude=memory)
    assert find_spec("cuda", "h100-pcie").unit.count < find_spec("cuda", "h100").unit.count
