"""What construction chooses, written to the last bit and compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.engine import programs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few operators for a CPU."""
    made = tmp_path_factory.mktemp("programs")
    programs.write(made, ["cpu:zen5"], programs.cases()[100::30])
    return made


def compared(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["programs", "--compare", *options])
    return programs.main()


def test_the_same_tree_gives_the_same_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.write(tmp_path, ["cpu:zen5"], programs.cases()[100::30])
    assert compared(monkeypatch, str(folder), str(tmp_path)) == 0
    first = json.loads((folder / "cpu-zen5" / "000.json").read_text())
    assert len(first["programs"]) > 1
    assert float.fromhex(first["programs"][0]["estimate"]["seconds"]) > 0
    assert (folder / "cpu-zen5" / "000.source").read_text()


def test_what_differs_is_told_and_renamed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (folder / "cpu-zen5").iterdir():
        (tmp_path / "cpu-zen5").mkdir(exist_ok=True)
        (tmp_path / "cpu-zen5" / path.name).write_text(path.read_text().replace("staged", "packed"))
    assert compared(monkeypatch, str(folder), str(tmp_path)) == 1
    assert '"packed"' in capsys.readouterr().out
    assert compared(monkeypatch, str(folder), str(tmp_path), "--rename", "staged=packed") == 0
    assert "predicted 1.0000 times as long" in capsys.readouterr().out


def test_nothing_to_compare_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    assert compared(monkeypatch, str(tmp_path / "a"), str(tmp_path / "a")) == 1


def test_random_operators_are_the_same_each_time() -> None:
    names = [case.name for case in programs.cases()]
    assert names == [case.name for case in programs.cases()]
    assert len(set(names)) == len(names) == 119 + programs.DRAWN


@pytest.mark.parametrize("wrong", [("--compare", "nowhere", "nowhere"), ("--compare", ".", ".", "--rename", "staged"), ()])
def test_mistakes_are_told(wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["programs", *wrong])
    with pytest.raises(SystemExit) as ended:
        programs.main()
    assert ended.value.code == 2
    assert "--" in capsys.readouterr().err.splitlines()[-1]
