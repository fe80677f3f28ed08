"""The same input gives the same bytes on every machine: nothing of where, by whom and in which folders an artifact was made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulating import needs_compiler

ROOT = Path(__file__).parents[2]
CHIPS = ("cpu:x86-64-v3", "cuda:a100", "cuda:h100", "rocm:mi210", "ipu_sim:gc200")
MADE = """
import sys
from pathlib import Path
import roller
from roller import ops
for number, device in enumerate(sys.argv[2:]):
    a, b = (ops.tensor((64, 64), "float16", name=name) for name in "ab")
    kernel = roller.compile(ops.gelu(ops.matmul(a, b)), device=device)
    kernel.save(Path(sys.argv[1]) / f"{number}.roller")
"""


def made(folder: Path, zone: str) -> list[bytes]:
    """Saved kernels, as a user makes them whose folders these are."""
    for name in ("here", "home", "temporary", "kernels"):
        (folder / name).mkdir(parents=True)
    own = {"HOME": folder / "home", "TMPDIR": folder / "temporary", "XDG_CACHE_HOME": folder / "home" / "cache", "TZ": zone}
    environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
    command = [sys.executable, "-c", MADE, str(folder / "kernels"), *CHIPS]
    subprocess.run(command, cwd=folder / "here", env=environment, check=True, capture_output=True)
    return [(folder / "kernels" / f"{number}.roller").read_bytes() for number in range(len(CHIPS))]


@needs_compiler
def test_an_artifact_says_nothing_of_where_it_was_made(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one", "UTC"), made(tmp_path / "another" / "place" / "altogether", "Asia/Tokyo")
    packages = Path(sys.prefix).resolve()
    for device, data, again in zip(CHIPS, one, other, strict=True):
        assert data == again, device
        for folder in (tmp_path, ROOT, packages, Path.home()):
            assert str(folder).encode() not in data, f"{device}: {folder}"


@needs_compiler
@pytest.mark.parametrize("chip", ["a100", "h100"])
def test_a_cubin_has_no_line_tables(chip: str) -> None:
    """They hold the folders of the compiler's caller and of its headers, and make cubins three times as large."""
    import roller
    from roller import ops

    data = roller.compile(ops.relu(ops.tensor((64, 64), "float16")), device=f"cuda:{chip}").artifact.data
    assert b".debug_line" not in data and b".h\0" not in data
