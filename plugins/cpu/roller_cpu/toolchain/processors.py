"""Processors by LLVM's names: this machine's, and those whose instruction sets it has."""

from __future__ import annotations

import platform
import re
from functools import cache

import tvm
import tvm_ffi

# Features that decide whether code runs; the rest of LLVM's list is tuning, or protection that kernels do not use.
_ISA = re.compile(r"^(sse|ssse|avx|fma|f16c|bmi|popcnt|lzcnt|movbe|amx|neon|sve|dotprod|fullfp16|bf16|i8mm)")


def host_processor() -> str:
    """Returns LLVM's name for the processor of this machine."""
    return str(tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUName")())


@cache
def host_features() -> frozenset[str]:
    """Returns the instruction sets that the processor reports (CPUID) and the system lets programs use, by LLVM's names."""
    return frozenset(str(f) for f, on in tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")().items() if bool(on))


@cache
def known_processors(triple: str) -> frozenset[str]:
    """Returns the processors that LLVM can compile for."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    return frozenset(map(str, tvm_ffi.get_global_func("target.llvm_get_cpu_archlist")(target)))


@cache
def instruction_sets(processor: str, triple: str) -> tuple[str, ...]:
    """Returns the instruction sets that code for a processor may use, sorted."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": processor})
    found = {str(f) for f in tvm_ffi.get_global_func("target.llvm_get_cpu_features")(target)}
    return tuple(sorted(f for f in found if _ISA.match(f)))


@cache
def missing_features(processor: str) -> tuple[str, ...]:
    """Returns the instruction sets of a processor that this machine does not have."""
    triple = str(tvm_ffi.get_global_func("tvm.codegen.llvm.GetProcessTriple")())
    if processor not in known_processors(triple):
        return (f"the whole {processor} instruction set (it is a {platform.machine()})",)
    return tuple(sorted(set(instruction_sets(processor, triple)) - host_features()))
