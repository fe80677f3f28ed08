"""Code generator for CUDA C++: an rProgram's nest as TIR, printed by TVM's CUDA back end, below a short prelude of our own.

TVM's own prelude includes half of the toolkit's headers, which takes longer to compile than the kernel. It is left out; the parts
that kernels use are in `prelude.cuh`.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from roller.lowering import grid
from roller.lowering.simt.stage_kernel import GridKernel, copies_of
from roller.lowering.specialised.swizzle import SWIZZLE_BYTES
from roller.lowering.tir.builder import argument
from roller.plugin import CodegenError, HardwareSpec, KernelSource, RProgram
from roller_cuda.codegen import hopper
from roller_cuda.codegen.limits import refusal
from roller_cuda.codegen.machine import machine
from roller_cuda.cost import register_prediction
from roller_cuda.toolchain import compiling

# Skipped passes. The first adds barriers, as it cannot see that there are enough. The second shrinks arrays to the parts that are
# read, which takes longer than all other passes together; our arrays already have the right size.
SKIPPED = ["s_tir.ThreadSync", "s_tir.CompactBufferAllocation"]
HERE = Path(__file__).parent
WANTED = {
    "roller_ldmatrix": "tensor_cores.cuh",
    "roller_fn_": "functions.cuh",
    "roller_wrapped_": "integers.cuh",
    "roller_product_": "products.cuh",
    "roller_tf32": "tf32.cuh",
    "roller_quads": "quads.cuh",
    "roller_copies": "copies.cuh",
    "roller_signals": "hopper.cuh",
}  # files for the functions that a kernel calls
HEADERS = {"half": "cuda_fp16.h", "nv_bfloat16": "cuda_bf16.h"}
PRINTED_ARCH = "sm_80"  # TVM's target: from sm_80 on TVM prints a bfloat16 type, which the toolkit's headers define for every chip
_MEETING = re.compile(r"^( *)(for \(int other)", re.MULTILINE)
# A step loop of a reduction, its unroll factor, and its trip count.
_REPEATED = re.compile(r"^( *)(for \(int unroll(\d+)_\w+ = 0; \w+ < (.*); \+\+)", re.MULTILINE)
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\((\d+)(?:, \d+)?\) )?(\w+)\((.*?)\)( \{|;)', re.DOTALL)


def generate(spec: HardwareSpec, program: RProgram) -> KernelSource:
    """Returns the program's kernels as one text; the launch description holds their order, arrays and sizes."""
    broken = refusal(spec, program)
    if broken is not None:
        raise CodegenError(broken[1])
    expr = program.expr
    buffers = {t.name: argument(t.name, t.elements, t.dtype) for t in (*expr.inputs, expr.output)}
    kernels, spaces = grid.lower(program, buffers, machine(spec))
    printed = _printed(kernels, spec) if kernels else ""
    stages = []
    for kernel in kernels:
        about, blocks = _stage(spec, program, kernel)
        printed = compiling.saying(printed, f"{kernel.name}_kernel", kernel.threads, blocks)
        stages.append(about)
    text = _whole(printed) if kernels else ""
    orders = _orders(text)
    described = [_describe(kernel, orders, about) for kernel, about in zip(kernels, stages, strict=True)]
    for launched in described:
        text = _with_launch(text, launched)
    launch = {
        "kernels": described,
        "workspaces": [{"name": s.name, "elements": s.elements, "dtype": s.dtype} for s in spaces],
        "inputs": [t.name for t in expr.inputs],
        "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in expr.inputs],
        "output": expr.output.name,
        "alignment": 16,
    }
    return KernelSource(text, "cuda-c++", kernels[0].name if kernels else "nothing", launch)


def target(spec: HardwareSpec) -> Any:
    """Returns TVM's target for the chip."""
    wanted = {
        "kind": "cuda",
        "arch": PRINTED_ARCH,
        "max_threads_per_block": spec.unit.lanes_max,
        "max_shared_memory_per_block": spec.levels[-2].usable_bytes,
        "thread_warp_size": spec.unit.lane_group,
    }
    return tvm.target.Target(wanted, host="llvm")


def _printed(kernels: list[GridKernel], spec: HardwareSpec) -> str:
    functions = {
        k.name: tirx.PrimFunc(list(k.arguments), k.body).with_attr({"global_symbol": k.name, "tirx.noalias": True}) for k in kernels
    }
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}, disabled_pass=SKIPPED):
        module = tvm.compile(tvm.IRModule(functions), target=target(spec))
    text = str(module.mod.imports[0].inspect_source())
    names = {name for kernel in kernels for name in kernel.maps}
    for name in names:
        text = _by_value(text, name)
    if names:  # the XOR swizzle of a panel's rows follows from addresses
        text = text.replace("extern __shared__ __align__(64)", f"extern __shared__ __align__({SWIZZLE_BYTES})")
    # Loops over other lanes' values occur once for each accumulator: unrolled, they would be most of the code.
    text = _MEETING.sub(r"\1#pragma unroll 1\n\1\2", text[text.index('extern "C" __global__') :])
    text = text.replace(" && ", " & ")  # conditions are safe to evaluate eagerly; compilers branch at each &&
    return _REPEATED.sub(_unrolled, text)


def _unrolled(found: re.Match[str]) -> str:
    """Returns a loop with its unroll pragma; the factor is a power of two if the trip count is not a constant.

    NVIDIA's compilers (NVRTC 12.9, nvcc 13.0) drop the remainder of a loop over min(16, 30522 - 16 i) that is unrolled 3 or 5
    times.
    """
    blanks, loop, often, trips = found.groups()
    count = int(often) if trips.isdigit() else 1 << (int(often).bit_length() - 1)
    return f"{blanks}#pragma unroll {count}\n{blanks}{loop}"


def _by_value(text: str, name: str) -> str:
    """Returns the text with an array's description as a constant argument by value, in place of an array of words."""
    taken = re.sub(rf"\w+\* __restrict__ {name}_ptr\b", f"const __grid_constant__ RollerTensorMap {name}_ptr", text)
    return re.sub(rf"\(&\({name}_ptr\[0\]\)\)", f"(&{name}_ptr)", taken)


def _whole(kernels: str) -> str:
    """Returns the kernels below their preludes; headers of half types only if the kernels use these."""
    halves = {word: header for word, header in HEADERS.items() if re.search(rf"\b{word}\b", kernels)}
    headers = [f"#include <{header}>" for header in halves.values()]
    guarded = ["#ifndef ROLLER_EMULATED", *headers, "#endif"] if headers else []
    fours = [f"struct alignas(8) {word}4 {{ {word} x, y, z, w; }};" for word in halves]
    preludes = ["prelude.cuh", *(name for call, name in WANTED.items() if call in kernels)]
    texts = ((HERE / name).read_text(encoding="utf-8") for name in preludes)
    return "\n".join([*guarded, *texts, *fours, *filter(None, [hopper.products(kernels)]), kernels])


def _orders(text: str) -> dict[str, list[str]]:
    """Returns for each kernel the names of its arguments, in the order of the text."""
    found = {}
    for _, name, parameters, _ in _KERNEL.findall(text):
        found[name] = [p.split()[-1].lstrip("*").removesuffix("_ptr") for p in parameters.split(",") if p.strip()]
    return found


def _with_launch(text: str, kernel: dict[str, Any]) -> str:
    """Returns the text with a comment above a kernel that describes its launch."""
    what = (
        f"launched with {kernel['blocks']} x {kernel['threads']} threads, {kernel['shared_bytes']} bytes of dynamic shared memory"
    )
    clusters = f", in clusters of {kernel['cluster']}" if "cluster" in kernel else ""
    maps = f"; tensor maps, as the launch description says: {', '.join(kernel['maps'])}" if "maps" in kernel else ""
    start = text.rindex('extern "C"', 0, text.rindex(f" {kernel['name']}("))
    return f"{text[:start]}// {what}{clusters}; arguments: {', '.join(kernel['arguments'])}{maps}\n{text[start:]}"


def _stage(spec: HardwareSpec, program: RProgram, kernel: GridKernel) -> tuple[dict[str, Any], int]:
    """Returns the stage of a kernel with its predicted registers, and the kernel's minBlocksPerSM.

    The first is empty for a kernel that only reduces split-K parts. The second is 0 if the kernel declares none.
    """
    if kernel.stage is None:
        return {}, 0
    stage = program.stages[kernel.stage]
    known = machine(spec)
    registers, blocks = register_prediction.told_registers(spec, stage, known, kernel)
    copies = {"copies": copies_of(stage, known)} if stage.staged else {}
    return {"stage": stage.nest.stage.name, "predicted_registers": registers, **copies}, blocks


def _describe(kernel: GridKernel, orders: dict[str, list[str]], stage: dict[str, Any]) -> dict[str, Any]:
    name = f"{kernel.name}_kernel"
    if name not in orders:
        raise CodegenError(f"the text has no kernel {name!r}, only {', '.join(orders) or 'none'}")
    return {
        "name": name,
        "arguments": orders[name],
        "blocks": kernel.blocks,
        "threads": kernel.threads,
        "shared_bytes": kernel.shared_bytes,
        **({"cluster": kernel.cluster} if kernel.cluster > 1 else {}),
        **stage,
        **({"maps": {name: asdict(found) for name, found in kernel.maps.items()}} if kernel.maps else {}),
    }
