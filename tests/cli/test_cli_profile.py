"""The command `roller profile`: what a simulated device counts, and a plain answer from devices that count nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import roller
from roller import ops
from roller.cli.app import app
from roller.cli.outcome import NOT_RUN
from roller.errors import KernelError


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_profile_as_text() -> None:
    done = run("profile", "relu(matmul(64x32, 32x48))", "-d", "ipu_sim")
    assert done.exit_code == 0, done.output
    assert "simulated cycles" in done.stdout and "no IPU was used" in done.stdout
    assert "\n│ 0 │" in done.stdout, "tables are not wrapped"


def test_a_profile_as_json_and_as_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run("profile", "matmul", "64x32", "32x48", "-d", "ipu_sim:gc200", "--html", str(page), "--format", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["command"] == "profile" and told["chip"] == "gc200" and told["saved"] == str(page)
    assert told["simulated_cycles"] == sum(step["simulated_cycles"] for step in told["supersteps"]) > 0
    assert page.read_text().count("<svg") >= 1


def test_a_saved_kernel_is_profiled(tmp_path: Path) -> None:
    path = tmp_path / "k.roller"
    assert run("compile", "exp", "100", "-d", "ipu_sim", "-o", str(path)).exit_code == 0
    told = json.loads(run("profile", str(path), "--format", "json").stdout)
    assert told["simulated_cycles"] == roller.load(path).profile().to_dict()["simulated_cycles"]


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    done = run("profile", "exp", "100", "-d", "ipu_sim", "--html", str(tmp_path / "none" / "page.html"))
    assert done.exit_code == 2 and "there is no folder" in done.output


def test_a_processor_is_timed_instead() -> None:
    done = run("profile", "exp", "100", "-d", "cpu:x86-64-v3")
    assert done.exit_code == NOT_RUN and "cpu device cannot profile" in done.output
    with pytest.raises(KernelError, match="roller bench"):
        roller.compile(ops.exp(ops.tensor((100,), "float32")), device="cpu:x86-64-v3").profile()


def test_a_simulator_is_not_timed() -> None:
    done = run("bench", "exp", "100", "-d", "ipu_sim", "--seconds", "0.05")
    assert done.exit_code == NOT_RUN and "is simulated" in done.output


def test_tables_of_a_simulated_device_speak_of_cycles() -> None:
    for command in ("compile", "explain"):
        done = run(command, "matmul", "64x32", "32x48", "-d", "ipu_sim", "--top", "3")
        assert done.exit_code == 0 and "simulated cycles" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 100
