"""Windows: what panels hold that pass over an array once, whose values are read once, and that kernels with them are right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import roller
from emulating import emulated, expression, needs_compiler, needs_cxx, text_of
from roller import ops, trial, verify
from roller.device.chip import load_spec, resolve
from roller.ir.expr import TensorExpr
from roller.ir.nest import Nest, variants
from roller.ir.sliding_windows import MOST_TAPS, filled_tile, stored_tile, taps_at_once, windows
from roller.layout.banks import panel_steps
from roller.layout.lanes import reads
from roller.program.rprogram import RProgram, StageProgram, Staging
from roller.runtime.artifact import BuildOptions
from roller.search.construct import construct
from roller.study import enumerate_programs
from roller_cuda.codegen import generator
from roller_cuda.toolchain import compiling, disassembly, machine_code

A100 = load_spec("cuda:a100")
needs_disassembler = pytest.mark.skipif(disassembly.tool() is None, reason=f"no disassembler: {disassembly.INSTALL}")


def depthwise(
    n: int = 2, c: int = 3, side: int = 11, taps: int = 3, stride: int = 1, dilation: int = 1, padding: int = 1
) -> TensorExpr:
    x, w = ops.tensor((n, c, side, side), name="x"), ops.tensor((c, 1, taps, taps), name="w")
    return expression(ops.depthwise_conv2d(x, w, stride=stride, dilation=dilation, padding=padding))


def apart(expr: TensorExpr) -> Nest:
    """The nest whose axes are least fused."""
    return variants(expr.stages[0], expr.tensors)[0]


WINDOWED = st.builds(
    depthwise,
    side=st.integers(9, 14),
    taps=st.integers(2, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
)


@given(WINDOWED, st.data())
def test_a_panel_holds_what_its_windows_pass_over(expr: TensorExpr, data: st.DataObject) -> None:
    """Points read the same place where they read the same element, and what fills a place is that element."""
    nest = apart(expr)
    found = windows(nest, 0)
    assume(found)
    tile = tuple([data.draw(st.integers(1, e)) for e in nest.extents])
    held, filled = stored_tile(nest, 0, tile), filled_tile(nest, 0, tile)
    access = nest.inputs[0]
    names = [dim.members[0].name for dim in nest.dims]

    def element(offsets: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sum(index.coefficient(name) * o for name, o in zip(names, offsets, strict=True)) for index in access.index)

    steps, size = panel_steps(nest, Staging("panel", 0, 2, windowed=True), tile, nest.spatial, nest.reduce)
    assert math.prod(e for e, t in zip(held, access.touches, strict=True) if t) == size

    def places(extents: tuple[int, ...], walked: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        known: dict[int, tuple[int, ...]] = {}
        for offsets in itertools.product(*(range(e if d in walked else 1) for d, e in enumerate(extents))):
            place = sum(s * o for s, o in zip(steps, offsets, strict=True))
            assert known.setdefault(place, element(offsets)) == element(offsets)
        return known

    touched = tuple(d for d, t in enumerate(access.touches) if t)
    filling, reading = places(filled, touched), places(tile, touched)
    assert sorted(filling) == list(range(size))
    assert reading.items() <= filling.items()


def test_windows_are_where_dimensions_walk_an_array_together() -> None:
    nest = apart(depthwise(stride=2, dilation=1))
    names = [d.name for d in nest.dims]
    found = [(names[w.spatial], [names[d] for d in w.taps], names[w.mover]) for w in windows(nest, 0)]
    assert found == [("h", ["r"], "r"), ("w", ["s"], "s")]  # a step of a pixel is two values, one of a tap is one
    assert windows(nest, 1) == ()
    assert [names[d] for d in taps_at_once(nest)] == ["s"]
    x, w = ops.tensor((2, 3, 9, 9), name="x"), ops.tensor((4, 3, 3, 3), name="w")
    mixed = expression(ops.conv2d(x, w, padding=1))
    fused = [nest for nest in variants(mixed.stages[0], mixed.tensors) if "h.w" in [d.name for d in nest.dims]]
    assert fused
    assert all(windows(nest, 0) == () for nest in fused)
    assert windows(apart(depthwise(stride=2, dilation=2, padding=0)), 0) == ()  # nothing moves on by one value


def test_long_windows_are_not_taken_at_once() -> None:
    assert taps_at_once(apart(depthwise(side=40, taps=MOST_TAPS, padding=0)))
    assert not taps_at_once(apart(depthwise(side=40, taps=MOST_TAPS + 1, padding=0)))


def test_what_is_made_of_two_arrays_has_no_windows() -> None:
    x = ops.tensor((2, 3, 12, 12), name="x")
    assert windows(apart(expression(ops.max_pool2d(x, 3, padding=1))), 0)
    squared = apart(
        expression(ops.depthwise_conv2d(ops.add(x, ops.tensor((2, 3, 12, 12), name="y")), ops.tensor((3, 1, 3, 3), name="w")))
    )
    assert windows(squared, 0) == ()


CASES: dict[str, Callable[[], TensorExpr]] = {
    "padded": lambda: depthwise(taps=5, padding=2),
    "not padded": lambda: depthwise(taps=3, padding=0),
    "in steps": lambda: depthwise(side=13, taps=4, stride=2, padding=1),
    "spread out": lambda: depthwise(side=13, taps=3, dilation=2, padding=2),
    "maxima": lambda: expression(ops.max_pool2d(ops.tensor((2, 5, 9, 13), name="x"), (2, 3), padding=1)),
    "averages": lambda: expression(ops.avg_pool2d(ops.tensor((2, 5, 9, 13), name="x"), 3, stride=2, count_include_pad=False)),
    "channels last": lambda: expression(
        ops.depthwise_conv2d(ops.tensor((2, 9, 10, 12), name="x"), ops.tensor((3, 3, 12, 1), name="w"), padding=1, layout="NHWC")
    ),
    "channels summed up": lambda: expression(
        ops.conv2d(ops.tensor((2, 6, 9, 10), name="x"), ops.tensor((5, 6, 3, 3), name="w"), padding=1)
    ),
    "halves": lambda: expression(
        ops.depthwise_conv2d(ops.tensor((2, 3, 9, 10), "float16", "x"), ops.tensor((3, 1, 3, 3), "float16", "w"), padding=1)
    ),
}


def drawn(case: str, chip: str, count: int) -> list[RProgram]:
    """Some of the programs with panels of windows, among those drawn from all that there are."""
    every = itertools.islice(enumerate_programs(CASES[case](), chip).drawn(5), 600)
    return list(itertools.islice((p for p in every if any(s.windowed for s in p.stages)), count))


@pytest.mark.one_in(2)
@needs_cxx
@pytest.mark.parametrize("chip", ["v100", "a100"])
@pytest.mark.parametrize("case", CASES)
def test_random_programs_with_windows_are_right(case: str, chip: str) -> None:
    expr, spec = CASES[case](), load_spec(f"cuda:{chip}")
    programs = drawn(case, f"cuda:{chip}", 4)
    assert programs
    arrays = verify.random_inputs(expr, 3)
    for program in programs:
        artifact = text_of(spec, program)
        for order in ((False, False), (True, True)):
            found = emulated(expr, artifact, arrays, *order)
            verify.check(expr, arrays, found)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("chip", ["mi100", "rx7900xtx"])  # groups of 64 lanes, and of 32
@pytest.mark.parametrize("case", CASES)
def test_random_programs_with_windows_are_right_on_amd(case: str, chip: str) -> None:
    expr, (plugin, spec) = CASES[case](), resolve(f"rocm:{chip}")
    fitting = [p for p in drawn(case, f"rocm:{chip}", 40) if plugin.refusal(spec, p) is None and small(p)]
    assert fitting
    for program in fitting[:2]:
        artifact = plugin.build(spec, plugin.codegen(spec, program, BuildOptions()), BuildOptions())
        trial.verify(artifact, expr, emulate=True)


def small(program: RProgram) -> bool:
    """True if the emulator is soon done: every point of a lane is a line of text, every lane is emulated."""
    (stage,) = program.stages
    return math.prod(lp.trips for lp in stage.loops if lp.over != "time") <= 20_000 and math.prod(stage.inner) <= 150


def chosen(expr: TensorExpr) -> list[StageProgram]:
    plugin, spec = resolve("cuda:a100")
    found = construct(expr, spec, plugin.rules(spec, expr), plugin.cost_parameters(spec, expr))
    return [c.program.stages[0] for c in found]


def large() -> TensorExpr:
    return depthwise(128, 336, 21, 7, padding=3)


def test_filters_of_many_taps_take_windows() -> None:
    """Seven by seven taps, each of which would read and fill a value for itself."""
    best = chosen(large())[0]
    assert best.windowed
    assert best.inner[best.nest.position("s")] == 7
    multiplied = math.prod(best.inner)
    assert 5 * reads(best) < 2 * multiplied


@needs_compiler
@needs_disassembler
def test_a_windows_values_are_read_once() -> None:
    """In the machine code fewer accesses than a third of the multiply-adds; one each where every tap reads for itself."""
    expr = large()
    program = RProgram(expr, (chosen(expr)[0],))
    artifact = compiling.build(A100, generator.generate(A100, program))
    (code,) = machine_code.read(artifact.data).values()
    assert code.hot.bases["FFMA"] >= 7 * math.prod(program.stages[0].inner[d] for d in program.stages[0].nest.spatial)
    assert code.hot.bases["LDS"] < code.hot.bases["FFMA"] / 3
    assert code.whole.local_accesses == 0


@needs_compiler
def test_explain_says_what_panels_hold() -> None:
    """And no further pipeline stages if all taps are in one step: there is none to fill meanwhile."""
    x, w = ops.tensor((16, 32, 28, 28), name="x"), ops.tensor((32, 1, 7, 7), name="w")
    kernel = roller.compile(ops.depthwise_conv2d(x, w, padding=3), device="cuda:h100")
    (stage,) = kernel.program.stages
    assert all(stage.unit_tile[d] == 7 for d in stage.nest.reduce)
    assert "x as a panel of sliding windows at shared, for each tile" in str(kernel.explain())
    assert "pipeline stages" not in str(kernel.explain())
    product = roller.compile(ops.matmul(ops.tensor((2048, 2048), name="a"), ops.tensor((2048, 2048), name="b")), device="cuda:h100")
    assert "2 pipeline stages" in str(product.explain())
