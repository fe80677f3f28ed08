"""TIR to LLVM IR in the worker process, by TVM's ROCm back end.

TVM requests three things that a ROCm install would provide: bitcode to link, a linker, the attached chip. The bitcode holds the
functions that kernels call (`helpers.ll`). The link is left to `toolchain`, which compiles the IR from this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.op import register_intrin_lowering

from roller.lowering import grid
from roller.lowering.simt.stage_kernel import GridKernel, Workspace
from roller.lowering.tir import arithmetic
from roller.lowering.tir.builder import argument
from roller.plugin import HardwareSpec, RProgram
from roller_rocm.codegen import float32_functions, float64_functions, machine, matrix_cores, optimised, writer
from roller_rocm.codegen.unrolling import unrolled
from roller_rocm.cost import register_prediction
from roller_rocm.toolchain import module_text, occupancy

HELPERS = Path(__file__).parent / "helpers.ll"
# Skipped passes. The first adds barriers, as it cannot see that there are enough. The second shrinks arrays. The third shares
# storage, by names whose memory TVM's LLVM back end takes for global memory.
SKIPPED = ["s_tir.ThreadSync", "s_tir.CompactBufferAllocation", "tirx.StorageRewrite"]
# Passes that take as long as all others, for work that LLVM does as well.
NEEDLESS = ["tirx.CommonSubexprElim", "s_tir.HoistIfThenElse", "tirx.RemoveNoOp"]
ANY_ARCH = "gfx906"  # the attached chip's; it has no effect, as every target names its own
OURS = 99  # above TVM's own rules


def lowered(spec: HardwareSpec, program: RProgram) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the module's text, the description of its kernels, and the arrays between them."""
    buffers = {t.name: argument(t.name, t.elements, t.dtype) for t in (*program.expr.inputs, program.expr.output)}
    kernels, spaces = grid.lower(program, buffers, machine.machine(spec))
    atoms = [stage.atom.name for stage in program.stages if stage.atom.kind == "matrix"]
    promised = promises(spec, program, kernels)
    waves = {name: waves for name, (_, waves) in promised.items()}
    text = module_text.settled(_compiled(spec, kernels, atoms), spec, kernels, waves) if kernels else ""
    orders = module_text.orders(text)
    return text, *described(kernels, spaces, orders, program, promised)


def _compiled(spec: HardwareSpec, kernels: list[GridKernel], atoms: list[str]) -> str:
    functions = {
        k.name: tirx.PrimFunc(list(k.arguments), unrolled(k.body)).with_attr({"global_symbol": k.name, "tirx.noalias": True})
        for k in kernels
    }
    _supplied()
    operations = "\n".join(arithmetic.definitions("linkonce_odr hidden", register="v"))
    _Linked.text = _once(HELPERS.read_text(encoding="utf-8"), matrix_cores.helpers(atoms), _elementary(), operations)
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}, disabled_pass=SKIPPED + NEEDLESS):
        return optimised.ir(tirx.transform.ConvertSSA()(tvm.IRModule(functions)), target(spec), module_text.TRIPLE)


def _once(*texts: str) -> str:
    """Returns the joined texts, with each declaration once."""
    lines = "\n".join(texts).split("\n")
    seen = set[str]()
    kept = []
    for line in lines:
        if not line.startswith("declare") or line not in seen:
            kept.append(line)
        seen.add(line)
    return "\n".join(kept)


def target(spec: HardwareSpec) -> Any:
    """Returns TVM's target for the chip; without the size of a wave TVM would assume 64 for all chips."""
    wanted = {
        "kind": "rocm",
        "mcpu": spec.options["arch"],
        "max_threads_per_block": spec.unit.lanes_max,
        "max_shared_memory_per_block": spec.levels[-2].usable_bytes,
        "thread_warp_size": spec.unit.lane_group,
    }
    return tvm.target.Target(wanted, host="llvm")


def described(
    kernels: list[GridKernel],
    spaces: list[Workspace],
    orders: dict[str, list[str]],
    program: RProgram,
    promised: Mapping[str, tuple[int, int]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the kernels and the arrays between them as plain values.

    `orders`: the names of each kernel's arguments, in the order of its text. `promised`: the result of `promises`.
    """
    arrays = [{"name": s.name, "elements": s.elements, "dtype": s.dtype} for s in spaces]
    return [_described(kernel, orders, program, promised.get(kernel.name)) for kernel in kernels], arrays


def promises(spec: HardwareSpec, program: RProgram, kernels: list[GridKernel]) -> dict[str, tuple[int, int]]:
    """Returns for each kernel of a stage the predicted registers of a lane, and the waves of a SIMD that then fit."""
    return {k.name: _promised(spec, program, k) for k in kernels if k.stage is not None}


def _promised(spec: HardwareSpec, program: RProgram, kernel: GridKernel) -> tuple[int, int]:
    assert kernel.stage is not None, "of a kernel that computes a stage"
    registers = register_prediction.wanted_registers(spec, program.stages[kernel.stage], machine.machine(spec))
    return registers, occupancy.promised_waves(spec, registers, kernel.threads, kernel.shared_bytes)


def _described(
    kernel: GridKernel, orders: dict[str, list[str]], program: RProgram, promised: tuple[int, int] | None
) -> dict[str, Any]:
    name = f"{kernel.name}_kernel"
    found = {
        "name": name,
        "arguments": orders[name],
        "blocks": kernel.blocks,
        "threads": kernel.threads,
        "shared_bytes": kernel.shared_bytes,
    }
    if kernel.stage is not None and promised is not None:
        found["stage"] = program.stages[kernel.stage].nest.stage.name
        found["predicted_registers"], found["predicted_waves"] = promised
    return found


# --- TVM's requests ---------------------------------------------------------------------------------------------------


def _barrier(call: Any) -> Any:
    """Returns a barrier with fences: stores into local memory may pass TVM's own barrier."""
    return tirx.call_extern("int32", "roller_barrier") if call.args[0].value.startswith("shared") else call


def _exchanged(call: Any) -> Any:
    """Returns the value of the lane whose number differs in given bits."""
    value, distance = call.args[1], call.args[2]
    dtype = str(value.ty.dtype)
    return tirx.call_extern(dtype, f"roller_exchange_{dtype}", value, distance)


@cache
def _elementary() -> str:
    return writer.module({**float64_functions.FUNCTIONS, **float32_functions.FUNCTIONS})


def _function(call: Any) -> Any:
    """Returns a call of our own function if there is one for the type, else of LLVM's; float16 goes through float32."""
    op, dtype = call.op.name.removeprefix("tirx."), str(call.ty.dtype)
    scalar, _, lanes = dtype.partition("x")
    if scalar == "float16":
        wide = [a.astype(dtype.replace("16", "32", 1)) for a in call.args]
        return _function(getattr(tirx, op)(*wide)).astype(dtype)
    name = f"roller_{op}_{scalar}"
    if name not in float64_functions.FUNCTIONS and name not in float32_functions.FUNCTIONS:
        return tirx.call_llvm_pure_intrin(dtype, f"llvm.{op}", *call.args)
    if not lanes:
        return tirx.call_pure_extern(dtype, name, *call.args)
    places = range(int(lanes))
    each = [tirx.call_pure_extern(scalar, name, *(tirx.Shuffle([a], [i]) for a in call.args)) for i in places]
    return tirx.Shuffle(each, list(places))


class _Linked:
    """The text that the next kernel is linked with."""

    text = ""
    descriptor = -1


def _linked() -> list[str]:
    """Returns the path of an anonymous file with the text, in this process."""
    if _Linked.descriptor >= 0:
        os.close(_Linked.descriptor)
    _Linked.descriptor = os.memfd_create("helpers.ll")
    with os.fdopen(os.dup(_Linked.descriptor), "wb") as file:
        file.write(_Linked.text.encode())
    return [f"/proc/self/fd/{_Linked.descriptor}"]


@cache
def _supplied() -> None:
    """Registers answers to TVM's requests, and replaces its faulty rules: in this process, which is ours alone."""
    tvm_ffi.register_global_func("tvm_callback_rocm_bitcode_path", _linked, override=True)
    tvm_ffi.register_global_func("tvm_callback_rocm_link", lambda _: bytearray(), override=True)
    tvm_ffi.register_global_func("tvm_callback_rocm_get_arch", lambda: ANY_ARCH, override=True)
    register_intrin_lowering("tirx.tvm_storage_sync", target="rocm", f=_barrier, level=OURS)
    register_intrin_lowering("tirx.tvm_warp_shuffle_xor", target="rocm", f=_exchanged, level=OURS)
    for op in ("exp", "log", "sin", "cos", "pow"):
        register_intrin_lowering(f"tirx.{op}", target="rocm", f=_function, level=OURS)
