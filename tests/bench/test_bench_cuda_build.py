"""The package of the GPU benchmark: what is described, what is built, what is kept, by the real toolchain and without a GPU."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.common import paper_ops
from bench.cuda.platform import PLATFORM
from bench.gpu import build, operators, package, rounding
from bench.gpu.expressions import expression
from bench.gpu.package import Package, PackageError
from emulating import needs_compiler
from gpu_stand_in import CHIP, DEEP, LAST, OTHER, PRODUCT, RELU, silent
from roller import ops
from roller.errors import CodegenError
from roller.ir import serialization


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    build.manifest(PLATFORM, folder, [CHIP])
    build.build(PLATFORM, folder, CHIP, [RELU, OTHER, PRODUCT], silent)
    return folder


# --- descriptions ----------------------------------------------------------------------------------------------------


def test_described_operators_are_the_papers() -> None:
    described = {op.id: op for op in operators.operators()}
    for theirs in paper_ops.paper_operators():
        mine = described[theirs.id]
        assert serialization.expr_to_json(ops.expression(expression(mine))) == serialization.expr_to_json(
            ops.expression(theirs.build())
        )
        assert mine.flops in (0, theirs.flops)
    assert sum(op.family == "Fig 15 tensor cores" for op in described.values()) == 4


def test_every_description_says_what_roller_computes() -> None:
    found = operators.operators()
    assert len({op.id for op in found}) == len(found)
    assert sum(op.ten for op in found) == 20 == len(operators.TEN)
    rounded = [op for op in found if op.family == "tf32"]
    assert {op.factor_dtype for op in rounded} == {"tfloat32"}
    assert all(2.0**-10 < rounding.bound(op, False).terms < 2.0**-8 and rounding.bound(op, True).exact for op in rounded)
    for op in found:
        expr = ops.expression(expression(op))
        assert (expr.output.shape, [t.name for t in expr.inputs]) == (op.output, list(op.shapes)), op.id
        again = operators.from_json(json.loads(json.dumps(op.to_json())))
        assert json.dumps(again.to_json()) == json.dumps(op.to_json())
        assert op.need > op.moved > 0


def test_wherever_one_stops_every_family_of_a_tier_has_had_its_share() -> None:
    """After the first of each family; of those, too, the lower tier's come first."""
    found = operators.operators()
    families = [op.family for op in found]
    rest = found[len(set(families)) :]
    tiers = [operators.TIERS[op.family] for op in rest]
    assert set(families[: len(set(families))]) == set(families) and tiers == sorted(tiers)
    for tier in set(tiers):
        those = [op.family for op in rest if operators.TIERS[op.family] == tier]
        for family in set(those):
            assert abs(those[: len(those) // 2].count(family) - those.count(family) / 2) <= 1


def test_whole_numbers_must_be_exact_and_others_within_what_rounding_allows() -> None:
    assert rounding.bound(DEEP, True).exact and rounding.bound(RELU, False).exact
    assert rounding.bound(DEEP, False).terms == pytest.approx(2 * 3000 * 2**-24, rel=1e-3)
    assert rounding.bound(PRODUCT, False).spread == 2**-11
    chain = replace(PRODUCT, kind="matmul_bias_gelu")
    assert not rounding.bound(chain, True).exact and rounding.bound(chain, True).terms == 0


# --- the package -----------------------------------------------------------------------------------------------------


@needs_compiler
def test_what_exists_is_kept_and_what_changed_is_built_again(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(built, tmp_path / "package"))
    said: list[str] = []
    build.build(PLATFORM, folder, CHIP, [RELU, PRODUCT], said.append)
    assert all("as it was" in text for text in said)
    said.clear()
    (known,) = build.build(PLATFORM, folder, CHIP, [replace(RELU, shapes={"x": (9, 9)})], said.append)
    assert "as it was" not in said[0] and known.operator.output == (9, 9)
    for cubin in (folder / "binaries").iterdir():
        cubin.write_bytes(b"damaged")
    with pytest.raises(PackageError, match="build the package again"):
        Package(folder, PLATFORM).binary(known.programs[0]["binary"])

    def refused(*_: Any, **__: Any) -> Any:
        raise CodegenError("spoilt")

    monkeypatch.setattr(build, "run_isolated", refused)
    huge = replace(RELU, id="huge", shapes={"x": (1 << 18, 1 << 18)})
    found = build.build(PLATFORM, folder, CHIP, [OTHER, huge, replace(LAST, id="new")], silent)
    assert [e.status for e in found] == ["ok", "left out", "failed"]
    assert found[2].reason == "CodegenError: spoilt" and "GiB" in found[1].reason
    build.clean(folder, {RELU.id, OTHER.id})
    assert {e.operator.id for e in Package(folder, PLATFORM).entries(CHIP)} == {RELU.id, OTHER.id}
    assert {p.stem for p in (folder / "binaries").iterdir()} == {
        q["binary"] for e in Package(folder, PLATFORM).entries(CHIP) for q in e.programs
    }


def test_the_kernels_for_the_chip_that_is_most_alike_are_taken(tmp_path: Path) -> None:
    chips = {
        "h100": {"arch": "sm_90a", "capability": [9, 0], "units": 132, "memory_bytes": 80 << 30},
        "h200": {"arch": "sm_90a", "capability": [9, 0], "units": 132, "memory_bytes": 141 << 30},
        "a100": {"arch": "sm_80", "capability": [8, 0], "units": 108, "memory_bytes": 40 << 30},
    }
    about = {"schema": package.SCHEMA, "device": "cuda", "date": "", "versions": {}, "chips": chips}
    package.write_json(tmp_path / "manifest.json", about)
    found = Package(tmp_path, PLATFORM)

    def taken(capability: tuple[int, int], units: int, gib: int, wanted: str = "") -> str:
        gpu = {"capability": capability, "units": units, "memory_bytes": gib << 30}
        return package.chip_for(found, PLATFORM, gpu, wanted)

    assert taken((9, 0), 132, 139) == "h200" and taken((9, 0), 132, 139, "h100") == "h100"
    assert taken((9, 0), 114, 79) == "h100"
    assert taken((8, 6), 84, 24) == "a100"
    with pytest.raises(PackageError, match=r"no kernels for compute capability 10\.0: the package has h100 \(sm_90a\), h200"):
        taken((10, 0), 132, 80)
    with pytest.raises(PackageError, match=r"no kernels for compute capability 9\.0: the package has a100 \(sm_80\)$"):
        taken((9, 0), 132, 80, "a100")
    with pytest.raises(PackageError, match="no chip 'b200', only h100, h200, a100"):
        taken((9, 0), 132, 80, "b200")
    package.write_json(tmp_path / "manifest.json", {**about, "device": "rocm"})
    with pytest.raises(PackageError, match="is for the device 'rocm', this for 'cuda': see bench/rocm"):
        Package(tmp_path, PLATFORM)
    assert build.main(PLATFORM, ["--out", str(tmp_path)]) == 1  # and what is there stays
    assert json.loads((tmp_path / "manifest.json").read_text())["device"] == "rocm"
    (tmp_path / "manifest.json").write_text('{"schema": 99}')
    with pytest.raises(PackageError, match="schema 99"):
        Package(tmp_path, PLATFORM)


@needs_compiler
def test_an_interrupted_build_goes_on_from_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "calibration", interrupted)
    words = ["--chip", CHIP, "--out", str(tmp_path), "--cases", "E1,fp16 512x512x512", "--each", "1"]
    assert build.main(PLATFORM, words) == build.INTERRUPTED
    assert "goes on from there" in capsys.readouterr().err
    assert build.main(PLATFORM, words) == 0
    said = capsys.readouterr().err
    assert said.count("as it was") == 2 and "MiB" in said
    assert [e.status for e in Package(tmp_path, PLATFORM).entries(CHIP)] == ["ok", "ok"]


def test_a_chip_that_nobody_knows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(PLATFORM, ["--chip", "x9999", "--out", str(tmp_path / "package")]) == 1
    assert "x9999" in capsys.readouterr().err and not (tmp_path / "package").exists()


@needs_compiler
def test_calibration_kernels_come_along_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    build.calibration(replace(PLATFORM, probes="no_such_module"), tmp_path, CHIP, said.append)
    assert "no calibration kernels" in said[0] and not (tmp_path / "calibration").exists()
    (tmp_path / "calibrating_for_a_test.py").write_text("def prebuilt(spec): return {'bandwidth.cubin': spec.chip.encode()}")
    monkeypatch.syspath_prepend(tmp_path)
    build.calibration(replace(PLATFORM, probes="calibrating_for_a_test"), tmp_path, CHIP, said.append)
    assert (tmp_path / "calibration" / CHIP / "bandwidth.cubin").read_bytes() == b"a100"
