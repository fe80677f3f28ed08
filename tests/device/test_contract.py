"""The contract of device plugins, kept by the CPU; and a plugin that breaks it is caught."""

from __future__ import annotations

import numpy as np
import pytest

from roller.device.plugins import Device, load_device
from roller.errors import LaunchError, WrongResultError
from roller.plugin import hookimpl
from roller.runtime.artifact import Artifact, KernelSource
from roller.testing import DeviceContract
from toy_plugin import Runner, Toy


class TestCpu(DeviceContract):
    device = "cpu"
    chips = ("zen3", "x86-64-v3", "zen5", "neoverse-v2")


def install(monkeypatch: pytest.MonkeyPatch, plugin: object) -> None:
    """Make the plugin the device "toy"."""
    toy, known = Device("toy", plugin), load_device
    for module in ("device.chip", "kernel", "contract"):
        monkeypatch.setattr(f"roller.{module}.load_device", lambda name: toy if name == "toy" else known(name))


class Careful(Toy):
    """The toy device, refusing what is not its own."""

    @hookimpl
    def roller_load_kernel(self, artifact: Artifact):
        if artifact.format != "toy" or not artifact.data:
            raise LaunchError("not a toy's artifact")
        return Runner(artifact)


class TestToy(DeviceContract):
    """Another device keeps the whole contract, but for being installed."""

    device = "toy"

    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, Careful())

    def test_finding_it_imports_no_compiler(self) -> None:
        pytest.skip("the toy device is not installed, so no other process finds it")


class Wrong(Toy):
    """Breaks what it promised: results, the same source twice, what it refuses."""

    texts = asked = 0

    @hookimpl
    def roller_codegen(self, spec, program):
        Wrong.texts += 1
        return KernelSource(str(Wrong.texts), "json", "main", {})

    @hookimpl
    def roller_load_kernel(self, artifact: Artifact):
        class Zeros:
            def run(self, inputs, out):
                out[...] = np.zeros_like(out)

            def close(self):
                pass

        return Zeros()

    @hookimpl
    def roller_refusal(self, spec, program):
        Wrong.asked += 1
        return ("mood", "not every time") if Wrong.asked % 2 else None


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("test_results_are_right", WrongResultError),
        ("test_the_same_program_gives_the_same_source", AssertionError),
        ("test_refused_programs_are_left_out", AssertionError),
        ("test_foreign_and_broken_artifacts_are_refused", pytest.fail.Exception),
    ],
)
def test_a_plugin_that_breaks_the_contract_is_caught(
    monkeypatch: pytest.MonkeyPatch, broken: str, error: type[BaseException]
) -> None:
    class TestWrong(DeviceContract):
        device = "toy"

    install(monkeypatch, Wrong())
    with pytest.raises(error):
        getattr(TestWrong(), broken)()
