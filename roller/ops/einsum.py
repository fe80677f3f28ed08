"""Einstein summation: products of tensors, summed over letters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from roller.errors import ExpressionError
from roller.ir.expr import Axis
from roller.ir.scalar import Affine, Binary, Scalar
from roller.ops.tensor import SymbolicTensor, common_dtype, produced, source, symbolic
from roller.ops.types import accumulation_dtype, converted, output_dtype


def einsum(
    subscripts: str, *operands: SymbolicTensor, out_dtype: str | None = None, acc_dtype: str | None = None
) -> SymbolicTensor:
    """Computes NumPy's `einsum` without the ellipsis: "mk,kn->mn", "bij,bjk->bik", "ii->i" (diagonal), "ij,j" (output implied).

    One stage whose axes are the letters: output letters in output order, then the summed ones in order of first use. Accumulator
    and result types are those of `matmul`; if nothing is multiplied or summed, the type stays. `ExpressionError` if the subscripts
    are malformed, or do not match the operands' dimensions, extents or element types.
    """
    operands = symbolic("einsum", *operands)
    inputs, output = _parse(subscripts, operands)
    extents = _extents(subscripts, inputs, operands)
    for letter in output:
        if letter not in extents or output.count(letter) > 1:
            raise ExpressionError(
                f"einsum {subscripts!r}: output letter {letter!r} must occur in an operand, and once in the output"
            )
    dtype = common_dtype("einsum", operands)
    summed = [letter for letter in extents if letter not in output]
    moves_only = len(operands) == 1 and not summed
    acc_dtype = dtype if moves_only else accumulation_dtype(dtype, acc_dtype)
    given = out_dtype or dtype if moves_only else output_dtype(dtype, out_dtype)
    loads: list[Scalar] = [
        converted(source(value, position, [Affine.axis(letter) for letter in letters]), acc_dtype)
        for position, (letters, value) in enumerate(zip(inputs, operands, strict=True))
    ]
    body = reduce(lambda left, right: Binary("mul", left, right), loads)
    axes = [*(Axis(a, extents[a]) for a in output), *(Axis(a, extents[a], "reduce") for a in summed)]
    if not summed:
        body = converted(body, given)
    return produced("einsum", axes, body, [extents[a] for a in output], operands, dtype=given, reducer="sum" if summed else None)


def _parse(subscripts: str, operands: Sequence[SymbolicTensor]) -> tuple[list[str], str]:
    text = subscripts.replace(" ", "")
    if "." in text:
        raise ExpressionError(f"einsum {subscripts!r}: the ellipsis is not supported; write a letter for each dimension")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if not all(part.isascii() and (part.isalpha() or not part) for part in (*inputs, output)):
        raise ExpressionError(f"einsum {subscripts!r}: use letters, commas and one '->', as in 'mk,kn->mn'")
    if not operands or len(inputs) != len(operands):
        raise ExpressionError(f"einsum {subscripts!r}: {len(inputs)} operands are named, {len(operands)} given")
    if not arrow:  # NumPy's rule: the letters that occur once, in alphabetical order
        joined = "".join(inputs)
        output = "".join(sorted(letter for letter in dict.fromkeys(joined) if joined.count(letter) == 1))
    return inputs, output


def _extents(subscripts: str, inputs: Sequence[str], operands: Sequence[SymbolicTensor]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for letters, value in zip(inputs, operands, strict=True):
        if len(letters) != value.ndim:
            raise ExpressionError(
                f"einsum {subscripts!r}: {letters!r} names {len(letters)} dimensions, the operand is {value.shape}"
            )
        for letter, extent in zip(letters, value.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise ExpressionError(
                    f"einsum {subscripts!r}: {letter!r} is {extents[letter]} in one place and {extent} in another"
                )
    return extents
