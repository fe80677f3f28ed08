"""Spec files: every shipped one is sound, and every bad one is refused in one line that names file and field."""

from __future__ import annotations

import json
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller.errors import (
    CodegenError,
    ConstructionError,
    HookError,
    RollerError,
    SpecError,
    UnknownDeviceError,
    WrongResultError,
)
from roller.target import catalog
from roller.target.catalog import dump_spec, find_spec, json_schema, list_specs, load_spec, spec_from_dict
from roller.target.hardware import HardwareSpec
from roller.target.linting import lint

ENTRIES = list_specs()
NAMES = [f"{entry.device}:{entry.chip}" for entry in ENTRIES]
ZEN3 = next(entry.path for entry in ENTRIES if entry.chip == "zen3")
TEXT = ZEN3.read_text(encoding="utf-8")


def refusal(path: Path) -> SpecError:
    """The error a file is refused with: one line, led by the file."""
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert caught.value.file == str(path)
    return caught.value


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "chip.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_shipped_chips() -> None:
    assert sorted(NAMES) == NAMES
    assert {entry.device for entry in ENTRIES} >= {"cpu", "cuda", "rocm", "ipu_sim", "npu_demo"}
    assert {"cpu:zen5", "cpu:x86-64-v3", "cuda:v100-pcie", "cuda:h100", "rocm:mi50", "ipu_sim:bow"} <= set(NAMES)


@pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
def test_shipped_specs_load_from_their_place_and_lint_clean(entry: catalog.SpecEntry) -> None:
    spec = find_spec(entry.device, entry.chip)
    assert (spec.device, spec.chip) == (entry.device, entry.chip)
    assert lint(spec) == []
    assert {atom.in_dtype for atom in spec.atoms} >= {"float32"}


@pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
def test_dumped_specs_load_again_as_they_were(entry: catalog.SpecEntry, tmp_path: Path) -> None:
    spec = load_spec(entry.path)
    again = load_spec(written(tmp_path, dump_spec(spec)))
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.content_hash() == spec.content_hash()
    assert dump_spec(again) == dump_spec(spec)


def test_the_schema_file_is_current() -> None:
    assert (catalog.builtin_dir() / "schema.json").read_text(encoding="utf-8") == json_schema()


def test_an_unknown_chip_is_refused_with_what_there_is() -> None:
    with pytest.raises(SpecError, match=r"no spec of chip 'zen6' .* \(did you mean 'zen\d'\?\)") as caught:
        find_spec("cpu", "zen6")
    assert "skylake-avx512" in str(caught.value)
    with pytest.raises(SpecError, match="there is: none"):
        find_spec("toaster", "any")
    with pytest.raises(SpecError, match="no spec of chip"):
        find_spec("cpu", "../cpu/zen5")


def test_a_users_directory_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / "cpu"
    folder.mkdir()
    (folder / "zen3.toml").write_text(TEXT.replace("clock_ghz = 3.21", "clock_ghz = 3.2"), encoding="utf-8")
    assert find_spec("cpu", "zen3", [tmp_path]).clock_ghz == 3.2
    assert find_spec("cpu", "zen3").clock_ghz == 3.21
    assert len(list_specs("cpu", [tmp_path])) == len(list_specs("cpu"))
    (folder / "renamed.toml").write_text(TEXT, encoding="utf-8")
    with pytest.raises(SpecError, match=r"renamed\.toml: chip: says 'zen3', but the file is in the place of 'renamed'"):
        find_spec("cpu", "renamed", [tmp_path])
    assert find_spec("cpu", "zen4", [tmp_path / "no such directory"]).chip == "zen4"


def test_files_that_are_no_spec_files(tmp_path: Path) -> None:
    assert "no such file" in str(refusal(tmp_path / "absent.toml"))
    assert "is a directory" in str(refusal(tmp_path))
    assert "not UTF-8 at byte 1" in str(refusal(written(tmp_path, b"#\xff\n")))
    assert "not TOML" in str(refusal(written(tmp_path, "a = = 1")))
    assert "larger than 1048576 bytes" in str(refusal(written(tmp_path, "#" * ((1 << 20) + 1))))
    assert "not TOML" in str(refusal(written(tmp_path, "a = " + "[" * 100_000)))
    assert "not TOML" in str(refusal(written(tmp_path, "a = " + "9" * 100_000)))
    assert refusal(written(tmp_path, "")).field == "schema_version"
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec("a\0b")


REFUSALS = [
    ("schema_version = 1", "schema_version = 2", "schema_version", "2 is foreign; this roller reads 1"),
    ("schema_version = 1", "schema_version = true", "schema_version", "True is foreign"),
    ("clock_ghz", "clock_gzh", "clock_gzh", "unknown key (did you mean 'clock_ghz'?) (and 1 more)"),
    ("clock_ghz", "clock_gzh", "clock_gzh", "unknown key (did you mean 'clock_ghz'?) (and 1 more)"),
    ("[unit]", "[unit]\nlanes_mx = 1", "unit.lanes_mx", "unknown key (did you mean 'lanes_max'?)"),
    ("managed = false", "managed = false\ncapacty = 1", "levels.L3.capacty", "did you mean 'capacity_bytes'?"),
    ("instances = 1\n", "", "levels.DRAM.instances", "missing"),
    ("instances = 1\n", "instances = -1\n", "levels.DRAM.instances", "greater than or equal to 1, found -1"),
    ("instances = 1\n", "instances = true\n", "levels.DRAM.instances", "valid integer, found True"),
    ("instances = 1\n", 'instances = "1"\n', "levels.DRAM.instances", "valid integer, found '1'"),
    ("capacity_bytes = 25769803776", "capacity_bytes = 1e9", "levels.DRAM.capacity_bytes", "found 1000000000.0"),
    ("bandwidth_gbps = 43.4", "bandwidth_gbps = nan", "levels.L3.bandwidth_gbps", "found nan"),
    ("bandwidth_gbps = 43.4", "bandwidth_gbps = inf", "levels.L3.bandwidth_gbps", "found inf"),
    ("bandwidth_gbps = 43.4", "bandwidth_gbps = 0", "levels.L3.bandwidth_gbps", "greater than 0, found 0"),
    ("bandwidth_gbps = 43.4", "bandwidth_gbps = 990", "levels.L2.bandwidth_gbps", "less than that of L3"),
    ("transaction_bytes = 64", "transaction_bytes = 60", "levels.DRAM.transaction_bytes", "not a power of two"),
    ('name = "L1"', "name = 1", "levels[3].name", "valid string, found 1"),
    ('name = "L1"', 'name = "L2"', "levels", "two are named 'L2'"),
    ('holds = ["input", "accumulator"]', 'holds = ["inputs"]', "levels.register.holds[0]", "found 'inputs'"),
    ("roles = { n = 8 }", "roles = { q = 8 }", "atoms.f32x8.roles.q", "'m', 'n' or 'k'"),
    ("roles = { n = 8 }", "roles = { n = 0 }", "atoms.f32x8.roles.n", "greater than or equal to 1"),
    ('in_dtype = "float32"', 'in_dtype = "float31"', "atoms.f32x8.in_dtype", "found 'float31'"),
    ("gflops = 205.4", "gflops = 411", "atoms.f32x8.gflops", "205.44 GFLOP/s derived, 411 quoted"),
    ("float32 = 205.0", "float32 = 410", "peaks_gflops.float32", "more than 5 % apart"),
    ("float32 = 205.0", 'float32 = "fast"', "peaks_gflops.float32", "valid number"),
    ("vector_bytes = 32", "vector_bytes = nan", "options", "nan is not text, a finite number"),
    ("vector_bytes = 32", "vector_bytes = 2020-01-01", "options", "is not text, a finite number"),
    ("[unit]", "[[unit]]", "unit", "dictionary or instance of SchedulableUnit"),
    ('device = "cpu"', 'device = "C P U"', "device", "found 'C P U'"),
]


@pytest.mark.parametrize(("old", "new", "field", "complaint"), REFUSALS)
def test_a_bad_spec_is_refused_by_file_and_field(tmp_path: Path, old: str, new: str, field: str, complaint: str) -> None:
    assert old in TEXT
    error = refusal(written(tmp_path, TEXT.replace(old, new, 1)))
    assert error.field == field
    assert complaint in str(error)
    assert len(str(error)) < 500 + len(str(tmp_path))


def test_lint_finds_what_has_no_source_and_sources_that_cover_nothing() -> None:
    data = tomllib.loads(TEXT)
    data["sources"] = {**data["sources"], "levels.L4.*": "measured: no", "unit.count": "somebody said so"}
    del data["sources"]["clock_ghz"], data["atoms"][0]["flops_per_cycle_per_unit"], data["peaks_gflops"]["int32"]
    problems = lint(spec_from_dict(data))
    assert problems[0] == "clock_ghz: no source"
    assert "sources.levels.L4.*: covers no number of this spec" in problems
    assert any(problem.startswith("sources.unit.count: must begin with one of datasheet") for problem in problems)
    assert "atoms.f32x8: without flops_per_cycle_per_unit its gflops cannot be checked" in problems
    assert "peaks_gflops.int32: missing, though atoms.i32x8 computes it" in problems


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.integers(min_value=2**62, max_value=2**80),
)
JUNK = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys: Any = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *[place for key in keys for place in places(value[key], (*path, key))]][0 if path else 1 :]


PLACES = places(tomllib.loads(TEXT))


def mutate(data: Any, place: tuple[Any, ...], how: str, junk: Any) -> None:
    try:
        for key in place[:-1]:
            data = data[key]
        if how == "replace":
            data[place[-1]] = junk
        elif how == "remove":
            del data[place[-1]]
        elif how == "negate" and isinstance(data[place[-1]], int | float):
            data[place[-1]] = -data[place[-1]]
        elif how == "scale" and isinstance(data[place[-1]], int):
            data[place[-1]] *= 1000
        elif how == "repeat" and isinstance(data, list):
            data.append(data[place[-1]])
        elif isinstance(data, dict):
            data[str(place[-1]) + "x"] = data.pop(place[-1])
    except (KeyError, IndexError, TypeError):
        return  # an earlier mutation took the place away


HOWS = st.sampled_from(["replace", "remove", "negate", "scale", "repeat", "rename"])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), HOWS, JUNK), min_size=1, max_size=3))
def test_a_mutated_spec_is_valid_or_a_spec_error(mutations: list[tuple[tuple[Any, ...], str, Any]]) -> None:
    data = tomllib.loads(TEXT)
    for mutation in mutations:
        mutate(data, *mutation)
    try:
        spec = spec_from_dict(data, "chip.toml")
    except SpecError as error:
        assert str(error).startswith("chip.toml: ")
        assert "\n" not in str(error)
        assert error.field
    else:
        assert hash(spec) == hash(spec_from_dict(tomllib.loads(dump_spec(spec))))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.binary(max_size=6), st.integers(0, 40))
def test_a_mutated_file_is_valid_or_a_spec_error(at: int, inserted: bytes, removed: int) -> None:
    raw = TEXT.encode()
    try:
        data = catalog.parse(raw[:at] + inserted + raw[at + removed :], Path("chip.toml"))
        assert isinstance(spec_from_dict(data, "chip.toml"), HardwareSpec)
    except SpecError as error:
        assert str(error).startswith("chip.toml: ")
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "error",
    [
        SpecError("wrong", "chip.toml", "unit.count"),
        UnknownDeviceError("gpu", ["cpu", "toy"]),
        HookError("raised", "toy", "roller_codegen"),
        ConstructionError("nothing fits", {"capacity": 2, "warp multiple": 40}),
        CodegenError("refused", "line 1: error"),
        WrongResultError("off", (1, 2), 0.5),
    ],
)
def test_errors_survive_the_way_from_a_worker(error: RollerError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_errors_say_what_happened() -> None:
    assert str(SpecError("wrong", "chip.toml", "unit.count")) == "chip.toml: unit.count: wrong"
    assert str(UnknownDeviceError("gpu", ["cpu"])) == "no device plugin named 'gpu'; installed: cpu"
    counts = ConstructionError("nothing fits", {"warp multiple": 40, "shared capacity": 212})
    assert str(counts) == "nothing fits (refused by shared capacity: 212, warp multiple: 40)"
    assert str(ConstructionError("nothing fits")) == "nothing fits"
    assert str(WrongResultError("off", (1, 2), 0.5)) == "off at (1, 2) by 0.5"
    assert isinstance(SpecError("x"), ValueError)
    assert isinstance(WrongResultError("x"), RuntimeError)


# --- likely mistakes ---------------------------------------------------------------------------------------------------------


def changed(chip: str, change: Any) -> dict[str, Any]:
    data = json.loads(find_spec(*chip.split(":")).model_dump_json())
    data["peaks_gflops"] = {}
    change(data)
    return data


CONTRADICTIONS: dict[str, tuple[str, Any, str]] = {
    "matrix without k": ("cuda:a100", lambda d: d["atoms"][-1]["roles"].pop("k"), "roles: a matrix instruction sums products"),
    "vector along m": ("cpu:zen3", lambda d: d["atoms"][0].update(roles={"m": 8}), "n, or n and k"),
    "one core's bandwidth": (
        "cpu:zen5",
        lambda d: d["levels"][3].update(bandwidth_gbps=d["levels"][2]["bandwidth_gbps"] / 8),
        r"levels\.L1\.bandwidth_gbps: less than that of L2 outside it \(of all instances\)",
    ),
    "halves summed as integers": ("cpu:zen3", lambda d: d["atoms"][0].update(acc_dtype="int32"), "are not summed in int32"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_impossible_atoms_are_refused(name: str) -> None:
    chip, change, said = CONTRADICTIONS[name]
    with pytest.raises(SpecError, match=said):
        spec_from_dict(changed(chip, change))


UNLIKELY: dict[str, tuple[str, Any, str]] = {
    "kilobytes": ("cpu:zen5", lambda d: d["levels"][-1].update(capacity_bytes=64), "64 bytes do not hold the 132 of atoms"),
    "terabytes a second": ("cuda:a100", lambda d: [v.update(bandwidth_gbps=v["bandwidth_gbps"] / 1000) for v in d["levels"][1:]],
                           "bytes per operation of the fastest atom"),
    "picoseconds": ("cuda:a100", lambda d: d["levels"][1].update(latency_ns=100_000), "are 100 us for one access"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNLIKELY)
def test_unlikely_numbers_are_found(name: str) -> None:
    chip, change, said = UNLIKELY[name]
    assert not [line for line in lint(find_spec(*chip.split(":"))) if said in line]
    assert [line for line in lint(spec_from_dict(changed(chip, change))) if said in line]


def test_a_file_is_called_as_its_chip(tmp_path: Path) -> None:
    path = tmp_path / "toy-1.toml"
    path.write_text(dump_spec(find_spec("cpu", "zen3")))
    assert lint(load_spec(path), path)[0] == "chip: 'zen3', but the file is called toy-1.toml"
    assert not [line for line in lint(load_spec(path), tmp_path / "zen3.toml") if line.startswith("chip")]


def test_a_typo_is_named_before_what_is_missing_for_it() -> None:
    data = json.loads(find_spec("cpu", "zen3").model_dump_json())
    data["atom"] = data.pop("atoms")
    with pytest.raises(SpecError, match=r"unknown key \(did you mean 'atoms'\?\)"):
        spec_from_dict(data)
