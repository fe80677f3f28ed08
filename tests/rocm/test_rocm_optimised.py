"""What LLVM makes of kernels for AMD GPUs: IR without machine code, registers as few as predicted, loops that are entered."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
import tvm
import tvm_ffi

import roller
from roller import ops
from roller.device.chip import resolve
from roller.errors import CodegenError
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.program.rprogram import RProgram, StageProgram, Staging, lane_level, tiled_levels
from roller.runtime.artifact import BuildOptions
from roller_rocm.codegen import limits, llvm_ir, optimised
from roller_rocm.codegen.unrolling import unrolled
from roller_rocm.toolchain import assembling, assembly, llvm_worker, module_text

DEVICE, SPEC = resolve("rocm:mi300x")


def sampled(op: ops.SymbolicTensor, wanted: Callable[[StageProgram], bool]) -> RProgram:
    """A program of one stage that the device can run, and that has what is wanted."""
    for program in itertools.islice(roller.enumerate_programs(op, "rocm", spec=SPEC).drawn(3), 2000):
        if wanted(program.stages[0]) and limits.refusal(SPEC, program) is None:
            return program
    raise AssertionError("no such program among the samples")


def groups_share(stage: StageProgram) -> bool:
    """Groups of waves share the reduction, and each lane has many results."""
    shares = any(lp.over == "lanes" and stage.nest.dims[lp.dim].is_reduce for lp in stage.loops)
    return stage.atom.kind == "matrix" and shares and 64 <= stage.inner[0] * stage.inner[1] // stage.atom.lanes <= 128


def test_what_groups_of_waves_exchange_is_added_up_at_once() -> None:
    """Put off to where the sums are stored, all parts of all sums are kept: twice the registers."""
    program = sampled(ops.matmul(ops.tensor((384, 4096)), ops.tensor((4096, 256))), groups_share)
    found = DEVICE.build(SPEC, DEVICE.codegen(SPEC, program, BuildOptions()), BuildOptions()).resources
    (name,) = {key.partition(".")[0] for key in found if key.endswith(".predicted_registers")}
    assert found[f"{name}.spilled_bytes"] == 0
    assert found[f"{name}.vgprs"] <= 1.25 * found[f"{name}.predicted_registers"]


def test_loops_of_a_length_that_llvm_does_not_know_are_entered() -> None:
    """No way leads around them: the block before a loop goes nowhere else."""
    kernel = roller.compile(ops.matmul(ops.tensor((256, 8192)), ops.tensor((8192, 512))), device="rocm:mi300x")
    text = kernel.source
    assert 'asm "", "=s,0"' in text, "a loop of hidden length"
    entry = text.partition("entry:")[2].partition("\n\n")[0]
    assert re.search(r"^  br label %", entry, re.MULTILINE), entry[-300:]


def test_a_loop_without_steps_stays_one() -> None:
    body = tvm.tirx.Evaluate(tvm.tirx.const(0))
    inner = tvm.tirx.For(tvm.tirx.Var("j", "int32"), 0, 4, tvm.tirx.ForKind.SERIAL, body)
    empty = tvm.tirx.For(tvm.tirx.Var("i", "int32"), 0, 0, tvm.tirx.ForKind.SERIAL, inner)
    assert int(unrolled(empty).extent) == 0


def test_a_failure_leaves_nothing_of_it_behind() -> None:
    def refused(*_: object) -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        optimised.without_machine_code(module_text.TRIPLE, refused)
    assert tvm_ffi.get_global_func(f"{optimised.GENERATOR}amdgcn", allow_missing=True) is None


def test_a_tvm_that_asks_for_no_generator_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimised, "BUILD", "roller.test.builds_nothing")
    tvm_ffi.register_global_func("roller.test.builds_nothing", lambda *_: None, override=True)
    with pytest.raises(CodegenError, match="install the version that roller pins"):
        optimised.without_machine_code(module_text.TRIPLE, lambda: None)


def test_no_machine_code_is_made_of_a_module_before_its_text_is_settled() -> None:
    """What TVM would have linked is no object."""
    program = sampled(ops.relu(ops.tensor((4096,))), lambda _: True)
    llvm_ir.lowered(SPEC, program)
    linked: list[bytes] = []
    link = tvm_ffi.get_global_func("tvm_callback_rocm_link")
    tvm_ffi.register_global_func("tvm_callback_rocm_link", lambda made: linked.append(bytes(made)) or bytearray(), override=True)
    try:
        llvm_ir.lowered(SPEC, program)
    finally:
        tvm_ffi.register_global_func("tvm_callback_rocm_link", link, override=True)
    assert len(linked) == 1
    assert not linked[0].startswith(b"\x7fELF")


def listed(text: str) -> assembly.AsmKernel:
    (kernel,) = assembly.parsed(llvm_worker.run(assembling.assembled, text)[1]).kernels.values()
    return kernel


def test_what_fits_without_a_promise_keeps_loads_under_way() -> None:
    """Room for eight waves is promised, and LLVM spills for it: what it takes without the promise is taken."""
    expr = fuse(ops.expression(ops.relu(ops.tensor((128, 1008, 42, 42)))))
    (nest,) = variants(expr.stages[0], expr.tensors)
    atom = next(a for a in SPEC.atoms if a.name == "f32x2")
    tiles, orders, level = ((1 << 15,), (1 << 7,)), ((0,), (0,)), lane_level(SPEC)
    stage = StageProgram(nest, atom, (("n", 0),), tiled_levels(SPEC), tiles, orders, lane_level=level)
    source = DEVICE.codegen(SPEC, RProgram(expr, (stage,)), BuildOptions())
    assert listed(source.text).facts["vgpr_spill_count"], "no longer an example: look for another one"
    free, frugal = module_text.roomier(source.text)
    built = DEVICE.build(SPEC, source, BuildOptions()).resources
    assert built["stage0_kernel.spilled_bytes"] == 0
    assert built["stage0_kernel.vgprs"] == listed(free).facts["vgpr_count"] > 2 * listed(frugal).facts["vgpr_count"]


def test_what_fits_in_no_other_way_is_scheduled_for_registers() -> None:
    """A depthwise convolution whose results, operands and what it carries take nearly all registers there are."""
    data, window = ops.tensor((128, 672, 11, 11), name="x"), ops.tensor((672, 1, 5, 5), name="w")
    device, spec = resolve("rocm:mi50")
    expr = fuse(ops.expression(ops.depthwise_conv2d(data, window, padding="SAME")))
    nest = next(n for n in variants(expr.stages[0], expr.tensors) if [d.name for d in n.dims] == ["n", "c", "h", "w", "r", "s"])
    atom, order, tiles = (
        next(a for a in spec.atoms if a.name == "f32"),
        tuple(range(6)),
        ((32, 1, 4, 11, 1, 5), (1, 1, 1, 11, 1, 1)),
    )
    staged = (Staging("panel", 0, 2, 2, row_padding=12), Staging("panel", 1, 2, 2))
    stage = StageProgram(nest, atom, (), tiled_levels(spec), tiles, (order, order), staged, lane_level=lane_level(spec))
    source = device.codegen(spec, RProgram(expr, (stage,)), BuildOptions())
    assert listed(source.text).facts["vgpr_spill_count"], "no longer an example: look for another one"
    (frugal,) = module_text.roomier(source.text)  # a workgroup's own waves are all that is promised
    built = device.build(spec, source, BuildOptions())
    assert built.resources["stage0_kernel.spilled_bytes"] == listed(frugal).facts["vgpr_spill_count"] == 0


def test_where_nothing_is_promised_nothing_else_is_tried() -> None:
    assert module_text.roomier('attributes #0 = { "amdgpu-flat-work-group-size"="256,256" }') == []


@pytest.mark.parametrize("chip", ["mi50", "mi300x", "rx7900xtx"])
@pytest.mark.parametrize("last", ["sum", "product"])
def test_halves_are_rounded_from_float32(chip: str, last: str) -> None:
    """Not in the instruction that adds up or multiplies, which rounds once, and which LLVM takes for some elements of a tile only:
    where tiles overlap, as those of 16 of 200 rows do, results would depend on which workgroup comes last.
    """
    sums = ops.matmul(ops.tensor((200, 5), "float16", "a"), ops.tensor((5, 7), "float16", "b"))
    op = sums if last == "sum" else ops.cast(ops.tensor((200, 7), name="x") * ops.tensor((200, 7), name="y"), "float16")
    text = roller.compile(op, device=f"rocm:{chip}").assembly
    assert "v_cvt_f16_f32" in text or "v_cvt_pk" in text
    assert "_mixlo_f16" not in text and "_mixhi_f16" not in text
