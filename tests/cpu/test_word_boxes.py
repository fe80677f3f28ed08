"""Boxes of words: the padded image of a convolution is copied in words, where a dot product reads them."""

from __future__ import annotations

import numpy as np
import pytest
from test_dot_products import DTYPES, best, check

import roller
import word_products
from roller import ops
from roller.program.rprogram import StageProgram
from roller.program.words import interleaves
from roller.runtime.arrays import numpy_dtype


def convolution(dtype: str, channels: int, stride: int = 1, dilation: int = 1, layout: str = "NCHW") -> ops.SymbolicTensor:
    shape = (1, channels, 9, 9) if layout == "NCHW" else (1, 9, 9, channels)
    weights = (37, channels, 3, 3) if layout == "NCHW" else (3, 3, channels, 37)
    image, filters = ops.tensor(shape, dtype, "x"), ops.tensor(weights, dtype, "w")
    return ops.conv2d(image, filters, stride, 2, dilation, layout=layout, out_dtype="float32" if dtype == "bfloat16" else "int32")


def of_words(program: StageProgram) -> bool:
    """Whether the image has a box in words of channels, and no panel."""
    names = [a.tensor.name for a in program.nest.inputs]
    boxes = [s.operand for s in program.staged if s.kind == "box"]
    panels = [s.operand for s in program.staged if s.kind == "panel"]
    return boxes == [names.index("x")] and interleaves(program, boxes[0]) and program.nest.accesses[boxes[0]].factor not in panels


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "uint8"])  # which becomes int16 while a panel is filled
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_words_are_read_where_the_box_has_them(dtype: str, stride: int, dilation: int) -> None:
    program = check(convolution(dtype, 64, stride, dilation), constants=frozenset(["w"]))
    assert any(of_words(stage) for stage in program.stages if stage.atom.depth > 1), program.describe()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_last_word_that_is_not_whole_has_a_panel(dtype: str) -> None:
    """Its rest would be the next row's channels."""
    program = check(convolution(dtype, 63))
    assert not any(of_words(stage) for stage in program.stages)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_numbers_at_the_ends_of_their_types(dtype: str) -> None:
    op = convolution(dtype, 64)
    generator = np.random.default_rng(0)
    shapes = {t.name: t.shape for t in ops.expression(op).inputs}
    arrays = {
        name: generator.choice([-128, 127] if dtype == "int8" else [-3.0, 2.0], shape).astype(numpy_dtype(dtype))
        for name, shape in shapes.items()
    }
    check(op, arrays)


def test_an_image_that_a_stage_computes() -> None:
    """It lies in memory of the kernel, where bfloat16 is wider than its bits."""
    image, filters = ops.tensor((1, 16, 9, 9), "bfloat16", "i"), ops.tensor((32, 16, 3, 3), "bfloat16", "v")
    inner = ops.conv2d(image, filters, padding=1)
    op = ops.conv2d(inner, ops.tensor((37, 32, 3, 3), "bfloat16", "w"), padding=1, out_dtype="float32")
    program = best(op)
    assert len(program.stages) > 1
    word_products.check(op, program)
    last = program.stages[-1]
    boxes = [s.operand for s in last.staged if s.kind == "box"]
    assert last.atom.depth > 1 and boxes and interleaves(last, boxes[0]), last.describe()


def test_an_image_that_lies_so_is_copied_as_it_is() -> None:
    program = check(convolution("int8", 64, layout="NHWC"))
    found = [(stage, s.operand) for stage in program.stages for s in stage.staged if s.kind == "box" and stage.atom.depth > 1]
    assert found and not any(interleaves(stage, number) for stage, number in found), program.describe()


def test_explanations_name_the_words() -> None:
    said = str(roller.compile(convolution("int8", 64), "cpu:zen5", threads=1).explain())
    assert "x as a box of words at" in " ".join(said.split())
