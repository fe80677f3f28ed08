"""What kernels take of a GPU, predicted before the assembler says and read from what it made."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from emulating import needs_compiler
from random_operators import network_operators
from roller import building, ops
from roller.cost.model import estimate
from roller.cost.occupancy import resident_tiles, residents
from roller.device.chip import load_spec, resolve
from roller.device.plan import Plan
from roller.device.plugins import load_device
from roller.ir.fusion import fuse
from roller.ir.nest import variants
from roller.lowering import grid
from roller.program.footprint import Geometry
from roller.program.rprogram import RProgram, StageProgram, Staging, lane_level, tiled_levels
from roller.runtime.artifact import Artifact, BuildOptions, KernelSource
from roller.search.construct import construct
from roller.search.stages import Candidate
from roller_cuda.codegen import limits, machine
from roller_cuda.cost import register_prediction
from roller_cuda.toolchain import compiling, occupancy

CHIPS = ("v100", "a100", "rtx4090", "h100")
WANTED = 0.15  # the median distance from the binary


@needs_compiler
@pytest.mark.parametrize("count", [4, pytest.param(24, marks=pytest.mark.long)])
def test_registers_are_predicted(count: int) -> None:
    """Over 20 kernels (in the long run 120), of the three best programs of operators that nobody picked, each for two chips."""
    apart = []
    for chip, op in (*network_operators(CHIPS, count), *network_operators(CHIPS[::-1], count)):
        for kernel in roller.compile_top(op, device=f"cuda:{chip}", top_k=3):
            for name, (predicted, taken) in registers_of(kernel.artifact).items():
                apart.append(abs(predicted - taken) / taken)
                assert kernel.artifact.resources[f"{name}.resident_blocks"] >= 1, f"{name} does not fit on {chip}"
    assert len(apart) >= 5 * count
    assert statistics.median(apart) <= WANTED, apart


@needs_compiler
def test_a_binary_with_room_for_fewer_blocks_than_assumed_is_rated_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary whose threads take more registers than was predicted: twice as many as the assembler says."""
    blocks = compiling._blocks
    monkeypatch.setattr(compiling, "_blocks", lambda spec, kernel, registers: blocks(spec, kernel, 2 * registers))
    kernel = roller.compile(ops.gelu(ops.tensor((8192, 8192)) + ops.tensor((8192,))), device="cuda:h100")
    first = next(c for c in kernel.candidates if c.note)
    said = re.fullmatch(r"(\d+) of (\d+) tiles at a time", first.note)
    assert said is not None and int(said[1]) < int(said[2])
    (held,) = residents(first.program, kernel.spec, {})
    parameters = load_device("cuda").cost_parameters(kernel.spec, kernel.expr)
    assert (held.predicted, estimate(first.program, kernel.spec, parameters, [int(said[1])])) == (int(said[2]), first.estimate)
    assert first.estimate.seconds >= estimate(first.program, kernel.spec, parameters).seconds
    assert kernel.estimate.seconds == min(c.estimate.seconds for c in kernel.candidates)
    (real,) = residents(kernel.program, kernel.spec, kernel.artifact.resources)
    told = f"occupancy: {real.predicted} tiles per unit predicted, {real.real} by the binary"
    assert real.real and told in str(kernel.explain())


@needs_compiler
def test_programs_are_rated_for_the_blocks_that_their_registers_leave_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread copies and where it reads are the device's to know: without those registers a third block is promised, and
    three programs are built only to find that there is no room for it.
    """
    built = []
    whole = building.build
    monkeypatch.setattr(building, "build", lambda plan, choice: built.append(choice) or whole(plan, choice))
    kernel = roller.compile(ops.conv2d(ops.tensor((128, 3, 230, 230)), ops.tensor((64, 3, 7, 7)), 2), device="cuda:h100")
    assert len(built) == 1
    (stage,) = kernel.program.stages
    room = limits.resident_tiles(kernel.spec, stage)
    assert resident_tiles(stage, kernel.spec, Geometry(stage.nest)) > room == kernel.artifact.resources["conv2d.resident_tiles"]
    assert [s.residents.predicted for s in kernel.explain().stages if s.residents] == [room]


@pytest.mark.parametrize(("chip", "threads"), [("a100", 128), ("h100", 384)])
def test_room_counts_the_threads_that_fill_panels(chip: str, threads: int) -> None:
    """On the H100 one more group of warps starts copies; a block of 384 threads has a multiprocessor's registers for itself."""
    op = ops.matmul(ops.tensor((4096, 4096), "float16"), ops.tensor((4096, 4096), "float16"))
    (stage,) = construct_for(op, chip).program.stages
    spec = load_spec(f"cuda:{chip}")
    known = machine.machine(spec)
    registers = register_prediction.predicted_registers(spec, stage, known, threads)
    blocks = occupancy.resident_blocks(spec, threads, registers, grid.shared_bytes(stage, known))
    assert limits.resident_tiles(spec, stage) == blocks >= 1


VECTORS = {
    "row": ((1, 4096), (4096, 4096)),
    "column": ((2000, 4096), (4096, 1)),
    "outer": ((4096, 1), (1, 4096)),
    "thin": ((3, 1000), (1000, 700)),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("what", VECTORS)
def test_what_the_device_refuses_has_no_room(what: str, chip: str) -> None:
    """Matrix atoms rated for products that lack rows or columns have no kernels, and are asked about as all others are."""
    plugin, spec = resolve(f"cuda:{chip}")
    expr = fuse(ops.expression(ops.matmul(*(ops.tensor(shape, "float16") for shape in VECTORS[what]))))
    rules, parameters = plugin.rules(spec, expr), plugin.cost_parameters(spec, expr)
    for found in construct(expr, spec, rules, replace(parameters, resident_tiles=None), 24):
        (stage,) = found.program.stages
        assert (limits.resident_tiles(spec, stage) > 0) == (limits.refusal(spec, found.program) is None), stage.describe()
    best = construct(expr, spec, rules, parameters, 1)[0]
    assert limits.refusal(spec, best.program) is None


@needs_compiler
def test_explain_does_not_say_that_what_the_device_refuses_is_slower() -> None:
    """Hopper's warp groups want rows and columns: a product with a vector was never rated for them."""
    op = ops.matmul(ops.tensor((1, 512), "float16"), ops.tensor((512, 512), "float16"))
    (stage,) = roller.compile(op, device="cuda:h100").explain().stages
    (reason,) = {reason for atom, reason in stage.others if atom.startswith("wgmma") and atom.endswith("f16") and "b" not in atom}
    assert "refused by the device" in reason


def test_no_block_has_room_whose_threads_would_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_spec("cuda:a100")
    (stage,) = construct_for(ops.matmul(ops.tensor((512, 512)), ops.tensor((512, 512))), "a100").program.stages
    assert limits.resident_tiles(spec, stage) >= 1
    monkeypatch.setattr(register_prediction, "wanted_registers", lambda *_: occupancy.MOST)
    assert limits.resident_tiles(spec, stage) == 0


@needs_compiler
@pytest.mark.parametrize(("channels", "size"), [(512, 7), (256, 14)])
def test_many_lanes_with_rows_of_windows_do_not_spill(channels: int, size: int) -> None:
    """Blocks of 896 threads, with 72 registers each: a row of the image, read at a time, was not counted."""
    image, filters = ops.tensor((128, channels, size, size)), ops.tensor((channels, channels, 3, 3))
    kernel = roller.compile(ops.conv2d(image, filters, padding=1), device="cuda:h100")
    assert kernel.artifact.resources["stage0_kernel.spilled_bytes"] == 0
    assert not [choice.note for choice in kernel.candidates if "spilled" in (choice.note or "")]


def test_the_row_of_a_window_is_that_of_the_largest_operand() -> None:
    stage = construct_for(ops.max_pool2d(ops.tensor((64, 64, 56, 56)), 3, 1, 1), "h100").program.stages[0]
    assert stage.windowed, stage.describe()
    along, taps = stage.inner[stage.nest.spatial[-1]], 3
    assert register_prediction.row_registers(stage) == along + taps - 1 - 1
    product = construct_for(ops.matmul(ops.tensor((512, 512)), ops.tensor((512, 512))), "h100").program.stages[0]
    assert register_prediction.row_registers(product) == 0


@needs_compiler
def test_cubins_built_at_once_are_those_built_one_by_one() -> None:
    kernels = roller.compile_top(ops.matmul(ops.tensor((70, 90)), ops.tensor((90, 50))), "cuda:a100", top_k=4)
    plan = Plan(load_device("cuda"), kernels[0].spec)
    compiling.compiled_by.cache_clear()
    alone = [building.build(plan, kernel.candidates[0]).artifact for kernel in kernels]
    assert [k.artifact.to_bytes() for k in kernels] == [artifact.to_bytes() for artifact in alone]


def construct_for(op: ops.SymbolicTensor, chip: str) -> Candidate:
    """The best program for a chip."""
    plugin, spec = resolve(f"cuda:{chip}")
    expr = fuse(ops.expression(op))
    return construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr), 1)[0]


def registers_of(artifact: Artifact) -> dict[str, tuple[int, int]]:
    """Predicted and real registers of each kernel that has a prediction."""
    names = [k["name"] for k in artifact.launch["kernels"] if "predicted_registers" in k]
    return {n: (artifact.resources[f"{n}.predicted_registers"], artifact.resources[f"{n}.registers"]) for n in names}


# Of the occupancy tables of the CUDA toolkit's documentation: threads, registers, dynamic shared bytes → blocks.
@pytest.mark.parametrize(
    ("chip", "threads", "registers", "shared", "blocks"),
    [
        ("a100", 256, 32, 0, 8),  # by threads: 2048
        ("a100", 256, 128, 0, 2),  # by registers: 65536
        ("a100", 256, 255, 0, 1),
        ("a100", 128, 40, 48 << 10, 3),  # by shared memory: 164 KiB, one more for each block
        ("a100", 128, 32, 32560, 4),  # handed out by 128 bytes: five times 32560 and one KiB would fit, five times 32640 do not
        ("a100", 32, 16, 0, 32),  # by blocks
        ("rtx4090", 256, 32, 0, 6),  # 1536 threads
        ("rtx4090", 32, 16, 0, 24),
        ("v100", 96, 96, 0, 6),  # four partitions of 16384 registers: five warps each
        ("h100", 384, 168, 200 << 10, 1),
        ("h100", 1024, 64, 0, 1),
    ],
)
def test_blocks_on_a_multiprocessor(chip: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert occupancy.resident_blocks(load_spec(f"cuda:{chip}"), threads, registers, shared) == blocks


# Of warps that are no multiple of the partitions, one partition has one more.
@pytest.mark.parametrize(
    ("threads", "registers"), [(32, 255), (256, 255), (288, 168), (320, 168), (384, 168), (416, 128), (1024, 64)]
)
def test_registers_of_a_thread(threads: int, registers: int) -> None:
    spec = load_spec("cuda:a100")
    assert occupancy.limit(spec, threads) == registers
    assert occupancy.resident_blocks(spec, threads, registers, 0) >= 1
    assert registers == occupancy.MOST or occupancy.resident_blocks(spec, threads, registers + 1, 0) == 0


@given(st.sampled_from(CHIPS), st.integers(1, 32), st.integers(16, 255), st.integers(0, 160 << 10))
def test_more_of_anything_leaves_no_more_blocks(chip: str, warps: int, registers: int, shared: int) -> None:
    spec = load_spec(f"cuda:{chip}")
    here = occupancy.resident_blocks(spec, 32 * warps, registers, shared)
    assert here >= occupancy.resident_blocks(spec, 32 * warps, registers + 1, shared)
    assert here >= occupancy.resident_blocks(spec, 32 * warps, registers, shared + 1024)
    assert here >= occupancy.resident_blocks(spec, 32 * (warps + 1), registers, shared)
    if registers <= occupancy.limit(spec, 32 * warps):
        assert occupancy.resident_blocks(spec, 32 * warps, registers, 0) >= 1


# --- kernels that spill ----------------------------------------------------------------------------------------------


def assembler(monkeypatch: pytest.MonkeyPatch, first: tuple[int, int], second: tuple[int, int] | None) -> list[str]:
    """Registers and spilled bytes that kernel k takes when it is compiled, and when it is compiled again; the texts so far."""
    texts = list[str]()

    def compiled(text: str, _: str) -> tuple[bytes, dict[str, int]]:
        texts.append(text)
        registers, spilled = first if len(texts) == 1 else second or pytest.fail("the kernel is compiled again")
        return text.encode(), {"k.registers": registers, "k.spilled_bytes": spilled}

    monkeypatch.setattr(compiling, "_compiled", compiled)
    return texts


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ((96, 4), (107, 0), True),
        ((96, 1540), (168, 116), True),
        ((96, 4), (168, 8), False),  # no better
        ((255, 4), None, False),  # there are no more
        ((96, 0), None, False),
    ],
)
def test_spills_for_one_more_block_are_taken_back(
    first: tuple[int, int], second: tuple[int, int] | None, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registers and spilled bytes of a kernel as they are, and where one block on a multiprocessor is enough."""
    texts = assembler(monkeypatch, first, second)
    launch = {"kernels": [{"name": "k", "blocks": 108, "threads": 128, "shared_bytes": 0}]}
    text = 'extern "C" __global__ void __launch_bounds__(128) k(float* __restrict__ x_ptr) {}'
    artifact = compiling.build(load_spec("cuda:a100"), KernelSource(text, "cuda-c++", "k", launch))
    assert len(texts) == (1 if second is None else 2)
    assert artifact.resources["k.registers"] == (second if taken and second else first)[0]
    assert artifact.launch["text"] == (text.replace("(128)", "(128, 1)") if taken else text)
    assert artifact.data == str(artifact.launch["text"]).encode()


@pytest.mark.parametrize(
    ("first", "second", "blocks", "taken"),
    [
        ((145, 0), (126, 0), 1000, True),
        ((145, 0), (128, 8), 1000, False),  # not for values in memory
        ((145, 0), (136, 0), 1000, False),  # still one
        ((145, 0), None, 108, False),  # there is one block for each multiprocessor
        ((128, 0), None, 1000, False),  # as good as predicted
    ],
)
def test_registers_beyond_those_predicted_are_taken_back(
    first: tuple[int, int], second: tuple[int, int] | None, blocks: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registers and spilled bytes of a kernel as they are, and where it is to leave room for two blocks, as 124 registers would."""
    texts = assembler(monkeypatch, first, second)
    about = {"name": "k", "threads": 224, "shared_bytes": 0, "blocks": blocks, "stage": "s", "predicted_registers": 124}
    text = 'extern "C" __global__ void __launch_bounds__(224) k(float* __restrict__ x_ptr) {}'
    artifact = compiling.build(load_spec("cuda:a100"), KernelSource(text, "cuda-c++", "k", {"kernels": [about]}))
    assert len(texts) == (1 if second is None else 2)
    assert artifact.launch["text"] == (text.replace("(224)", "(224, 2)") if taken else text)
    assert artifact.resources["s.resident_tiles"] == (2 if taken or first[0] <= 128 else 1)


@pytest.mark.parametrize(
    ("first", "second", "untold"),
    [
        ((64, 0), None, False),  # as it says
        ((64, 40), (96, 0), True),
        ((64, 40), (96, 80), False),  # no better
        ((255, 40), None, False),  # there are no more registers, whatever it says
    ],
)
def test_what_is_said_of_blocks_is_left_out_where_threads_spill_for_it(
    first: tuple[int, int], second: tuple[int, int] | None, untold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registers and spilled bytes of a kernel that says that eight blocks share a multiprocessor, and of one that says nothing."""
    texts = list[str]()

    def compiled(text: str, _: str) -> tuple[bytes, dict[str, int]]:
        texts.append(text)
        registers, spilled = (
            first if ", 8)" in text else (second if ", 1)" not in text else (255, 200)) or pytest.fail("built again")
        )
        return text.encode(), {"k.registers": registers, "k.spilled_bytes": spilled}

    monkeypatch.setattr(compiling, "_compiled", compiled)
    launch = {"kernels": [{"name": "k", "blocks": 108, "threads": 128, "shared_bytes": 0}]}
    text = 'extern "C" __global__ void __launch_bounds__(128, 8) k(float* __restrict__ x_ptr) {}'
    artifact = compiling.build(load_spec("cuda:a100"), KernelSource(text, "cuda-c++", "k", launch))
    assert artifact.launch["text"] == (text.replace("(128, 8)", "(128)") if untold else text)
    assert (len(texts) == 1) == (second is None) and artifact.data == str(artifact.launch["text"]).encode()


@needs_compiler
@pytest.mark.parametrize(
    "op",
    [
        ops.depthwise_conv2d(ops.tensor((128, 672, 21, 21)), ops.tensor((672, 1, 7, 7)), stride=2, padding="SAME"),
        ops.conv2d(ops.tensor((128, 128, 28, 28)), ops.tensor((128, 128, 3, 3)), padding=1),
    ],
    ids=["depthwise", "conv"],
)
def test_lanes_carry_no_more_than_they_have_registers_for(op: ops.SymbolicTensor) -> None:
    """Values at the edge of an image, each with a place of its own: no programs are passed over."""
    kernel = roller.compile(op, device="cuda:v100")
    assert not any("spilled" in c.note for c in kernel.candidates if c.note)


@needs_compiler
def test_windows_that_are_only_added_up_are_read_a_step_at_a_time() -> None:
    """An average over windows, 86 values of a row for 42 results: the assembler read three rows before adding one, and spilled."""
    expr = fuse(ops.expression(ops.avg_pool2d(ops.tensor((128, 336, 42, 42)), 3, 2, "SAME")))
    plugin, spec = resolve("cuda:v100")
    nest = next(n for n in variants(expr.stages[0], expr.tensors) if [d.name for d in n.dims] == ["n", "c", "h", "w", "r", "s"])
    atom, order = next(a for a in spec.atoms if a.name == "f32"), tuple(range(6))
    tiles, staged = ((2, 4, 8, 21, 3, 3), (1, 2, 1, 21, 1, 3)), (Staging("panel", 0, 2, 2, run_padding=1, windowed=True),)
    stage = StageProgram(nest, atom, (), tiled_levels(spec), tiles, (order, order), staged, lane_level=lane_level(spec))
    program = RProgram(expr, (stage,))
    built = plugin.build(spec, plugin.codegen(spec, program, BuildOptions()), BuildOptions()).resources
    assert built["stage0_kernel.spilled_bytes"] == 0 and built["stage0_kernel.registers"] <= 96


@pytest.mark.parametrize(
    ("chip", "threads", "free"),
    [("v100", 32, 64), ("v100", 64, 32), ("v100", 1024, 32), ("rtx4090", 32, 80), ("rtx4090", 64, 40), ("h100", 100, 32)],
)
def test_registers_that_cost_no_block_are_free(chip: str, threads: int, free: int) -> None:
    """65536 for 32 blocks of a warp on the V100, for 24 on the RTX 4090; two warps fill it by themselves."""
    spec = load_spec(f"cuda:{chip}")
    assert occupancy.free_registers(spec, threads) == free
    blocks = occupancy.resident_blocks(spec, threads, 16, 0)
    assert occupancy.resident_blocks(spec, threads, free, 0) == blocks > occupancy.resident_blocks(spec, threads, free + 8, 0)
