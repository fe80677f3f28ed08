"""Products of signed integers for instructions that multiply unsigned by signed operands (oneDNN: compensation).

    sum of a b  =  sum of a (b + 128)  -  128 sum of a                 for 8 bits

b + 128 is unsigned; all sums wrap alike, so the equation is exact. A stage before the product sums the other factor, once for each
element on its side of the results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from roller.ir.expr import Axis, Stage, Tensor, TensorExpr, free_name
from roller.ir.nest import factors_of
from roller.ir.scalar import Accumulator, Affine, Binary, Cast, Const, Coordinate, Load, Scalar, rewrite, walk
from roller.target.hardware import ComputeAtom


def compensated(expr: TensorExpr, available: Iterable[ComputeAtom]) -> tuple[TensorExpr, ...]:
    """Returns the expressions with one factor of each product unsigned, the first or the second, that an available atom then takes.

    They are none if no product needs that.
    """
    atoms = [atom for atom in available if atom.n_dtype is not None]
    found = []
    for signed in (0, 1):
        stages: list[Stage] = []
        taken = set(expr.tensors)
        for stage in expr.stages:
            stages += next((split for atom in atoms if (split := _split(stage, atom, signed, taken))), (stage,))
        found += [TensorExpr(expr.inputs, tuple(stages))] if len(stages) > len(expr.stages) else []
    return tuple(found)


def unbiased(node: Scalar) -> Scalar | None:
    """Returns the signed value of which a factor is the unsigned one; None for other factors."""
    match node:
        case Binary("add", Cast(value, to), Const(bias, _)) if to.startswith("u") and bias == _bias(value.dtype, to):
            return value
        case _:
            return None


def _bias(signed: str, unsigned: str) -> int | None:
    """Returns what a signed integer type lacks to the unsigned one of its width; None for types that are not such a pair."""
    return 1 << (int(signed[3:]) - 1) if f"u{signed}" == unsigned and signed.startswith("int") else None


def _split(stage: Stage, atom: ComputeAtom, signed: int, taken: set[str]) -> tuple[Stage, ...]:
    """Returns the sums of a factor, and the product that takes them from its results; nothing if the atom does not need them."""
    factors = factors_of(stage)
    if len(factors) != 2 or stage.reducer != "sum" or stage.body.dtype != atom.acc_dtype or atom.n_dtype is None:
        return ()
    values = [factor.value if isinstance(factor, Cast) else factor for factor in factors]
    bias = _bias(atom.in_dtype, atom.n_dtype)
    if bias is None or any(value.dtype != atom.in_dtype for value in values):
        return ()
    walked = [axis for axis in stage.axes if axis.name in _axes(factors[signed])]
    if not set(stage.reduced) <= set(walked) or all(axis.is_reduce for axis in walked):
        return ()
    sums = _sums(stage, factors[signed], walked, bias, taken)
    larger = Binary("add", Cast(values[1 - signed], atom.n_dtype), Const(bias, atom.n_dtype))
    sides = tuple(factors[n] if n == signed else Cast(larger, atom.acc_dtype) for n in (0, 1))
    load = Load(sums.name, sums.store, atom.acc_dtype)
    result = stage.epilogue if stage.epilogue is not None else Accumulator(atom.acc_dtype)

    def less(node: Scalar) -> Scalar | None:
        return Binary("sub", node, load) if isinstance(node, Accumulator) else None

    return sums, replace(stage, body=Binary("mul", *sides), epilogue=rewrite(result, less))


def _axes(factor: Scalar) -> set[str]:
    nodes = [node for node in walk(factor) if isinstance(node, Load | Coordinate)]
    indices = [index for node in nodes for index in (node.index if isinstance(node, Load) else (node.index,))]
    return {name for index in indices for name, _ in index.terms}


def _sums(stage: Stage, factor: Scalar, axes: list[Axis], bias: int, taken: set[str]) -> Stage:
    """Returns the stage that sums a factor along all reductions, times the bias."""
    kept = tuple(axis for axis in axes if not axis.is_reduce)
    output = Tensor(free_name(f"{stage.name}_sums", taken), tuple(axis.extent for axis in kept), factor.dtype)
    scaled = Binary("mul", Accumulator(factor.dtype), Const(bias, factor.dtype))
    return Stage(tuple(axes), factor, output, tuple(Affine.axis(axis.name) for axis in kept), "sum", scaled)
