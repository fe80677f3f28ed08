"""Code generator for the host CPU: an rProgram's nest as TIR, lowered to LLVM IR by TVM's LLVM back end.

Results larger than the last-level cache use non-temporal stores (`streaming`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from roller.lowering import sequential
from roller.lowering.simd.context import StepHook
from roller.lowering.simd.epilogue import stores_whole_lines
from roller.lowering.simd.panel_layout import Panel, make_panel
from roller.lowering.tir import arithmetic
from roller.lowering.tir.builder import Buffer, Expr, Stmt, address_of, argument, index, sequence
from roller.plugin import BuildOptions, HardwareSpec, KernelSource, RProgram, Tensor
from roller_cpu.codegen import dot_products, half_arithmetic, prefetching, streaming, tile_products
from roller_cpu.cost.parameters import past_caches, registers
from roller_cpu.toolchain import compiling, formats

HOST_TRIPLE = "x86_64-unknown-linux-gnu"  # where a spec names no other
# Passes that would only discard what the lowering has decided. The first recomputes the sizes of buffers, in up to 0.3 s where
# reads are guarded. The second moves buffers, and loses that accumulators belong on the stack.
UNDOING = ["s_tir.CompactBufferAllocation", "tirx.StorageRewrite"]
# Passes for blocks, lanes and pipelines, which no CPU kernel has, and for properties that the lowering already ensures: no loops
# without a trip, guards outside the loops that they do not depend on, indices no wider than needed. They find nothing that LLVM
# does not find, and took a sixth of the time from program to IR.
IDLE = [
    "s_tir.CanonicalizeLoop",
    "s_tir.LowerCrossThreadReduction",
    "s_tir.LowerInitBlock",
    "s_tir.PlanAndUpdateBufferAllocationLocation",
    "s_tir.ConvertBlocksToOpaque",
    "s_tir.LiftThreadBinding",
    "s_tir.ManifestSharedMemoryLocalStage",
    "s_tir.LowerAutoCopy",
    "s_tir.UnifyThreadBinding",
    "s_tir.LowerMatchBuffer",
    "s_tir.InjectPermutedLayout",
    "s_tir.AnnotateIrregularLoop",
    "s_tir.InjectSoftwarePipeline",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.LoopPartition",
    "s_tir.InjectVirtualThread",
    "s_tir.InjectDoubleBuffer",
    "s_tir.HoistIfThenElse",
    "s_tir.ThreadSync",
    "s_tir.InferFragment",
    "s_tir.LowerThreadAllreduce",
    "s_tir.MergeSharedMemoryAllocations",
    "tirx.RemoveNoOp",
    "tirx.NarrowDataType",
]


def generate(spec: HardwareSpec, program: RProgram, options: BuildOptions) -> KernelSource:
    """Returns the kernel `main(inputs, panels, output)` and, with constants, `prepack(constants, panels)` as LLVM IR text."""
    expr, program = program.expr, half_arithmetic.narrowed(spec, program)
    constants = [t for t in expr.inputs if t.name in options.constants]
    inputs = [t for t in expr.inputs if t.name not in options.constants]
    buffers = {t.name: argument(t.name, t.elements, t.dtype) for t in (*expr.inputs, expr.output)}
    panels = _constant_panels(program, {t.name for t in constants})
    tiles = tile_products.Tiles()
    lowering = sequential.Options(
        panels=panels,
        before_step=_separated(spec),
        registers=registers(spec),
        dot=dot_products.dot,
        tile_registers=tiles.instructions(),
        prefetch=prefetching.prefetch(spec),
        **_streaming(spec, program),
    )
    body = sequential.lower(program, buffers, lowering)
    unpacked = [t for t in constants if _read_directly(program, t.name)]
    arguments = [buffers[t.name] for t in (*inputs, *unpacked)] + [p.buffer for p in panels.values()] + [buffers[expr.output.name]]
    functions = {"main": _function("main", arguments, _with_helpers(body, lowering, program, tiles))}
    if panels:
        fills = [sequential.prepack(_stage(program, name), panel, buffers) for (name, _), panel in panels.items()]
        functions["prepack"] = _function(
            "prepack", [*(buffers[t.name] for t in constants), *(p.buffer for p in panels.values())], sequence(fills)
        )
    # The runtime builds every argument itself: checking them in the kernel would double its code.
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}, disabled_pass=[*UNDOING, *IDLE]):
        text = str(tvm.compile(tvm.IRModule(functions), target=target(spec)).mod.inspect_source("ll"))
    return KernelSource(compiling.stable(text), formats.IR, "main", _launch(inputs, constants, unpacked, panels, expr.output, spec))


def target(spec: HardwareSpec) -> Any:
    """Returns TVM's target for the chip."""
    triple = str(spec.options.get("llvm_triple", HOST_TRIPLE))
    wanted: dict[str, Any] = {"kind": "llvm", "mtriple": triple, "num-cores": spec.unit.count}
    if "llvm_mcpu" in spec.options:
        wanted["mcpu"] = spec.options["llvm_mcpu"]
    return tvm.target.Target(wanted)


def _function(name: str, arguments: list[Buffer], body: Stmt) -> Any:
    return tirx.PrimFunc(arguments, body).with_attr({"global_symbol": name, "tirx.noalias": True})


def _stage(program: RProgram, name: str) -> Any:
    return next(s for s in program.stages if s.nest.stage.name == name)


def _constant_panels(program: RProgram, constants: set[str]) -> dict[tuple[str, int], Panel]:
    """Returns the panels that hold constant operands only; they are filled once, when the kernel is loaded."""
    found: dict[tuple[str, int], Panel] = {}
    for stage in program.stages:
        for staging in stage.staged:
            if staging.constant:
                key = (stage.nest.stage.name, staging.operand)
                found[key] = make_panel(stage, staging, f"packed{len(found)}")
    return found


def _read_directly(program: RProgram, name: str) -> bool:
    """True if some load of the tensor does not go through a constant panel."""
    for stage in program.stages:
        packed = {s.operand for s in stage.staged if s.constant}
        if any(a.tensor.name == name and (a.role != "body" or a.factor not in packed) for a in stage.nest.accesses[:-1]):
            return True
    return False


def _launch(
    inputs: list[Tensor],
    constants: list[Tensor],
    unpacked: list[Tensor],
    panels: Mapping[Any, Panel],
    output: Tensor,
    spec: HardwareSpec,
) -> dict[str, Any]:
    return {
        "inputs": [_describe(t) for t in inputs],
        "constants": [_describe(t) for t in constants],
        "direct_constants": [t.name for t in unpacked],
        "panels": [
            {"name": p.buffer.name, "elements": int(p.buffer.shape[0]), "dtype": str(p.buffer.dtype)} for p in panels.values()
        ],
        "output": _describe(output),
        "threads": spec.unit.count,
        "alignment": "element",
    }


def _describe(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}


# --- barriers between steps -------------------------------------------------------------------------------------------


def _separated(spec: HardwareSpec) -> StepHook:
    """Returns a hook that puts a compiler barrier before every step of a tile that takes more than half of the registers.

    LLVM unrolls short reduce loops and keeps values that their steps share (a convolution's window) in registers. A large tile
    leaves no registers for these: accumulators would spill to the stack.
    """
    half = registers(spec) / 2

    def before(vectors: int) -> Stmt | None:
        return tirx.Evaluate(tirx.call_extern("int32", _BARRIER)) if vectors > half else None

    return before


_BARRIER = "roller_barrier"


# --- non-temporal stores ---------------------------------------------------------------------------------------------


def _streaming(spec: HardwareSpec, program: RProgram) -> dict[str, Any]:
    """Returns store hooks for an output larger than the caches, if it is stored in whole lines and every row starts with one.

    Each part of a line would travel alone, and would be fetched again where another vector of the row ends in the line.
    """
    output = program.expr.output
    if not past_caches(spec, output) or not stores_whole_lines(program.stages[-1], spec.levels[1].transaction_bytes):
        return {}

    def streamed(target_buffer: Buffer, value: Expr, base: Expr, lanes: int) -> Stmt | None:
        function = streaming.function(output.dtype, lanes)
        if target_buffer.name != output.name or function is None:
            return None
        return tirx.Evaluate(tirx.call_extern("int32", function, address_of(target_buffer, base), value))

    return {"store": streamed, "after_unit": lambda: tirx.Evaluate(tirx.call_extern("int32", streaming.FENCE))}


# --- functions beside the kernel -------------------------------------------------------------------------------------


def _with_helpers(body: Stmt, options: sequential.Options, program: RProgram, tiles: tile_products.Tiles) -> Stmt:
    lines = [
        f"define i32 @{_BARRIER}() alwaysinline nounwind {{",
        '  call void asm sideeffect "", "~{memory}"()',
        "  ret i32 0\n}",
    ]
    if arithmetic.called_by(stage for each in program.stages for stage in each.nest.stages):
        lines += arithmetic.definitions("linkonce_odr")
    lines += prefetching.DEFINITION
    if options.store is not None:
        lines += streaming.definitions(program.expr.output.dtype)
    for atom in {
        stage.atom.name: stage.atom for stage in program.stages if stage.atom.kind == "vector" and stage.atom.sums
    }.values():
        lines += dot_products.definitions(atom)
    lines += tiles.definitions()
    return tirx.AttrStmt(index(0), "pragma_import_llvm", tvm.ir.StringImm("\n".join(lines)), body)
