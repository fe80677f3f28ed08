"""Machine code walked cycle by cycle; what the assembler is told of blocks, and how often steps stand one after another."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from test_cuda_sass import needs_disassembler, product

import roller
from bench.cuda import cycles as measured
from emulating import needs_compiler
from roller import ops
from roller.cost.model import Model
from roller.device.chip import load_spec, resolve
from roller.ir.fusion import fuse
from roller.program.footprint import Geometry
from roller.program.rprogram import StageProgram
from roller.search.construct import construct
from roller_cuda.cost.parameters import BEGIN
from roller_cuda.toolchain import cubin, cycles, machine_code
from roller_cuda.toolchain.cycles import NO_COUNTER, Control, Partition
from roller_cuda.toolchain.disassembly import BYTES, Instruction

LATENCY = 23


def loop(*lines: tuple[str, Control]) -> tuple[list[Instruction], list[Control]]:
    """A loop of such instructions, the first of its kernel."""
    return [Instruction(BYTES * n, "", name, ()) for n, (name, _) in enumerate(lines)], [said for _, said in lines]


def says(stall: int = 1, written: int = NO_COUNTER, waits: tuple[int, ...] = ()) -> Control:
    return Control(stall, written, NO_COUNTER, waits)


READ = ("LDS.128", says(1, written=0))
FIRST, NEXT = ("FFMA", says(waits=(0,))), ("FFMA", says())


@pytest.mark.parametrize(
    ("groups", "arithmetic", "wanted"),
    [
        (1, 1, 1 + 4 + LATENCY + 16),  # a read, its access and latency, sixteen multiply-adds: nothing overlaps
        (2, 1, 1 + 4 + LATENCY + 16 + 1),  # another warp's read and sixteen of its own fit into the latency
        (4, 1, 4 * 17),  # four warps never wait
        (1, 2, 1 + 4 + LATENCY + 31),  # half as many lanes: a multiply-add every second cycle
    ],
)
def test_a_warp_waits_for_what_it_reads(groups: int, arithmetic: int, wanted: int) -> None:
    found = cycles.cycles(*loop(READ, FIRST, *[NEXT] * 15), Partition(groups, arithmetic, 4, LATENCY))
    assert found == pytest.approx(wanted, abs=2)


def test_stalls_and_shared_memory_take_their_time() -> None:
    stalled = loop(("IADD3", says(4)), ("FFMA", says(2)))
    assert cycles.cycles(*stalled, Partition(1, 1, 4, LATENCY)) == 6
    assert cycles.cycles(*stalled, Partition(3, 1, 4, LATENCY)) <= 7, "other warps start theirs meanwhile"
    with pytest.raises(ValueError, match="at least one warp"):
        Partition(0, 1, 4, LATENCY)
    busy = loop(*[("LDS", says())] * 8, NEXT)
    assert cycles.cycles(*busy, Partition(2, 1, 16, LATENCY)) == pytest.approx(2 * 8 * 16, rel=0.1), "accesses one after another"


def of_kernel(kernel: roller.Kernel) -> tuple[str, machine_code.Code]:
    """The kernel with the most multiply-adds, and its machine code."""
    code = machine_code.read(kernel.artifact.data)
    name = max(code, key=lambda n: code[n].hot.bases.get("FFMA", 0))
    return name, code[name]


@needs_compiler
@needs_disassembler
def test_what_kernels_say_of_themselves_is_read() -> None:
    kernel = roller.compile(product(256, 256, 256, "float32"), device="cuda:h100")
    name, code = of_kernel(kernel)
    said = cycles.controls(kernel.artifact.data, name)
    assert len(said) * BYTES == len(cubin.code_of(kernel.artifact.data, name))
    reading = [said[i.at // BYTES] for i in code.hot.instructions if i.base == "LDS"]
    assert any(c.written != NO_COUNTER for c in reading), "somebody waits for what is read"
    arithmetic = [said[i.at // BYTES] for i in code.hot.instructions if i.base == "FFMA"]
    assert all(c.written == NO_COUNTER for c in arithmetic) and any(c.waits for c in arithmetic)
    with pytest.raises(KeyError):
        cycles.controls(kernel.artifact.data, "no_such_kernel")


@needs_compiler
@needs_disassembler
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (640, 512, 3040), (1056, 1728, 640)])
def test_told_of_blocks_the_assembler_reads_ahead(shape: tuple[int, int, int]) -> None:
    """Else it supposes that others hide what a warp waits for, and reads operands just before it uses them."""
    kernel = roller.compile(product(*shape, "float32"), device="cuda:h100")
    text = str(kernel.artifact.launch["text"])
    assert re.search(r"__launch_bounds__\(\d+, \d+\) stage0_kernel", text)
    assert text in kernel.source or kernel.source in text, "what is shown is what was built"
    told, untold = (measured.share(kernel, data) for data in (kernel.artifact.data, measured.untold(kernel)))
    assert told and untold and told >= max(0.75, min(0.9, untold - 0.02))  # behind nine tenths of the cycles nothing is left to win


@needs_compiler
@needs_disassembler
def test_large_products_keep_the_multipliers_busy() -> None:
    kernel = roller.compile(product(4096, 4096, 4096, "float32"), device="cuda:h100")
    assert (measured.share(kernel, kernel.artifact.data) or 0) >= 0.89


def staged(tile: tuple[int, int, int], inner: tuple[int, int, int]) -> tuple[StageProgram, Model]:
    """A product of 4096 in such tiles, made of the program that is best for it, and its model on the H100."""
    plugin, spec = resolve("cuda:h100")
    expr = fuse(ops.expression(product(4096, 4096, 4096, "float32")))
    parameters = plugin.cost_parameters(spec, expr)
    (stage,) = construct(expr, spec, plugin.rules(spec, expr), parameters, 1)[0].program.stages
    program = replace(stage, tiles=(tile, inner)).dispatched(band=None, split=1)
    return program, Model(spec, parameters, Geometry(stage.nest), 1)


def waited(tile: tuple[int, int, int], inner: tuple[int, int, int]) -> float:
    program, model = staged(tile, inner)
    return dict(model.estimate(program).terms)["latency"]


def test_few_groups_of_lanes_wait_for_operands() -> None:
    """Of one group a partition and tiles of 8 results most of the time is waiting, for operands and for what was started
    before; twice the groups hide half of it and more.
    """
    program, _ = staged((16, 64, 128), (2, 4, 1))
    arithmetic = 2 * 4096**3 / (program.atom.gflops * 1e9)

    def lost(tile: tuple[int, int, int]) -> float:
        program, model = staged(tile, (2, 4, 1))
        return waited(tile, (2, 4, 1)) + model.compute_seconds(model.walk(program)) - arithmetic

    assert lost((16, 64, 128)) > arithmetic
    assert lost((32, 64, 128)) < 0.5 * lost((16, 64, 128))


def test_tiles_begin_step_after_step() -> None:
    """Half as many steps, half as long for the first products of each; tiles that are resident together hide it."""
    spec = load_spec("cuda:h100")
    once = BEGIN / spec.clock_ghz * 1e-9
    program, model = staged((128, 256, 32), (8, 16, 1))
    tiles, steps = program.unit_tiles / spec.unit.count, 4096 / 32
    alone = waited((128, 256, 32), (8, 16, 1))
    assert alone == pytest.approx(tiles * steps * once / model.walk(program).busy, rel=0.1)
    assert waited((128, 256, 64), (8, 16, 1)) == pytest.approx(alone / 2, rel=0.1)
    small, model = staged((64, 256, 24), (8, 16, 1))
    small = replace(small, staged=tuple(replace(s, depth=2) for s in small.staged))
    one, two = (Model(model.spec, model.parameters, model.geometry, n).estimate(small) for n in (1, 2))
    assert dict(two.terms)["latency"] < 0.1 * dict(one.terms)["latency"], "another tile goes on meanwhile"


@needs_compiler
def test_short_steps_stand_one_after_another_until_they_are_worth_a_body() -> None:
    """2 x 4 results are 8 multiply-adds a step: 32 steps; 8 x 16 are enough with eight; four atoms of a warp stand eight times."""
    small = roller.compile(product(128, 1000, 2048, "float32"), device="cuda:h100")
    inner = small.program.stages[0].inner
    steps = max(int(n) for n in re.findall(r"unroll (\d+)\n *for \(int unroll\d+_\d+ ", small.source))
    assert steps * inner[0] * inner[1] >= 256 or steps == 32
    large = roller.compile(product(4096, 4096, 4096, "float32"), device="cuda:h100")
    assert "#pragma unroll 8\n" in large.source
    halves = roller.compile(product(2000, 1000, 2000, "float16"), device="cuda:a100")
    assert re.search(r"#pragma unroll [2-8]\n *for \(int unroll\d+_\d+ ", halves.source)
