"""The benches beside another tree: here the tree itself, whose choices are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.engine import beside, drawn


def test_a_tree_beside_itself_chooses_the_same() -> None:
    (row,) = beside.rows(beside.HERE, "rocm:mi300x", 119, 0)
    assert row["new_s"] == row["old_s"] > 0 and "old_tiles" not in row


def test_drawn_programs_are_rated_as_they_are_built() -> None:
    (row,) = drawn.rows(beside.HERE, "rocm:mi300x", 119, 0, 5, 0)
    assert row["programs"] == 5 and row["drawn_s"] > 0.97 * row["chosen_s"]


def test_a_folder_without_a_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="git worktree add"):
        beside.lines(tmp_path, "drawing.py", "rocm:mi300x", 119, 0, 1, 0)
