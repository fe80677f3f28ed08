"""C compiler calls that build a shared object. `CC` names the compiler; no hardware is needed but this machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from roller.plugin import Artifact, CodegenError, HardwareSpec, KernelSource

FORMAT = "shared-object"
# Integers wrap around as in the reference. Multiply-adds are not fused, as a fused one rounds once less.
FLAGS = ("-std=c11", "-O3", "-fwrapv", "-ffp-contract=off", "-fPIC", "-shared", "-x", "c")


def compiler() -> str:
    """Returns the C compiler to call."""
    return os.environ.get("CC") or "cc"


def problems() -> tuple[str, ...]:
    """Returns one sentence if there is no C compiler."""
    if shutil.which(compiler()):
        return ()
    return (f"no C compiler {compiler()!r}: install gcc or clang, or set CC to the one to use",)


def build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns the artifact of a source; `CodegenError` with the compiler's message where it fails, or without a compiler."""
    if problems():
        raise CodegenError("; ".join(problems()))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.so"
        command = [compiler(), *FLAGS, "-o", str(file), "-", "-lm"]
        done = subprocess.run(command, input=source.text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CodegenError(f"{compiler()} refuses the kernel", done.stderr)
        data = file.read_bytes()
    return Artifact(FORMAT, data, {**source.launch, "entry": source.entry}, {"bytes": len(data)}, spec.device, spec)
