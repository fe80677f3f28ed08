"""RProgram → LLVM IR: the nest as TIR, lowered by TVM's ROCm backend, with what TVM leaves out or gets wrong supplied from here.

TVM compiles in the worker process: on a processor or an intrinsic that LLVM does not know it ends the process.
"""

from __future__ import annotations

from typing import Any

from roller.plugin import CodegenError, HardwareSpec, KernelSource, RProgram
from roller_rocm.codegen import llvm_ir
from roller_rocm.codegen.limits import refusal
from roller_rocm.toolchain import compiling, llvm_worker


def generate(spec: HardwareSpec, program: RProgram) -> KernelSource:
    """The program's kernels as one module; the launch description says in which order, with which arrays, how large."""
    broken = refusal(spec, program)
    if broken is not None:
        raise CodegenError(broken[1])
    compiling.architecture(spec)
    text, kernels, spaces = llvm_worker.run(llvm_ir.lowered, spec, program)
    return KernelSource(text, "llvm-ir", kernels[0]["name"] if kernels else "nothing", launch(program, kernels, spaces))


def launch(program: RProgram, kernels: list[dict[str, Any]], spaces: list[dict[str, Any]]) -> dict[str, Any]:
    """How a program's kernels are launched: their descriptions in order, the arrays between them, the program's own arrays."""
    expr = program.expr
    return {
        "kernels": kernels,
        "workspaces": spaces,
        "inputs": [t.name for t in expr.inputs],
        "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in expr.inputs],
        "output": expr.output.name,
        "alignment": 16,
    }
