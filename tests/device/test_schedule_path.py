"""`roller.schedule`: the path under which plugins of API 1 import lowering."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from roller import schedule


@pytest.mark.parametrize("name", sorted(schedule.MODULES))
def test_a_module_is_the_same_under_both_paths(name: str) -> None:
    now = importlib.import_module(f"roller.lowering.{schedule.MODULES[name]}")
    assert importlib.import_module(f"roller.schedule.{name}") is now is getattr(schedule, name)
    assert now.__spec__ is not None and now.__spec__.name == now.__name__ == f"roller.lowering.{schedule.MODULES[name]}"


def test_both_forms_of_import_work_and_load_tvm_only_then() -> None:
    code = (
        "import sys, roller.schedule; assert 'tvm' not in sys.modules\n"
        "from roller.schedule import grid\nfrom roller.schedule.tir import load\nimport roller.schedule.walk as walk\n"
        "print(grid.__name__, load.__module__, walk.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["roller.lowering.grid", "roller.lowering.tir.builder", "roller.lowering.tir.tile_starts"]


def test_other_names_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("roller.schedule.no_such_module")
