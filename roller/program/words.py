"""Words: what dot products and registers of matrix instructions take for one element of an accumulator.

A word is `depth` operands which follow one another along a reduction. An innermost tile has one word along that reduction, or as
many as a register of its atom. Panels store words. Where no array has all of the last ones, their rest is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from roller.ir.elementwise import Extent
from roller.ir.nest import Nest
from roller.ir.scalar import Affine, Load
from roller.program.rprogram import StageProgram, operand_value
from roller.target.hardware import ComputeAtom

Mapping = tuple[tuple[str, int], ...]


def word_dim(atom: ComputeAtom, mapping: Mapping) -> int | None:
    """Returns the reduction along which the atom's words lie; None for atoms without words."""
    return dict(mapping)["k"] if atom.depth > 1 else None


def in_words(program: StageProgram, tile: Sequence[Extent]) -> tuple[Extent, ...]:
    """Returns the extents of a tile, or of an array of them, in words; they stay as they are for atoms without words."""
    deep, depth = word_dim(program.atom, program.mapping), program.atom.depth
    return tuple([-(-extent // depth) if dim == deep else extent for dim, extent in enumerate(tile)])


def steps_along(program: StageProgram, dim: int) -> bool:
    """True if steps of the innermost tile go along a reduction one after another: element by element, or in words."""
    return program.inner[dim] == 1 or dim == word_dim(program.atom, program.mapping)


def word_dtype(program: StageProgram) -> str:
    """Returns the integer type of one word: it has as many bytes as an accumulator."""
    return f"int{8 * program.nest.accumulator_bytes}"


def vector_factor(nest: Nest, mapping: Mapping) -> int:
    """Returns the factor whose words lie along the vector; the words of the other one fill a vector each, or rows of a register."""
    return next(f for f in range(len(nest.factors)) if nest.factor_touches(f)[dict(mapping)["n"]])


def read_in_words(nest: Nest, atom: ComputeAtom, mapping: Mapping, factor: int) -> bool:
    """True if an atom can read a factor's words in place: as they are, one after another, all of them whole.

    They lie so in the array, or in its box where it has one (`boxed_words`).
    """
    deep, mine = word_dim(atom, mapping), [a for a in nest.inputs if a.factor == factor]
    if deep is None or len(mine) != 1 or nest.factor_touches(factor)[dict(mapping)["n"]]:
        return False
    if mine[0].guarded:
        return _boxed(nest, atom, mapping, factor) is not None
    rows = dict(mapping).get("m")
    if rows is not None and (mine[0].strides[rows] is None or not mine[0].linear):
        return False
    return mine[0].strides[deep] == 1 and _whole_loads(nest, atom, mapping, factor)


def boxed_words(program: StageProgram, number: int) -> int | None:
    """Returns the dimension of array `number` along which its box has words that an atom reads there; None if it has none."""
    factor = program.nest.accesses[number].factor
    if factor < 0 or any(s.kind == "panel" and s.operand == factor for s in program.staged):
        return None
    return _boxed(program.nest, program.atom, program.mapping, factor)


def interleaves(program: StageProgram, number: int) -> bool:
    """True if the box of array `number` has words of operands that do not follow one another in the array: it interleaves rows."""
    words = boxed_words(program, number)
    return words is not None and words != len(program.nest.accesses[number].index) - 1


def _boxed(nest: Nest, atom: ComputeAtom, mapping: Mapping, factor: int) -> int | None:
    deep, mine = word_dim(atom, mapping), [a for a in nest.inputs if a.factor == factor]
    if deep is None or atom.registers is not None or len(mine) != 1 or nest.factor_touches(factor)[dict(mapping)["n"]]:
        return None
    members = nest.dims[deep].members
    along = [place for place, index in enumerate(mine[0].index) if index.coefficient(members[0].name)]
    single = len(members) == 1 and len(along) == 1 and mine[0].index[along[0]] == Affine.axis(members[0].name)
    return along[0] if single and _whole_loads(nest, atom, mapping, factor) else None


def _whole_loads(nest: Nest, atom: ComputeAtom, mapping: Mapping, factor: int) -> bool:
    """True if a factor's operands are loads, and words end where the reduction does."""
    deep, step = word_dim(atom, mapping), atom.extents["k"]
    assert deep is not None and isinstance(step, int)
    return isinstance(operand_value(nest, factor, atom), Load) and nest.extents[deep] % step == 0
