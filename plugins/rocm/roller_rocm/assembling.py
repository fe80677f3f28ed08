"""LLVM IR to machine code and its assembly, in the worker process."""

from __future__ import annotations

import os
from typing import Any

import tvm  # noqa: F401  (registers the loader)
import tvm_ffi

from roller.plugin import CodegenError


def assembled(text: str) -> tuple[bytes, str]:
    """The relocatable object of a module's text, and its assembly with the metadata of its kernels."""
    module = _loaded(text)
    listing = str(module.inspect_source("s"))
    descriptor = os.memfd_create("kernel.o")
    try:
        module.write_to_file(f"/proc/self/fd/{descriptor}", "o")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            return file.read(), listing
    finally:
        os.close(descriptor)


def _loaded(text: str) -> Any:
    """TVM's module of LLVM IR."""
    descriptor = os.memfd_create("kernel.ll")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(text.encode())
        return tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")(f"/proc/self/fd/{descriptor}", "ll")
    except (RuntimeError, ValueError) as error:
        raise CodegenError("LLVM refuses the kernel's IR", str(error)) from error
    finally:
        os.close(descriptor)
