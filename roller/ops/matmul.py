"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExpressionError
from roller.ir.expr import Axis
from roller.ir.scalar import Affine, Binary
from roller.ops.tensor import SymbolicTensor, common_dtype, produced, source, symbolic
from roller.ops.types import accumulation_dtype, converted, output_dtype


def matmul(
    a: SymbolicTensor,
    b: SymbolicTensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: str | None = None,
    acc_dtype: str | None = None,
) -> SymbolicTensor:
    """Computes (M, K) x (K, N) → (M, N); a transposed operand has the shape (K, M) or (N, K).

    The default accumulator is float32 (float64 for float64, int32 for integers); the default result has the operands' type (int32
    for int8). `ExpressionError` if the shapes or element types do not match.
    """
    return _product("matmul", a, b, ("m", "k"), ("k", "n"), (transpose_a, transpose_b), (out_dtype, acc_dtype))


def batch_matmul(
    a: SymbolicTensor,
    b: SymbolicTensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: str | None = None,
    acc_dtype: str | None = None,
) -> SymbolicTensor:
    """Computes (B, M, K) x (B, K, N) → (B, M, N); a transposed operand has its last two dimensions swapped. Else as `matmul`."""
    return _product("batch_matmul", a, b, ("b", "m", "k"), ("b", "k", "n"), (transpose_a, transpose_b), (out_dtype, acc_dtype))


def _product(
    what: str,
    a: SymbolicTensor,
    b: SymbolicTensor,
    a_axes: Sequence[str],
    b_axes: Sequence[str],
    transposed: tuple[bool, bool],
    dtypes: tuple[str | None, str | None],
) -> SymbolicTensor:
    a, b = symbolic(what, a, b)
    dtype = common_dtype(what, (a, b))
    operands = []
    extents: dict[str, int] = {}
    for operand, value, letters, swap in zip("ab", (a, b), (a_axes, b_axes), transposed, strict=True):
        names = (*letters[:-2], letters[-1], letters[-2]) if swap else tuple(letters)
        if value.ndim != len(names):
            hint = "ops.batch_matmul or ops.einsum" if what == "matmul" else "ops.matmul or ops.einsum"
            raise ExpressionError(
                f"{what}: {operand} has shape {value.shape}, expected {len(names)} dimensions; see {hint} for others"
            )
        for name, extent in zip(names, value.shape, strict=True):
            if extents.setdefault(name, extent) != extent:
                raise ExpressionError(
                    f"{what}: shapes {a.shape} and {b.shape} disagree on {name}: {extents[name]} and {extent}; "
                    f"transpose_a={transposed[0]}, transpose_b={transposed[1]}"
                )
        operands.append(tuple(Affine.axis(n) for n in names))
    out_dtype, acc_dtype = output_dtype(dtype, dtypes[0]), accumulation_dtype(dtype, dtypes[1])
    left, right = (converted(source(v, i, operands[i]), acc_dtype) for i, v in enumerate((a, b)))
    spatial = tuple(n for n in ("b", "m", "n") if n in extents)
    axes = (*(Axis(n, extents[n]) for n in spatial), Axis("k", extents["k"], "reduce"))
    return produced(what, axes, Binary("mul", left, right), [extents[n] for n in spatial], (a, b), dtype=out_dtype, reducer="sum")
