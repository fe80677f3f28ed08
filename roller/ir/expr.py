"""Tensor expressions: the computation of an operator, as pure values.

A `TensorExpr` is a list of `Stage`s in order of evaluation. A stage is a loop nest over named axes: for every point of its
spatial axes it combines a scalar `body` over its reduce axes, applies a scalar `epilogue` to the finished accumulator,
and stores the result. All tensor indices are affine in the axes.

    out[store(spatial)] = epilogue( reducer over reduce axes of body )          (with a reducer)
    out[store(spatial)] = body                                                  (without one)

Scalar expressions are a small closed tree (`Const`, `Load`, `Coordinate`, `Accumulator`, `Unary`, `Binary`, `Select`, `Cast`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from roller.errors import ExpressionError
from roller.ir.scalar import Accumulator, Affine, Binary, Cast, Load, Scalar, Select, children, loads, operations
from roller.target.hardware import STORED_AS

AxisKind = Literal["spatial", "reduce"]
Reducer = Literal["sum", "max", "min"]

ELEMENT_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop of a stage: a name, its number of iterations, and whether it is reduced."""

    name: str
    extent: int
    kind: AxisKind = "spatial"

    @property
    def is_reduce(self) -> bool:
        """True for an axis that the reducer combines."""
        return self.kind == "reduce"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense row-major array: name, shape, element type.

    `finite`: no element is an infinity or a NaN, as is known of constants. Integers are finite without it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    finite: bool = False

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * ELEMENT_BYTES[self.dtype]

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides in elements."""
        strides: list[int] = []
        step = 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= max(extent, 1)
        return tuple(reversed(strides))


@dataclass(frozen=True)
class Stage:
    """One loop nest that produces one tensor.

    `store` is the index written for a point of the spatial axes; over the whole nest it touches every element of `output` exactly
    once. `epilogue` (only with a reducer; default: the accumulator cast to the output's type) reads the accumulator. `factor_dtype`
    (only for a sum of products) permits a kernel to round the two factors to a narrower format, to nearest, before it multiplies
    them; products and sums stay in the body's type.
    """

    axes: tuple[Axis, ...]
    body: Scalar
    output: Tensor
    store: tuple[Affine, ...]
    reducer: Reducer | None = None
    epilogue: Scalar | None = None
    factor_dtype: str | None = None

    def __post_init__(self) -> None:
        _check_stage(self)

    @property
    def name(self) -> str:
        """The name of the tensor that the stage produces."""
        return self.output.name

    @cached_property
    def extents(self) -> dict[str, int]:
        """Axis name → number of iterations."""
        return {a.name: a.extent for a in self.axes}

    @cached_property
    def spatial(self) -> tuple[Axis, ...]:
        """The axes that index the output."""
        return tuple(a for a in self.axes if not a.is_reduce)

    @cached_property
    def reduced(self) -> tuple[Axis, ...]:
        """The axes that the reducer combines."""
        return tuple(a for a in self.axes if a.is_reduce)

    @property
    def sums_products(self) -> bool:
        """True if the stage adds up products."""
        return self.reducer == "sum" and isinstance(self.body, Binary) and self.body.op == "mul"

    @cached_property
    def result(self) -> Scalar:
        """The scalar that is stored: the epilogue if there is a reducer, else the body; of the output's type."""
        value: Scalar = self.body
        if self.reducer is not None:
            value = self.epilogue if self.epilogue is not None else Accumulator(self.body.dtype)
        return value if value.dtype == self.output.dtype else Cast(value, self.output.dtype)

    @cached_property
    def reads(self) -> tuple[Load, ...]:
        """The distinct loads of the body, then those of the epilogue."""
        tail = loads(self.epilogue) if self.epilogue is not None else ()
        return tuple(dict.fromkeys(loads(self.body) + tail))


@dataclass(frozen=True)
class TensorExpr:
    """Inputs and stages in order of evaluation; the last stage's output is the result."""

    inputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise ExpressionError("an expression needs at least one stage; an input alone computes nothing")
        known: dict[str, Tensor] = {}
        for tensor in self.inputs:
            _declare(known, tensor)
        for stage in self.stages:
            _check_reads(stage, known)
            _declare(known, stage.output)

    @property
    def output(self) -> Tensor:
        """The tensor that the expression computes."""
        return self.stages[-1].output

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Name → tensor, for inputs, intermediates and the output."""
        return {t.name: t for t in (*self.inputs, *(s.output for s in self.stages))}

    def each_alone(self) -> list[TensorExpr]:
        """Returns one expression per stage, with the tensors that it reads as inputs."""
        found = []
        for stage in self.stages:
            read = {load.tensor for load in stage.reads}
            inputs = [tensor for name, tensor in self.tensors.items() if name in read]
            found.append(TensorExpr(tuple(inputs), (stage,)))
        return found

    @cached_property
    def flops(self) -> int:
        """Arithmetic operations of the expression as written (a multiply-add counts two)."""
        return sum(stage_flops(s) for s in self.stages)

    @cached_property
    def compulsory_bytes(self) -> int:
        """Bytes of the inputs that are read, plus those of the output: the minimum traffic of any kernel."""
        used = {load.tensor for s in self.stages for load in s.reads}
        return self.output.nbytes + sum(t.nbytes for t in self.inputs if t.name in used)


def stage_flops(stage: Stage) -> int:
    """Returns the arithmetic of one stage: operations of the body (plus one per combination) and the epilogue, at every point."""
    spatial = math.prod(a.extent for a in stage.spatial)
    points = spatial * math.prod(a.extent for a in stage.reduced)
    return points * body_operations(stage) + spatial * epilogue_operations(stage)


def body_operations(stage: Stage) -> int:
    """Returns the arithmetic operations for one point of the whole nest, the combination included."""
    return operations(stage.body) + (1 if stage.reducer else 0)


def epilogue_operations(stage: Stage) -> int:
    """Returns the arithmetic operations for one output element after the reduction."""
    return operations(stage.epilogue) if stage.epilogue is not None else 0


def _declare(known: dict[str, Tensor], tensor: Tensor) -> None:
    if tensor.name in known:
        raise ExpressionError(f"two tensors are called {tensor.name!r}; give each its own name")
    if tensor.dtype not in ELEMENT_BYTES:
        raise ExpressionError(f"tensor {tensor.name!r}: unknown element type {tensor.dtype!r}; known: {', '.join(ELEMENT_BYTES)}")
    if any(extent < 0 for extent in tensor.shape):
        raise ExpressionError(f"tensor {tensor.name!r}: a negative extent in {tensor.shape}")
    known[tensor.name] = tensor


def _check_stage(stage: Stage) -> None:
    names = [a.name for a in stage.axes]
    if len(set(names)) != len(names):
        raise ExpressionError(f"stage {stage.name!r}: axis names must differ, got {names}")
    if any(a.extent < 0 for a in stage.axes):
        raise ExpressionError(f"stage {stage.name!r}: a negative extent among {stage.extents}")
    if bool(stage.reduced) and stage.reducer is None:
        raise ExpressionError(f"stage {stage.name!r}: reduce axes {[a.name for a in stage.reduced]} need a reducer")
    if stage.epilogue is not None and stage.reducer is None:
        raise ExpressionError(f"stage {stage.name!r}: an epilogue needs a reducer")
    if stage.reducer in ("max", "min") and any(a.extent == 0 for a in stage.reduced):
        raise ExpressionError(
            f"stage {stage.name!r}: {stage.reducer} over an empty axis has no value; it needs at least one element"
        )
    if stage.factor_dtype is not None and not (stage.sums_products and STORED_AS.get(stage.factor_dtype) == stage.body.dtype):
        raise ExpressionError(f"stage {stage.name!r}: has no sum of products whose factors {stage.factor_dtype} could stand for")
    spatial = {a.name for a in stage.spatial}
    for index in stage.store:
        if any(n not in spatial for n, _ in index.terms):
            raise ExpressionError(f"stage {stage.name!r}: the store index {index} must use spatial axes only")
    if len(stage.store) != len(stage.output.shape):
        raise ExpressionError(f"stage {stage.name!r}: {len(stage.store)} store indices for shape {stage.output.shape}")


def _check_reads(stage: Stage, known: Mapping[str, Tensor]) -> None:
    empty = any(a.extent == 0 for a in stage.axes)
    for load in stage.reads:
        tensor = known.get(load.tensor)
        if tensor is None:
            raise ExpressionError(f"stage {stage.name!r} reads {load.tensor!r}, which is neither an input nor an earlier stage")
        if len(load.index) != len(tensor.shape):
            raise ExpressionError(
                f"stage {stage.name!r}: {load.tensor!r} has {len(tensor.shape)} dimensions, indexed by {len(load.index)}"
            )
        unknown = {n for i in load.index for n, _ in i.terms} - set(stage.extents)
        if unknown:
            raise ExpressionError(f"stage {stage.name!r}: index of {load.tensor!r} uses unknown axes {sorted(unknown)}")
        if load.fill is None and not empty and not guarded(stage, load):
            _check_bounds(stage, load, tensor)


def guarded(stage: Stage, load: Load) -> bool:
    """Returns True if the load occurs only under a `Select`, which may keep its index in range."""

    def unguarded(node: Scalar) -> bool:
        if node == load:
            return True
        inside = (node.condition,) if isinstance(node, Select) else children(node)
        return any(unguarded(child) for child in inside)

    return not any(unguarded(root) for root in (stage.body, stage.epilogue) if root is not None)


def _check_bounds(stage: Stage, load: Load, tensor: Tensor) -> None:
    for dim, (index, extent) in enumerate(zip(load.index, tensor.shape, strict=True)):
        low, high = index.bounds(stage.extents)
        if low < 0 or high >= extent:
            raise ExpressionError(
                f"stage {stage.name!r}: index of {load.tensor!r} in dimension {dim} runs from {low} to {high}, "
                f"outside 0..{extent - 1}"
            )


def free_name(name: str, taken: set[str]) -> str:
    """Returns a name that no tensor has, and reserves it."""
    found = next(n for n in (f"{name}{k or ''}" for k in range(len(taken) + 1)) if n not in taken)
    taken.add(found)
    return found
