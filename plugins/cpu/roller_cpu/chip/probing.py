"""What microbenchmarks share: the text of a module for this machine, and memory that is really there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tvm_ffi

from roller.plugin import aligned_empty
from roller_cpu.toolchain import compiling


def function_text(name: str, arguments: Mapping[str, str], body: str) -> str:
    """Returns a function as LLVM IR. Arguments, by name and type, are TVM's variants of 16 bytes with the value in the second half.

    `body` begins with the block that the entry goes to, and returns 0.
    """
    read = [
        f"  %at_{argument} = getelementptr i8, ptr %args, i64 {16 * number + 8}\n  %{argument} = load {kind}, ptr %at_{argument}"
        for number, (argument, kind) in enumerate(arguments.items())
    ]
    first = body.lstrip().partition(":")[0]
    head = f"define dllexport i32 @__tvm_ffi_{name}(ptr %self, ptr %args, i32 %count, ptr %result) #0 {{\nentry:"
    return "\n".join([head, *read, f"  br label %{first}", body.strip("\n"), "}"])


def module_text(parts: Iterable[str], processor: str) -> str:
    """Returns LLVM IR of functions and declarations, for this machine with LLVM's name of its processor."""
    triple = str(tvm_ffi.get_global_func("tvm.codegen.llvm.GetProcessTriple")())
    described = f"{{\\22kind\\22:\\22llvm\\22,\\22mtriple\\22:\\22{triple}\\22,\\22mcpu\\22:\\22{processor}\\22}}"
    lines = [
        f'target datalayout = "{compiling.data_layout(triple)}"',
        f'target triple = "{triple}"',
        *parts,
        f'attributes #0 = {{ nounwind "target-cpu"="{processor}" }}',
        "!llvm.module.flags = !{!0}",
        f'!0 = !{{i32 4, !"tvm_target", !"{described}"}}',
    ]
    return "\n".join(lines) + "\n"


def area(size: int) -> Any:
    """Returns so many bytes, at least a page; each page is touched, as untouched ones all map to one page of zeros."""
    found = aligned_empty((max(size, 4096),), np.dtype(np.uint8))
    found[...] = 0
    return found
