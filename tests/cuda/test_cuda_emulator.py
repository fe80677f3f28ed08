"""The emulator of CUDA kernels and the compiler that it needs: what of the header is kept, and where it is not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from roller_cuda.emulator import emulator

GCC = shutil.which("g++")
needs_gcc = pytest.mark.skipif(GCC is None, reason="only g++ keeps a parsed header")


@pytest.fixture(autouse=True)
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache folder, on disk and in this process."""
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))
    emulator._shared.cache_clear()
    yield
    emulator._shared.cache_clear()


@needs_gcc
def test_gcc_finds_the_header_parsed(tmp_path: Path) -> None:
    _, options = emulator._shared(("g++",))
    source = tmp_path / "kernel.cpp"
    source.write_text('#include "emulator.h"\n', encoding="utf-8")
    call = ["g++", *emulator.FLAGS, "-H", *options, "-I", str(emulator.HERE), "-c", "-o", str(tmp_path / "kernel.o"), str(source)]
    read = subprocess.run(call, capture_output=True, text=True, check=True).stderr
    assert read.startswith(f"! {options[1]}"), read[:200]


@needs_gcc
def test_what_is_kept_serves_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = emulator._shared(("g++",))
    emulator._shared.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled once more"))
    assert emulator._shared(("g++",)) == kept and kept[0].is_file()


@needs_gcc
def test_where_nothing_can_be_kept_a_process_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "file"))
    shared, options = emulator._shared(("g++",))
    assert shared.is_file() and (Path(options[1]) / "emulator.h.gch").is_file()


@pytest.mark.parametrize("compiler", [("clang++",), ("python3", "-m", "ziglang", "c++"), ("no-such-compiler",)])
def test_other_compilers_read_it_every_time(compiler: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name.startswith("no") else f"/usr/bin/{name}")
    monkeypatch.setattr(emulator, "_compiled", lambda _, kept, *what: kept)
    assert emulator._shared(compiler)[1] == ()
