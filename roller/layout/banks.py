"""Alignment rule 3: the layout of a panel in a banked memory that software fills, and the padding against bank conflicts.

A panel is stored row after row, a row as runs along its innermost dimension. An access along a row uses every bank once. An access
to several rows at a time uses banks one row apart, and waits where they are the same ones. Two kinds of access touch several rows:
lanes that fill a panel from an array that is contiguous across its rows, and lanes that read their parts of a matrix atom's
operand. Lanes in several runs of a row conflict, too. Each access of a lane starts at a multiple of its length.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from roller.ir.expr import ELEMENT_BYTES
from roller.ir.nest import Nest, Tile
from roller.ir.sliding_windows import Window, stored_tile, windows
from roller.program.rprogram import StageProgram, Staging, panel_element_bytes, staged_touches
from roller.target.hardware import Banks, ComputeAtom, HardwareSpec

WIDEST_ACCESS = 16  # bytes that one lane moves with one access, on every chip with lanes


@dataclass(frozen=True, slots=True)
class PanelRows:
    """A panel as rows, in elements: the length of one, how many there are, how many are accessed at a time, and how much of each.

    `filling`: the accesses across rows are those of filling, once for each copy; otherwise those of reading, every time. `whole`:
    rows stay multiples of this many elements, those that a lane reads along a row with one access.
    """

    row: int
    rows: int
    together: int
    piece: int
    element_bytes: int
    filling: bool
    whole: int = 1

    def conflicts(self, padding: int, banks: Banks) -> float:
        """Returns the factor by which bank conflicts lengthen one access; 1 without conflicts."""
        period = banks.count * banks.width_bytes  # pitches a whole period apart use the same banks: few pitches differ
        pitch = (self.row + padding) % period + period
        return bank_conflicts(pitch, self.together, self.piece, banks, self.element_bytes)

    def padding(self, banks: Banks) -> int:
        """Returns the elements to add to every row to make it whole accesses.

        These are the elements of rule 3, or the fewest that leave no more conflicts than these do.
        """
        least = -self.row % self.whole if self.rows > 1 else 0
        return least if self.together <= 1 else _fewest_conflicts(self, least, banks.count, banks.width_bytes)

    def padding_bytes(self, padding: int) -> int:
        """Returns the bytes that the padding of all rows takes in one copy."""
        return self.rows * padding * self.element_bytes


@lru_cache(maxsize=4096)
def _fewest_conflicts(rows: PanelRows, least: int, count: int, width_bytes: int) -> int:
    """Returns the padding, no less than `least`, with the fewest conflicts; of several, the smallest."""
    banks = Banks(count=count, width_bytes=width_bytes)
    most = bank_padding(rows.row, rows.piece, banks, rows.element_bytes)
    choices = range(least, max(most, least) + rows.whole, rows.whole)
    return min(choices, key=lambda padding: (rows.conflicts(padding, banks), padding))


def bank_padding(row: int, inner_row: int, banks: Banks, element_bytes: int) -> int:
    """Returns the elements to add to a row of `row` elements read by inner tiles of `inner_row` (rule 3; the paper's section 3.1).

    With B banks of L elements: padding = (B L - N mod (B L) + L ceil(n / L)) mod (B L).
    """
    width = max(1, banks.width_bytes // element_bytes)
    period = banks.count * width
    return (period - row % period + width * math.ceil(inner_row / width)) % period


@lru_cache(maxsize=4096)
def bank_conflicts(pitch: int, rows: int, piece: int, banks: Banks, element_bytes: int) -> float:
    """Returns the words that the busiest bank serves, over those that it would serve if all had the same share; at least 1.

    `piece` elements are accessed in each of `rows` rows that lie `pitch` elements apart. Parts of one word are served together.
    """
    starts = (row * pitch * element_bytes for row in range(rows))
    words = {w for s in starts for w in range(s // banks.width_bytes, -(-(s + piece * element_bytes) // banks.width_bytes))}
    busiest = max(Counter(word % banks.count for word in words).values(), default=1)
    return busiest / max(1, -(-len(words) // banks.count))


def most_together(dtype: str) -> int:
    """Returns the most elements of one access; 1 for bool, as TVM prints vectors of bool in words of two bytes for each."""
    return 1 if dtype == "bool" else WIDEST_ACCESS // ELEMENT_BYTES[dtype]


def panel_rows(program: StageProgram, spec: HardwareSpec, staging: Staging) -> PanelRows:
    """Returns the layout of a panel at its level, as rows.

    For a matrix atom rows go along the dimension in which the array is contiguous, and lanes read pieces of as many rows as serve
    all banks once. For other atoms a row holds the values of one reduce point. Each lane reads some of these with one access, and a
    lane group fills as many of a row at a time.
    """
    nest, atom = program.nest, program.atom
    tile, touches = laid_tile(nest, staging, program.unit_tile), nest.factor_touches(staging.operand)
    size, elements = panel_element_bytes(nest, atom), math.prod([e for e, touched in zip(tile, touches, strict=True) if touched])
    if spec.in_place(atom):  # the device lays rows out as the atom reads them
        return PanelRows(elements, 1, 1, 1, size, filling=False)
    if atom.kind == "matrix":
        return _matrix_rows(program, staging.operand, tile, spec.levels[staging.level].banks)
    row, run = math.prod([tile[d] for d in nest.spatial if touches[d]]), run_dim(nest, touches, tile)
    rows = elements // max(row, 1)
    row += row // tile[run] * staging.run_padding if run is not None and tile[run] else 0
    piece = _wide_access(nest, laid_tile(nest, staging, program.inner), run, size)
    along, lanes = _contiguous(nest, staging.operand, tile), spec.levels[staging.level].access_lanes
    together = min(tile[along], lanes // piece) if along is not None and along in nest.reduce else 1
    return PanelRows(row, rows, max(1, together), piece, size, filling=True, whole=piece)


def _matrix_rows(program: StageProgram, factor: int, tile: Tile, banks: Banks | None) -> PanelRows:
    """Returns the rows of a matrix atom's panel of a tile: reads decide on their padding."""
    nest, where = program.nest, (program.nest, program.atom, program.mapping, factor)
    touched, extents = [d for d, t in enumerate(nest.factor_touches(factor)) if t], _role_extents(*where)
    dim, size, beside = row_dim(*where, tile), panel_element_bytes(nest, program.atom), interleaved(*where, tile)
    row = tile[dim] if touched else 1
    rows = max(1, math.prod([tile[d] for d in touched]) // max(row, 1))
    if beside > 1:  # one access of a group reads the interleaved elements of all the atom's positions along a row
        row, rows, piece = row * beside, rows // beside, beside * extents.get(dim, 1)
        return PanelRows(row, rows, _serving(banks, piece * size, rows), piece, size, filling=False, whole=WIDEST_ACCESS // size)
    deep = program.atom.operand_piece_bytes if dim == program.role("k") else None
    piece = max(1, min(_piece(banks, size, deep), extents.get(dim, 1)))
    return PanelRows(row, rows, _serving(banks, piece * size, rows), piece, size, filling=False, whole=piece)


def _serving(banks: Banks | None, piece_bytes: int, rows: int) -> int:
    """Returns the rows of which one piece each serves all banks once."""
    every_bank = banks.count * banks.width_bytes // piece_bytes if banks is not None else 1
    return max(1, min(every_bank, rows))


def run_dim(nest: Nest, touches: tuple[bool, ...], tile: Tile) -> int | None:
    """Returns the dimension along which neighbours of a tile are neighbours in its panel; None for a panel of one value.

    Rows hold the values of one reduce point.
    """
    inwards = (*nest.reduce, *nest.spatial)
    return next((d for d in reversed(inwards) if touches[d] and tile[d] > 1), None)


def panel_steps(
    nest: Nest, staging: Staging, tile: Tile, rows: tuple[int, ...], outside: tuple[int, ...]
) -> tuple[tuple[int, ...], int]:
    """Returns the step along each dimension in the panel of a unit's tile (0: no dependence), and its elements with all padding.

    `rows`: the dimensions of a row; `outside`: all others, innermost last.
    """
    touches = staged_touches(nest, staging)
    tile = laid_tile(nest, staging, tile)
    steps, size, run = [0] * len(touches), 1, run_dim(nest, touches, tile)
    for dims in (rows, outside):
        for dim in reversed(dims):
            if touches[dim]:
                steps[dim] = size
                size *= tile[dim]
            if dim == run:
                size += staging.run_padding
        if dims == rows:
            size += staging.row_padding
    for window in windows_of(nest, staging):
        passed = steps[window.spatial]
        for dim, step in window.steps:
            steps[dim] = step * passed
    return tuple(steps), size


def windows_of(nest: Nest, staging: Staging) -> tuple[Window, ...]:
    """Returns the sliding windows of a windowed panel; none for other panels."""
    return windows(nest, staging.operand) if staging.windowed else ()


def laid_tile(nest: Nest, staging: Staging, tile: Tile) -> Tile:
    """Returns the extents of a tile as a panel stores it."""
    return stored_tile(nest, staging.operand, tile) if staging.windowed else tile


@lru_cache(maxsize=4096)
def dividing(piece: int, most: int) -> int:
    """Returns the widest access of at most `most` (a power of two) elements that is aligned where lanes' pieces are contiguous."""
    while piece % most:
        most //= 2
    return most


def pieces(extent: int, widest: int) -> tuple[int, ...]:
    """Returns the accesses that read `extent` neighbours: powers of two with that sum, the widest ones first."""
    found = [widest] * (extent // widest)
    while widest > 1:
        widest //= 2
        found += [widest] * (extent // widest % 2)
    return tuple(found)


def _piece(banks: Banks | None, size: int, deep: int | None) -> int:
    """Returns the elements of a row that lanes read together for one small matrix.

    These are `deep` bytes, from as many rows as serve all banks once. Where a panel's rows lie across the reduction (None), the
    elements that serve all banks lie along one row.
    """
    if deep is not None or banks is None:
        return (WIDEST_ACCESS if deep is None else deep) // size
    return max(1, banks.count * banks.width_bytes // WIDEST_ACCESS)


def row_dim(nest: Nest, atom: ComputeAtom, mapping: tuple[tuple[str, int], ...], factor: int, tile: Tile) -> int:
    """Returns the dimension along which the rows of a matrix atom's panel go.

    It is one of the atom's dimensions, as the atom takes pieces of rows: the one along which the array is contiguous, if the atom
    can read such rows.
    """
    extents, along = _role_extents(nest, atom, mapping, factor), _contiguous(nest, factor, tile)
    depth = next((d for role, d in mapping if role == "k"), None)
    if atom.operand_rows != "any" and depth is not None:
        return depth
    return along if along is not None and along in extents else max(extents, default=0)


def interleaved(nest: Nest, atom: ComputeAtom, mapping: tuple[tuple[str, int], ...], factor: int, tile: Tile) -> int:
    """Returns the neighbours along the reduction that a matrix atom's panel interleaves; 1 where rows lie along the reduction."""
    depth = next((d for role, d in mapping if role == "k"), None)
    if depth is None or row_dim(nest, atom, mapping, factor, tile) == depth or tile[depth] % atom.operand_interleave:
        return 1
    return atom.operand_interleave


def _role_extents(nest: Nest, atom: ComputeAtom, mapping: tuple[tuple[str, int], ...], factor: int) -> dict[int, int]:
    """Returns the atom's extents along the dimensions that a factor depends on."""
    touches = nest.factor_touches(factor)
    return {d: extent for role, d in mapping if isinstance(extent := atom.extents[role], int) and touches[d]}


def _contiguous(nest: Nest, factor: int, tile: Tile) -> int | None:
    """Returns the dimension of a tile along which an array of a factor is contiguous."""
    mine, touches = [a for a in nest.inputs if a.factor == factor], nest.factor_touches(factor)
    return next((d for a in mine for d, t in enumerate(touches) if t and a.strides[d] == 1 and tile[d] > 1), None)


def _wide_access(nest: Nest, inner: Tile, run: int | None, size: int) -> int:
    """Returns the elements of a row that a lane reads with its widest access."""
    if run is None or nest.dims[run].is_reduce:
        return 1
    return max(pieces(inner[run], max(1, WIDEST_ACCESS // size)), default=1)


def staged_rows(program: StageProgram, spec: HardwareSpec, staging: Staging) -> PanelRows | None:
    """Returns the layout of a program's panel in a banked memory that software fills; None for all other copies."""
    level = spec.levels[staging.level]
    if staging.kind != "panel" or not staging.level or not level.managed or level.banks is None:
        return None
    return panel_rows(program, spec, staging)


def padding_bytes(program: StageProgram, spec: HardwareSpec, staging: Staging) -> int:
    """Returns the bytes that the padding of a panel's runs and rows takes in one copy of it."""
    rows = staged_rows(program, spec, staging) if staging.row_padding or staging.run_padding else None
    if rows is None:
        return 0
    touches, tile = program.nest.factor_touches(staging.operand), laid_tile(program.nest, staging, program.unit_tile)
    bare = math.prod([tile[d] for d in program.nest.spatial if touches[d]]) if staging.run_padding else rows.row
    return rows.padding_bytes(staging.row_padding + rows.row - bare)


def conflicts(program: StageProgram, spec: HardwareSpec, staging: Staging) -> tuple[float, float]:
    """Returns the factors by which bank conflicts lengthen filling and reading a panel: 1 for none."""
    rows = staged_rows(program, spec, staging)
    banks = spec.levels[staging.level].banks
    if rows is None or banks is None:
        return 1.0, 1.0
    found = rows.conflicts(staging.row_padding, banks)
    return (found, 1.0) if rows.filling else (1.0, found)
