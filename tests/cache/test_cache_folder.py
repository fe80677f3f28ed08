"""The folder of kept kernels: trust, eviction, and faults of the disk, none of which shows."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from caching import PLACE, Settled, kept, key_with, product
from roller import compiler, ops, pipeline
from roller.cache import entry, kernels, key, settings
from roller.cache.entry import DamagedError, Kept
from roller.device.plan import Plan
from roller.device.plugins import Device
from roller.plugin import hookimpl
from toy_plugin import Toy, toy_spec


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in found]


def test_folder_and_files_are_the_users_alone(settled: Path) -> None:
    os.umask(os.umask(0))
    roller.compile(product(), "toy")
    (file,) = kept(settled)
    assert settled.stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_folders_that_others_open_are_not_used(mode: int, settled: Path, built: list[Any]) -> None:
    settled.mkdir(parents=True)
    settled.chmod(mode)
    (said,) = warned(lambda: [(kernels.forget(), roller.compile(product(), "toy")) for _ in range(2)])
    assert "is not used: others can open it" in said and f"chmod 700 {settled}" in said
    assert len(built) == 2 and not list(settled.iterdir())


def test_links_and_folders_of_others_are_not_followed(settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = settled.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    settled.symlink_to(elsewhere)
    (said,) = warned(lambda: roller.compile(product(), "toy"))
    assert "it is a link" in said and not list(elsewhere.iterdir())
    settled.unlink()
    settled.mkdir(mode=0o700)
    kernels.forget()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert len(warned(lambda: roller.compile(product(), "toy"))) == 1 and not list(settled.iterdir())
    assert len(built) == 2


def test_an_entry_that_is_a_link_is_not_followed(settled: Path, built: list[Any]) -> None:
    roller.compile(product(), "toy")
    (file,) = kept(settled)
    file.rename(settled.parent / "elsewhere")
    file.symlink_to(settled.parent / "elsewhere")
    kernels.forget()
    roller.compile(product(), "toy")
    assert len(built) == 2 and not file.is_symlink(), "it is replaced, not followed"


def test_what_lies_in_the_place_of_an_entry_is_a_miss_and_leaks_nothing(settled: Path, built: list[Any]) -> None:
    """A folder, or a pipe: reading it must neither block nor leave it open."""
    roller.compile(product(), "toy")
    (file,) = kept(settled)
    for number, make in enumerate((Path.mkdir, os.mkfifo)):
        file.unlink() if file.is_file() else file.rmdir()
        make(file)
        kernels.forget()
        roller.compile(product(), "toy")
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            kernels.forget()
            roller.compile(product(), "toy")
        assert len(list(Path("/proc/self/fd").iterdir())) == before, number
    assert file.is_file(), "the pipe is replaced"


def test_the_least_used_are_evicted(settled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for m in (8, 16, 24, 32):
        roller.compile(product(m), "toy")
        for n, file in enumerate(sorted(kept(settled), key=lambda f: f.stat().st_mtime)):
            os.utime(file, (1000 + n, 1000 + n))
    oldest, second = sorted(kept(settled), key=lambda f: f.stat().st_mtime)[:2]
    kernels.forget()
    roller.compile(product(8), "toy")  # the oldest is used again
    monkeypatch.setenv("ROLLER_CACHE_LIMIT", str(sum(f.stat().st_size for f in kept(settled))))
    roller.compile(product(40), "toy")
    assert oldest.exists() and not second.exists()
    assert sum(f.stat().st_size for f in kept(settled)) <= settings.most_bytes()


def test_what_dead_processes_left_is_removed(settled: Path) -> None:
    settled.mkdir(parents=True, mode=0o700)
    old, new = settled / "x.1-ab.tmp", settled / "y.1-ab.tmp"
    for path in (old, new, settled / "z.lock"):
        path.write_text("")
    os.utime(old, (0, 0))
    os.utime(settled / "z.lock", (0, 0))
    roller.compile(product(), "toy")
    assert not old.exists() and not (settled / "z.lock").exists() and new.exists()


@pytest.fixture(scope="module")
def intact() -> tuple[bytes, key.Key]:
    device = Device("toy", Settled())
    plan = Plan(device, toy_spec())
    found = compiler._built(plan, ops.expression(product()), 3, False)
    return entry.written(key_with(), found), key_with()


@given(data=st.data())
def test_no_change_of_a_byte_and_no_cut_goes_unnoticed(data: st.DataObject, intact: tuple[bytes, key.Key]) -> None:
    raw, wanted = intact
    place = data.draw(st.integers(0, len(raw) - 1))
    flipped = raw[:place] + bytes([raw[place] ^ data.draw(st.integers(1, 255))]) + raw[place + 1 :]
    for damaged in (flipped, raw[:place], raw + b"\0"):
        with pytest.raises((DamagedError, ValueError)):
            entry.read(damaged, wanted.digest)
    with pytest.raises(DamagedError, match="another key"):
        entry.read(raw, "0" * 64)
    assert isinstance(entry.read(raw, wanted.digest), Kept)


def test_damaged_entries_are_built_again(settled: Path, built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    roller.compile(product(), "toy")
    (file,) = kept(settled)
    good = file.read_bytes()
    for n, damaged in enumerate((b"", good[:-1], good[:99] + b"?" + good[100:], b"PK\3\4" * 9, entry.MAGIC)):
        file.write_bytes(damaged)
        kernels.forget()
        with caplog.at_level(logging.WARNING):
            assert str(roller.compile(product(), "toy").program) == str(roller.compile(product(), "toy").program)
        assert len(built) == n + 2 and "is damaged, and is built again" in caplog.text and file.read_bytes() != damaged


def test_entries_of_another_version_are_misses(intact: tuple[bytes, key.Key], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "SCHEMA", key.SCHEMA + 1)
    with pytest.raises(DamagedError, match="another version"):
        entry.read(intact[0], intact[1].digest)


ERRORS = PermissionError(13, "denied"), OSError(28, "No space left on device"), OSError(116, "Stale file handle")
CALLS = ("open", "fstat", "rename", "fsync", "listdir", "stat", "utime", "mkdir")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", ERRORS)
def test_every_error_of_the_system_is_a_miss(
    call: str, error: OSError, settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)

    def failing(path: Any = None, *rest: Any, **more: Any) -> Any:
        if {"dir_fd", "src_dir_fd"} & set(more) or isinstance(path, int) or str(path).endswith(PLACE):
            raise error
        return real(path, *rest, **more)

    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setattr(os, call, failing)
        roller.compile(product(), "toy")
    assert len(built) == 1
    kernels.forget()
    roller.compile(product(), "toy")
    kernels.forget()
    roller.compile(product(), "toy")
    assert len(built) <= 2 and len(kept(settled)) == 1


def test_what_cannot_be_written_is_not_kept(toy: Callable[[Any], Device], place: Path, built: list[Any]) -> None:
    class Odd(Settled):
        @hookimpl
        def roller_build(self, spec: Any, source: Any) -> Any:
            made = Toy.roller_build(self, spec, source)
            return replace(made, launch={"an object": object()})

    toy(Odd())
    for _ in range(2):
        kernels.forget()
        roller.compile(product(), "toy")
    assert len(built) == 2 and kept(place) == []


def test_a_failed_build_leaves_nothing(settled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "constructed", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        roller.compile(product(), "toy")
    assert list(settled.iterdir()) == []
