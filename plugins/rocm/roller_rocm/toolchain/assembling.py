"""LLVM IR to machine code and its assembly, in the worker process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm  # noqa: F401  (registers the loader)
import tvm_ffi

from roller.plugin import CodegenError
from roller_rocm.toolchain import assembly


def assembled(text: str, *roomier: str) -> tuple[bytes, str]:
    """Returns the relocatable object of a module's text, and its assembly with the metadata of its kernels.

    Where kernels spill, they are those of the first of the `roomier` texts whose kernels do not, else of the last one. LLVM
    generates machine code for each of the two, in parallel, as it does so outside the interpreter.
    """
    with ThreadPoolExecutor(1) as beside:
        code = beside.submit(_object, text)
        listing = str(_loaded(text).inspect_source("s"))
        if roomier and any(k.facts["vgpr_spill_count"] for k in assembly.parsed(listing).kernels.values()):
            return assembled(*roomier)
        return code.result(), listing


def _object(text: str) -> bytes:
    descriptor = os.memfd_create("kernel.o")
    try:
        _loaded(text).write_to_file(f"/proc/self/fd/{descriptor}", "o")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            return file.read()
    finally:
        os.close(descriptor)


def _loaded(text: str) -> Any:
    """Returns TVM's module of LLVM IR."""
    descriptor = os.memfd_create("kernel.ll")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(text.encode())
        return tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")(f"/proc/self/fd/{descriptor}", "ll")
    except (RuntimeError, ValueError) as error:
        raise CodegenError("LLVM refuses the kernel's IR", str(error)) from error
    finally:
        os.close(descriptor)
