"""Guards against folding cost nothing: instructions of the hot loops of common operators, chip by chip, against a golden table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import roller
from emulating import needs_compiler
from roller import ops
from roller.kernel import Kernel
from roller_cpu.toolchain import compiling as cpu_toolchain
from roller_cuda.toolchain import disassembly, machine_code

GOLDEN = Path(__file__).parents[1] / "golden" / "instructions.json"
MORE = 1.02  # times as many as in the table: schedulers move a few
CHIPS = ("cpu:zen5", "cpu:x86-64-v3", "cpu:neoverse-v2", "cuda:a100", "cuda:h100", "rocm:mi300x")
needs_disassembler = pytest.mark.skipif(disassembly.tool() is None, reason=f"no disassembler: {disassembly.INSTALL}")


def t(*shape: int, name: str) -> ops.SymbolicTensor:
    return ops.tensor(shape, name=name)


def softmax(x: ops.SymbolicTensor) -> ops.SymbolicTensor:
    shifted = ops.exp(x - ops.reduce_max(x, 1, keepdims=True))
    return shifted / ops.reduce_sum(shifted, 1, keepdims=True)


OPERATORS: dict[str, Callable[[], ops.SymbolicTensor]] = {
    "matmul": lambda: ops.matmul(t(512, 512, name="a"), t(512, 512, name="b")),
    "exp": lambda: ops.exp(t(1 << 16, name="x")),
    "gelu": lambda: ops.gelu(t(1 << 16, name="x")),
    "softmax": lambda: softmax(t(256, 512, name="x")),
    "add": lambda: t(1 << 16, name="x") + t(1 << 16, name="y"),
}


def on_processor(kernel: Kernel) -> int:
    """Of the hottest loop, as assembly shows it."""
    assembly = cpu_toolchain.assembly(kernel.artifact.source).splitlines()
    loops = cpu_toolchain._innermost_loops(assembly)
    hot = max(loops, key=cpu_toolchain._heat, default=[])
    return sum(1 for line in hot if cpu_toolchain._INSTRUCTION.match(line))


def on_nvidia(kernel: Kernel) -> int:
    """Of the hot loops of all kernels, in machine code."""
    return sum(len(code.hot.instructions) for code in machine_code.read(kernel.artifact.data).values())


def on_amd(kernel: Kernel) -> int:
    """Of all kernels, in assembly."""
    return len(re.findall(r"^\s+[a-z]+_\w+", kernel.assembly, re.MULTILINE))


COUNTED = {"cpu": on_processor, "cuda": on_nvidia, "rocm": on_amd}


@needs_compiler
@needs_disassembler
@pytest.mark.parametrize("chip", CHIPS)
def test_hot_loops_have_no_more_instructions_than_they_had(chip: str, update_golden: bool) -> None:
    found = {name: COUNTED[chip.partition(":")[0]](roller.compile(make(), chip)) for name, make in OPERATORS.items()}
    table = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if update_golden:
        GOLDEN.write_text(json.dumps({**table, chip: found}, indent=2) + "\n", encoding="utf-8")
        return
    for name, count in found.items():
        assert 0 < count <= MORE * table[chip][name], (name, count, table[chip][name])
