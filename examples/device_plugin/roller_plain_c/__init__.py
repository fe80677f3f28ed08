"""Plugin manifest of a device that prints plain C; each hook forwards to a module beside it."""

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
    """Returns the spec of one core of no particular make."""
    return load_spec(SPECS / "plain_c" / "one-core.toml")


@hookimpl
def roller_spec_dirs() -> tuple[Path, ...]:
    """Returns the folders of the chips that come with the plugin."""
    return (SPECS,)


@hookimpl
def roller_refusal(program: RProgram) -> tuple[str, str] | None:
    """Returns a refusal of types that C lacks."""
    return _module("codegen").refusal(program)  # type: ignore[no-any-return]


@hookimpl
def roller_codegen(program: RProgram) -> KernelSource:
    """Returns the program as C text."""
    return _module("codegen").generate(program)  # type: ignore[no-any-return]


@hookimpl
def roller_build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns a shared object."""
    return _module("toolchain").build(spec, source)  # type: ignore[no-any-return]


@hookimpl
def roller_load_kernel(artifact: Artifact) -> Runner:
    """Returns a runner of the shared object's entry function."""
    return _module("runtime").SharedObject(artifact)  # type: ignore[no-any-return]


@hookimpl
def roller_requirements() -> tuple[str, ...]:
    """Returns one sentence if there is no C compiler."""
    return _module("toolchain").problems()  # type: ignore[no-any-return]
