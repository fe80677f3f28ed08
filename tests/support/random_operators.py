"""Random operators of every family, with elementwise work before and after them: for tests that run programs on a device."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from roller import ops
from roller.ops import SymbolicTensor

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 31)
DTYPES = ("float32", "float32", "float32", "float64", "float16", "bfloat16", "int8", "int32")
EINSUMS = (
    "ij,j->i",
    "ij,ij->i",
    "bij,bjk->bik",
    "bmk,bkn->mnb",
    "ik,jk,k->ij",
    "mhk,nhk->hmn",
    "ii->i",
    "ijk->kji",
    "ab,cd->acbd",
    "ij->",
)
FUNCTIONS = (ops.relu, ops.tanh, ops.sigmoid, ops.exp, ops.gelu, ops.abs, ops.neg, ops.floor, ops.silu)
COMPARISONS = (ops.less, ops.less_equal, ops.greater, ops.greater_equal, ops.equal, ops.not_equal)


class _Inputs:
    """Hands out input tensors with extents from a pool."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.dtype = draw(st.sampled_from(DTYPES))

    def tensor(self, *shape: int) -> SymbolicTensor:
        return ops.tensor(shape, self.dtype)

    def extent(self, most: int = EXTENTS[-1], zero: bool = True) -> int:
        pool = [e for e in EXTENTS if e <= most]
        return self.draw(st.sampled_from([*pool, 0] if zero and self.draw(st.integers(0, 39)) == 0 else pool))

    def flag(self) -> bool:
        return self.draw(st.booleans())


@st.composite
def operators(draw: st.DrawFn) -> SymbolicTensor:
    """An operator of any family with elementwise work before and after it."""
    source = _Inputs(draw)
    family = draw(st.sampled_from((_matmul, _matmul, _conv, _conv, _depthwise, _pool, _reduce, _einsum, _plain, _move)))
    value = family(source)
    for _ in range(draw(st.integers(0, 3))):
        value = _epilogue(source, value)
    if value.stage is None:
        value = ops.relu(value)
    return value


def _before(source: _Inputs, x: SymbolicTensor) -> SymbolicTensor:
    """Sometimes elementwise work, or padding, on an operand."""
    choice = source.draw(st.integers(0, 5))
    if choice == 0:
        return ops.relu(x)
    if choice == 1:
        return x + source.tensor(*x.shape[-1:])
    if choice == 2 and source.dtype != "int8":
        return x * 2
    if choice == 3 and x.ndim and min(x.shape) > 1:
        inner = source.tensor(*(e - 1 for e in x.shape))
        return ops.pad(inner, [(1, 0) if source.flag() else (0, 1) for _ in x.shape], source.draw(st.integers(-1, 1)))
    return x


def _epilogue(source: _Inputs, x: SymbolicTensor) -> SymbolicTensor:
    choice = source.draw(st.integers(0, 8))
    floating = x.dtype.startswith(("float", "bfloat"))
    other = ops.tensor(tuple(e if source.flag() else 1 for e in x.shape), x.dtype)
    if choice == 0:
        return x + ops.tensor(x.shape[-1:], x.dtype)
    if choice == 1:
        return ops.maximum(x, other)
    if choice == 2:
        return other - x
    if choice == 3:
        return ops.cast(x, "float32" if floating else "int32")
    if choice == 4:
        return ops.transpose(x, source.draw(st.permutations(range(x.ndim))))
    if choice == 5:
        return ops.where(ops.tensor(x.shape, "int8"), x, other)
    if choice == 6 and floating:
        return source.draw(st.sampled_from(FUNCTIONS))(x)
    if choice == 7:
        return ops.where(_condition(source, x, other), x, source.draw(st.sampled_from([other, 2])))
    return ops.clip(x, -3, 5)


def _condition(source: _Inputs, x: SymbolicTensor, other: SymbolicTensor) -> SymbolicTensor:
    """Truth values by a comparison, or by two of them."""
    first = source.draw(st.sampled_from(COMPARISONS))(x, other)
    if source.flag():
        return ~first
    second = source.draw(st.sampled_from(COMPARISONS))(x, source.draw(st.integers(-2, 2)))
    return first & second if source.flag() else first | second


def _matmul(source: _Inputs) -> SymbolicTensor:
    m, n, k = source.extent(), source.extent(), source.extent()
    ta, tb = source.flag(), source.flag()
    lead = (source.extent(5),) if source.flag() else ()
    a = source.tensor(*lead, *((k, m) if ta else (m, k)))
    b = source.tensor(*lead, *((n, k) if tb else (k, n)))
    product = ops.batch_matmul if lead else ops.matmul
    return product(_before(source, a), _before(source, b), transpose_a=ta, transpose_b=tb)


def _window(source: _Inputs) -> dict[str, Any]:
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    pads = st.tuples(*[st.integers(0, 2)] * 4)
    return {
        "stride": source.draw(pair),
        "dilation": source.draw(pair),
        "padding": source.draw(st.one_of(pads, st.sampled_from(("same", "valid", 1)))),
        "layout": source.draw(st.sampled_from(("NCHW", "NHWC"))),
    }


def _conv(source: _Inputs) -> SymbolicTensor:
    window, groups = _window(source), source.draw(st.sampled_from((1, 1, 1, 2, 3)))
    n, c, f = source.extent(3), source.extent(5) * groups, source.extent(9) * groups
    h, w = source.extent(13, zero=False), source.extent(13, zero=False)
    r, s = source.draw(st.integers(1, 3)), source.draw(st.integers(1, 3))
    nchw = window["layout"] == "NCHW"
    x = source.tensor(*((n, c, h, w) if nchw else (n, h, w, c)))
    y = source.tensor(*((f, c // groups, r, s) if nchw else (r, s, c // groups, f)))
    return ops.conv2d(_before(source, x), y, groups=groups, **window)


def _depthwise(source: _Inputs) -> SymbolicTensor:
    window = _window(source)
    n, c, m = source.extent(3), source.extent(9), source.draw(st.integers(1, 3))
    h, w = source.extent(13, zero=False), source.extent(13, zero=False)
    r, s = source.draw(st.integers(1, 3)), source.draw(st.integers(1, 3))
    nchw = window["layout"] == "NCHW"
    x = source.tensor(*((n, c, h, w) if nchw else (n, h, w, c)))
    return ops.depthwise_conv2d(_before(source, x), source.tensor(*((c, m, r, s) if nchw else (r, s, c, m))), **window)


def _pool(source: _Inputs) -> SymbolicTensor:
    window = _window(source)
    kernel = source.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    x = _before(
        source,
        source.tensor(source.extent(3), source.extent(9, zero=False), source.extent(13, zero=False), source.extent(13, zero=False)),
    )
    if source.dtype.startswith("int") or source.flag():
        return ops.max_pool2d(x, kernel, **window)
    return ops.avg_pool2d(x, kernel, count_include_pad=source.flag(), **window)


def _reduce(source: _Inputs) -> SymbolicTensor:
    shape = [source.extent() for _ in range(source.draw(st.integers(1, 4)))]
    axes = source.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True))
    reducers = [ops.reduce_sum, ops.reduce_max, ops.reduce_min]
    if not source.dtype.startswith("int"):
        reducers.append(ops.reduce_mean)
    return source.draw(st.sampled_from(reducers))(_before(source, source.tensor(*shape)), axes, source.flag())


def _einsum(source: _Inputs) -> SymbolicTensor:
    subscripts = source.draw(st.sampled_from(EINSUMS))
    extents: dict[str, int] = {}
    operands = []
    for letters in subscripts.partition("->")[0].split(","):
        for letter in letters:
            extents.setdefault(letter, source.extent(13))
        operands.append(_before(source, source.tensor(*(extents[letter] for letter in letters))))
    return ops.einsum(subscripts, *operands)


def _plain(source: _Inputs) -> SymbolicTensor:
    x = source.tensor(*(source.extent() for _ in range(source.draw(st.integers(0, 3)))))
    return _epilogue(source, x)


def _move(source: _Inputs) -> SymbolicTensor:
    x = source.tensor(*(source.extent(17) for _ in range(source.draw(st.integers(1, 4)))))
    x = ops.transpose(x, source.draw(st.permutations(range(x.ndim))))
    if source.flag():
        x = ops.pad(
            x, [(source.draw(st.integers(0, 2)), source.draw(st.integers(0, 2))) for _ in x.shape], source.draw(st.integers(-1, 1))
        )
    return x


def random_examples(body: Callable[[st.DataObject], None], part: int, count: int) -> None:
    """So many random examples, the same ones for the same part."""

    @seed(part)
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, database=None)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        body(data)

    run()


def network_operators(chips: Sequence[str], count: int) -> Iterator[tuple[str, ops.SymbolicTensor]]:
    """Operators of all kinds that nobody picked, each with a chip, as large as they are in networks."""
    chance = random.Random(20)
    for number in range(count):
        chip, dtype = chips[number % len(chips)], chance.choice(("float32", "float32", "float16"))
        m, n, k, c = (chance.choice(sizes) for sizes in ((64, 128, 1000, 4096), (96, 512, 3072), (64, 768, 2048), (32, 64, 256)))
        side, stride = chance.choice((7, 14, 28, 56)), chance.choice((1, 2))
        kind = number // len(chips) % 5
        if kind == 0:
            yield chip, ops.matmul(ops.tensor((m, k), dtype), ops.tensor((k, n), dtype), transpose_b=False)
        elif kind == 1:
            yield (
                chip,
                ops.conv2d(ops.tensor((16, c, side, side), dtype), ops.tensor((c, c, 3, 3), dtype), padding=1, stride=stride),
            )
        elif kind == 2:
            weights = ops.tensor((c, 1, 3, 3), dtype)
            yield chip, ops.conv2d(ops.tensor((16, c, side, side), dtype), weights, padding=1, stride=stride, groups=c)
        elif kind == 3:
            yield (
                chip,
                ops.relu(
                    ops.matmul(ops.tensor((m, k), dtype), ops.tensor((n, k), dtype), transpose_b=True) + ops.tensor((n,), dtype)
                ),
            )
        else:
            yield chip, ops.reduce_sum(ops.tensor((m, k), dtype), 1)
