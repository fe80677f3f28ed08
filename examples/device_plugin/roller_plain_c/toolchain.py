"""C → a shared object. `CC` names the compiler; needs no hardware but this machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from roller.plugin import Artifact, CodegenError, HardwareSpec, KernelSource

FORMAT = "shared-object"
# Integers wrap around as the reference's do, and no product is fused with a sum, which rounds once less.
FLAGS = ("-std=c11", "-O3", "-fwrapv", "-ffp-contract=off", "-fPIC", "-shared", "-x", "c")


def compiler() -> str:
    """The C compiler to call."""
    return os.environ.get("CC") or "cc"


def problems() -> tuple[str, ...]:
    """What this machine lacks."""
    if shutil.which(compiler()):
        return ()
    return (f"no C compiler {compiler()!r}: install gcc or clang, or set CC to the one to use",)


def build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """The artifact of a source; `CodegenError` with the compiler's words where it refuses it, or where there is none."""
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
