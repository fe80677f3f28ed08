"""The kernel cache: a hit equals a build, what matters is in the key, and no fault of the disk shows."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

import roller
from roller import compiler, ops, pipeline
from roller.cache import entry, folder, kernels, key, settings, sources
from roller.cache.entry import DamagedError, Kept
from roller.cache.folder import Folder
from roller.device.plan import Plan
from roller.device.plugins import Device, load_device
from roller.errors import SettingError
from roller.plugin import hookimpl
from roller.runtime.artifact import BuildOptions
from roller.target.catalog import spec_from_dict
from toy_plugin import Toy, toy_spec

CHIPS = ("cpu:x86-64-v3", "cuda:a100", "rocm:mi300x", "ipu_sim:gc200")
PLACE = "kernels"


def product(m: int = 24, name: str = "a") -> Any:
    return ops.relu(ops.matmul(roller.tensor((m, 40), name=name), roller.tensor((40, 32), name="b")))


class Settled(Toy):
    """A device whose toolchain is known, and never changes."""

    @hookimpl
    def roller_toolchain(self) -> dict[str, str]:
        return {"tool": "1"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; sources count as unchanged, whenever the checkout was made."""
    monkeypatch.setenv("ROLLER_CACHE", "rw")
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sources, "digest", lambda package: f"digest of {package}")
    kernels.forget()
    yield tmp_path / PLACE
    kernels.forget()


@pytest.fixture
def settled(toy: Callable[[Any], Device], place: Path) -> Path:
    """The cache, and a device that compiles at once."""
    toy(Settled())
    return place


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows with every kernel that is constructed."""
    found: list[Any] = []
    construct = pipeline.constructed
    monkeypatch.setattr(pipeline, "constructed", lambda plan, *rest: found.append(plan) or construct(plan, *rest))
    return found


def kept(where: Path) -> list[Path]:
    return sorted(where.glob("*.kernel")) if where.exists() else []


# --- a hit equals a build ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
def test_a_hit_equals_a_build(chip: str, place: Path, built: list[Any]) -> None:
    first = roller.compile(product(), chip, top_k=4)
    again = roller.compile(product(), chip, top_k=4)
    kernels.forget()
    other = roller.compile(product(), chip, top_k=4)
    assert len(built) == 1 and len(kept(place)) == 1
    for kernel in (again, other):
        assert kernel.artifact == first.artifact and kernel.artifact.resources == first.artifact.resources
        assert (kernel.source, kernel.expr, kernel.spec) == (first.source, first.expr, first.spec)
        assert (kernel.program, kernel.estimate, kernel.candidates) == (first.program, first.estimate, first.candidates)
        assert str(kernel.explain()) == str(first.explain()) and kernel.explain().to_dict() == first.explain().to_dict()


def test_kernels_from_the_cache_compute_and_close_alone(place: Path) -> None:
    a, b = np.ones((24, 40), "f4"), np.ones((40, 32), "f4")
    first, second = (roller.compile(product(), "cpu:x86-64-v3") for _ in range(2))
    assert np.all(first(a, b) == 40) and np.all(second(a, b) == 40)
    assert first._runner is not second._runner
    first._runner.close()  # type: ignore[union-attr]
    assert np.all(second(a, b) == 40)


def test_values_of_constants_are_not_kept_and_are_those_of_the_call(place: Path, built: list[Any]) -> None:
    a, shape = np.ones((24, 40), "f4"), (40, 32)
    marked = np.full(shape, 1234.5, "f4")
    for forget in (False, True):
        for value in (marked, np.full(shape, 2, "f4")):
            kernel = roller.compile(product(), "cpu:x86-64-v3", constants={"b": value})
            assert np.array_equal(kernel(a), a @ value)
        if forget:
            kernels.forget()
    assert len(built) == 1
    (file,) = kept(place)
    assert marked[0].tobytes() not in file.read_bytes()


def test_a_new_process_needs_no_compiler(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real digests of sources: from the second process on, neither TVM nor torch is imported."""
    code = (
        "import sys, numpy as np, roller\nfrom roller import ops\n"
        "k = roller.compile(ops.relu(roller.tensor((64,))) * 2.0, 'cpu:x86-64-v3')\n"
        "assert np.array_equal(k(np.ones(64, 'f4')), np.full(64, 2, 'f4'))\n"
        "print('tvm' in sys.modules, sorted({'torch'} & set(sys.modules)) if 'tvm' not in sys.modules else '')"
    )
    time.sleep(1.0)  # what a checkout wrote just now is older than the next process
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    said = [run.stdout.strip() for run in runs]
    assert said == ["True", "False []"] and len(kept(place)) == 1


# --- keys --------------------------------------------------------------------------------------------------------------------


def key_with(plugin: Any = None, spec: Any = None, expr: Any = None, measure: bool = False, **options: Any) -> key.Key:
    device = Device("toy", plugin or Settled())
    top_k = options.pop("top_k", 10)
    return key.key_of(device, spec or toy_spec(), expr or ops.expression(product()), BuildOptions(**options), top_k, measure)


def changed(**values: Any) -> Any:
    return spec_from_dict({**toy_spec().model_dump(mode="json"), **values})


class Upgraded(Toy):
    @hookimpl
    def roller_toolchain(self) -> dict[str, str]:
        return {"tool": "2"}


OTHERS: dict[str, dict[str, Any]] = {
    "extents": {"expr": ops.expression(product(25))},
    "a name": {"expr": ops.expression(product(24, "x"))},
    "precision": {"expr": compiler.permitted(ops.expression(product()), precision="tf32")},
    "a number of the spec": {"spec": changed(overlap_loss=0.2)},
    "an option of the spec": {"spec": changed(options={"llvm_mcpu": "other"})},
    "the chip": {"spec": changed(chip="two")},
    "top_k": {"top_k": 9},
    "measure": {"measure": True},
    "threads": {"threads": 2},
    "constants": {"constants": ("b",)},
    "debug": {"debug": True},
    "language": {"language": "c"},
    "the toolchain": {"plugin": Upgraded()},
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_matters_is_in_the_key(what: str, place: Path) -> None:
    assert key_with(**OTHERS[what]).digest != key_with().digest


def test_permissions_are_in_the_key(place: Path) -> None:
    x = roller.tensor((8,), name="x")
    keys = {
        key_with(expr=compiler.permitted(ops.expression(x * x / 3.0 + x), math=math)).digest for math in ("ieee", "strict", "fast")
    }
    assert len(keys) == 3


def test_what_does_not_matter_is_not(place: Path) -> None:
    assert key_with(spec=changed(title="another title", sources={"clock_ghz": "measured: yesterday"})).digest == key_with().digest


@pytest.mark.parametrize("package", ["roller", "test_kernel_cache"])  # the latter holds the class of the plugin
def test_sources_are_in_the_key(package: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_with().digest
    monkeypatch.setattr(sources, "digest", lambda name: "edited" if name == package else f"digest of {name}")
    assert key_with().digest != before


def test_versions_of_the_compiler_are_in_the_key(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_with().digest
    monkeypatch.setattr(key, "_versions", lambda: {"apache-tvm": "9"})
    assert key_with().digest != before


def test_differences_name_what_changed() -> None:
    def parts(ghz: float, size: int, digit: str) -> dict[str, Any]:
        levels = [{"name": "L1", "bytes": 1}, {"name": "L2", "bytes": size}]
        return {"spec": {"clock_ghz": ghz, "levels": levels}, "code": {"roller": digit * 64}}

    one, two = parts(4.1, 2, "a"), parts(4.2, 3, "b")
    assert key.differences(one, two) == ["spec.clock_ghz: 4.1, now 4.2", "spec.levels.L2.bytes: 2, now 3", "code.roller changed"]
    assert key.differences(one, one) == []


def test_edited_sources_have_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "edited_package"
    (module / "below" / "__pycache__").mkdir(parents=True)
    (module / "__init__.py").write_text("")
    (module / "below" / "data.cuh").write_text("1")
    (module / "below" / "__pycache__" / "x.pyc").write_text("1")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("edited_package")
    monkeypatch.setattr(sources, "_BEGUN", time.time() + 10)

    def now() -> str | None:
        sources.digest.cache_clear()
        return sources.digest("edited_package")

    first = now()
    assert first is not None
    (module / "below" / "__pycache__" / "x.pyc").write_text("2")
    assert now() == first
    (module / "below" / "data.cuh").write_text("2")
    assert now() not in (first, None)
    (module / "below" / "data.cuh").rename(module / "below" / "moved.cuh")
    assert now() not in (first, None)
    assert sources.digest("no_such_package_anywhere") is None
    monkeypatch.setattr(sources, "_BEGUN", time.time())
    time.sleep(0.05)
    (module / "__init__.py").write_text("# edited")
    os.utime(module / "__init__.py", (0, 0))
    assert now() is None, "what runs may be the text before the edit, whatever the file's own time says"
    sources.digest.cache_clear()


FORKED = """
import os, sys, time
import roller
from roller.cache import sources
open(sys.argv[1], "w").write("edited")
time.sleep(0.05)
if os.fork() == 0:
    time.sleep(0.05)
    os._exit(7 if sources.digest("watched") is None else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_forked_process_has_the_modules_of_its_parent(tmp_path: Path) -> None:
    """A source that changed before the fork is newer than the code that runs in the child."""
    (tmp_path / "watched.py").write_text("")
    code = "import sys; sys.path.insert(0, sys.argv[2]); import watched\n" + FORKED
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "watched.py"), str(tmp_path)], check=False)
    assert done.returncode == 7


@pytest.mark.parametrize("device", ["cpu", "cuda", "rocm", "ipu_sim"])
def test_every_device_says_its_toolchain(device: str) -> None:
    plugin = load_device(device)
    assert plugin.toolchain(plugin.default_spec()) is not None
    assert plugin.package == f"roller_{device}"


def test_a_compiler_of_ones_own_is_another_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for device, variable in (("cuda", "ROLLER_CUDA_COMPILER"), ("rocm", "ROLLER_ROCM_LINKER")):
        plugin, tool = load_device(device), tmp_path / device
        before = plugin.toolchain(plugin.default_spec())
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
        monkeypatch.setenv(variable, str(tool))
        with_own = plugin.toolchain(plugin.default_spec())
        tool.write_text("#!/bin/sh\n# a later version\n")
        assert before != with_own != plugin.toolchain(plugin.default_spec()) != before


def test_variables_of_the_cuda_compiler_are_another_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load_device("cuda")
    found = [plugin.toolchain(plugin.default_spec())]
    for name, value in (("NVCC_APPEND_FLAGS", "-use_fast_math"), ("CPATH", "/elsewhere"), ("CUDA_HOME", "/elsewhere")):
        monkeypatch.setenv(name, value)
        found.append(plugin.toolchain(plugin.default_spec()))
    assert all(one != other for one, other in pairwise(found))


def test_another_cuda_compiler_in_one_process_compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roller_cuda.toolchain import compiling

    monkeypatch.setattr(compiling, "_lacking", lambda arch: None)
    monkeypatch.setattr(compiling, "_with_command", lambda command, text, arch: (command.encode(), ""))
    for command in ("nvcc-a", "nvcc-b"):
        monkeypatch.setenv(compiling.COMPILER, command)
        assert compiling.compiled("// the same text", "sm_80")[0] == command.encode()


def test_devices_that_do_not_say_their_toolchain_are_kept_in_memory_only(
    toy: Callable[[Any], Device], place: Path, built: list[Any]
) -> None:
    toy(Toy())
    for _ in range(2):
        roller.compile(product(), "toy")
    assert len(built) == 1 and kept(place) == []


# --- options -----------------------------------------------------------------------------------------------------------------


def test_verify_verifies_a_hit_too(settled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("roller.trial.verify", lambda artifact, expr: seen.append(artifact))
    for _ in range(2):
        roller.compile(product(), "toy", verify=True)
    assert len(seen) == 2


def test_what_was_measured_serves_only_those_who_measure(settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roller.trial.measure", lambda artifacts: [1.0 / (n + 1) for n, _ in enumerate(artifacts)])
    timed = [roller.compile(product(), "toy", top_k=3, measure=True) for _ in range(2)]
    roller.compile(product(), "toy", top_k=3)
    assert len(built) == 2 and timed[0].candidates == timed[1].candidates and timed[1].candidates[0].measured_s == 1 / 3


def test_off_keeps_nothing_and_ro_writes_nothing(settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLER_CACHE", "off")
    roller.compile(product(), "toy")
    monkeypatch.setenv("ROLLER_CACHE", "ro")
    roller.compile(product(), "toy")
    assert len(built) == 2 and not settled.exists()
    monkeypatch.setenv("ROLLER_CACHE", "RW ")
    kernels.forget()
    roller.compile(product(), "toy")
    (file,) = kept(settled)
    before = file.stat().st_mtime_ns
    monkeypatch.setenv("ROLLER_CACHE", "ro")
    kernels.forget()
    roller.compile(product(), "toy")
    assert len(built) == 3 and file.stat().st_mtime_ns == before


@pytest.mark.parametrize("hit", [False, True])
@pytest.mark.parametrize(("name", "value"), [("ROLLER_CACHE", "yes"), ("ROLLER_CACHE_LIMIT", "much")])
def test_wrong_settings_are_said_before_anything_is_built(
    name: str, value: str, hit: bool, settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if hit:
        roller.compile(product(), "toy")
        built.clear()
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=value):
        roller.compile(product(), "toy")
    assert not built


def test_a_folder_of_an_unknown_user_is_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLER_CACHE_DIR", "~no_such_user_here/x")
    assert settings.folder() == Path("~no_such_user_here/x/kernels")


def test_limits_are_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, number in (("500MB", 500 * 10**6), ("2GiB", 2 << 30), ("1024", 1024), ("", settings.MOST_BYTES)):
        monkeypatch.setenv("ROLLER_CACHE_LIMIT", text)
        assert settings.most_bytes() == number


# --- the folder --------------------------------------------------------------------------------------------------------------


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


# --- faults ------------------------------------------------------------------------------------------------------------------


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


# --- several at once ---------------------------------------------------------------------------------------------------------


def test_the_same_kernel_is_built_once(settled: Path, built: list[Any]) -> None:
    op = product(48)
    threads = [threading.Thread(target=lambda: roller.compile(op, "toy")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1 and list(settled.glob("*.lock")) == []


def test_nobody_waits_beyond_the_deadline(settled: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(key.Key, "digest", "d" * 64)
    settled.mkdir(parents=True, mode=0o700)
    with FileLock(settled / ("d" * 64 + folder.LOCK)):
        roller.compile(product(), "toy")
    assert len(built) == 1 and len(kept(settled)) == 1


def test_memory_is_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "IN_MEMORY", 3)
    made: Any = object()
    for n in range(9):
        kernels.fetch(key.Key({"n": n}, persistent=False), lambda: made)
    assert len(kernels._memory) == 3 and kernels.fetch(key.Key({"n": 8}, persistent=False), lambda: pytest.fail("built")) is made


def test_an_opened_folder_is_that_folder(tmp_path: Path) -> None:
    """What takes its place later is not written to."""
    (tmp_path / "a").mkdir(mode=0o700)
    opened = Folder(tmp_path / "a", create=False)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir(mode=0o700)
    opened.write("0" * 64, b"content")
    assert [f.digest for f in opened.files()] == ["0" * 64] and not list((tmp_path / "a").iterdir())
    opened.close()
