"""Operator fusion: elementwise stages move into a neighbour's loop nest, so that one kernel computes both.

`fuse` applies three equivalences until none applies any more; the result computes the same values in fewer stages.

* **Epilogue.** A stage without reducer joins the reduction that it reads, if it is that reduction's only reader and reads each of
  its elements exactly once (its load is the output index up to the names and order of axes). The reduction takes over the reader's
  output and writes it to the reader's positions. If there are several such reductions, the latest is used.
* **Prologue.** A stage without reducer is computed where it is read instead of being stored. Every reader's index must be
  invertible to the stage's axes, and the repeated work must cost less than a pass over memory (`_worth_repeating`). That holds if
  the stage moves data only; if it costs at most `CHEAP` operations and no elementary function; or if its only reader evaluates each
  element at most `REPEATS` times. So gelu before a matrix product stays a separate stage; relu, a scale or a pad does not. If
  arrays are spread over the units (`HardwareSpec.spread`), there is no pass over memory to save: the unit that stores an element
  computes it once before other units read it. Then a product absorbs only stages that move data, and other reductions those that
  they repeat at most `REPEATS` times.
* **Guards.** A select between an element and a constant, whose condition holds wherever the element exists, becomes a guarded
  load.

Epilogues come first: relu between two convolutions joins the first of them. Bodies stay below `NODES` nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from roller.ir.expr import ELEMENT_BYTES, FLOATS, Stage, TensorExpr
from roller.ir.guards import Shapes, canonical, guard
from roller.ir.nest import factors_of
from roller.ir.scalar import (
    DEPTH_MAX,
    Affine,
    Binary,
    Cast,
    Coordinate,
    Load,
    Scalar,
    Unary,
    operations,
    reindex,
    rewrite,
    rounded,
    walk,
)

CHEAP = 4
REPEATS = 4
NODES = DEPTH_MAX  # so that no tree exceeds the depth limit of artifacts
FUNCTIONS = frozenset({"exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos"})
COSTLY = frozenset({"div", "pow"})


def fuse(expr: TensorExpr, spread: bool = False) -> TensorExpr:
    """Returns an equivalent expression with the same inputs and output, and no more stages.

    `spread`: arrays are spread over the units of the machine.
    """
    shapes = {name: tensor.shape for name, tensor in expr.tensors.items()}
    stages = tuple(_simplified(s, shapes) for s in expr.stages)
    while True:
        fewer = _with_epilogue(stages) or _with_prologue(stages, expr.output.name, spread)
        if fewer is None:
            return TensorExpr(expr.inputs, stages)
        stages = tuple(_simplified(s, shapes) for s in fewer)


def _simplified(stage: Stage, shapes: Shapes) -> Stage:
    """Returns the stage with canonical guards and rounded narrowed products; the same object if nothing changes."""
    body = _products_rounded(canonical(stage.body, shapes, stage.extents))
    # An epilogue runs over the spatial axes only: an empty reduction still has one.
    spatial = {a.name: a.extent for a in stage.spatial}
    epilogue = None if stage.epilogue is None else _products_rounded(canonical(stage.epilogue, shapes, spatial))
    return stage if (body, epilogue) == (stage.body, stage.epilogue) else replace(stage, body=body, epilogue=epilogue)


def _products_rounded(node: Scalar) -> Scalar:
    """Returns the tree with products rounded that are cast to a narrower float inside it, such as an fp16 product in a sum.

    Compilers may multiply in the narrower type, which gives the same value, and then fuse the product with the sum, which does not.
    """
    return Cast(rewrite(node.value, _narrowed), node.dtype) if isinstance(node, Cast) else rewrite(node, _narrowed)


def _narrowed(node: Scalar) -> Scalar | None:
    if (
        isinstance(node, Cast)
        and {node.dtype, node.value.dtype} <= FLOATS
        and ELEMENT_BYTES[node.dtype] < ELEMENT_BYTES[node.value.dtype]
    ):
        return Cast(rewrite(rounded(node.value), _narrowed), node.dtype)
    return None


def _readers(stages: Sequence[Stage], tensor: str) -> list[Stage]:
    return [s for s in stages if any(load.tensor == tensor for load in s.reads)]


# Epilogues


def _with_epilogue(stages: tuple[Stage, ...]) -> tuple[Stage, ...] | None:
    """Returns the stages after the first possible epilogue fusion, or None."""
    for place, reader in enumerate(stages):
        if reader.reducer is not None:
            continue
        read = dict.fromkeys(load.tensor for load in reader.reads)
        for reduction in reversed([s for s in stages[:place] if s.reducer is not None and s.name in read]):
            joined = _joined(reduction, reader) if _readers(stages, reduction.name) == [reader] else None
            if joined is not None:
                return tuple(joined if s is reader else s for s in stages if s is not reduction)
    return None


def _joined(reduction: Stage, reader: Stage) -> Stage | None:
    """Returns the reduction with the reader as (the rest of) its epilogue, if the reader reads each element once."""
    found = [load for load in reader.reads if load.tensor == reduction.name]
    mapping = _axes_of(reduction, reader, found[0]) if len(found) == 1 else None
    if mapping is None:
        return None

    def change(node: Scalar) -> Scalar | None:
        if node == found[0]:
            return reduction.result
        return reindex(node, mapping) if isinstance(node, (Load, Coordinate)) else None

    if _size(reader.result, {reduction.name: _size(reduction.result, {})}) > NODES:
        return None
    store = tuple(index.substitute(mapping) for index in reader.store)
    return replace(reduction, output=reader.output, store=store, epilogue=rewrite(reader.result, change))


def _axes_of(reduction: Stage, reader: Stage, load: Load) -> dict[str, Affine] | None:
    """Returns reader axis → index that the reduction stores there; None unless the load reads each output element exactly once."""
    if load.fill is not None:
        return None
    mapping: dict[str, Affine] = {}
    for index, stored, extent in zip(load.index, reduction.store, reduction.output.shape, strict=True):
        if index == Affine() and extent == 1:
            continue
        name = index.alone
        if name is None or name in mapping or reader.extents[name] != extent:
            return None
        mapping[name] = stored
    for axis in reader.axes:
        if axis.name not in mapping:
            if axis.extent != 1:
                return None
            mapping[axis.name] = Affine()
    return mapping


# Prologues


def _with_prologue(stages: tuple[Stage, ...], output: str, spread: bool) -> tuple[Stage, ...] | None:
    """Returns the stages after the first possible inlining, or None; stages without readers are removed too."""
    for producer in stages:
        if producer.name == output:
            continue
        readers = _readers(stages, producer.name)
        if not readers:
            return tuple(s for s in stages if s is not producer)
        if producer.reducer is not None or not _worth_repeating(producer, readers, spread):
            continue
        inlined = [_inlined(producer, reader) for reader in readers]
        if all(stage is not None for stage in inlined):
            changed = {id(old): new for old, new in zip(readers, inlined, strict=True) if new is not None}
            return tuple(changed.get(id(s), s) for s in stages if s is not producer)
    return None


def _worth_repeating(producer: Stage, readers: Sequence[Stage], spread: bool) -> bool:
    """Returns True if recomputing the producer at each read costs less than storing it and loading it back."""
    times = [_evaluations(producer, reader) for reader in readers]
    if spread and any(not isinstance(node, Load) for node in walk(producer.result)):
        limits = [1 if len(factors_of(reader)) > 1 else REPEATS for reader in readers]
        many = [n > limit * producer.output.elements for n, limit in zip(times, limits, strict=True)]
        if any(found and reader.reducer is not None for found, reader in zip(many, readers, strict=True)):
            return False
    if cheap(producer.result):
        return True
    return len(readers) == 1 and times[0] <= REPEATS * producer.output.elements


def _evaluations(producer: Stage, reader: Stage) -> int:
    """Returns the number of producer evaluations in a reader, repeated ones included."""
    indices = [load.index for load in reader.reads if load.tensor == producer.name]
    # In an epilogue the nest runs over its spatial axes only.
    in_body = any(isinstance(n, Load) and n.tensor == producer.name for n in walk(reader.body))
    return math.prod(a.extent for a in reader.axes if in_body or not a.is_reduce) * len(indices)


def cheap(node: Scalar) -> bool:
    """Returns True if a scalar is so cheap that recomputing it beats a pass over memory."""
    costly = any((isinstance(n, Unary) and n.op in FUNCTIONS) or (isinstance(n, Binary) and n.op in COSTLY) for n in walk(node))
    return not costly and operations(node) <= CHEAP


def _inlined(producer: Stage, reader: Stage) -> Stage | None:
    """Returns the reader with every load of the producer replaced by the producer's value there."""
    inner = _size(producer.result, {})
    roots = [root for root in (reader.body, reader.epilogue) if root is not None]
    if any(_size(root, {producer.name: inner}) > NODES for root in roots):
        return None
    replaced: dict[Load, Scalar] = {}
    for load in reader.reads:
        if load.tensor == producer.name:
            mapping = _solved(producer, load.index)
            if mapping is None:
                return None
            value = reindex(producer.result, mapping)
            replaced[load] = guard(load, value, producer.output.shape, reader.extents)

    def change(node: Scalar) -> Scalar | None:
        return replaced.get(node) if isinstance(node, Load) else None

    epilogue = None if reader.epilogue is None else rewrite(reader.epilogue, change)
    return replace(reader, body=rewrite(reader.body, change), epilogue=epilogue)


def _solved(producer: Stage, index: Sequence[Affine]) -> dict[str, Affine] | None:
    """Returns producer axis → its value at the point that is stored at `index`; None if that is not affine."""
    mapping: dict[str, Affine] = {}
    for stored, wanted in zip(producer.store, index, strict=True):
        if len(stored.terms) > 1:
            return None  # several axes share a dimension: a division would be needed
        for name, coefficient in stored.terms:
            if name in mapping or abs(coefficient) != 1:
                return None
            mapping[name] = wanted.plus(-stored.offset).times(coefficient)
    for axis in producer.axes:
        if axis.name not in mapping:
            if axis.extent != 1:
                return None
            mapping[axis.name] = Affine()
    return mapping


def _size(node: Scalar, inside: Mapping[str, int]) -> int:
    """Returns a tree's number of nodes, repeated subtrees included; a load of a tensor in `inside` counts as that many."""
    return sum(inside.get(n.tensor, 1) if isinstance(n, Load) else 1 for n in walk(node))
