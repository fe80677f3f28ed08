"""Code generator for HIP C++: the same kernels as text for AMD's own toolchain. roller compiles nothing from this text.

TVM prints the program as CUDA C. Words that differ in HIP are replaced. A few functions and types of our own replace TVM's
prologue, so that the text needs only `hip/hip_runtime.h`. Types of several values may alias others: kernels copy arrays of all
kinds with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from roller.lowering import grid
from roller.lowering.simt.stage_kernel import GridKernel
from roller.lowering.tir.builder import argument
from roller.plugin import CodegenError, HardwareSpec, KernelSource, RProgram
from roller_rocm.codegen import generator, limits, llvm_ir, machine, matrix_cores, unrolling
from roller_rocm.codegen.matrix_cores import WaveUnit
from roller_rocm.toolchain import llvm_worker

LANGUAGE = "hip-c++"
HERE = Path(__file__).parent
WANTED = {
    r"\broller_(max|min)\b": "hip_order.h",
    r"\broller_bfloat16": "hip_bfloat16.h",
    r"\broller_barrier\b": "hip_barrier.h",
    r"\broller_wrapped_": "hip_integers.h",
    r"\broller_product\b": "hip_products.h",
    r"\broller_(row|column)\b": "hip_panels.h",
    r"\broller_settled\b": "hip_settled.h",
}  # files for the names in a kernel
PRINTED_ARCH = "sm_80"  # TVM's target: from sm_80 on TVM prints a bfloat16 type
WORDS = (
    (r"__shared__ alignas\((\d+)\)", r"alignas(\1) __shared__"),
    (r"__syncthreads\(\)", "roller_barrier()"),
    (r"__shfl_xor_sync\(\(uint\)\d+, ", "__shfl_xor("),
    (r"\(\*\((\w+) \*\)\(&\((\w+)\)\)\)", r"__builtin_bit_cast(\1, \2)"),
    (r"\(uchar\)(\(uint\))?", "(uchar)(int)"),  # for negative floats: their conversion to an unsigned type is undefined in C
    (r"\b(max|min)\(", r"roller_\1("),
    (r"\broller_row_(\d+)\(", r"roller_row<\1>("),
    (r"\broller_column_(\d+)x\d+\(", r"roller_column<\1>("),
    (r"\broller_settled_\w+\(", "roller_settled("),
    (r"\broller_product_\w+\(", "roller_product("),
    (r"\broller_wrapped_([a-z]+)_\w+\(", r"roller_wrapped_\1("),
    (r"\b__float2half_rn\(", "half("),
    (r"\b__float2bfloat16_rn\(", "nv_bfloat16("),
    (r"\b(CUDART_INF_F|inff)\b", "__builtin_inff()"),
    (r"\bCUDART_NAN_F\b", '__builtin_nanf("")'),
    (r"\bCUDART_INF\b", "__builtin_inf()"),
    (r"\bCUDART_NAN\b", '__builtin_nan("")'),
    (r"\b(float|double|u?char|u?short|u?int|u?longlong|half)([234])\b", r"roller_\1\2"),
    (r"\bnv_bfloat16([24]?)\b", r"roller_bfloat16\1"),
    (r"\bhalf\b", "_Float16"),
    (r"\bint64_t\b", "long long"),
    (r"\buint64_t\b", "unsigned long long"),
    (r"\bu(char|short|int)\b", r"unsigned \1"),
)  # patterns of TVM's CUDA C and their replacements in HIP, applied in order
SCALARS = {"half": "_Float16", "char": "signed char", "uchar": "unsigned char", "ushort": "unsigned short", "uint": "unsigned int"}
SCALARS |= {"longlong": "long long", "ulonglong": "unsigned long long"}
LLVM_TYPES = {"half": "_Float16", "float": "float", "double": "double", "i16": "short", "i32": "int", "i64": "long"}
_KERNEL = re.compile(r'extern "C" __global__ void (?:__[^;{]*\)+ )?(\w+)\((.*?)\)( \{|;\n)', re.DOTALL)
_LOOP = re.compile(r"^( *)for \(int (\w+) = 0; \w+ < (\d+); \+\+\w+\) \{$")
_SEVERAL = re.compile(r"\broller_(bfloat16|[a-z]+)([234])\b")


def generate(spec: HardwareSpec, program: RProgram) -> KernelSource:
    """Returns the program's kernels as one text, with the launch description of its code object except for the arguments' order."""
    broken = limits.refusal(spec, program)
    if broken is not None:
        raise CodegenError(broken[1])
    printed, kernels, spaces = llvm_worker.run(_lowered, spec, program)
    launch = generator.launch(program, kernels, spaces)
    whole = "\n".join([_heading(spec, launch), _supplied(printed, spec, program), printed])
    return KernelSource(whole, LANGUAGE, kernels[0]["name"] if kernels else "nothing", launch)


def text(spec: HardwareSpec, program: RProgram) -> str:
    """Returns the program as HIP C++."""
    return generate(spec, program).text


# --- in the worker ----------------------------------------------------------------------------------------------------


def _lowered(spec: HardwareSpec, program: RProgram) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the kernels' text, their description, and the arrays between them."""
    buffers = {t.name: argument(t.name, t.elements, t.dtype) for t in (*program.expr.inputs, program.expr.output)}
    units = {name: replace(unit, bits=False) for name, unit in matrix_cores.UNITS.items() if isinstance(unit, WaveUnit)}
    kernels, spaces = grid.lower(program, buffers, machine.machine(spec, units))
    promised = llvm_ir.promises(spec, program, kernels)
    printed = _unrolled(_worded(_printed(kernels, spec), _bounds(kernels, promised))) if kernels else ""
    orders = {name: [p.split()[-1].removesuffix("_ptr") for p in taken.split(", ")] for name, taken, _ in _KERNEL.findall(printed)}
    return printed, *llvm_ir.described(kernels, spaces, orders, program, promised)


def _printed(kernels: Sequence[GridKernel], spec: HardwareSpec) -> str:
    """Returns the kernels as TVM prints them for CUDA."""
    functions = {
        k.name: tirx.PrimFunc(list(k.arguments), k.body).with_attr({"global_symbol": k.name, "tirx.noalias": True}) for k in kernels
    }
    wanted = {
        "kind": "cuda",
        "arch": PRINTED_ARCH,
        "max_threads_per_block": spec.unit.lanes_max,
        "max_shared_memory_per_block": spec.levels[-2].usable_bytes,
        "thread_warp_size": spec.unit.lane_group,
    }
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}, disabled_pass=llvm_ir.SKIPPED):
        found = tvm.compile(tvm.IRModule(functions), target=tvm.target.Target(wanted, host="llvm"))
    return str(found.mod.imports[0].inspect_source())


def _bounds(kernels: Sequence[GridKernel], promised: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Returns the attributes of each kernel: its lanes, and the waves of a SIMD that its registers should leave room for."""
    found = {}
    for kernel in kernels:
        _, waves = promised.get(kernel.name, (0, 0))
        room = f" __attribute__((amdgpu_waves_per_eu({waves}, {waves})))" if waves else ""
        found[f"{kernel.name}_kernel"] = f"__launch_bounds__({kernel.threads}){room}"
    return found


def _worded(printed: str, bounds: Mapping[str, str]) -> str:
    """Returns the kernels without their prologue, in HIP's words."""

    def opened(found: re.Match[str]) -> str:
        name, taken, end = found.groups()
        return f'extern "C" __global__ void {bounds[name]} {name}({taken}) {{' if "{" in end else ""

    worded = _KERNEL.sub(opened, printed[printed.index('extern "C" __global__') :])
    for pattern, word in WORDS:
        worded = re.sub(pattern, word, worded)
    return worded.strip() + "\n"


def _unrolled(printed: str) -> str:
    """Returns the text with the loop rules of `unrolling` as pragmas.

    Named loops get their unroll factor. Other loops stay loops unless they are short and innermost.
    """
    lines = printed.splitlines()
    found = []
    for at, line in enumerate(lines):
        loop = _LOOP.match(line)
        if loop is not None:
            indent, name, trips = loop.groups()
            times = unrolling.REPEATED.match(name)
            inside = lines[at + 1 : lines.index(f"{indent}}}", at)]
            short = int(trips) <= unrolling.SHORT and not any(part.lstrip().startswith("for (") for part in inside)
            found.append(f"{indent}#pragma unroll{f' {times.group(1)}' if times else '' if short else ' 1'}")
        found.append(line)
    return "\n".join(found) + "\n"


# --- text before the kernels ------------------------------------------------------------------------------------------


def _heading(spec: HardwareSpec, launch: Mapping[str, Any]) -> str:
    """Returns comments on how to compile the text and launch its kernels."""
    tensors = {t["name"]: f"{t['dtype']} {_shape(t['shape'])}" for t in launch["tensors"]}
    spaces = {s["name"]: f"workspace of {s['elements']} {s['dtype']}" for s in launch["workspaces"]}
    what = {**tensors, **spaces, launch["output"]: "the result"}
    arch = spec.options["arch"]
    lines = [
        f"Kernels for {spec.device}:{spec.chip} ({arch}), made without one: they have not run on AMD hardware.",
        f"Compile: hipcc --offload-arch={arch} -O3 -ffp-contract=on --genco kernel.hip -o kernel.hsaco",
        "Launch in this order on one stream (hipModuleLoad, hipModuleGetFunction, hipModuleLaunchKernel), with no dynamic shared",
        f"memory; arguments are addresses of row-major arrays, aligned to {launch['alignment']} bytes.",
    ]
    for kernel in launch["kernels"]:
        lines.append(f"  {kernel['name']}: {kernel['blocks']} blocks of {kernel['threads']} threads")
        lines += [f"    {name}: {what.get(name, 'an array')}" for name in kernel["arguments"]]
    return "\n".join(f"// {line}" for line in lines)


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _supplied(printed: str, spec: HardwareSpec, program: RProgram) -> str:
    """Returns the definitions that the kernels use, and no more."""
    parts = ["#include <hip/hip_runtime.h>", ""]
    parts += [(HERE / name).read_text(encoding="utf-8") for word, name in WANTED.items() if re.search(word, printed)]
    parts += [f"{line}\n" for line in _several(printed)]
    units = dict.fromkeys(stage.atom.name for stage in program.stages if stage.atom.kind == "matrix")
    parts += [product(unit) for name in units if isinstance(unit := matrix_cores.UNITS[name], WaveUnit)]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _several(printed: str) -> Iterator[str]:
    """Yields the types of several values."""
    for name, count in sorted(set(_SEVERAL.findall(printed))):
        if name == "bfloat16":  # the compiler has no such type: its values as fields
            kind, fields = f"__attribute__((may_alias)) alignas({2 * int(count)})", ", ".join("xyzw"[: int(count)])
            yield f"struct {kind} roller_bfloat16{count} {{ roller_bfloat16 {fields}; }};"
        else:
            yield f"typedef {SCALARS.get(name, name)} roller_{name}{count} __attribute__((ext_vector_type({count}), may_alias));"


def product(unit: WaveUnit) -> str:
    """Returns the function of one instruction, on accumulators anywhere in a lane's registers."""
    told = unit.instruction
    operand, scalar, numbers = _typed(told.operand), LLVM_TYPES[told.scalar], range(told.results)
    given = ", ".join(part.split()[-1].lstrip("%") for part in told.filled(told.pattern).split(", "))
    taken = ", ".join(f"{scalar} *p{n}" for n in numbers)
    return f"""__device__ __forceinline__ void {unit.function}({taken}, const void *first, const void *second) {{
    {operand.format("held")}
    held a, b;
    __builtin_memcpy(&a, first, sizeof(a));
    __builtin_memcpy(&b, second, sizeof(b));
    typedef {scalar} results __attribute__((ext_vector_type({told.results})));
    results c = {{{", ".join(f"*p{n}" for n in numbers)}}};
    c = {_builtin(told.intrinsic)}({given});
    {" ".join(f"*p{n} = c[{n}];" for n in numbers)}
}}
"""


def _typed(llvm: str) -> str:
    """Returns a typedef of one of LLVM's types, with a placeholder for its name."""
    several = re.fullmatch(r"<(\d+) x (\w+)>", llvm)
    if several is None:
        return f"typedef {LLVM_TYPES[llvm]} {{}};"
    count, scalar = several.groups()
    return f"typedef {LLVM_TYPES[scalar]} {{}} __attribute__((ext_vector_type({count})));"


def _builtin(intrinsic: str) -> str:
    """Returns clang's name of an intrinsic: the size of a wave replaces the types of an overloaded one."""
    plain, overloads = re.subn(r"(\.v\d+[a-z]+\d+)+$", "", intrinsic)
    return f"__builtin_{plain.removeprefix('llvm.').replace('.', '_')}{'_w32' if overloads else ''}"
