"""What CUDA kernels are run on the emulator for: families of operators x element types x shapes, each written once.

A family says how an operator of it is made from an element type and extents, which variants it has, for which types and for which
shapes. All of its types meet all of its shapes. Variants (transposes, windows, axes) meet them in turn, or each of them, where the
family is `crossed`. Another way of computing the same product, such as one with fewer bits, is one more family with its own maker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.emulated import makers as make
from bench.emulated.makers import FLOATS, Extents
from roller import ops
from roller.ops import SymbolicTensor
from roller.verify import numpy_dtype

Make = Callable[[str, Extents, Any], SymbolicTensor]

USUAL = (*FLOATS, "int8", "int32")
RARE = ("int16", "int64", "uint8")  # for ragged shapes alone
EVERY = (*USUAL, *RARE, "bool")
RAGGED = "ragged"

PRODUCTS = {  # m, n, k
    "aligned": (64, 64, 64),
    RAGGED: (65, 50, 33),
    "prime": (67, 37, 71),
    "one": (1, 1, 1),
    "tall": (200, 5, 40),
    "flat": (5, 200, 40),
    "deep": (6, 10, 700),
}
WINDOWS = {  # images, channels in (of a group), channels out (of a group), height, width, kernel's height and width
    "aligned": (1, 16, 16, 8, 8, 3, 3),
    RAGGED: (2, 5, 6, 9, 7, 3, 3),
    "prime": (1, 7, 11, 13, 5, 5, 3),
    "one": (1, 1, 1, 1, 1, 1, 1),
    "deep": (1, 65, 4, 4, 4, 3, 3),
}
ROWS = {"aligned": (1, 16, 16, 1, 64, 1, 3), RAGGED: (2, 5, 6, 1, 33, 1, 5), "one": (1, 1, 1, 1, 1, 1, 1)}  # one-dimensional
CUBES = {  # three dimensions
    "aligned": (8, 16, 32),
    RAGGED: (5, 9, 33),
    "prime": (3, 17, 29),
    "one": (1, 1, 1),
    "tall": (130, 3, 2),
    "flat": (2, 3, 130),
}
PLAINS = {name: CUBES[name] for name in ("aligned", RAGGED, "one", "flat")}


@dataclass(frozen=True, slots=True)
class Family:
    """A family of operators: `make(dtype, extents, variant)` gives one; `constants`: inputs whose values come with the kernel."""

    make: Make
    shapes: Mapping[str, Extents]
    dtypes: tuple[str, ...] = USUAL
    variants: Mapping[str, Any] = field(default_factory=lambda: {"": None})
    crossed: bool = False
    rare: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Variant, element type and shape of each operator of the family."""
        pairs = [(dtype, shape) for dtype in self.dtypes for shape in self.shapes]
        pairs += [(dtype, RAGGED) for dtype in self.rare]
        turns = self._turns()
        for dtype, shape in pairs:
            for name in self.variants if self.crossed else (next(turns),):
                yield name, dtype, shape

    def _turns(self) -> Iterator[str]:
        """The variants again and again, each time in another order, so that none always meets the same shape."""
        chance = random.Random(0)
        while True:
            yield from chance.sample(tuple(self.variants), len(self.variants))


@dataclass(frozen=True, slots=True)
class EmulatedCase:
    """One operator of a family; `make` gives it, or is an `ExpressionError`."""

    family: str
    variant: str
    dtype: str
    shape: str

    @property
    def id(self) -> str:
        """What it is called in reports."""
        return " / ".join(part for part in (self.family, self.variant, self.dtype, self.shape) if part)

    def make(self) -> SymbolicTensor:
        """The operator."""
        family = FAMILIES[self.family]
        return family.make(self.dtype, family.shapes[self.shape], family.variants[self.variant])

    def constants(self) -> dict[str, Any]:
        """Values of the inputs that come with the kernel: small whole numbers, the same every time."""
        tensors = {t.name: t for t in ops.expression(self.make()).inputs}
        made = {}
        for number, name in enumerate(FAMILIES[self.family].constants):
            values = np.random.default_rng(number).integers(-4, 5, tensors[name].shape)
            made[name] = values.astype(numpy_dtype(tensors[name].dtype))
        return made


def cases() -> list[EmulatedCase]:
    """All of them, family by family."""
    return [EmulatedCase(name, *line) for name, family in FAMILIES.items() for line in family.lines()]


TURNS = {"nn": "nn", "nt": "nt", "tn": "tn", "tt": "tt"}
SHORT = {name: PRODUCTS[name] for name in ("aligned", RAGGED, "one", "tall")}
WIDER = {
    "out float32": {"out_dtype": "float32"},
    "acc float64": {"acc_dtype": "float64"},
    "acc float64, out float64": {"acc_dtype": "float64", "out_dtype": "float64"},
}
WIDER_WHOLE = {"out int8": {"out_dtype": "int8"}, "acc int64, out int64": {"acc_dtype": "int64", "out_dtype": "int64"}}
HALVES_AND_BYTES = ("float16", "bfloat16", "int8")  # what tensor cores multiply

FAMILIES: dict[str, Family] = {
    "matmul": Family(make.product, PRODUCTS, variants=TURNS, crossed=True, rare=RARE),
    "batch_matmul": Family(make.batched, PRODUCTS, variants=TURNS, rare=RARE),
    "matmul into wider": Family(make.wider, SHORT, ("float16", "bfloat16", "float32"), WIDER),
    "matmul of integers into others": Family(make.wider, SHORT, ("int8", "int32"), WIDER_WHOLE),
    "matmul, constant weights": Family(make.product, SHORT, USUAL, TURNS, constants=("b",)),
    "einsum": Family(make.einsum, PRODUCTS, variants={s: s for s in make.SUBSCRIPTS}),
    "matmul and more": Family(make.then, SHORT, variants=make.AFTER),
    "matmul and functions": Family(make.then, SHORT, FLOATS, make.AFTER_FLOATS),
    "more and matmul": Family(make.prepared, SHORT, variants=make.BEFORE),
    "conv2d": Family(make.convolution, WINDOWS, variants=make.LAYOUTS, crossed=True, rare=RARE),
    "conv2d, moved windows": Family(make.convolution, WINDOWS, variants=make.MOVED),
    "conv2d, grouped": Family(make.convolution, WINDOWS, variants=make.GROUPED),
    "conv2d, one row": Family(make.convolution, ROWS, variants=make.LAYOUTS),
    "conv2d, constant weights": Family(make.convolution, WINDOWS, HALVES_AND_BYTES, make.LAYOUTS, constants=("w",)),
    "conv2d and more": Family(make.convolution_then, WINDOWS, variants={"NCHW": "NCHW", "NHWC": "NHWC"}),
    "depthwise_conv2d": Family(make.depthwise, WINDOWS, variants=make.DEEP, rare=RARE),
    "max_pool2d": Family(make.greatest, WINDOWS, variants=make.POOLED, rare=(*RARE, "bool")),
    "avg_pool2d": Family(make.average, WINDOWS, FLOATS, make.AVERAGED),
    "reduce": Family(make.reduced, CUBES, variants=make.REDUCED, rare=RARE),
    "reduce, long": Family(make.reduced, {RAGGED: (3, 2, 1500), "tall": (1500, 2, 3)}, USUAL, make.LONG),
    "reduce of truths": Family(make.reduced, PLAINS, ("bool",), make.TRUTHS, crossed=True),
    "reduce_mean": Family(make.reduced, CUBES, FLOATS, make.MEANS),
    "functions": Family(make.function, {RAGGED: CUBES[RAGGED]}, FLOATS, make.FUNCTIONS, crossed=True),
    "functions of integers": Family(
        make.function, {RAGGED: CUBES[RAGGED]}, ("int8", "int16", "int32", "int64"), make.WHOLE, crossed=True
    ),
    "element by element": Family(make.binary, CUBES, variants=make.BINARY, rare=RARE),
    "of truths": Family(
        make.binary, PLAINS, ("bool",), {k: v for k, v in make.BINARY.items() if k.startswith(("max", "min", "where"))}
    ),
    "comparing": Family(make.binary, CUBES, variants=make.COMPARING, rare=RARE),
    "comparing truths": Family(make.binary, PLAINS, ("bool",), make.TRUTHS_COMPARED, crossed=True),
    "dividing": Family(make.binary, CUBES, FLOATS, make.DIVIDING),
    "cast": Family(make.converted, {RAGGED: CUBES[RAGGED]}, EVERY, {t: t for t in EVERY}, crossed=True),
    "movement": Family(make.moved, PLAINS, EVERY, make.MOVES),
    "chains": Family(make.moved, CUBES, FLOATS, make.CHAINS),
    "attention": Family(make.attention, SHORT, FLOATS),
}
