"""Row groups: stages over the same rows, which one kernel can compute while it holds the rows (persistent reduction).

Softmax is a maximum and a sum over each row with elementwise work between them; as separate kernels, these read every row again.
Stages form a group if

* the results of all but the last are read by the group only, element by element, at the point that computes them;
* each runs over the same axes, or over the rows alone; those that reduce all reduce the same axes, the columns.

The kernel of a group holds whole rows: their values, and their reductions, in registers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from roller.ir.expr import ELEMENT_BYTES, FLOATS, Axis, Stage, TensorExpr
from roller.ir.nest import Nest, Tile
from roller.ir.scalar import Affine, reindex, rounded

Group = tuple[Stage, ...]

REGISTER_BYTES = 4
MOST_STAGES = 16  # of a group: each holds values in registers


def row_groups(expr: TensorExpr) -> tuple[Group, ...]:
    """Returns the expression's stages in order, in groups as large as possible; a group's stages have the axes of its last one."""
    found: list[Group] = []
    start = 0
    while start < len(expr.stages):
        ends = range(min(len(expr.stages), start + MOST_STAGES), start + 1, -1)
        groups = (group_of(expr, start, end) for end in ends)
        found.append(next((group for group in groups if group is not None), expr.stages[start : start + 1]))
        start += len(found[-1])
    return tuple(found)


def columns_of(group: Sequence[Stage]) -> frozenset[str]:
    """Returns the axes that stages of a group reduce."""
    return frozenset(axis.name for stage in group for axis in stage.reduced)


def group_of(expr: TensorExpr, start: int, end: int) -> Group | None:
    """Returns these stages as a group; None if they form none."""
    *before, last = expr.stages[start:end]
    others = [*expr.stages[:start], *expr.stages[end:]]
    inside = {stage.name for stage in before}
    if any(load.tensor in inside for stage in others for load in stage.reads) or not all(last.extents.values()):
        return None
    last = _moved(last, {a.name: a.name for a in last.axes if a.extent > 1})
    group, columns = [last], columns_of([last])
    for stage in reversed(before):
        names = _names(stage, group)
        columns = columns or _unnamed(names, last)
        moved = None if names is None else _over(stage, names, [a for a in last.axes if a.name in columns])
        if moved is None:
            return None
        group.insert(0, _rounded(moved))
    return tuple(group) if columns and _alike(group, columns, last) else None


def _names(stage: Stage, readers: Sequence[Stage]) -> dict[str, str] | None:
    """Returns the last stage's axis for each spatial axis of a stage, from its readers; None if it is not read at its own point."""
    found = {load for reader in readers for load in reader.reads if load.tensor == stage.name}
    if len({load.index for load in found}) != 1 or any(load.fill is not None for load in found):
        return None
    names: dict[str, str] = {}
    for read, stored, extent in zip(found.pop().index, stage.store, stage.output.shape, strict=True):
        if extent == 1:
            continue
        here, there = stored.alone, read.alone
        if here is None or there is None or here in names or there in names.values():
            return None
        names[here] = there
    return names


def _unnamed(names: Mapping[str, str] | None, last: Stage) -> frozenset[str]:
    """Returns the last stage's axes that a preceding stage lacks: a reduction's columns."""
    walked = {} if names is None else names
    return frozenset(a.name for a in last.axes if a.extent > 1 and a.name not in walked.values())


def _over(stage: Stage, names: Mapping[str, str], columns: Sequence[Axis]) -> Stage | None:
    """Returns a stage over the last one's axes; reductions take the columns in order. None if its axes differ."""
    reduced = [a for a in stage.reduced if a.extent > 1]
    wide = [a for a in columns if a.extent > 1]
    if reduced and [a.extent for a in reduced] != [a.extent for a in wide]:
        return None
    known = dict(names) | {a.name: b.name for a, b in zip(reduced, wide, strict=False)}
    if any(a.extent > 1 and a.name not in known for a in stage.axes):
        return None
    if len({*known.values()}) < len(known):  # it reduces what it also runs over: a product whose columns the last stage sums
        return None
    return _moved(stage, known)


def _moved(stage: Stage, known: Mapping[str, str]) -> Stage:
    """Returns a stage with renamed axes; axes without a new name are dropped, as they have one position."""
    moved = {a.name: Affine.axis(known[a.name]) if a.name in known else Affine() for a in stage.axes}
    axes = tuple(replace(a, name=known[a.name]) for a in stage.axes if a.name in known)
    epilogue = None if stage.epilogue is None else reindex(stage.epilogue, moved)
    store = tuple(index.substitute(moved) for index in stage.store)
    return replace(stage, axes=axes, body=reindex(stage.body, moved), epilogue=epilogue, store=store)


def _rounded(stage: Stage) -> Stage:
    """Returns a stage whose result is rounded as if it were stored: compilers would fuse operations in one kernel's source."""
    if stage.body.dtype not in FLOATS:
        return stage
    if stage.reducer is None:
        return replace(stage, body=rounded(stage.body))
    return stage if stage.epilogue is None else replace(stage, epilogue=rounded(stage.epilogue))


def _alike(group: Sequence[Stage], columns: frozenset[str], last: Stage) -> bool:
    """Returns True if each stage runs over all axes or over the rows, and each reduction is over the columns."""
    every = {a.name for a in last.axes if a.extent > 1}
    for stage in group:
        walked = {a.name for a in stage.axes if a.extent > 1}
        reduced = {a.name for a in stage.reduced if a.extent > 1}
        if walked not in (every, every - columns) or reduced != (columns if stage.reducer is not None else set()):
            return False
        if any(last.extents[a.name] != a.extent for a in stage.axes):
            return False
    return True


def held_bytes(nest: Nest, tile: Tile) -> int:
    """Returns the max bytes of registers with a group's values that are live between two stages, for one tile.

    A value lives from its load or computation to its last use. A result replaces its operands, and values that only the last stage
    reads are loaded piece by piece.
    """
    ends: dict[Hashable, int] = {}
    begins: dict[Hashable, int] = {}
    sizes: dict[Hashable, int] = {}
    last = len(nest.stages) - 1
    for at, stage in enumerate(nest.stages):
        for value, size, read in _values(nest, stage, tile):
            if read and at == last and stage.reducer is None and value not in begins:
                continue
            begins.setdefault(value, at if read else at + 1)
            ends[value], sizes[value] = max(at, begins[value]), size
    live = [[size for value, size in sizes.items() if begins[value] <= at <= ends[value]] for at in range(last + 2)]
    return max(sum(sizes_then) for sizes_then in live)


def _values(nest: Nest, stage: Stage, tile: Tile) -> Iterator[tuple[Hashable, int, bool]]:
    """Yields each value that a stage reads or computes, its register bytes for a tile, and whether it comes from an array."""
    inside = {each.name: each for each in nest.before}
    known = {(access.tensor.name, access.index): access for access in nest.accesses}
    for load in stage.reads:
        if load.tensor in inside:
            yield load.tensor, _bytes(tile, _walked(nest, inside[load.tensor]), load.dtype), False
        else:
            access = known[load.tensor, load.index]
            yield (load.tensor, load.index), _bytes(tile, access.touches, load.dtype), True
    yield stage.name, _bytes(tile, _walked(nest, stage), stage.output.dtype), False


def _walked(nest: Nest, stage: Stage) -> tuple[bool, ...]:
    """Returns, for each dimension, whether the stage's result varies along it."""
    names = {axis.name for axis in stage.spatial}
    return tuple(any(axis.name in names for axis in dim.members) for dim in nest.dims)


def _bytes(tile: Tile, touches: Sequence[bool], dtype: str) -> int:
    """Returns register bytes; narrow values take a whole register each as soon as they are computed with."""
    return math.prod(extent for extent, touched in zip(tile, touches, strict=True) if touched) * max(
        REGISTER_BYTES, ELEMENT_BYTES[dtype]
    )
