"""Kernels of other x86-64 processors on this machine: the same program, with what this machine lacks in plain LLVM IR."""

from __future__ import annotations

from dataclasses import replace

from roller.plugin import Artifact, KernelError, KernelSource
from roller_cpu.codegen import dot_products, plain_tiles, streaming
from roller_cpu.runtime.runner import CpuRunner
from roller_cpu.toolchain import compiling, formats, processors


def emulate(artifact: Artifact) -> CpuRunner:
    """Returns a runner of an artifact, compiled again for this machine.

    Dot products and products of tiles are computed by multiplications and additions, wider vectors in parts. `KernelError` for
    another architecture.
    """
    wanted, own = compiling.triple(artifact.source), compiling.host_triple()
    if wanted.partition("-")[0] != own.partition("-")[0]:
        raise KernelError(f"a kernel for {wanted or 'an unknown platform'} cannot be emulated on {own}")
    text = compiling.retargeted(
        streaming.emulated(plain_tiles.emulated(dot_products.emulated(artifact.source))), processors.host_processor()
    )
    source = KernelSource(text, formats.IR, str(artifact.launch["entry"]), artifact.launch)
    spec = artifact.spec.model_copy(update={"chip": f"{artifact.spec.chip}-emulated"})  # it runs here, whatever the chip
    return CpuRunner(replace(compiling.build(spec, source), constants=artifact.constants))
