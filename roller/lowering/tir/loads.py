"""Loads of array elements at a point of the nest: from the array or its box, guarded if the index can leave the array."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tvm import tirx

from roller.ir.nest import Access, Nest
from roller.ir.scalar import Affine, Load, Scalar, identical, loads
from roller.lowering.tir import arithmetic, expressions
from roller.lowering.tir.addresses import ArrayView, Point, address, affine, is_vector
from roller.lowering.tir.builder import Buffer, Expr, Held, every, index, load, spread


@dataclass
class Reader:
    """The reader of a nest's arrays; once a box (padded copy) is filled, it replaces its array.

    `vectors`: values of arrays at the next point, if they are already in registers. `computed`: results of preceding stages at that
    point, by tensor name.
    """

    nest: Nest
    buffers: Mapping[str, Buffer]
    boxes: dict[int, ArrayView] = field(default_factory=dict)
    vectors: Mapping[int, Expr] = field(default_factory=dict)
    computed: Mapping[str, Expr] = field(default_factory=dict)
    _accesses: dict[tuple[str, tuple[Affine, ...]], tuple[int, Access]] = field(init=False)

    def __post_init__(self) -> None:
        reads = [(n, a) for n, a in enumerate(self.nest.accesses) if a.role != "output"]
        self._accesses = {(a.tensor.name, a.index): (n, a) for n, a in reversed(reads)}

    def value(self, node: Scalar, point: Point, held: Held, accumulator: Expr | None = None) -> Expr:
        """Returns the value of a scalar tree at a point, with the point's lanes."""
        return expressions.emit(node, point.lanes, self._at(point), lambda i: affine(self.nest, point, i), held, accumulator)

    def _at(self, point: Point) -> Callable[[Load], Expr]:
        return lambda node: self.load(node, point)

    def window(self, number: int) -> ArrayView:
        """Returns the window from which array `number` is read."""
        access = self.nest.accesses[number]
        return self.boxes.get(number) or ArrayView.whole(self.buffers[access.tensor.name], access.tensor)

    def fill(self, number: int) -> float | int:
        """Returns the fill value of the box of array `number` outside the array; loads with another fill value read the array."""
        access = self.nest.accesses[number]
        wanted = (n.fill for n in loads(self.nest.stage.body) if (n.tensor, n.index) == (access.tensor.name, access.index))
        return next((value for value in wanted if value is not None), 0)

    def plain(self, node: Load) -> ArrayView | None:
        """Returns the window of an unguarded load; None if the index can leave the array and no box holds the load's fill value."""
        number, access = self._accesses[node.tensor, node.index]
        boxed = number in self.boxes and (node.fill is None or identical(node.fill, self.fill(number)))
        return self.window(number) if boxed or not access.guarded else None

    def number(self, node: Load) -> int:
        """The number of the array that a load reads."""
        return self._accesses[node.tensor, node.index][0]

    def load(self, node: Load, point: Point) -> Expr:
        """Returns one load at a point, with the point's lanes."""
        if node.tensor in self.computed:
            return self.computed[node.tensor]
        number, access = self._accesses[node.tensor, node.index]
        if number in self.vectors:
            return self.vectors[number]
        window = self.plain(node)
        if window is None:
            return self._guarded(node, access, ArrayView.whole(self.buffers[node.tensor], access.tensor), point)
        where = address(self.nest, window, node.index, point)
        if isinstance(where, list):
            return together([load(window.buffer, w) for w in where])
        if isinstance(where, tirx.Ramp) and 1 < int(where.stride) <= point.lanes // 2:
            return _apart(window.buffer, where.base, int(where.stride), point.lanes)
        value = load(window.buffer, where)
        return value if is_vector(where) else spread(value, point.lanes)

    def within(self, node: Load, point: Point, also: Expr) -> Expr:
        """Returns one element of an array, or its fill value where the index leaves the array or `also` does not hold: one test."""
        access = self._accesses[node.tensor, node.index][1]
        return self._guarded(node, access, ArrayView.whole(self.buffers[node.tensor], access.tensor), point, also)

    def _guarded(self, node: Load, access: Access, window: ArrayView, point: Point, also: Expr | None = None) -> Expr:
        """Returns the element or its fill value, lane by lane; no address outside the array is accessed."""
        if point.lanes > 1:
            return together([self._guarded(node, access, window, p) for p in point.each()])
        inside = every(test for test in (also, self.inside(node, point)) if test is not None)
        where = address(self.nest, window, node.index, point)
        # TVM may find that the test never holds: the fill value is then a factor like any other, and 0 times an infinity is NaN.
        fill = arithmetic.held_literal(expressions.constant(node.fill if node.fill is not None else 0, node.dtype))
        return tirx.if_then_else(inside, load(window.buffer, where), fill)

    def inside(self, node: Load, point: Point) -> Expr | None:
        """Returns the test that a load's index lies inside the array; None if it always does."""
        access = self._accesses[node.tensor, node.index][1]
        if not access.guarded:
            return None
        places = [affine(self.nest, point, dim) for dim in node.index]
        return every(tirx.And(v >= index(0), v < index(n)) for v, n in zip(places, access.tensor.shape, strict=True))


def _apart(source: Buffer, base: Expr, stride: int, lanes: int) -> Expr:
    """Returns elements a small step apart, picked from whole vectors; the last vector ends with the last element."""
    vectors: list[Expr] = []
    picked: list[int] = []
    while len(picked) < lanes:
        start = min(stride * len(picked), (stride - 1) * (lanes - 1))
        first = len(vectors) * lanes - start
        picked += [first + stride * n for n in range(len(picked), lanes) if stride * n < start + lanes]
        vectors.append(load(source, tirx.Ramp(base + index(start), index(1), lanes)))
    return tirx.Shuffle(vectors, [index(i) for i in picked])


def together(values: list[Expr]) -> Expr:
    """Returns a vector of scalars; a single one as it is."""
    return values[0] if len(values) == 1 else tirx.Shuffle(values, [index(i) for i in range(len(values))])
