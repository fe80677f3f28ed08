"""LLVM IR to code object without a GPU or a ROCm install: by TVM's LLVM, and a linker from PyPI or of this machine.

The actual resources of every kernel (registers, local memory, spills) come from the metadata that LLVM writes beside it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import tvm
import tvm_ffi

from roller.plugin import Artifact, CodegenError, HardwareSpec, KernelSource
from roller_rocm.toolchain import assembling, assembly, launching, linkers, llvm_worker, module_text, occupancy, waits

LANGUAGE = "llvm-ir"
ARCH = re.compile(r"gfx[0-9a-f]{3,4}")


def build(spec: HardwareSpec, source: KernelSource) -> Artifact:
    """Returns the code object of a source for the chip's architecture; `CodegenError` with LLVM's message where it fails."""
    if source.language != LANGUAGE:
        raise CodegenError(f"the rocm toolchain takes {LANGUAGE}, not {source.language}")
    arch = architecture(spec)
    kernels = source.launch["kernels"]
    if not kernels:
        return Artifact(
            launching.FORMAT, b"", {**source.launch, "arch": arch, "assembly": ""}, {}, spec.device, spec, versions=_versions()
        )
    code, text = llvm_worker.run(assembling.assembled, source.text, *module_text.roomier(source.text))
    binary = assembly.parsed(text).kernels
    data = linked(code)
    waits.check(binary.values())
    found = occupancy.resources(spec, kernels, binary)
    launched = [{**k, "shared_bytes": binary[k["name"]].facts["group_segment_fixed_size"]} for k in kernels]
    launch = {**source.launch, "kernels": launched, "arch": arch, "assembly": text}
    return Artifact(launching.FORMAT, data, launch, found, spec.device, spec, versions=_versions())


def architecture(spec: HardwareSpec) -> str:
    """Returns the chip's architecture; `CodegenError` if it is unknown to LLVM: compiling for it would end the process."""
    arch = str(spec.options.get("arch", ""))
    if arch not in _architectures():
        raise CodegenError(
            f"{spec.device}:{spec.chip}: options.arch is {arch!r}, not an architecture of LLVM, such as gfx90a or gfx942"
        )
    return arch


@cache
def _architectures() -> frozenset[str]:
    """Returns the processors that TVM's LLVM can compile for."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": module_text.TRIPLE})
    known = tvm_ffi.get_global_func("target.llvm_get_cpu_archlist")(target)
    return frozenset(str(name) for name in known if ARCH.fullmatch(str(name)))


def linked(code: bytes) -> bytes:
    """Returns the loadable code object of a relocatable one."""
    with tempfile.TemporaryDirectory(prefix="roller-rocm-") as folder:
        relocatable, loadable = Path(folder) / "kernel.o", Path(folder) / "kernel.hsaco"
        relocatable.write_bytes(code)
        call = [*linkers.linker(), "--no-undefined", "-shared", str(relocatable), "-o", str(loadable)]
        try:
            done = subprocess.run(call, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CodegenError(f"{call[0]}: {error.strerror or error}; {linkers.LINKER} must name an ld.lld") from error
        if done.returncode or not loadable.is_file():
            words = done.stderr.replace(str(relocatable), "kernel.o").strip()
            raise CodegenError(f"the linker refused the kernel: {words[:2000]}")
        return loadable.read_bytes()


def _versions() -> Mapping[str, str]:
    found = {}
    for package in ("apache-tvm", "ziglang"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
