"""A device that prints plain C: the manifest, whose hooks forward to the modules beside it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from roller.plugin import Artifact, HardwareSpec, KernelSource, RProgram, Runner, hookimpl, load_spec

ROLLER_API = 1
SPECS = Path(__file__).parent / "specs"


def _module(name: str) -> Any:
    return import_module(f"roller_plain_c.{name}")


@hookimpl
def roller_default_spec() -> HardwareSpec:
    """One core of no particular make."""
    return load_spec(SPECS / "plain_c" / "one-core.toml")


@hookimpl
def roller_spec_dirs() -> tuple[Path, ...]:
    """The chips that come with the plugin."""
    return (SPECS,)


@hookimpl
def roller_refusal(program: RProgram) -> tuple[str, str] | None:
    """Types that C has no name for."""
    return _module("codegen").refusal(program)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(program: RProgram) -> KernelSource:
    """C text."""
    return _module("codegen").generate(program)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """A shared object."""
    return _module("toolchain").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """The shared object's entry function."""
    return _module("runtime").SharedObject(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_requirements() -> tuple[str, ...]:
    """A C compiler."""
    return _module("toolchain").problems()  # type: ignore[no-any-return]
