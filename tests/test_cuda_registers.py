"""What kernels take of a GPU, predicted before the assembler says and read from what it made."""

from __future__ import annotations

import re
import statistics

import pytest
from emulating import needs_compiler
from hypothesis import given
from hypothesis import strategies as st
from random_operators import network_operators

import roller
from roller import building, ops
from roller.chip import load_spec
from roller.cost import estimate
from roller.devices import load_device
from roller.kernel import Artifact, KernelSource
from roller.occupancy import residents
from roller_cuda import occupancy, toolchain

CHIPS = ("v100", "a100", "rtx4090", "h100")
WANTED = 0.15  # the median distance from the binary


@needs_compiler
def test_registers_are_predicted() -> None:
    """Over 60 kernels, of the three best programs of operators that nobody picked."""
    apart = []
    for chip, op in network_operators(CHIPS, 24):
        for kernel in roller.compile_top(op, device=f"cuda:{chip}", top_k=3):
            for name, (predicted, taken) in registers_of(kernel.artifact).items():
                apart.append(abs(predicted - taken) / taken)
                assert kernel.artifact.resources[f"{name}.resident_blocks"] >= 1, f"{name} does not fit on {chip}"
    assert len(apart) >= 60
    assert statistics.median(apart) <= WANTED, apart


@needs_compiler
def test_a_binary_with_room_for_fewer_blocks_than_assumed_is_rated_anew() -> None:
    """Elementwise work on halves takes more registers than the model knows of."""
    op = ops.gelu(ops.tensor((8192, 8192), "float16") + ops.tensor((8192,), "float16"))
    kernel = roller.compile(op, device="cuda:a100")
    first = next(c for c in kernel.candidates if c.note)
    said = re.fullmatch(r"(\d+) of (\d+) tiles at a time", first.note)
    assert said is not None and int(said[1]) < int(said[2])
    (held,) = residents(first.program, kernel.spec, {})
    parameters = load_device("cuda").cost_parameters(kernel.spec, kernel.expr)
    assert (held.predicted, estimate(first.program, kernel.spec, parameters, [int(said[1])])) == (int(said[2]), first.estimate)
    assert first.estimate.seconds >= estimate(first.program, kernel.spec, parameters).seconds
    assert kernel.estimate.seconds == min(c.estimate.seconds for c in kernel.candidates)
    (real,) = residents(kernel.program, kernel.spec, kernel.artifact.resources)
    told = f"tiles on a unit at a time: {real.predicted} predicted, the binary leaves room for {real.real}"
    assert real.real and told in str(kernel.explain())


@needs_compiler
def test_cubins_built_at_once_are_those_built_one_by_one() -> None:
    kernels = roller.compile_top(ops.matmul(ops.tensor((70, 90)), ops.tensor((90, 50))), "cuda:a100", top_k=4)
    plan = building.Plan(load_device("cuda"), kernels[0].spec)
    toolchain.compiled.cache_clear()
    alone = [building.build(plan, kernel.candidates[0]).artifact for kernel in kernels]
    assert [k.artifact.to_bytes() for k in kernels] == [artifact.to_bytes() for artifact in alone]


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
    texts = []

    def compiled(text: str, _: str) -> tuple[bytes, dict[str, int]]:
        texts.append(text)
        registers, spilled = first if len(texts) == 1 else second or pytest.fail("the kernel is compiled again")
        return text.encode(), {"k.registers": registers, "k.spilled_bytes": spilled}

    monkeypatch.setattr(toolchain, "_compiled", compiled)
    launch = {"kernels": [{"name": "k", "threads": 128, "shared_bytes": 0}]}
    text = 'extern "C" __global__ void __launch_bounds__(128) k(float* __restrict__ x_ptr) {}'
    artifact = toolchain.build(load_spec("cuda:a100"), KernelSource(text, "cuda-c++", "k", launch))
    assert len(texts) == (1 if second is None else 2)
    assert artifact.resources["k.registers"] == (second if taken and second else first)[0]
    assert artifact.launch["text"] == (text.replace("(128)", "(128, 1)") if taken else text)
    assert artifact.data == str(artifact.launch["text"]).encode()


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
    assert re.search(r"#pragma unroll \d\n *for \(int unroll\d_share", kernel.source)


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
