"""Keys of kept kernels: what matters is in them, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import roller
from caching import kept, key_with, product
from roller import compiler, ops
from roller.cache import key, sources
from roller.device.plugins import Device, load_device
from roller.plugin import hookimpl
from roller.target.catalog import spec_from_dict
from toy_plugin import Toy, toy_spec


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


@pytest.mark.parametrize("package", ["roller", "caching"])  # the latter holds the class of the plugin
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
