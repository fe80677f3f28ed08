"""The scripts in examples/ run as a reader would run them, and say what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAID = {
    "demo.py": "sum of the rows",
    "einsum_fused.py": "agrees with the reference",
    "save_and_load.py": "same result in both processes: True",
}


def test_every_example_is_known() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_it_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert SAID[name] in done.stdout
    assert not list(tmp_path.iterdir()), "nothing is left behind"
