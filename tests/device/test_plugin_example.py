"""The plugin in examples/: built and installed as the distribution it is, found by its entry point, put through its own suite."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "device_plugin"
SURFACE = {"roller.plugin", "roller.lowering", "roller.testing"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which the example is installed beside the project."""
    target = tmp_path_factory.mktemp("installed")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*install, "--target", str(target), str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(target), "COLUMNS": "200"}


def say(environment: Mapping[str, str], *command: str) -> str:
    wanted = [sys.executable, "-m", *command]
    done = subprocess.run(wanted, env=environment, capture_output=True, text=True, check=False, cwd=environment["PYTHONPATH"])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_found_by_its_entry_point(installed: Mapping[str, str]) -> None:
    assert "plain_c" in say(installed, "roller", "devices")
    assert "one-core" in say(installed, "roller", "specs", "list")
    assert "f32" in say(installed, "roller", "explain", "matmul", "96x64", "64x80", "--device", "plain_c")


def test_it_passes_its_own_suite(installed: Mapping[str, str]) -> None:
    said = say(installed, "pytest", str(EXAMPLE / "tests"), "-p", "no:cacheprovider", "-rs")
    assert " passed" in said


def test_it_sees_the_core_as_a_third_party_does() -> None:
    modules = sorted((EXAMPLE / "roller_plain_c").glob("*.py"))
    assert modules
    for module in modules:
        nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
        assert not [n for n in nodes if isinstance(n, ast.Import) and any(a.name.split(".")[0] == "roller" for a in n.names)]
        found = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module and n.module.split(".")[0] == "roller"}
        assert found <= SURFACE, module.name
