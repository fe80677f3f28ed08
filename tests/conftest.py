"""What all tests share: Hypothesis profiles, and the flag that rewrites golden files."""

from __future__ import annotations

import gc
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from roller.device.plugins import Device
from roller.errors import DeviceUnavailableError
from roller.runtime.artifact import Artifact
from roller.runtime.host_compiler import host_compiler
from roller_cpu.runtime import runner
from roller_ipu_sim.poplar import host_check

pytest.register_assert_rewrite("gpu_runtime")
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
# Shrinking a failure can take minutes: `ci` reports the first example as it is, `dev` and `long` make it small.
UNSHRUNK = tuple(phase for phase in Phase if phase is not Phase.shrink and phase is not Phase.explain)
settings.register_profile("dev", max_examples=10, **COMMON)
settings.register_profile("ci", max_examples=20, derandomize=True, phases=UNSHRUNK, **COMMON)
settings.register_profile("long", max_examples=1000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# Chips for which kernels run on every machine that tests are for; of others they are compiled, not run.
EVERYWHERE = frozenset({"x86-64-v3"})


@pytest.fixture(autouse=True, scope="session")
def any_machine() -> Iterator[None]:
    """Kernels for a shipped processor do not run in tests, even where this machine is one: the next may lack its instructions."""
    shipped = {path.stem for path in (Path(__file__).parent.parent / "specs" / "cpu").glob("*.toml")} - EVERYWHERE
    opened = runner._code

    def portable(artifact: Artifact) -> runner.Code:
        assert artifact.spec is None or artifact.spec.chip not in shipped, f"not every machine runs {artifact.spec.chip}"
        return opened(artifact)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "_code", portable)
        yield


@pytest.fixture(scope="session")
def headers_read_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Poplar programs are compiled with headers that the compiler has read before: half of the time that each takes."""
    try:
        host = host_compiler(host_check.PURPOSE)
    except DeviceUnavailableError:
        yield
        return
    folder = tmp_path_factory.mktemp("headers")
    headers = ["algorithm", "cstring", "fstream", "functional", "iostream", "map", "stdexcept", "string", "vector"]
    headers += [f"poplar/{path.name}" for path in sorted((host_check.STUBS / "poplar").glob("*.hpp"))]
    (folder / "all.hpp").write_text("".join(f"#include <{name}>\n" for name in headers), encoding="utf-8")
    read = [*host, *host_check.FLAGS, "-I", str(host_check.STUBS), "-x", "c++-header", str(folder / "all.hpp")]
    subprocess.run([*read, "-o", str(folder / "all.hpp.gch")], check=True)
    with pytest.MonkeyPatch.context() as patched:
        again = ("-I", str(folder), "-include", "all.hpp", "-Wno-attributes")  # what a header says of warnings is not kept
        patched.setattr(host_check, "FLAGS", (*host_check.FLAGS, *again))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the marker `one_in` says: of a square of combinations its diagonals, so that no row or column is left out."""
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is None or not isinstance(item, pytest.Function):
            continue
        given = [m.args[0] for m in item.iter_markers("parametrize")]
        first = [names.split(",")[0] if isinstance(names, str) else names[0] for names in given]  # those of one list go together
        if sum(item.callspec.indices[name] for name in first) % marker.args[0]:
            item.add_marker(pytest.mark.long)


def pytest_configure(config: pytest.Config) -> None:
    """Settings and caches of the tests' own, one for all processes of a run: the user's neither help nor suffer. The machine is not
    measured, so that no test depends on what else went on.
    """
    if not hasattr(config, "workerinput"):
        own = tempfile.TemporaryDirectory(prefix="roller-tests-")
        config.add_cleanup(own.cleanup)
        for name in [n for n in os.environ if n.startswith("ROLLER_")]:
            del os.environ[name]
        os.environ |= {
            "ROLLER_CONFIG_DIR": f"{own.name}/config",
            "ROLLER_CACHE_DIR": f"{own.name}/cache",
            "ROLLER_CALIBRATE": "off",
            "ROLLER_CACHE": "off",  # a kernel of another test says nothing about this one
        }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/* anew instead of comparing with it")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def toy(monkeypatch):
    """A function that makes a plugin the only device, run in this process."""

    def use(plugin):
        device = Device("toy", plugin)
        monkeypatch.setattr("roller.compiler.resolve", lambda name, spec: (device, spec or device.default_spec()))
        monkeypatch.setattr("roller.kernel.load_device", lambda name: device)
        monkeypatch.setattr("roller.trial.load_device", lambda name: device)
        monkeypatch.setattr("roller.trial.run_isolated", lambda function, *a, deadline_s: function(*a))
        return device

    return use


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """The collector looks at what is made inside only: all that earlier tests and modules hold would take it a second each time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.fixture
def gpus() -> Iterator[Any]:
    """Two GPUs like an A100; afterwards nothing wrong was asked of the driver, and there is no GPU any more."""
    from fake_gpu import Gpus

    with only_new_garbage():
        made = Gpus()
        yield made
        assert not made.gone()


@pytest.fixture(scope="session")
def hip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runtime that stands in for HIP's is compiled to, once for all tests."""
    return tmp_path_factory.mktemp("fake-hip")


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch, hip_folder: Path) -> Iterator[Any]:
    """Two GPUs like an MI50; afterwards nothing wrong was asked of the runtime, nothing is left there, and there is no GPU."""
    from fake_hip import AmdGpus

    with only_new_garbage():
        made = AmdGpus(monkeypatch, hip_folder)
        yield made
        assert not made.gone()
