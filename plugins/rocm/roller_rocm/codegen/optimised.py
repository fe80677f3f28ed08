"""Lowered TIR to LLVM's optimised IR, without machine code.

TVM's ROCm back end generates a module's machine code twice (an object, a listing), before a kernel's attributes can be set. Neither
is needed then, and they take most of its time. An option of LLVM's own ends code generation at its start. TVM sets such options
only for targets of the kind `llvm`, and only while it builds for one. So the module is built inside the build of another, empty
module, at the point where TVM requests its code generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tvm
import tvm_ffi

from roller.plugin import CodegenError

T = TypeVar("T")
STOP = "-stop-before:string=pre-isel-intrinsic-lowering"  # the first pass of code generation
BUILD, GENERATOR = "target.build.llvm", "tvm.codegen.llvm.target_"


def ir(module: Any, target: Any, triple: str) -> str:
    """Returns the optimised IR of a module of TIR; `triple`: of the machine that the target stands for."""
    pipeline, _, finish = tvm.tirx.get_default_tir_pipeline(target)
    bound = tvm.tirx.transform.BindTarget(target)(module)
    kernels = tvm.tirx.transform.Filter(_on_device)(pipeline(bound))
    made = tvm.tirx.transform.SkipAssert()(finish()(kernels))
    found = without_machine_code(triple, lambda: tvm.get_global_func(f"target.build.{target.kind.name}")(made, target))
    return str(found.inspect_source("llvm"))


def _on_device(function: Any) -> bool:
    return bool(function.attrs["target"].kind.name != "llvm")


def without_machine_code(triple: str, build: Callable[[], T]) -> T:
    """Returns the result of a build during which LLVM stops before code generation."""
    made: list[T] = []
    own = tvm_ffi.get_global_func(f"{GENERATOR}cpu")

    def generator() -> Any:
        made.append(build())
        return own()

    machine = triple.partition("-")[0]
    tvm_ffi.register_global_func(f"{GENERATOR}{machine}", generator, override=True)
    try:
        nothing = tvm.target.Target({"kind": "llvm", "mtriple": triple, "cl-opt": [STOP]})
        tvm_ffi.get_global_func(BUILD)(tvm.IRModule({}), nothing)
    finally:
        tvm_ffi.remove_global_func(f"{GENERATOR}{machine}")
    if not made:
        raise CodegenError(f"TVM {tvm.__version__} does not ask for {GENERATOR}{machine}: install the version that roller pins")
    return made[0]
