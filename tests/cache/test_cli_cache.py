"""`roller cache`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roller.cache import kernels, sources
from roller.cli.app import app

OPERATOR = ("compile", "relu(matmul(16x16, 16x8))", "-d", "cpu:x86-64-v3", "--top", "2")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ROLLER_CACHE", "rw")
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sources, "digest", lambda package: f"digest of {package}")
    kernels.forget()
    yield tmp_path / "kernels"
    kernels.forget()


def said(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == code, done.output
    return done.output


def data(*words: str, code: int = 0) -> Any:
    return json.loads(said(*words, "--format", "json", code=code))


def test_an_empty_cache_is_said_to_be_empty(place: Path) -> None:
    assert said("cache", "ls").strip() == "no kernels are kept"
    stats = data("cache", "stats")
    assert (stats["entries"], stats["bytes"], stats["mode"], stats["folder"]) == (0, 0, "rw", str(place))
    assert "never" in said("cache", "stats")
    assert said("cache", "verify").strip() == "0 intact, 0 damaged"
    assert said("cache", "clear").strip() == "0 removed, 0 bytes"
    assert not place.exists(), "looking creates nothing"


def test_a_kernel_is_listed_shown_and_removed(place: Path) -> None:
    said(*OPERATOR)
    (entry,) = data("cache", "ls", "-v")["entries"]
    assert entry["chip"] == "cpu:x86-64-v3" and entry["differs"] == [] and entry["options"] == "top_k=2"
    assert entry["operator"].startswith("matmul > relu (") and "16x8:float32" in entry["operator"]
    table = said("cache", "ls", "-v")
    assert entry["key"][:12] in table and "yes" in table
    shown = data("cache", "show", entry["key"][:6])
    assert shown["key"] == entry["key"] and shown["programs"] == 2 and shown["predicted_s"] > 0
    assert "digest of ro" in shown["code"] and "x86-64-image" in said("cache", "show", entry["key"])
    assert data("cache", "stats")["entries"] == 1
    assert data("cache", "clear", "--stale")["removed"] == 0
    assert data("cache", "clear", entry["key"][:12])["removed"] == 1
    assert list(place.glob("*.kernel")) == []


def test_what_no_longer_serves_says_why_and_can_be_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said(*OPERATOR)
    monkeypatch.setattr(sources, "digest", lambda package: "another digest of " + "x" * 60)
    assert data("cache", "ls", "-v")["entries"][0]["differs"] == ["code.roller changed", "code.cpu changed"]
    assert data("cache", "clear", "--stale")["removed"] == 1


def test_damaged_entries_are_found(place: Path) -> None:
    said(*OPERATOR)
    (file,) = place.glob("*.kernel")
    file.write_bytes(file.read_bytes()[:-1])
    assert "does not match its checksum" in said("cache", "verify", code=1)
    assert data("cache", "ls", "-v")["entries"][0]["differs"] == ["it does not match its checksum"]
    assert "does not match its checksum" in said("cache", "show", file.name[:8], code=3)


def test_a_damaged_entry_can_be_removed_by_its_key(place: Path) -> None:
    said(*OPERATOR)
    (file,) = place.glob("*.kernel")
    file.write_bytes(b"")
    assert data("cache", "clear", file.name[:9])["removed"] == 1 and not file.exists()


def test_an_entry_under_another_name_is_damaged(place: Path) -> None:
    said(*OPERATOR)
    (file,) = place.glob("*.kernel")
    file.rename(place / ("0" * 64 + ".kernel"))
    assert "another key" in said("cache", "verify", code=1)


@pytest.mark.parametrize("command", ["stats", "ls", "verify", "clear"])
def test_wrong_settings_and_open_folders_stop_every_command(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said(*OPERATOR)
    place.chmod(0o755)
    assert "is not used: others can open it" in " ".join(said("cache", command, code=3).split())
    place.chmod(0o700)
    monkeypatch.setenv("ROLLER_CACHE", "nonsense")
    assert "is none of rw, ro, off" in said("cache", command, code=3)
    assert list(place.glob("*.kernel"))


def test_keys_that_name_none_or_several(place: Path) -> None:
    assert "no kept kernels have a key that begins with 'zz'" in said("cache", "show", "zz", code=3)
    said(*OPERATOR)
    said(*OPERATOR[:-1], "3")
    assert "2 kept kernels have a key that begins with ''" in said("cache", "show", "", code=3)


def test_help_names_the_variables() -> None:
    text = said("cache", "--help")
    assert "ROLLER_CACHE=off|ro|rw" in text and "ROLLER_CACHE_DIR" in text and "ROLLER_CACHE_LIMIT" in text
