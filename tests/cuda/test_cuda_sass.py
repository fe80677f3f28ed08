"""What the machine code of CUDA kernels does where they spend their time; of kernels that are right on the emulator, too."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import roller
from emulating import emulated, expression, needs_compiler, needs_cxx, text_of
from roller import ops, verify
from roller.errors import CodegenError, DeviceUnavailableError
from roller.ir.nest import variants
from roller.program.rprogram import RProgram, StageProgram
from roller_cuda.toolchain import compiling, cubin, disassembly, machine_code
from roller_cuda.toolchain.disassembly import Instruction
from roller_cuda.toolchain.machine_code import Code
from roller_cuda.toolchain.register_contents import Registers, repeated

SIZE = 4096
CHIPS = ("v100-pcie", "a100", "rtx4090", "h100")
WITH_FRAGMENTS, WITH_GROUPS = ("a100", "rtx4090"), ("h100",)  # where products take operands from registers, and from shared memory
WITH_MATRICES = (*WITH_FRAGMENTS, *WITH_GROUPS)
LEAST_FFMA = 0.9
PIECE = 16  # bytes of a copy that runs by itself
REDUCE_TRIPS, BLOCKS = 3, 2  # of a kernel made small: enough for every stage of its pipeline, and for tiles that meet

needs_disassembler = pytest.mark.skipif(disassembly.tool() is None, reason=f"no disassembler: {disassembly.INSTALL}")
pytestmark = [needs_compiler, needs_disassembler]


def product(m: int, n: int, k: int, dtype: str) -> ops.SymbolicTensor:
    return ops.matmul(ops.tensor((m, k), dtype, name="a"), ops.tensor((k, n), dtype, name="b"))


class Compiled(NamedTuple):
    stage: StageProgram
    code: Code
    kernel: roller.Kernel


@cache
def compiled(chip: str, dtype: str) -> Compiled:
    kernel = roller.compile(product(SIZE, SIZE, SIZE, dtype), device=f"cuda:{chip}")
    (code,) = machine_code.read(kernel.artifact.data).values()
    return Compiled(kernel.program.stages[0], code, kernel)


def small(program: RProgram, dtype: str) -> RProgram:
    """The same tiles, loops and copies on a product that they make a few blocks and steps of, ragged in rows and columns."""
    (stage,) = program.stages
    names = [d.name for d in stage.nest.dims]
    tile = dict(zip(names, stage.unit_tile, strict=True))
    m, n, k = tile["m"] * BLOCKS - 8, tile["n"] * BLOCKS - 8, tile["k"] * REDUCE_TRIPS
    expr = expression(product(m, n, k, dtype))
    nest = next(v for v in variants(expr.stages[0], expr.tensors) if [d.name for d in v.dims] == names)
    return RProgram(expr, (replace(stage, nest=nest),))


# --- kernels of ours -------------------------------------------------------------------------------------------------

EVERY = [*itertools.product(CHIPS, ["float32"]), *itertools.product(WITH_MATRICES, ["float16"])]


@pytest.mark.one_in(2)
@needs_cxx
@pytest.mark.parametrize(("chip", "dtype"), EVERY)
def test_kernels_whose_code_is_read_are_right(chip: str, dtype: str) -> None:
    found = compiled(chip, dtype)
    program = small(found.kernel.program, dtype)
    assert program.stages[0].tiles == found.stage.tiles
    arrays = verify.random_inputs(program.expr, 11)
    verify.check(program.expr, arrays, emulated(program.expr, text_of(found.kernel.spec, program), arrays))


@pytest.mark.parametrize(("chip", "dtype"), EVERY)
def test_no_hot_loop_spills_or_divides(chip: str, dtype: str) -> None:
    code = compiled(chip, dtype).code
    hot = code.hot
    assert code.kernel.stack_bytes == 0 and code.whole.local_accesses == 0
    assert hot.divisions == hot.repeated_shared_reads == 0
    assert at_most_one_a_panel(hot)


def at_most_one_a_panel(hot: machine_code.Stretch) -> bool:
    """Divisions by constants: none in a loop within a panel; a loop over panels that run by themselves may find the next one's copy
    with one, where copies are no power of two.
    """
    return hot.constant_divisions <= ("LDGSTS" in hot.bases)


@pytest.mark.parametrize("chip", CHIPS)
def test_the_loop_of_a_product_in_float32_is_multiply_adds(chip: str) -> None:
    hot = compiled(chip, "float32").code.hot
    assert hot.is_loop
    assert hot.share("FFMA") >= LEAST_FFMA, dict(hot.bases)


@pytest.mark.parametrize("chip", WITH_GROUPS)
def test_products_of_warp_groups_run_by_themselves(chip: str) -> None:
    """All products of a step are started, one after another, before anybody waits, and then only for those of the step before."""
    stage, code, _ = compiled(chip, "float16")
    columns = stage.atom.extents["n"]
    assert set(code.hot.matrix_products) == {f"HGMMA.64x{columns}x16.F32"}
    tile = dict(zip([d.name for d in stage.nest.dims], stage.unit_tile, strict=True))
    groups = math.prod(tile[d] // e for d, e in zip(("m", "n"), stage.inner[:2], strict=True))
    done = sum(code.hot.matrix_products.values()) * math.prod(e for e in stage.atom.extents.values() if isinstance(e, int)) * groups
    steps, rest = divmod(done, tile["m"] * tile["n"] * tile["k"])  # the assembler may put two of them one after another
    assert steps in (1, 2) and not rest
    assert code.hot.drains == 0
    assert sum(i.name.startswith("WARPGROUP.DEPBAR") for i in code.hot.running) == steps
    assert code.hot.bytes_of("LDS") == code.hot.bytes_of("LDSM") == code.hot.local_accesses == 0


@pytest.mark.parametrize("sizes", [(1000,) * 3, (1001,) * 3, (3000,) * 3, (256, 256, 16000), (512, 512, 10000)])
def test_products_of_warp_groups_run_by_themselves_where_the_reduction_is_ragged(sizes: tuple[int, int, int]) -> None:
    """The assembler serialises products whose number, or whether a copy is given back, is known only at run time."""
    kernel = roller.compile(product(*sizes, "float16"), device="cuda:h100")
    assert kernel.program.stages[-1].atom.name.startswith("wgmma")
    assert not any(value for name, value in kernel.artifact.resources.items() if name.endswith("added_waits")), kernel.candidates[0]


def test_blocks_of_a_cluster_give_copies_back_without_a_fence_of_the_chip() -> None:
    stage, code, _ = compiled("h100", "float16")
    assert stage.dispatch.cluster > 1
    assert not any(i.name.startswith("MEMBAR") for i in code.hot.running)


def test_waits_that_the_assembler_adds_are_counted() -> None:
    loss = "(C7520) Potential Performance Loss: products are serialized in the function 'first'"
    log = f"ptxas info : {loss}\nptxas info : (C7519) warpgroup.arrive is injected in around line 7 in function 'other'"
    assert compiling.resources(log) == {"first.added_waits": 1}


@pytest.mark.parametrize("chip", WITH_FRAGMENTS)
def test_fragments_are_read_once_and_are_what_the_tile_says(chip: str) -> None:
    """A warp's tile of m x n results wants (m + n) x 2 bytes of fragments for every m x n multiply-adds."""
    stage, code, _ = compiled(chip, "float16")
    assert stage.atom.kind == "matrix" and set(code.hot.matrix_products) == {"HMMA.16816.F32"}
    tile = dict(zip([d.name for d in stage.nest.dims], stage.inner, strict=True))
    assert code.hot.repeated_fragments == 0
    assert code.hot.fragment_bytes * tile["m"] * tile["n"] == 2 * (tile["m"] + tile["n"]) * code.hot.matrix_work
    assert code.hot.bytes_of("LDS") == 0


@cache
def rounding(chip: str, turned: tuple[bool, bool]) -> Compiled:
    """A product of float32 values whose factors may be rounded to tf32."""
    a, b = (ops.tensor((SIZE, SIZE), "float32", name=name) for name in "ab")
    kernel = roller.compile(ops.matmul(a, b, *turned), device=f"cuda:{chip}", precision="tf32")
    code = machine_code.read(kernel.artifact.data)[f"stage{len(kernel.program.stages) - 1}_kernel"]
    return Compiled(kernel.program.stages[-1], code, kernel)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("chip", ["a100", "l40s", "h100"])
@pytest.mark.parametrize("turned", [*itertools.product((False, True), repeat=2)], ids=str)
def test_products_rounded_to_tf32(chip: str, turned: tuple[bool, bool]) -> None:
    """The products that the tile says, from registers or, on Hopper, from shared memory, where a kernel before it lays factors
    along the reduction that do not lie so; every fragment is read once, 4 bytes a value, by `ldmatrix` or word by word.
    """
    stage, code, kernel = rounding(chip, turned)
    hot, groups = code.hot, chip in WITH_GROUPS
    columns = stage.atom.extents["n"]
    assert set(hot.matrix_products) == {f"HGMMA.64x{columns}x8.F32.TF32" if groups else "HMMA.1688.F32.TF32"}
    assert code.kernel.stack_bytes == 0 and code.whole.local_accesses == 0
    assert not any(value for name, value in kernel.artifact.resources.items() if name.endswith("spilled_bytes"))
    assert hot.divisions == hot.repeated_fragments == hot.repeated_shared_reads == 0
    assert at_most_one_a_panel(hot)
    read = hot.fragment_bytes + hot.bytes_of("LDS")
    tile = dict(zip([d.name for d in stage.nest.dims], stage.inner, strict=True))
    assert read * tile["m"] * tile["n"] == (0 if groups else 4 * (tile["m"] + tile["n"]) * hot.matrix_work)
    assert bool(hot.bytes_of("LDS")) == (turned != (False, True) and not groups)
    assert hot.drains == 0


@pytest.mark.parametrize("chip", WITH_FRAGMENTS)
def test_copies_that_run_by_themselves_bring_what_the_block_tile_says(chip: str) -> None:
    """What a warp copies in one turn of the loop, times the warps, is the panels of a step: nothing is copied twice."""
    stage, code, kernel = compiled(chip, "float16")
    tile = dict(zip([d.name for d in stage.nest.dims], stage.unit_tile, strict=True))
    warps = kernel.artifact.launch["kernels"][0]["threads"] // machine_code.LANES
    pieces = [2 * tile[side] * tile["k"] // PIECE for side in ("m", "n")]  # of each panel; the last ones are some threads' only
    panels = sum(-(-count // (warps * machine_code.LANES)) for count in pieces) * warps * machine_code.LANES * PIECE
    copied = code.whole.bytes_of("LDGSTS") * warps
    assert copied > 0 and copied % panels == 0
    inside = code.hot.bytes_of("LDGSTS") * warps
    if inside:  # else the loop is one inside a step
        assert inside * tile["m"] * tile["n"] * tile["k"] == panels * code.hot.matrix_work * warps


@pytest.mark.parametrize(("chip", "dtype"), EVERY)
def test_resources_come_from_the_binary(chip: str, dtype: str) -> None:
    """The cubin says what the assembler's log says."""
    kernel = compiled(chip, dtype).kernel
    _, log = compiling.compiled(kernel.source, kernel.spec.options["arch"])
    said = compiling.resources(log)
    (binary,) = cubin.kernels(kernel.artifact.data).values()
    assert kernel.artifact.resources[f"{binary.name}.registers"] == binary.registers == said[f"{binary.name}.registers"]
    assert binary.stack_bytes == said[f"{binary.name}.stack_bytes"]
    assert binary.threads_max == kernel.artifact.launch["kernels"][0]["threads"]


def test_the_machine_code_is_shown() -> None:
    assert "FFMA" in compiled("v100-pcie", "float32").kernel.assembly


# --- kernels that are bad on purpose ---------------------------------------------------------------------------------

SPILLS = """
extern "C" __global__ void __launch_bounds__(1024) bad(float *z, int n) {
    float held[96];
    for (int i = 0; i < 96; ++i) held[i] = z[i * 1024 + threadIdx.x];
    for (int turn = 0; turn < n; ++turn)
        for (int i = 0; i < 96; ++i) held[i] = held[i] * held[(i + 7) % 96] + held[(i + 31) % 96];
    for (int i = 0; i < 96; ++i) z[i * 1024 + threadIdx.x] = held[i];
}"""
INDEXED = """
extern "C" __global__ void bad(float *z, int n) {
    float held[32];
    for (int i = 0; i < 32; ++i) held[i] = z[i];
    for (int turn = 0; turn < n; ++turn) held[turn * turn % 32] = held[turn % 32] * 2.0f + 1.0f;
    z[threadIdx.x] = held[n % 32];
}"""
DIVIDES = """
extern "C" __global__ void bad(float *z, int n, int by) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum = sum * 1.5f + z[(i + (int)threadIdx.x) DIVISION by];
    z[threadIdx.x] = sum;
}"""
FRAGMENTS = """
extern "C" __global__ void bad(float *z, int n) {
    extern __shared__ char panel[];
    unsigned a[4], b[2]; float c[4] = {0, 0, 0, 0};
    unsigned at = (unsigned)__cvta_generic_to_shared(panel) + (threadIdx.x % 32) * 16;
    for (int i = 0; i < n; ++i, at += 1024) {
        for (int again = 0; again < 2; ++again) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(at + again * APART));
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                         : "=r"(b[0]), "=r"(b[1]) : "r"(at + 4096 + again * 256));
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        }
        BARRIER
    }
    z[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}"""
WARPGROUP = """
extern "C" __global__ void __launch_bounds__(128) bad(float *z, unsigned long long at, int n) {
    float c[4] = {0, 0, 0, 0};
    for (int i = 0; i < n; ++i) {
        asm volatile("wgmma.fence.sync.aligned;");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(at + i), "l"(at + 2 * i));
        asm volatile("wgmma.commit_group.sync.aligned;");
        asm volatile("wgmma.wait_group.sync.aligned OPEN;" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]));
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]));
    z[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}"""


def code_of(text: str, arch: str) -> Code:
    return machine_code.read(compiling.compiled(text, arch)[0])["bad"]


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_89", "sm_90a"])
def test_spills_and_arrays_in_memory_are_seen(arch: str) -> None:
    spilled = code_of(SPILLS, arch)
    assert spilled.hot.is_loop and spilled.hot.local_accesses > 10
    assert spilled.kernel.stack_bytes >= 4 * (96 - 64) and spilled.kernel.registers == 64
    indexed = code_of(INDEXED, arch)
    assert indexed.hot.local_accesses >= 2 and indexed.kernel.stack_bytes == 128


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90a"])
def test_divisions_are_seen(arch: str) -> None:
    for sign, kind in itertools.product("/%", ("int", "unsigned", "long long")):
        hot = code_of(DIVIDES.replace("DIVISION", sign).replace("int by", f"{kind} by"), arch).hot
        assert hot.divisions + hot.constant_divisions, (sign, kind)
        assert hot.divisions or kind != "long long", sign
    changing = DIVIDES.replace("DIVISION", "/").replace("by];", "(by + i)];")
    assert code_of(changing, arch).hot.divisions
    plain = code_of(DIVIDES.replace("DIVISION", "&"), arch)
    assert plain.hot.is_loop and plain.hot.divisions == plain.hot.constant_divisions == 0
    by_ten = code_of(DIVIDES.replace("DIVISION", "/").replace("by];", "10];"), arch)
    assert by_ten.hot.divisions == 0 and by_ten.hot.constant_divisions >= 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_fragments_that_are_read_again_are_seen(arch: str) -> None:
    """For sm_90 the assembler leaves out the second read of this kernel itself."""
    again = code_of(FRAGMENTS.replace("APART", "0").replace("BARRIER", ""), arch)
    turns = sum(again.hot.matrix_products.values()) // 2  # of the loop, as the compiler unrolled it
    assert again.hot.repeated_fragments == turns
    assert again.hot.matrix_work == 2 * turns * 16 * 8 * 16 and again.hot.fragment_bytes == 2 * turns * (512 + 256)
    apart = code_of(FRAGMENTS.replace("APART", "512").replace("BARRIER", ""), arch)
    assert apart.hot.repeated_fragments == 0


def test_what_a_barrier_lies_between_is_not_read_again() -> None:
    text = FRAGMENTS.replace("APART", "0").replace("at += 1024", "at += 0")
    held = code_of(text.replace("BARRIER", "__syncthreads();"), "sm_80")
    assert held.hot.repeated_fragments == sum(held.hot.matrix_products.values()) // 2


def test_products_that_run_by_themselves_are_seen_to_be_waited_for() -> None:
    drained = code_of(WARPGROUP.replace("OPEN", "0"), "sm_90a").hot
    assert drained.drains == sum(drained.matrix_products.values()) > 0
    assert set(drained.matrix_products) == {"HGMMA.64x8x16.F32"}
    assert code_of(WARPGROUP.replace("OPEN", "1"), "sm_90a").hot.drains == 0


# --- the tools themselves --------------------------------------------------------------------------------------------


def test_values_follow_moves_and_sums() -> None:
    registers = Registers()
    for number, (name, *operands) in enumerate(
        [
            ("MOV", "R1", "R0"),
            ("IADD3", "R2", "R1", "0x10", "RZ"),
            ("LEA", "R3", "R2", "R9", "0x2"),
            ("LEA", "R4", "R2", "R9", "0x2"),
        ]
    ):
        registers.run(Instruction(16 * number, "", name, tuple(operands)))
    assert registers.address("[R2]") == registers.address("[R0+0x10]") == registers.address("[R1+0x10]")
    assert registers.address("[R3+0x4]") == registers.address("[R4+0x4]") != registers.address("[R3]")
    registers.run(Instruction(64, "@P0", "MOV", ("R1", "R7")))
    assert registers.address("[R1]") != registers.address("[R0]")


def test_reads_through_an_address_that_moves_are_not_the_same() -> None:
    read, move = Instruction(0, "", "LDS", ("R8", "[R2]")), Instruction(16, "", "IADD3", ("R2", "R2", "0x4", "RZ"))
    assert repeated([read, move, read], "LDS") == 0
    assert repeated([read, read], "LDS") == 1
    assert repeated([read, Instruction(16, "", "LDS", ("R2", "[R5]")), read], "LDS") == 0


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02", b"not a cubin" * 10, b"\x7fELF\x02" + bytes(200)])
def test_what_is_no_cubin_is_said(data: bytes) -> None:
    with pytest.raises(CodegenError, match="not an intact cubin"):
        cubin.kernels(data)


@seed(0)
@settings(max_examples=400, deadline=None, database=None)
@given(data=st.data())
def test_a_damaged_cubin_is_read_or_said(data: st.DataObject) -> None:
    """Cut off before its tables, or with some bytes changed."""
    whole = compiled("a100", "float32").kernel.artifact.data
    with pytest.raises(CodegenError, match="not an intact cubin"):
        cubin.kernels(whole[: data.draw(st.integers(0, len(whole) // 2))])
    changed = bytearray(whole)
    header, tables = st.integers(0, 63), st.integers(len(whole) - 2048, len(whole) - 1)
    for at in data.draw(st.lists(header | tables | st.integers(0, len(whole) - 1), max_size=5)):
        changed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodegenError):
        cubin.kernels(bytes(changed))


def test_no_disassembler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = compiled("a100", "float32").kernel.artifact.data
    monkeypatch.setattr(disassembly, "tool", lambda: None)
    with pytest.raises(DeviceUnavailableError, match="pip install nvidia-cuda-nvdisasm"):
        disassembly.text(data)
    monkeypatch.setattr(disassembly, "tool", lambda: os.devnull)
    with pytest.raises(DeviceUnavailableError, match="pip install nvidia-cuda-nvdisasm"):
        disassembly.text(data)


@pytest.mark.parametrize("chip", WITH_GROUPS)
def test_no_place_outside_an_array_is_a_branch(chip: str) -> None:
    """A panel's values lie inside the image or not, five comparisons each: predicates, as each way around a load waits for it."""
    x, w = ops.tensor((64, 224, 224, 3), "float16", "x"), ops.tensor((7, 7, 3, 64), "float16", "w")
    kernel = roller.compile(ops.conv2d(x, w, stride=2, padding=3, layout="NHWC"), f"cuda:{chip}", top_k=1)
    for code in machine_code.read(kernel.artifact.data).values():
        loops = [code.instructions[loop.first : loop.last + 1] for loop in code.loops]
        filling = max(loops, key=lambda found: sum(i.base == "LDG" for i in found))
        assert 0 < sum(i.base == "BRA" for i in filling) < sum(i.base == "LDG" for i in filling)
