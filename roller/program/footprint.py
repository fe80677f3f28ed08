"""Tiles and their data: boxes, bytes, whole transactions, contiguous runs.

A tile is one extent per dimension of a `Nest`. An *rTile* is a tile whose extents obey the alignment rules
(`roller.program.alignment`). Its *data tile* of an array is the box that it touches, halo included:

    box_d = 1 + sum_j |c_j| (T_j - 1)      for dimension d of the array, index coefficients c_j, extents T_j
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce

import numpy as np

from roller.ir.elementwise import Extent, Extents, Value, each, largest, least, where
from roller.ir.nest import Access, Dim, Nest, Tile
from roller.ir.sliding_windows import stored_extents, stored_tile
from roller.target.hardware import Banks


@dataclass(frozen=True, slots=True)
class DataTile:
    """The part of one array that a tile touches: the box's shape, its elements, and elements in contiguous runs."""

    shape: tuple[int, ...]
    elements: int
    run: int


@dataclass(frozen=True)
class Boxes:
    """The data tiles of one array under many tiles: elements, elements in contiguous runs, and the shape of the box."""

    access: Access
    elements: Extent
    run: Extent
    shape: Sequence[Extent]

    @cached_property
    def _moved(self) -> dict[int, Value]:
        return {}

    def moved(self, transaction: int) -> Value:
        """Returns the bytes moved in whole transactions (`HeldTile.moved`)."""
        if transaction not in self._moved:
            self._moved[transaction] = moved_bytes(self.access, self.elements, self.run, transaction)
        return self._moved[transaction]

    @cached_property
    def runs(self) -> Value:
        """The contiguous runs."""
        return self.elements / self.run

    def side_by_side(self, banks: Banks, capacity: int) -> Extent:
        """Returns the number of rows that can have a line each in a set-associative memory (`HeldTile.side_by_side`)."""
        return self._starts(banks) * (capacity // (banks.count * banks.width_bytes))

    def crowding(self, banks: Banks) -> Value:
        """Returns the room that boxes need in a banked (set-associative) memory, over their bytes (`HeldTile.crowding`)."""
        starts, lines = self._starts(banks), -(-self.run * self.access.element_bytes // banks.width_bytes)
        return where(self.runs > starts, largest(1.0, banks.count / (starts * largest(lines, 1))), 1.0)

    def _starts(self, banks: Banks) -> Extent:
        """Returns the number of banks in which rows start."""
        tensor, size = self.access.tensor, self.access.element_bytes
        sets: Value = banks_of_starts(size, banks)
        for place in range(len(self.shape)):  # the last dimension with several values outside the run decides
            full = [extent == bound for extent, bound in zip(self.shape[place + 1 :], tensor.shape[place + 1 :], strict=True)]
            row = (self.shape[place] > 1) & np.logical_not(reduce(np.logical_and, full, True))
            sets = where(row, banks_of_starts(tensor.strides[place] * size, banks), sets)
        return sets


class BoxShape:
    """The mapping from a tile to the data tile of one array: set up once for the array, evaluated for every tile."""

    def __init__(self, nest: Nest, access: Access) -> None:
        self.access, self._dims = access, nest.dims
        self._linear = [
            n
            for n, (d, s) in enumerate(zip(nest.dims, access.strides, strict=True))
            if s is not None and len(d.members) > 1 and access.touches[n]
        ]
        flat = {a.name for n in self._linear for a in nest.dims[n].members}
        member = {a.name: (n, m) for n, d in enumerate(nest.dims) for m, a in enumerate(d.members)}
        self._index = [
            (
                bound,
                [(abs(c), *member[n]) for n, c in index.terms if n in member],
                any(n in flat for n, _ in index.terms),
            )
            for index, bound in zip(access.index, access.tensor.shape, strict=True)
        ]
        self._fused = [n for n, d in enumerate(nest.dims) if len(d.members) > 1 and access.touches[n]]
        self._whole = nest.extents
        self._rows = _rows(access, self._linear, [{n for _, n, _ in terms} for _, terms, _ in self._index])

    def __call__(self, tile: Tile) -> DataTile:
        """Returns the box of the array under a tile, cut to the array where that is smaller (padding).

        A fused dimension along which addresses stay linear counts as one run of the array, wherever its axes wrap.
        """
        reach_of = {n: self._dims[n].member_extents(tile[n]) for n in self._fused}
        whole = self._whole
        shape, elements = [], 1
        for bound, terms, flat in self._index:
            reach = 1
            for c, n, m in terms:
                members = reach_of.get(n)
                extent = members[m] if members is not None else tile[n] if tile[n] < whole[n] else whole[n]
                reach += c * (extent - 1)
            reach = max(reach if reach < bound else bound, 0)
            shape.append(reach)
            if not flat:
                elements *= reach
        for n in self._linear:
            elements *= min(tile[n], whole[n])
        return DataTile(tuple(shape), elements, min(self._run(tile, shape), elements))

    def of_each(self, tiles: Extents) -> Boxes:
        """Returns the boxes of the array under many tiles."""
        whole = self._whole
        reach_of = {n: _members_of_each(self._dims[n], tiles[n]) for n in self._fused}
        shape: list[Extent] = []
        elements: Extent = 1
        for bound, terms, flat in self._index:
            reach: Extent = 1
            for c, n, m in terms:
                reach = reach + c * ((reach_of[n][m] if n in reach_of else least(tiles[n], whole[n])) - 1)
            reach = largest(least(reach, bound), 0)
            shape.append(reach)
            if not flat:
                elements = elements * reach
        for n in self._linear:
            elements = elements * least(tiles[n], whole[n])
        run: Extent = 1
        for place, fused, bound in reversed(self._rows):
            extent = shape[place] if fused is None else least(tiles[fused], whole[fused])
            run = where(extent == bound, extent * run, extent)
        return Boxes(self.access, elements, largest(least(run, elements), 1), shape)

    def _run(self, tile: Tile, box: Sequence[int]) -> int:
        """Returns the elements that are contiguous in memory: the array's inner dimensions as far as they are full."""
        run = 1
        for place, fused, bound in self._rows:
            extent = box[place] if fused is None else min(tile[fused], self._whole[fused])
            run *= extent
            if extent != bound:
                break
        return run


def _members_of_each(dim: Dim, tiles: Extent) -> list[Extent]:
    """Returns `Dim.member_extents` of many tiles: for each member an array."""

    def of_member(tile: int, member: int) -> int:
        return dim.member_extents(tile)[member]

    return [each(partial(of_member, member=member), tiles) for member in range(len(dim.members))]


def data_tile(nest: Nest, access: Access, tile: Tile) -> DataTile:
    """Returns the box of one array under a tile."""
    return BoxShape(nest, access)(tile)


def _rows(access: Access, linear: Sequence[int], dims: Sequence[set[int]]) -> list[tuple[int, int | None, int]]:
    """Returns the array's dimensions, innermost first, with the bounds at which they are full: (place in the shape, None, bound).

    Those that one fused dimension walks in address order count as one: (place, the dimension, its bound).
    """
    rows: list[tuple[int, int | None, int]] = []
    for place in reversed(range(len(dims))):
        bound = access.tensor.shape[place]
        (fused,) = dims[place] if len(dims[place]) == 1 else (None,)
        fused = fused if fused in linear else None
        if rows and fused is not None and rows[-1][1] == fused:
            rows[-1] = (place, fused, rows[-1][2] * bound)
        else:
            rows.append((place, fused, bound))
    return rows


class HeldTile:
    """One data tile with its costs of moving and keeping, computed at first use and cached, as tiles recur."""

    __slots__ = ("_access", "_crowding", "_moved", "_starts", "nbytes", "runs", "tile")

    def __init__(self, access: Access, tile: DataTile) -> None:
        self._access, self.tile = access, tile
        self.nbytes = tile.elements * access.element_bytes
        self.runs = tile.elements / max(tile.run, 1)
        self._moved: dict[int, float] = {}
        self._crowding: dict[tuple[int, int], float] = {}
        self._starts: dict[tuple[int, int], int] = {}

    def moved(self, transaction: int) -> float:
        """Returns the bytes moved in whole transactions.

        A run of r bytes at a random multiple of the element size b touches (r - b) / transaction + 1 transactions on
        average, and exactly r / transaction where rows and runs are multiples of one.
        """
        found = self._moved.get(transaction)
        if found is None:
            found = self._moved[transaction] = _whole_transactions(self.tile, self._access, transaction)
        return found

    def crowding(self, banks: Banks) -> float:
        """Returns the room that a strided tile needs in a banked (set-associative) memory, over its bytes.

        Rows that start a multiple of many banks apart share a few of them, and the memory is full when those are. The result is 1
        where rows are contiguous or spread evenly.
        """
        if self.tile.run >= self.tile.elements:
            return 1.0
        key = banks.count, banks.width_bytes
        found = self._crowding.get(key)
        if found is None:
            found = self._crowding[key] = _crowding(self.tile, self._access, banks)
        return found

    def side_by_side(self, banks: Banks, capacity: int) -> int:
        """Returns the number of rows that can have a line each in a set-associative memory.

        These are all of its lines, or those of the few sets where rows start.
        """
        key = banks.count, banks.width_bytes
        sets = self._starts.get(key)
        if sets is None:
            sets = self._starts[key] = banks_of_starts(_row_step(self.tile, self._access) * self._access.element_bytes, banks)
        return sets * (capacity // (banks.count * banks.width_bytes))


@dataclass
class Geometry:
    """The data tiles of one nest, cached, as construction needs the same ones again and again."""

    nest: Nest
    _held: dict[tuple[int, Tile], HeldTile] = field(default_factory=dict)
    _read: dict[tuple[int, Tile], HeldTile] = field(default_factory=dict)
    _projected: tuple[dict[Tile, HeldTile], ...] = field(init=False)
    _touched: tuple[tuple[int, ...], ...] = field(init=False)
    _shapes: tuple[BoxShape, ...] = field(init=False)
    _factor_touched: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        nest = self.nest
        self._touched = tuple(_positions(a.touches) for a in nest.accesses)
        self._projected = tuple({} for _ in nest.accesses)
        self._shapes = tuple(BoxShape(nest, a) for a in nest.accesses)
        self._factor_touched = tuple(_positions(nest.factor_touches(f)) for f in range(len(nest.factors)))

    def held(self, number: int, tile: Tile) -> HeldTile:
        """Returns the data tile of array `number` (the position in `nest.accesses`) and its costs."""
        found = self._held.get((number, tile))
        if found is None:
            found = self._held[number, tile] = self._project(number, tile)
        return found

    def read(self, number: int, tile: Tile) -> HeldTile:
        """Returns the part of a data tile that the nest, or filling a panel, touches.

        It has no more elements than the tile has points, and those between them in a row, which arrive in the same transactions.
        The box is larger where windows move in steps, or where a tile along fused axes begins in the middle of a row.
        """
        held, access = self.held(number, tile), self.nest.accesses[number]
        points = math.prod([tile[i] for i in self._touched[number]]) * _step_in_row(access)
        if points >= held.tile.elements:
            return held
        found = self._read.get((number, tile))
        if found is None:
            part = DataTile(held.tile.shape, points, min(held.tile.run, points))
            found = self._read[number, tile] = HeldTile(access, part)
        return found

    def _project(self, number: int, tile: Tile) -> HeldTile:
        """Returns the data tile; tiles that differ only in dimensions that the array lacks share one cached result."""
        touched = self._touched[number]
        key = tuple([tile[i] for i in touched])
        found = self._projected[number].get(key)
        if found is None:
            only = [1] * len(tile)
            for i in touched:
                only[i] = tile[i]
            found = HeldTile(self.nest.accesses[number], self._shapes[number](tuple(only)))
            self._projected[number][key] = found
        return found

    def boxes(self, number: int, tiles: Extents) -> Boxes:
        """Returns the data tiles of array `number` under many tiles."""
        return self._shapes[number].of_each(tiles)

    def reads(self, number: int, tiles: Extents) -> Boxes:
        """Returns the parts of the data tiles of array `number` that are touched under many tiles (`read`)."""
        boxes = self.boxes(number, tiles)
        points = math.prod([tiles[i] for i in self._touched[number]]) * _step_in_row(self.nest.accesses[number])
        return replace(boxes, elements=least(boxes.elements, points), run=least(boxes.run, points))

    def elements_of_each(self, factor: int, tiles: Extents, windowed: bool = False) -> Value:
        """Returns `panel_elements` of one tile or of an array of tiles, without a cache."""
        laid = stored_extents(self.nest, factor, tiles) if windowed else tiles
        return math.prod([laid[i] for i in self._factor_touched[factor]])

    def panel_elements(self, factor: int, tile: Tile, windowed: bool = False) -> int:
        """Returns the elements of a staged panel of one factor: a value for every point of the dimensions it depends on.

        `windowed`: one for every value under sliding windows.
        """
        laid = stored_tile(self.nest, factor, tile) if windowed else tile
        return math.prod([laid[i] for i in self._factor_touched[factor]])


def _positions(touches: tuple[bool, ...]) -> tuple[int, ...]:
    return tuple(i for i, touched in enumerate(touches) if touched)


def _crowding(box: DataTile, access: Access, banks: Banks) -> float:
    size = access.element_bytes
    step = _row_step(box, access) * size
    lines = max(1, -(-box.run * size // banks.width_bytes))
    rows = box.elements / box.run
    if step % banks.width_bytes:
        return 1.0
    starts = banks_of_starts(step, banks)
    return max(1.0, banks.count / (starts * lines)) if rows > starts else 1.0


def _step_in_row(access: Access) -> int:
    """Returns the elements of a row between one point of a tile and the next."""
    return max([abs(c) for _, c in access.index[-1].terms], default=1) if access.index else 1


def _row_step(box: DataTile, access: Access) -> int:
    """Returns the address step between the runs of a box: the stride of the next dimension outside a run that has several."""
    inside = True
    for extent, bound, stride in zip(
        reversed(box.shape), reversed(access.tensor.shape), reversed(access.tensor.strides), strict=True
    ):
        if inside:
            inside = extent == bound
        elif extent > 1:
            return stride
    return 1


def banks_of_starts(step: int, banks: Banks) -> int:
    """Returns the number of banks in which rows start that lie `step` bytes apart."""
    return banks.count // math.gcd(step // banks.width_bytes, banks.count) if step % banks.width_bytes == 0 else banks.count


def _whole_transactions(box: DataTile, access: Access, transaction: int) -> float:
    return float(moved_bytes(access, box.elements, box.run, transaction)) if box.elements else 0.0


def moved_bytes(access: Access, elements: Extent, run: Extent, transaction: int) -> Value:
    """Returns the bytes moved in whole transactions for so many elements in contiguous runs (`HeldTile.moved`)."""
    size = access.element_bytes
    row = (access.tensor.shape[-1] if access.tensor.shape else 1) * size
    length = run * size
    whole = length % transaction == 0 if row % transaction == 0 else (length % transaction == 0) & (length >= access.tensor.nbytes)
    per_run = where(whole, length / transaction, (length - size) / transaction + 1)
    return elements / run * per_run * transaction


def padded_points(extents: Tile, tile: Tile) -> int:
    """Returns the points executed when whole tiles cover a problem."""
    return math.prod([-(-e // t) * t for e, t in zip(extents, tile, strict=True)])


def whole_tiles(extents: Extents, tile: Extents) -> Extents:
    """Returns extents (numbers or arrays) in whole tiles: a panel has room for these, and a copy writes them."""
    return [-(-extent // largest(step, 1)) * step for extent, step in zip(extents, tile, strict=True)]


def padding_waste(extents: Tile, tile: Tile) -> float:
    """Returns the share of work that covering a problem with whole tiles adds: 0 where the tile divides it."""
    points = math.prod(extents)
    return padded_points(extents, tile) / points - 1 if points else 0.0
