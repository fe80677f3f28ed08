"""Every code block and command of the pages is run as it is printed; what is left out says why."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
)
READ = {"text", "mermaid"}  # pictures, formulas, and output of other machines: nothing to run

# First words of a block or a command → why it is not run.
LEFT_OUT = {
    "make demo": "it sets up an environment; the test of examples runs its script",
    "make ": "the suite itself, or hours of benchmarks",
    "pip install": "tests install nothing",
    "pip install roller-compiler ./examples": "tests install nothing",
    "pip install pytest": "tests install nothing; the suite of the example runs in tests/project/test_examples.py",
    "y = kernel(a_array, b_array)": "it needs a GPU and a library with arrays there",
    "roller specs calibrate cuda": "it needs a GPU",
    "python -m bench": "hours",
    "c++ -std=c++17 host.cpp -lpoplar": "it needs the Poplar SDK",
    "./program folder": "it needs the Poplar SDK",
    "roller explain matmul 96x64 64x80 --device plain_c": "it needs the example plugin, which tests do not install",
    "roller cache show 7f0723": "the key is that of an entry of the reader's",
}
SLOW = ("roller verify matmul 65x100 100x80 -d rocm:mi210 --emulate",)  # in the long suite: a minute


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands, without the comments behind them; of a console, the lines after the prompt."""
        lines = self.text.splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [re.sub(r"\s+#.*", "", line) for line in lines if line.strip() and not line.startswith("#")]


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in re.finditer(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            found.append(Block(page, text[: fence.start()].count("\n") + 1, fence[1], fence[2]))
    return found


BLOCKS = blocks()
SCRIPTS = [page for page in PAGES if any(b.page == page and b.language == "python" for b in BLOCKS)]
SHELLS = [page for page in PAGES if any(b.page == page and b.language in ("sh", "console") for b in BLOCKS)]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def left_out(text: str) -> bool:
    return any(text.startswith(words) for words in LEFT_OUT)


def variables(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "ROLLER_CACHE": "rw", "ROLLER_CACHE_DIR": str(folder / "cache"), "NO_COLOR": "1"}


def test_every_block_says_what_it_is() -> None:
    known = READ | {"python", "sh", "console", "toml", "json"}
    assert [str(block) for block in BLOCKS if block.language not in known] == []


def test_what_is_left_out_is_there_and_says_why() -> None:
    told = [b.text for b in BLOCKS if b.language == "python"]
    told += [command for b in BLOCKS if b.language in ("sh", "console") for command in b.commands]
    assert [words for words, why in LEFT_OUT.items() if not why or not any(text.startswith(words) for text in told)] == []
    assert all(command in told for command in SLOW)


@pytest.mark.parametrize("page", SCRIPTS, ids=name)
def test_python_runs_from_the_top_of_a_page_to_its_end(page: Path, tmp_path: Path) -> None:
    """In one interpreter, as a reader would paste it."""
    parts = [(b.line, b.text) for b in BLOCKS if b.page == page and b.language == "python" and not left_out(b.text)]
    script = (
        "import json, sys\n"
        "names = {'__name__': '__main__'}\n"
        f"for line, text in json.loads({json.dumps(json.dumps(parts))}):\n"
        f"    exec(compile('\\n' * line + text, {name(page)!r}, 'exec', dont_inherit=True), names)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=variables(tmp_path), check=False
    )
    assert done.returncode == 0, done.stderr


def ran(page: Path, folder: Path, slow: bool) -> None:
    for block in BLOCKS:
        if block.page != page or block.language not in ("sh", "console"):
            continue
        for command in block.commands:
            if left_out(command) or (command in SLOW) != slow:
                continue
            done = subprocess.run(
                ["bash", "-ec", command], capture_output=True, text=True, cwd=folder, env=variables(folder), check=False
            )
            assert done.returncode == 0, f"{block}: {command}\n{done.stdout[-2000:]}{done.stderr}"
            if block.language == "console":
                _check_output(block, done.stdout)


def _check_output(block: Block, output: str) -> None:
    """Every printed line but "..." is in the output, in order."""
    rest = [line.rstrip() for line in output.splitlines()]
    for line in block.text.splitlines():
        if line.startswith("$ ") or line.strip() == "...":
            continue
        assert line.rstrip() in rest, f"{block}: no line {line!r} in\n{output}"
        rest = rest[rest.index(line.rstrip()) + 1 :]


@pytest.mark.parametrize("page", SHELLS, ids=name)
def test_commands_run_from_the_top_of_a_page_to_its_end(page: Path, tmp_path: Path) -> None:
    ran(page, tmp_path, slow=False)


@pytest.mark.long
def test_slow_commands_run(tmp_path: Path) -> None:
    for page in SHELLS:
        ran(page, tmp_path, slow=True)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in ("toml", "json")], ids=str)
def test_data_can_be_read(block: Block) -> None:
    if block.language == "toml":
        assert tomllib.loads(block.text)
    else:
        decoder, text = json.JSONDecoder(), block.text.strip()
        while text:
            _, end = decoder.raw_decode(text)
            text = text[end:].strip()
