"""Host test of the printed Poplar program: a host's compiler builds it against mocks of Poplar's headers, and it runs.

This checks the numbers of both texts and the errors that the mocks detect (`stubs/poplar/Engine.hpp`). It is no IPU and no SDK.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roller.plugin import CodegenError, LaunchError, host_compiler, numpy_dtype
from roller_ipu_sim.manifest.models import Manifest
from roller_ipu_sim.poplar.host_program import PoplarProgram, generate, host_files

__all__ = ["PURPOSE", "run_on_host"]

Array = npt.NDArray[Any]

STUBS = Path(__file__).parent / "stubs"
PURPOSE = "running a Poplar program on the host needs"
FLAGS = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror")


def run_on_host(manifest: Manifest, inputs: Mapping[str, Array], program: PoplarProgram | None = None) -> dict[str, Array]:
    """Returns the program's outputs by name, from arrays of its inputs and constants.

    `CodegenError` with the compiler's message where it refuses a text, `LaunchError` where the run fails, `DeviceUnavailableError`
    without a compiler.
    """
    made = generate(manifest) if program is None else program
    files = host_files(manifest)
    with tempfile.TemporaryDirectory(prefix="roller-ipu-") as name:
        folder = Path(name)
        for home in manifest.tensors:
            if home.role in ("input", "constant"):
                given = _fitting(inputs, home.name, home.shape, home.dtype)
                (folder / files[home.name]).write_bytes(given.tobytes())
        _compile(made, folder)
        done = subprocess.run([str(folder / "program"), str(folder), "ipu2"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise LaunchError(f"the program fails on the host ({done.returncode}): {done.stderr.strip()[:2000]}")
        return {
            home.name: np.frombuffer((folder / files[home.name]).read_bytes(), numpy_dtype(home.dtype)).reshape(home.shape).copy()
            for home in manifest.tensors
            if home.role == "output"
        }


def _fitting(inputs: Mapping[str, Array], name: str, shape: tuple[int, ...], dtype: str) -> Array:
    if name not in inputs:
        raise LaunchError(f"no array for {name!r} was given")
    if inputs[name].dtype != numpy_dtype(dtype) or inputs[name].size != math.prod(shape):
        raise LaunchError(f"{name}: {inputs[name].dtype} {inputs[name].shape} given, {dtype} {shape} expected")
    return np.ascontiguousarray(inputs[name])


def _compile(program: PoplarProgram, folder: Path) -> None:
    texts = {"host.cpp": program.host, "codelets.cpp": program.codelets, "registry.cpp": _registry(program)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    sources = [str(folder / name) for name in ("host.cpp", "registry.cpp")]
    call = [*host_compiler(PURPOSE), *FLAGS, "-I", str(STUBS), "-o", str(folder / "program"), *sources]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CodegenError("the host's compiler refuses the program", done.stderr.strip()[:4000])


def _registry(program: PoplarProgram) -> str:
    """Returns the names and fields of codelets, which the SDK's compiler reads from the codelets themselves."""
    lines = ['#include "codelets.cpp"', "#include <roller_registry.hpp>", "", "namespace stub = poplar::stub;", ""]
    for codelet in program.classes:
        name = codelet.name
        fields = [f'stub::view<&{name}::{f.name}>("{f.name}")' for f in codelet.fields]
        fields += [f'stub::value<&{name}::{member}>("{member}")' for member in codelet.members]
        lines.append(
            f'[[maybe_unused]] static const bool enlisted{name} = stub::enlist<{name}>("{name}", {{{", ".join(fields)}}});'
        )
    return "\n".join([*lines, ""])
