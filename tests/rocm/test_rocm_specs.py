"""The shipped AMD GPUs: what the architecture fixes is the same in all of them, and rates follow from lanes and clocks."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from roller.target.catalog import find_spec, list_specs
from roller.target.hardware import HardwareSpec
from roller.target.linting import lint
from roller_rocm.toolchain import assembling, assembly, llvm_worker, module_text, occupancy

KIB = 1024
CHIPS = [entry.chip for entry in list_specs("rocm")]


class Architecture(NamedTuple):
    """What an architecture fixes: lanes of a wave, waves of a SIMD, registers that a SIMD has for each lane and by how many it
    hands them out, the most of one lane, flop a cycle of a unit without matrix instructions; and how many waves fit, as pairs of
    the least count of registers and the waves from there on, as LLVM says.
    """

    wave: int
    waves: int
    registers: int
    granule: int
    most: int
    f32: int
    f64: int
    packed: bool
    fits: str
    units: str = "CU"


GCN = "1:10 25:9 29:8 33:7 37:6 41:5 49:4 65:3 85:2 129:1"
CDNA2 = "1:8 65:7 73:6 81:5 97:4 129:3 169:2"
RDNA3 = "1:16 97:12 121:10 145:9 169:8 193:7 217:6 241:5"
KNOWN = {
    "gfx906": Architecture(64, 10, 256, 4, 256, 128, 64, False, GCN),
    "gfx908": Architecture(64, 10, 256, 4, 256, 128, 64, False, GCN),
    "gfx90a": Architecture(64, 8, 512, 8, 512, 128, 128, True, CDNA2),
    "gfx942": Architecture(64, 8, 512, 8, 512, 128, 128, True, CDNA2),
    "gfx1100": Architecture(32, 16, 1536, 24, 256, 256, 16, True, RDNA3, "WGP"),
}
# As AMD sells them: architecture, units, GHz, GB/s, GB, MiB of L2, TFLOP/s of float32 (without pairs of results) and of matrix
# instructions by type.
SOLD_AS: dict[str, tuple[str, int, float, float, int, int, float, dict[str, float]]] = {
    "mi50": ("gfx906", 60, 1.725, 1024, 16, 4, 13.3, {}),
    "mi100": ("gfx908", 120, 1.502, 1228.8, 32, 8, 23.1, {"float16": 184.6, "bfloat16": 92.3, "float32": 46.1, "int8": 184.6}),
    "mi210": (
        "gfx90a", 104, 1.7, 1638.4, 64, 8, 22.6,
        {"float16": 181.0, "bfloat16": 181.0, "float32": 45.3, "float64": 45.3, "int8": 181.0},
    ),
    "mi250x": (
        "gfx90a", 110, 1.7, 1638.4, 64, 8, 23.95,
        {"float16": 191.5, "bfloat16": 191.5, "float32": 47.85, "float64": 47.85, "int8": 191.5},
    ),
    "mi300x": (
        "gfx942", 304, 2.1, 5300, 192, 4, 81.7,
        {"float16": 1307.4, "bfloat16": 1307.4, "float32": 163.4, "float64": 163.4, "int8": 2614.9},
    ),
    "rx7900xtx": ("gfx1100", 48, 2.5, 960, 24, 6, 30.7, {"float16": 122.8, "bfloat16": 122.8, "int8": 122.8}),
}  # fmt: skip
INSTRUCTIONS = {
    "gfx906": set(),
    "gfx908": {
        "mfma_m16n16k16_f16", "mfma_m32n32k8_f16", "mfma_m16n16k8_bf16", "mfma_m32n32k4_bf16", "mfma_m16n16k4_f32",
        "mfma_m32n32k2_f32", "mfma_m16n16k16_s8", "mfma_m32n32k8_s8",
    },
    "gfx90a": {
        "mfma_m16n16k16_f16", "mfma_m32n32k8_f16", "mfma_m16n16k16_bf16", "mfma_m32n32k8_bf16", "mfma_m16n16k4_f32",
        "mfma_m32n32k2_f32", "mfma_m16n16k4_f64", "mfma_m16n16k16_s8", "mfma_m32n32k8_s8",
    },
    "gfx942": {
        "mfma_m16n16k16_f16", "mfma_m32n32k8_f16", "mfma_m16n16k16_bf16", "mfma_m32n32k8_bf16", "mfma_m16n16k4_f32",
        "mfma_m32n32k2_f32", "mfma_m16n16k4_f64", "mfma_m16n16k32_s8", "mfma_m32n32k16_s8",
    },
    "gfx1100": {"wmma_m16n16k16_f16", "wmma_m16n16k16_bf16", "wmma_m16n16k16_s8"},
}  # fmt: skip


def shipped(chip: str) -> tuple[HardwareSpec, Architecture]:
    spec = find_spec("rocm", chip)
    return spec, KNOWN[spec.options["arch"]]


def per_cycle(spec: HardwareSpec, name: str) -> float | None:
    return next((atom.flops_per_cycle_per_unit for atom in spec.atoms if atom.name == name), None)


def test_every_chip_of_the_project_is_there_and_its_architecture_compiles() -> None:
    assert set(CHIPS) == set(SOLD_AS)
    assert {find_spec("rocm", chip).options["arch"] for chip in CHIPS} == set(KNOWN)


@pytest.mark.parametrize("chip", CHIPS)
def test_what_the_architecture_fixes(chip: str) -> None:
    spec, known = shipped(chip)
    unit, shared, register = spec.unit, spec.level("shared"), spec.level("register")
    assert (unit.name, unit.lane_group) == (known.units, known.wave)
    assert spec.options["wavefront"] == known.wave
    assert unit.lanes_max == spec.options["flat_workgroup_max"] == 256  # no program has more lanes than the compiler takes
    assert unit.resident_lanes_max == 4 * known.waves * known.wave
    assert unit.lane_storage_bytes == 4 * 4 * known.registers * known.wave
    assert (unit.lane_storage_granule, unit.lane_storage_max_bytes) == (4 * known.granule, 4 * min(256, known.most))
    assert (register.instances, register.capacity_bytes) == (4 * unit.count, unit.lane_storage_bytes // 4)
    assert spec.partitions == 4
    assert shared.instances == unit.count
    assert shared.usable_bytes == 64 * KIB
    assert shared.capacity_bytes == (128 if known.units == "WGP" else 64) * KIB
    assert shared.banks is not None
    assert (shared.banks.count, shared.banks.width_bytes) == (32, 4)
    assert {level.access_lanes for level in spec.levels[1:]} == {known.wave}
    assert lint(spec) == []


@pytest.mark.parametrize("chip", CHIPS)
def test_rates_follow_from_lanes_and_clocks(chip: str) -> None:
    spec, known = shipped(chip)
    assert (per_cycle(spec, "f32"), per_cycle(spec, "f64"), per_cycle(spec, "i32")) == (known.f32, known.f64, known.f32 / 4)
    assert per_cycle(spec, "f16x2") == 2 * known.f32
    assert per_cycle(spec, "f32x2") == (2 * known.f32 if known.packed else None)
    for atom in spec.atoms:
        assert atom.flops_per_cycle_per_unit is not None
        assert atom.gflops == pytest.approx(atom.flops_per_cycle_per_unit * spec.unit.count * spec.clock_ghz, rel=1e-4), atom.name
        assert atom.lanes == (known.wave if atom.kind == "matrix" else 1)
    register, shared = spec.level("register"), spec.level("shared")
    assert shared.banks is not None
    sets = 2 if known.units == "WGP" else 1  # a set of banks for each CU
    served = sets * shared.banks.count * shared.banks.width_bytes * spec.unit.count * spec.clock_ghz
    assert register.bandwidth_gbps == pytest.approx(served, rel=1e-4)


@pytest.mark.parametrize("chip", CHIPS)
def test_what_tells_chips_apart(chip: str) -> None:
    spec, known = shipped(chip)
    arch, count, clock, bandwidth, memory, cache, f32, matrix = SOLD_AS[chip]
    assert (spec.options["arch"], spec.unit.count, spec.clock_ghz) == (arch, count, clock)
    assert spec.levels[1].bandwidth_gbps == pytest.approx(bandwidth, rel=0.005)
    assert spec.outermost.capacity_bytes == memory << 30
    assert spec.level("L2").capacity_bytes == cache << 20
    assert known.f32 * count * clock == pytest.approx(1000 * f32, rel=0.005)
    assert spec.peaks_gflops["float32"] == pytest.approx(1000 * f32 * (2 if known.packed else 1), rel=0.005)
    assert {k: v for k, v in spec.peaks_gflops.items() if k.endswith("_matrix")} == {
        f"{dtype}_matrix": pytest.approx(1000 * rate, rel=0.002) for dtype, rate in matrix.items()
    }


@pytest.mark.parametrize("chip", CHIPS)
def test_matrix_instructions_are_those_of_the_architecture(chip: str) -> None:
    """Names say what the atoms are; both shapes of a type run at one rate, which is the peak."""
    spec, _ = shipped(chip)
    atoms = [atom for atom in spec.atoms if atom.kind == "matrix"]
    assert {atom.name for atom in atoms} == INSTRUCTIONS[spec.options["arch"]]
    for atom in atoms:
        m, n, k = (atom.extents[role] for role in "mnk")
        kind = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "s8"}[atom.in_dtype]
        assert atom.name.endswith(f"ma_m{m}n{n}k{k}_{kind}")
        assert atom.acc_dtype == {"f64": "float64", "s8": "int32"}.get(kind, "float32")
        assert atom.gflops == pytest.approx(spec.peaks_gflops[f"{atom.in_dtype}_matrix"], rel=0.002)
        assert (atom.operand_level, atom.acc_level) == ("register", "register")


@pytest.mark.parametrize("chip", CHIPS)
def test_waves_by_registers_are_those_that_the_compiler_says(chip: str) -> None:
    spec, known = shipped(chip)
    steps = [tuple(map(int, step.split(":"))) for step in known.fits.split()]
    for (first, waves), (after, _) in zip(steps, [*steps[1:], (257, 0)], strict=True):
        found = {occupancy.resident_waves(spec, registers) for registers in range(first, after)}
        assert found == {waves}, (first, after)
    assert occupancy.resident_waves(spec, 257) == (1 if known.most > 256 else 0)
    assert occupancy.resident_waves(spec, known.most + 1) == 0
    assert occupancy.resident_waves(spec, 0) == known.waves


def test_registers_for_accumulation_share_a_file_or_have_their_own() -> None:
    shared, apart, without = (find_spec("rocm", chip) for chip in ("mi210", "mi100", "mi50"))
    assert occupancy.resident_waves(shared, 128, 128) == 2
    assert occupancy.resident_waves(shared, 33, 28) == occupancy.resident_waves(shared, 36 + 28) == 8
    assert occupancy.resident_waves(shared, 33, 32) == 7  # those for accumulation begin at 36
    assert occupancy.resident_waves(shared, 256, 256) == 1
    assert occupancy.resident_waves(apart, 128, 128) == occupancy.resident_waves(apart, 128) == 2
    assert occupancy.resident_waves(apart, 24, 128) == 2
    assert "accumulation_registers" not in without.options


def test_dies_of_one_architecture_differ_in_their_units_only() -> None:
    """Half of an MI250X is an MI210 with six more units."""
    one, other = find_spec("rocm", "mi210"), find_spec("rocm", "mi250x")
    assert one.unit.model_dump(exclude={"count"}) == other.unit.model_dump(exclude={"count"})
    assert one.levels[:2] == other.levels[:2]
    rates = [[(a.name, a.roles, a.flops_per_cycle_per_unit) for a in spec.atoms] for spec in (one, other)]
    assert rates[0] == rates[1]
    assert "one of its two dies" in other.title


@pytest.mark.parametrize(("chip", "together"), [("mi210", 64), ("mi300x", 64), ("mi100", 33)])
def test_the_metadata_counts_registers_together_as_the_file_is_laid_out(chip: str, together: int) -> None:
    """33 for arithmetic and 28 for accumulation: behind the next multiple of four, or beside them."""
    spec = find_spec("rocm", chip)
    clobbering = 'call void asm sideeffect "", "~{v32},~{a27}"()'
    source = f'target triple = "{module_text.TRIPLE}"\ndefine amdgpu_kernel void @k() {{\n {clobbering}\n ret void\n}}\n'
    _, text = llvm_worker.run(assembling.assembled, module_text.settled(source, spec, (), {}))
    facts = assembly.parsed(text).kernels["k"].facts
    assert (facts["vgpr_count"], facts["agpr_count"]) == (together, 28)
    assert occupancy.resident_waves(spec, together) == occupancy.resident_waves(spec, 33, 28)
