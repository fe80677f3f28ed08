"""Data-flow check of a manifest: every element must be written before it is read, and no exchange may depend on its order.

Elements are tracked by granules, as large as all accesses to a buffer allow. A family of sends is checked as a whole where a
buffer's tiles are one range. Its reads, or writes, are then a strided view of all its tiles' granules, and elements written twice
appear as missing granules. After any error, or if tiles are no range, the accesses are checked one by one, which finds the
position.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from roller_ipu_sim.manifest.boxes import Array, Box, Ranges, Region, numbers, region, rows_of, view
from roller_ipu_sim.manifest.families import reach, sums, without
from roller_ipu_sim.manifest.models import Buffer, ManifestError, SendLoop

__all__ = ["Access", "Moment", "check_flow"]

BOOL = np.dtype(np.bool_)


class Access(NamedTuple):
    """One vertex on its tiles, or a family of sends: its reads and its writes with their tiles. `where` names it.

    `loops`: as those of a send, for reads and writes; `others`: the reader is none of the writers.
    """

    where: str
    readers: Ranges
    reads: Sequence[Box]
    writers: Ranges
    writes: Sequence[Box]
    loops: tuple[SendLoop, ...] = ()
    others: bool = False

    def each(self) -> Iterator[Access]:
        """Yields the accesses of a family one by one."""
        if not self.loops and not self.others:
            yield self
            return
        for index in itertools.product(*[range(loop[0]) for loop in self.loops]):
            tile, offset, to_tile, to_offset = (
                sum([i * int(loop[column]) for i, loop in zip(index, self.loops, strict=True)]) for column in (1, 2, 3, 4)
            )
            readers, writers = _further(self.readers, tile), _further(self.writers, to_tile)
            yield Access(
                f"{self.where}, repetition {list(index)}" if self.loops else self.where,
                readers,
                [box._replace(offset=box.offset + offset) for box in self.reads],
                without(writers, readers[0][0]) if self.others else writers,
                [box._replace(offset=box.offset + to_offset) for box in self.writes],
            )

    def read_regions(self) -> Iterator[Region]:
        """Returns the regions that are read, by ranges of the tiles."""
        loops = [loop[:3] for loop in self.loops]
        return (region(box, tiles, loops) for box in self.reads for tiles in self.readers)

    def write_regions(self) -> Iterator[Region]:
        """Returns the regions that are written, by ranges of the tiles; with `others` those of the senders are included."""
        loops = [(loop[0], *loop[3:]) for loop in self.loops]
        return (region(box, tiles, loops) for box in self.writes for tiles in self.writers)

    def hole(self) -> Region | None:
        """Returns the part of `write_regions` that is not written: the senders' own positions."""
        return next(self.read_regions()) if self.others else None

    @property
    def symmetric(self) -> bool:
        """False with `others` where a sender's own position differs from its read region, or the sender is no receiver anyway."""
        if not self.others:
            return True
        if self.reads != self.writes or any(loop[2] != loop[4] for loop in self.loops):
            return False
        apart = sums(self.readers[0][0], [(loop[0], loop[1] - loop[3]) for loop in self.loops if loop[1] != loop[3]])
        return bool(np.isin(apart, numbers(self.writers)).all())


def _further(tiles: Ranges, by: int) -> Ranges:
    return tuple([(first + by, count, step) for first, count, step in tiles]) if by else tiles


class Moment(NamedTuple):
    """The accesses of one step. Those of an exchange are simultaneous; vertices of a step are on different tiles."""

    step: int  # the host writes at the first and reads at the last
    at_once: bool
    accesses: Sequence[Access]


class _Marks:
    """A mark for every granule of a buffer in each of its tiles."""

    def __init__(self, buffer: Buffer, granule: int) -> None:
        self.buffer, self.granule = buffer, granule
        self.row = -(-buffer.elements // granule)
        self.rows = len(numbers(buffer.tiles))
        self.full = False
        self.known: set[Region] = set()  # regions known to be marked
        self.marks: Array = np.zeros(self.rows * self.row, dtype=np.bool_)

    def at(self, box: Box) -> Array:
        """Returns the marks of a box in all tiles of the buffer."""
        shape, strides, g = box.shape, box.strides, self.granule
        if g > 1:
            shape = (*shape[:-1], shape[-1] // g)
            strides = (*(s // g for s in strides[:-1]), 1)
        return view(self.marks, BOOL, (self.rows, self.row), box.offset // g, shape, strides)

    def of(self, place: Region) -> Array:
        """Returns the marks of a region, which lies in the buffer."""
        g, first = self.granule, self.buffer.tiles[0][0]
        shape, strides = place.box.shape, place.box.strides
        if g > 1:
            shape, strides = (*shape[:-1], shape[-1] // g), (*[s // g for s in strides[:-1]], 1)
        steps = [tile * self.row + offset // g for _, tile, offset in place.loops]
        begin = (place.tile - first) * self.row + place.box.offset // g
        return np.ndarray((*[count for count, _, _ in place.loops], *shape), BOOL, self.marks, begin, (*steps, *strides))

    def fill(self) -> None:
        """Records whether all granules are marked."""
        self.full = bool(self.marks.all())


def check_flow(buffers: Mapping[str, Buffer], moments: Sequence[Moment]) -> None:
    """Refuses reads of unwritten elements, accesses to buffers that are not live or do not exist, and exchanges in conflict."""
    state = _State(buffers, _granules(buffers, moments), {}, set())
    for moment in moments:
        for name in [n for n in state.written if buffers[n].live[1] < moment.step]:
            del state.written[name]
        _Step(state, moment).check()


def _granules(buffers: Mapping[str, Buffer], moments: Iterable[Moment]) -> dict[str, int]:
    """Returns for each buffer the number of elements that are always accessed together."""
    found = dict.fromkeys(buffers, 0)
    seen: set[tuple[Box, tuple[int, ...]]] = set()
    for access in (access for moment in moments for access in moment.accesses):
        for boxes, column in ((access.reads, 2), (access.writes, 4)):
            steps = tuple([int(loop[column]) for loop in access.loops])
            seen.update([(box, steps) for box in boxes])
    for box, steps in seen:
        dense = bool(box.strides) and box.strides[-1] == 1
        unit = math.gcd(box.offset, box.shape[-1], *box.strides[:-1], *steps) if dense else 1
        found[box.buffer] = math.gcd(found[box.buffer], unit)
    return found


class _Writing(NamedTuple):
    """The writes of one access: regions, except for a hole in them."""

    places: tuple[Region, ...]
    hole: Region | None


class _State(NamedTuple):
    """The state before a step: the written elements, and the exchanges known to be free of conflicts."""

    buffers: Mapping[str, Buffer]
    granules: Mapping[str, int]
    written: dict[str, _Marks]
    peaceful: set[tuple[object, ...]]


class _Step:
    def __init__(self, state: _State, moment: Moment) -> None:
        self._buffers, self._granules, self._written, self._peaceful = state
        self._moment = moment

    def check(self) -> None:
        if self._together():
            return
        if not self._moment.at_once:
            self._in_turn(self._written)
        else:
            target: dict[str, _Marks] = {}
            self._in_turn(target)
            for access in self._moment.accesses:
                for one in access.each():
                    for box in [box for box in one.reads if box.buffer in target]:
                        self._apart(one, box, target)
            for name, marks in target.items():
                self._marks(name, self._written).marks |= marks.marks
        for name in {box.buffer for access in self._moment.accesses for box in access.writes}:
            self._marks(name, self._written).fill()

    def _in_turn(self, target: dict[str, _Marks]) -> None:
        """Applies one access after another; an error is raised with its position."""
        for one in (one for access in self._moment.accesses for one in access.each()):
            for box in one.reads:
                self._read(one, box)
            for box in one.writes:
                self._write(one, box, target)

    # --- as a whole ---------------------------------------------------------------------------------------------------

    def _together(self) -> bool:
        """Returns True if all accesses are valid, checked family by family; otherwise nothing has changed."""
        accesses = self._moment.accesses
        reads = [place for access in accesses for place in access.read_regions()]
        writes = [_Writing(tuple(access.write_regions()), access.hole()) for access in accesses if access.writes]
        every = [place for writing in writes for place in writing.places]
        if not all(self._inside(place) for place in (*reads, *every)) or not all(access.symmetric for access in accesses):
            return False
        if not all(self._has(place) for place in reads) or (self._moment.at_once and not self._peace(reads, writes)):
            return False
        changed = {}
        for place in every:  # a sender that is no receiver has read that position, so it was written
            marks = self._marks(place.box.buffer, self._written)
            if not marks.full:
                marks.of(place)[...] = True
                changed[place.box.buffer] = marks
        for marks in changed.values():
            marks.fill()
        return True

    def _inside(self, place: Region) -> bool:
        """Returns True if a region lies in its buffer, which is live and on one range of tiles."""
        buffer = self._buffers[place.box.buffer]
        if len(buffer.tiles) > 1 or buffer.tiles[0][2] > 1 or not buffer.live[0] <= self._moment.step <= buffer.live[1]:
            return False
        low, high = reach(place.tile, [(count, tile) for count, tile, _ in place.loops])
        return buffer.tiles[0][0] <= low and high < buffer.tiles[0][0] + buffer.tiles[0][1]

    def _has(self, place: Region) -> bool:
        marks = self._marks(place.box.buffer, self._written)
        if not marks.full and place not in marks.known:
            if not marks.of(place).all():
                return False
            marks.known.add(place)
        return True

    def _peace(self, reads: Sequence[Region], writes: Sequence[_Writing]) -> bool:
        """Returns True if an exchange writes no element twice, and no element that it sends."""
        names = {place.box.buffer for writing in writes for place in writing.places}
        sent = [place for place in reads if place.box.buffer in names]
        key = (*writes, *sent)
        if key in self._peaceful:
            return True
        target = {name: _Marks(self._buffers[name], self._granules[name]) for name in names}
        count = 0
        for writing in sorted(writes, key=lambda writing: writing.hole is None):
            for marks in [target[place.box.buffer].of(place) for place in writing.places]:
                marks[...] = True
                count += marks.size
            if writing.hole is not None:
                marks = target[writing.hole.box.buffer].of(writing.hole)
                marks[...] = False
                count -= marks.size
        if sum([int(np.count_nonzero(marks.marks)) for marks in target.values()]) != count:
            return False
        if any(target[place.box.buffer].of(place).any() for place in sent):
            return False
        self._peaceful.add(key)
        return True

    # --- one by one ---------------------------------------------------------------------------------------------------

    def _marks(self, name: str, store: dict[str, _Marks]) -> _Marks:
        if name not in store:
            store[name] = _Marks(self._buffers[name], self._granules[name])
        return store[name]

    def _rows(self, access: Access, box: Box, tiles: Ranges) -> slice | Array:
        buffer, step = self._buffers[box.buffer], self._moment.step
        if not buffer.live[0] <= step <= buffer.live[1]:
            raise ManifestError(
                f"{access.where}: buffer {box.buffer!r} lives from step {buffer.live[0]} to {buffer.live[1]} only; let it live now"
            )
        rows = rows_of(buffer.tiles, tiles)
        if isinstance(rows, int):
            raise ManifestError(f"{access.where}: tile {-1 - rows} has no buffer {box.buffer!r}; let it have one")
        return rows

    def _read(self, access: Access, box: Box) -> None:
        rows = self._rows(access, box, access.readers)
        marks = self._marks(box.buffer, self._written).at(box)[rows]
        if not marks.all():
            tile, element = self._place(access.readers, box, ~marks)
            raise ManifestError(
                f"{access.where}: tile {tile} reads element {element} of buffer {box.buffer!r}, which nothing has written; "
                "write it in an earlier step"
            )

    def _write(self, access: Access, box: Box, target: dict[str, _Marks]) -> None:
        rows = self._rows(access, box, access.writers)
        marks = self._marks(box.buffer, target).at(box)
        if self._moment.at_once and marks[rows].any():
            tile, element = self._place(access.writers, box, marks[rows])
            raise ManifestError(
                f"{access.where}: element {element} of buffer {box.buffer!r} in tile {tile} is written twice in one exchange; "
                "send it once"
            )
        marks[rows] = True

    def _apart(self, access: Access, box: Box, target: dict[str, _Marks]) -> None:
        marks = target[box.buffer].at(box)[self._rows(access, box, access.readers)]
        if marks.any():
            tile, element = self._place(access.readers, box, marks)
            raise ManifestError(
                f"{access.where}: element {element} of buffer {box.buffer!r} in tile {tile} is sent and written in one exchange; "
                "receive into another place"
            )

    def _place(self, tiles: Ranges, box: Box, wrong: Array) -> tuple[int, int]:
        """Returns the first tile and element of a box that is marked as wrong."""
        row, *index = (int(i) for i in np.argwhere(wrong)[0])
        granule = self._granules[box.buffer]
        steps = (*box.strides[:-1], box.strides[-1] * granule) if box.strides else ()
        element = box.offset + sum(i * s for i, s in zip(index, steps, strict=True))
        return int(numbers(tiles)[row]), element
