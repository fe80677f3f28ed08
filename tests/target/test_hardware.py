"""The hardware models: what a chip is, what a chip cannot be, and that specs are plain values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from roller.frozen import FrozenMap
from roller.target.catalog import find_spec, list_specs
from roller.target.hardware import HardwareSpec, peak_key


def toy() -> dict[str, Any]:
    """A chip of two units with a cache, a scratchpad and per-lane registers, as a spec file would say it."""
    return {
        "schema_version": 1,
        "device": "toy",
        "chip": "toy-1",
        "title": "a toy",
        "clock_ghz": 1.0,
        "levels": [
            {"name": "DRAM", "instances": 1, "capacity_bytes": 1 << 30, "transaction_bytes": 64, "managed": True},
            level("L2", 1, 1 << 20, 100.0, managed=False, usable_fraction=0.5),
            level("pad", 2, 1 << 15, 200.0, reserved_bytes=1024, holds=["input"], banks={"count": 32, "width_bytes": 4}),
            level("register", 8, 1 << 14, 400.0, holds=["input", "accumulator"]),
        ],
        "unit": {
            "name": "core",
            "count": 2,
            "lanes_max": 64,
            "lane_group": 32,
            "lane_storage_bytes": 1 << 16,
            "chains": 8,
            "launch_overhead_us": 1.0,
        },
        "atoms": [
            atom("f32", "scalar", 64.0, {}),
            atom("mma", "matrix", 1024.0, {"m": "stream", "n": 16, "k": 16}, row_cycles=1.0, acc_level="register"),
        ],
        "peaks_gflops": {"float32": 64.0, "float32_matrix": 1000.0},
        "options": {"arch": "toy", "nested": {"list": [1, 2, "three"]}},
        "sources": {"*": "invented: for tests"},
    }


def level(name: str, instances: int, capacity: int, rate: float, **more: Any) -> dict[str, Any]:
    base = {"name": name, "instances": instances, "capacity_bytes": capacity, "bandwidth_gbps": rate}
    return {**base, "transaction_bytes": 64, "managed": True, **more}


def atom(name: str, kind: str, gflops: float, roles: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {"name": name, "kind": kind, "roles": roles, "in_dtype": "float32", "acc_dtype": "float32"}
    return {**base, "gflops": gflops, "flops_per_cycle_per_unit": gflops / 2, **more}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The toy with one field set, or removed where the value is `...`; lists are walked by name or number."""
    data: Any = toy()
    top = data
    *steps, last = path.split(".")
    for step in steps:
        by_name = isinstance(data, list) and not step.isdigit()
        data = next(x for x in data if x["name"] == step) if by_name else data[int(step) if step.isdigit() else step]
    if value is ...:
        del data[last]
    else:
        data[last] = value
    return dict(top)


def spec(data: Mapping[str, Any] | None = None) -> HardwareSpec:
    return HardwareSpec.model_validate(data or toy())


def test_levels_are_found_by_name_and_by_place() -> None:
    chip = spec()
    assert chip.outermost.name == "DRAM"
    assert chip.level("pad") is chip.levels[2]
    assert chip.level_index("register") == 3
    with pytest.raises(KeyError, match="toy:toy-1 has no level 'L9'"):
        chip.level("L9")


def test_instances_against_units_say_who_owns_a_level() -> None:
    chip = spec()
    owners = [(chip.shared(level), chip.private(level), chip.per_lane(level)) for level in chip.levels]
    assert owners == [(True, False, False), (True, False, False), (False, True, False), (False, False, True)]
    assert [chip.units_sharing(level) for level in chip.levels] == [2, 2, 1, 1]


def test_usable_bytes_leave_out_what_is_reserved_unreliable_or_over_a_tile() -> None:
    assert spec().level("pad").usable_bytes == (1 << 15) - 1024
    assert spec().level("L2").usable_bytes == 1 << 19
    assert spec(changed("levels.pad.tile_max_bytes", 4096)).level("pad").usable_bytes == 4096


def test_specs_are_values() -> None:
    one, other = spec(), spec()
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, spec(changed("clock_ghz", 1.01))}) == 2
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
    assert hash(pickle.loads(pickle.dumps(one))) == hash(one)
    with pytest.raises(ValidationError, match="frozen"):
        one.clock_ghz = 2.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.options["arch"] = "other"  # type: ignore[index]


def test_mappings_and_what_is_in_them_are_frozen() -> None:
    options = spec().options
    assert options["nested"] == FrozenMap({"list": (1, 2, "three")})
    assert hash(FrozenMap({"a": 1, "b": 2})) == hash(FrozenMap({"b": 2, "a": 1}))
    assert dict(spec().atoms[1].roles) == {"m": "stream", "n": 16, "k": 16}
    assert repr(FrozenMap({"a": 1})) == "FrozenMap({'a': 1})"


def test_the_content_hash_is_of_what_can_change_a_program() -> None:
    assert spec().content_hash() == spec().content_hash()
    assert len(spec().content_hash()) == 64
    assert spec(changed("title", "another")).content_hash() == spec().content_hash()
    assert spec(changed("sources", {})).content_hash() == spec().content_hash()
    changes: list[tuple[str, Any]] = [
        ("options.arch", "other"),
        ("levels.pad.latency_ns", 1.0),
        ("atoms.mma.startup_cycles", 2.0),
    ]
    for path, value in changes:
        assert spec(changed(path, value)).content_hash() != spec().content_hash()


def test_a_matrix_atom_has_a_peak_of_its_own() -> None:
    assert [peak_key(atom) for atom in spec().atoms] == ["float32", "float32_matrix"]


CONTRADICTIONS = [
    ("levels.pad.transaction_bytes", 48, "not a power of two"),
    ("levels.pad.reserved_bytes", 1 << 15, "leave nothing"),
    ("levels.pad.tile_max_bytes", 1 << 16, "more than capacity_bytes"),
    ("levels.pad.holds", [], "at least one tensor"),
    ("levels.pad.holds", ["input", "input"], "none twice"),
    ("levels.pad.name", "L2", "two are named 'L2'"),
    ("levels.pad.carved_from", "nowhere", "no other level is named 'nowhere'"),
    ("levels.pad.carved_from", "pad", "no other level is named 'pad'"),
    ("levels.DRAM.carved_from", "pad", "more than pad has"),
    ("levels.DRAM.bandwidth_gbps", 5.0, "level 0 has none"),
    ("levels.pad.bandwidth_gbps", ..., "every other level has one"),
    ("levels.pad.bandwidth_gbps", 99.0, "less than that of L2"),
    ("levels.pad.capacity_bytes", 1 << 21, "more than that of L2"),
    ("levels.pad.instances", 3, "do not divide among 2 units"),
    ("levels.register.capacity_bytes", 1 << 15, "the same storage"),
    ("unit.lanes_max", 48, "not a multiple of lane_group"),
    ("unit.resident_lanes_max", 32, "less than lanes_max"),
    ("unit.combine", ["atomic", "atomic"], "twice"),
    ("atoms.mma.name", "f32", "two are named 'f32'"),
    ("atoms.mma.acc_level", "nowhere", "no level is named 'nowhere'"),
    ("atoms.mma.operand_level", "nowhere", "no level is named 'nowhere'"),
    ("atoms.mma.roles", {}, "a scalar has none"),
    ("atoms.mma.row_cycles", ..., "missing, though a role streams"),
    ("atoms.mma.row_cycles", 2.0, "256 flops per cycle per unit derived, 512 quoted"),
    ("atoms.mma.gflops", 1100.0, "1024 GFLOP/s derived, 1100 quoted"),
    ("atoms.f32.clock_ghz", 2.0, "128 GFLOP/s derived, 64 quoted"),
    ("peaks_gflops.float32", 68.0, "64 GFLOP/s derived, 68 quoted"),
    ("peaks_gflops.float16", 68.0, "no atom computes it"),
]


@pytest.mark.parametrize(("path", "value", "complaint"), CONTRADICTIONS)
def test_a_spec_may_not_contradict_itself(path: str, value: Any, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        spec(changed(path, value))


def test_some_level_belongs_to_a_unit_alone() -> None:
    """Tiles of a unit lie there: without one there is nothing to construct."""
    shared = toy()
    shared["levels"] = [{**table, "instances": 1} for table in shared["levels"]]
    with pytest.raises(ValidationError, match="none inside DRAM belongs to a unit alone; one has instances = 2 or more"):
        HardwareSpec.model_validate(shared)


def test_a_register_file_may_exceed_the_scratchpad_beside_it() -> None:
    data = changed("unit.lane_storage_bytes", 1 << 18)
    data["levels"][3]["capacity_bytes"] = 1 << 16
    assert spec(data).level("register").capacity_bytes > spec(data).level("pad").capacity_bytes


def test_level_zero_may_be_carved_from_the_memories_of_the_units() -> None:
    data = changed("levels.DRAM.carved_from", "pad")
    data["levels"][0]["capacity_bytes"] = 1 << 16
    data["levels"] = [data["levels"][0], data["levels"][2]]
    data["atoms"] = data["atoms"][:1]
    del data["peaks_gflops"]["float32_matrix"], data["unit"]["lane_storage_bytes"]
    assert spec(data).outermost.carved_from == "pad"


@pytest.mark.parametrize("entry", list_specs(), ids=lambda entry: f"{entry.device}-{entry.chip}")
def test_shipped_chips_reproduce_their_vendors_peaks(entry: Any) -> None:
    chip = find_spec(entry.device, entry.chip)
    for key, quoted in chip.peaks_gflops.items():
        rates = [
            atom.flops_per_cycle_per_unit * chip.unit.count * (atom.clock_ghz or chip.clock_ghz)
            for atom in chip.atoms
            if peak_key(atom) == key and atom.flops_per_cycle_per_unit
        ]
        assert max(rates) == pytest.approx(quoted, rel=0.05)


def test_the_worked_examples_of_the_design_hold() -> None:
    """Numbers that the engine's worked tiles depend on."""
    zen5, h100 = find_spec("cpu", "zen5"), find_spec("cuda", "h100")
    assert [level.bandwidth_gbps for level in zen5.levels] == [None, 70, 170, 320, 900]
    assert zen5.level("register").capacity_bytes == 32 * 64
    assert zen5.unit.chains == 8
    assert h100.level("shared").usable_bytes == 227 * 1024
    assert h100.unit.lane_storage_bytes > h100.level("shared").capacity_bytes
    tile = find_spec("npu_demo", "npu-demo").level("accumulator")
    assert tile.usable_bytes == 256 * 256 * 4  # exactly, which 256,000 would not hold
    for chip in (find_spec("ipu_sim", "gc200"), find_spec("ipu_sim", "bow")):
        sram = chip.level("SRAM")
        assert chip.outermost.capacity_bytes == sram.instances * sram.capacity_bytes
        assert chip.overlap_loss == 1.0
    assert find_spec("cuda", "k80").level("shared").usable_bytes == 48 * 1024
    mi300x = find_spec("rocm", "mi300x")
    assert mi300x.units_sharing(mi300x.level("L2")) == 38


def test_arrays_are_spread_where_level_0_is_carved_from_the_units_memories() -> None:
    assert not HardwareSpec.model_validate(toy()).spread
    assert [chip for chip in ("cpu:zen3", "ipu_sim:bow", "ipu_sim:gc2", "cuda:a100") if find_spec(*chip.split(":")).spread] == [
        "ipu_sim:bow",
        "ipu_sim:gc2",
    ]
