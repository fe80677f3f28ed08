"""construct(): programs, explanations and texts without a toolchain; and which device is meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import roller
from roller import ops
from roller.cli.app import app
from roller.device.plugins import Device
from roller.errors import DeviceUnavailableError, KernelError, SpecError
from roller.plugin import hookimpl
from toy_plugin import Toy

SPECS = Path(__file__).parent.parent.parent / "specs"


def product() -> Any:
    return ops.relu(ops.matmul(roller.tensor((64, 96), name="a"), roller.tensor((96, 128), name="b")))


class Bare(Toy):
    """A device whose compiler is not installed."""

    @hookimpl
    def roller_build_problem(self, spec: Any) -> str:
        return "no compiler for toys: buy one"

    @hookimpl
    def roller_build(self, spec: Any, source: Any) -> Any:
        pytest.fail("something was built")


def test_programs_are_those_that_compile_considers() -> None:
    made, kernel = roller.construct(product(), "cpu:x86-64-v3", threads=1), roller.compile(product(), "cpu:x86-64-v3", threads=1)
    assert made.candidates[0].program == made.program and made.estimate == made.candidates[0].estimate
    assert {str(c.program) for c in made.candidates} == {str(c.program) for c in kernel.candidates}
    assert made.spec == kernel.spec and made.explain().to_dict()["chip"] == "cpu:x86-64-v3"
    assert (
        repr(made) == f"<Construction of {made.program.describe()} for cpu:x86-64-v3; {len(made.candidates)} programs, none built>"
    )
    assert made.source_in() == made.source_in("llvm-ir") and "define" in made.source_in()
    with pytest.raises(KernelError, match="writes llvm-ir, not c"):
        made.source_in("c")


def test_constants_are_known_as_to_compile() -> None:
    """Their panels are packed beforehand, and the text has a function for that."""
    import numpy as np

    values = np.ones((96, 128), np.float32)
    made = roller.construct(product(), "cpu:x86-64-v3", constants={"b": values})
    kernel = roller.compile(product(), "cpu:x86-64-v3", constants={"b": values})
    assert str(made.program) == str(kernel.program) and made.source_in() == kernel.source


def test_nothing_is_built(toy: Callable[[Any], Device]) -> None:
    toy(Bare())
    with pytest.raises(DeviceUnavailableError, match="buy one"):
        roller.compile(product(), "toy")
    made = roller.construct(product(), "toy", top_k=3)
    assert len(made.candidates) == 3 and made.source_in().startswith("{") and "relu" in str(made.explain())


def test_a_spec_says_its_device() -> None:
    file = SPECS / "ipu_sim" / "gc200.toml"
    assert roller.construct(product(), spec=file).spec.device == "ipu_sim"
    assert roller.compile(product(), spec=roller.load_spec("cpu:x86-64-v3")).spec.chip == "x86-64-v3"
    assert roller.rate(ops.relu(roller.tensor((64,))), spec=roller.load_spec("cpu:zen3"), tiles=[{"i0": 64}, {"i0": 8}]).seconds > 0
    with pytest.raises(SpecError, match=r"gc200\.toml: device: describes a chip of device 'ipu_sim', not of 'cpu'"):
        roller.construct(product(), "cpu", spec=file)


def said(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == code, done.output
    return done


def test_the_command_line_explains_without_a_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLER_ROCM_LINKER", "/nowhere/ld.lld")
    done = said("explain", "exp", "1000", "-d", "rocm:mi300x")
    assert "for rocm:mi300x: predicted" in done.stdout
    assert "explained as predicted, because no kernel can be built here: ROLLER_ROCM_LINKER names" in done.stderr
    assert "for rocm:mi300x: predicted" in said("explain", "exp", "1000", "--spec", str(SPECS / "rocm" / "mi300x.toml")).stdout


def test_text_for_another_toolchain_needs_no_linker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLER_ROCM_LINKER", "/nowhere/ld.lld")
    words = ("compile", "exp", "1000", "-d", "rocm:mi300x", "--source", str(tmp_path / "k.hip"), "--language")
    assert "it was not built" in said(*words, "hip-c++").stdout
    assert "__global__" in (tmp_path / "k.hip").read_text()
    assert "writes llvm-ir and hip-c++, not 'c'" in said(*words, "c", code=6).output
    said(*words, "hip-c++", "--output", str(tmp_path / "k.roller"), code=4)


def test_an_explanation_shows_itself_in_short() -> None:
    shown = roller.construct(product(), "cpu:x86-64-v3").explain()
    short, whole = repr(shown), str(shown)
    assert short.splitlines()[:3] == whole.splitlines()[:3] and len(short) < len(whole)
    assert "10 programs were considered; print() shows them" in short and "rejected instructions" not in short
    page = shown._repr_html_()
    assert page.startswith("<pre>") and "predicted" in page and "<b>" not in page
    assert all(len(line) <= 100 for line in short.splitlines())
