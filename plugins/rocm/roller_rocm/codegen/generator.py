"""Code generator for LLVM IR: an rProgram's nest as TIR, lowered by TVM's ROCm back end, with fixes for gaps and errors of TVM.

TVM compiles in the worker process, as a processor or an intrinsic that is unknown to LLVM ends the process.
"""

from __future__ import annotations

from typing import Any

from roller.plugin import CodegenError, HardwareSpec, KernelSource, RProgram
from roller_rocm.codegen import llvm_ir
from roller_rocm.codegen.limits import refusal
from roller_rocm.toolchain import compiling, llvm_worker


def generate(spec: HardwareSpec, program: RProgram) -> KernelSource:
    """Returns the program's kernels as one module; the launch description holds their order, arrays and sizes."""
    broken = refusal(spec, program)
    if broken is not None:
        raise CodegenError(broken[1])
    compiling.architecture(spec)
    text, kernels, spaces = llvm_worker.run(llvm_ir.lowered, spec, program)
    return KernelSource(text, "llvm-ir", kernels[0]["name"] if kernels else "nothing", launch(program, kernels, spaces))


def launch(program: RProgram, kernels: list[dict[str, Any]], spaces: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the launch description: the kernels in order, the arrays between them, and the program's own arrays."""
    expr = program.expr
    return {
        "kernels": kernels,
        "workspaces": spaces,
        "inputs": [t.name for t in expr.inputs],
        "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in expr.inputs],
        "output": expr.output.name,
        "alignment": 16,
    }
