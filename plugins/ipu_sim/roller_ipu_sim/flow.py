"""What has been written when: every element that a program reads must have been, and no exchange may depend on its order.

Elements are followed by granules, as large as all accesses to a buffer allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from roller_ipu_sim.boxes import Array, Box, Ranges, numbers, places, rows_of, view
from roller_ipu_sim.manifest import Buffer, ManifestError

__all__ = ["Access", "Moment", "check_flow"]

BOOL = np.dtype(np.bool_)


class Access(NamedTuple):
    """One vertex on its tiles, or one send: what is read where, and what is written where. `where` names it."""

    where: str
    readers: Ranges
    reads: Sequence[Box]
    writers: Ranges
    writes: Sequence[Box]


class Moment(NamedTuple):
    """The accesses of one step. Those of an exchange are at once; vertices of a step are on different tiles."""

    step: int  # the host writes at the first and reads at the last
    at_once: bool
    accesses: Sequence[Access]


class _Marks:
    """For every granule of a buffer in each of its tiles whether it is marked."""

    def __init__(self, buffer: Buffer, granule: int) -> None:
        self.buffer, self.granule = buffer, granule
        self.row = -(-buffer.elements // granule)
        self.rows = len(numbers(buffer.tiles))
        self.marks: Array = np.zeros(self.rows * self.row, dtype=np.bool_)

    def at(self, box: Box) -> Array:
        """The marks of a box in all tiles of the buffer."""
        shape, strides, g = box.shape, box.strides, self.granule
        if g > 1:
            shape = (*shape[:-1], shape[-1] // g)
            strides = (*(s // g for s in strides[:-1]), 1)
        return view(self.marks, BOOL, (self.rows, self.row), box.offset // g, shape, strides)


def check_flow(buffers: Mapping[str, Buffer], moments: Sequence[Moment]) -> None:
    """Refuse reads of what nothing has written, accesses to buffers that are not live or not there, and exchanges in conflict."""
    granules = _granules(buffers, moments)
    written: dict[str, _Marks] = {}
    for moment in moments:
        for name in [n for n in written if buffers[n].live[1] < moment.step]:
            del written[name]
        _Step(buffers, granules, written, moment).check()


def _granules(buffers: Mapping[str, Buffer], moments: Iterable[Moment]) -> dict[str, int]:
    """Elements that are always accessed together, for each buffer."""
    found = dict.fromkeys(buffers, 0)
    for box in {box for moment in moments for access in moment.accesses for box in (*access.reads, *access.writes)}:
        dense = bool(box.strides) and box.strides[-1] == 1
        unit = math.gcd(box.offset, box.shape[-1], *box.strides[:-1]) if dense else 1
        found[box.buffer] = math.gcd(found[box.buffer], unit)
    return found


class _Step:
    def __init__(
        self, buffers: Mapping[str, Buffer], granules: Mapping[str, int], written: dict[str, _Marks], moment: Moment
    ) -> None:
        self._buffers, self._granules, self._written, self._moment = buffers, granules, written, moment

    def check(self) -> None:
        if not self._moment.at_once:
            self._in_turn(self._written)
            return
        target = self._together()
        if target is None:
            target = {}
            self._in_turn(target)
            for access, box in ((a, b) for a in self._moment.accesses for b in a.reads if b.buffer in target):
                self._apart(access, box, target)
        for name, marks in target.items():
            self._marks(name, self._written).marks |= marks.marks

    def _in_turn(self, target: dict[str, _Marks]) -> None:
        """One access after another; what is wrong is raised with its place."""
        for access in self._moment.accesses:
            for box in access.reads:
                self._read(access, box)
            for box in access.writes:
                self._write(access, box, target)

    def _together(self) -> dict[str, _Marks] | None:
        """The marks of what an exchange writes, with accesses to the same boxes of many tiles as one; None if anything is wrong."""
        target: dict[str, _Marks] = {}
        alike: dict[tuple[tuple[Box, ...], tuple[Box, ...]], list[Access]] = {}
        for access in self._moment.accesses:
            alike.setdefault((tuple(access.reads), tuple(access.writes)), []).append(access)
        read: list[tuple[Box, Array]] = []
        for (reads, writes), accesses in alike.items():
            readers, writers = (np.concatenate([numbers(a[which]) for a in accesses]) for which in (1, 3))
            for box in reads:
                rows = self._places(box, readers)
                if rows is None or not self._marks(box.buffer, self._written).at(box)[rows].all():
                    return None
                read.append((box, rows))
            for box in writes:
                rows = self._places(box, writers)
                if rows is None or len(np.unique(rows)) < len(rows):
                    return None
                marks = self._marks(box.buffer, target).at(box)
                if marks[rows].any():
                    return None
                marks[rows] = True
        clash = any(target[box.buffer].at(box)[rows].any() for box, rows in read if box.buffer in target)
        return None if clash else target

    def _places(self, box: Box, tiles: Array) -> Array | None:
        """The rows of tiles in a buffer; None if one has not got it, or it is not live."""
        buffer = self._buffers[box.buffer]
        rows = places(buffer.tiles, tiles)
        return rows if buffer.live[0] <= self._moment.step <= buffer.live[1] and (rows >= 0).all() else None

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
        """The first tile and element of a box that is marked as wrong."""
        row, *index = (int(i) for i in np.argwhere(wrong)[0])
        granule = self._granules[box.buffer]
        steps = (*box.strides[:-1], box.strides[-1] * granule) if box.strides else ()
        element = box.offset + sum(i * s for i, s in zip(index, steps, strict=True))
        return int(numbers(tiles)[row]), element
