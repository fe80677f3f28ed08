"""Disassembly of cubins to text or instructions, by the toolkit's `nvdisasm` from PyPI or PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from roller.plugin import CodegenError, DeviceUnavailableError
from roller_cuda.toolchain import cubin

TOOL = "nvdisasm"
INSTALL = "pip install nvidia-cuda-nvdisasm"
FORGOTTEN = {70: 75, 72: 75}  # capabilities that newer tools refuse; they decode the instructions as those of the next one
BYTES = 16  # bytes of an instruction, from compute capability 7.0 on


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: its address, predicate ("" for none, else as "@!P0"), name with modifiers, operands."""

    at: int
    predicate: str
    name: str
    operands: tuple[str, ...]

    @property
    def base(self) -> str:
        """The name without modifiers."""
        return self.name.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The parts after the name, separated by dots."""
        return tuple(self.name.split(".")[1:])


def text(data: bytes) -> str:
    """Returns all kernels of a cubin as text. `DeviceUnavailableError` without a disassembler, `CodegenError` where it fails."""
    return _disassembled(data, "-c")


def instructions(data: bytes) -> dict[str, tuple[Instruction, ...]]:
    """Returns the instructions of each function of a cubin, in order of address. Errors as `text`.

    Functions inside a kernel's section have their own names, with addresses in that section.
    """
    _, functions = json.loads(_disassembled(data, "-c", "-json"))
    found = {}
    for function in functions:
        start, raw = int(function["start"]), function["sass-instructions"]
        found[function["function-name"]] = tuple(
            Instruction(start + BYTES * n, r.get("predicate", ""), r["opcode"], _operands(r.get("operands", "")))
            for n, r in enumerate(raw)
        )
    return found


def tool() -> str | None:
    """Returns the disassembler: that of PyPI's wheel, else that on PATH."""
    found = util.find_spec("nvidia")
    places = found.submodule_search_locations if found is not None else None
    beside = [path for place in places or () for path in sorted(Path(place).glob(f"*/bin/{TOOL}"))]
    return str(beside[-1]) if beside else shutil.which(TOOL)


def _operands(words: str) -> tuple[str, ...]:
    return tuple(w.strip() for w in words.split(",") if w.strip())


def _disassembled(data: bytes, *options: str) -> str:
    command = tool()
    if command is None:
        raise DeviceUnavailableError(f"no disassembler for CUDA kernels: {INSTALL}, or put {TOOL} on PATH")
    done = _call(command, data, options)
    if done.returncode and cubin.architecture(data) in FORGOTTEN:
        done = _call(command, cubin.said_to_be(data, FORGOTTEN[cubin.architecture(data)]), options)
    if done.returncode:
        raise CodegenError(f"{command}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _call(command: str, data: bytes, options: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="roller-cuda-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(data)
        try:
            return subprocess.run([command, *options, str(file)], capture_output=True, text=True, check=False)
        except OSError as error:
            raise DeviceUnavailableError(f"{command}: {error.strerror or error}; {INSTALL}") from error
