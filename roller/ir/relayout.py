"""Input layouts: copies of inputs with aligned rows, or with rows along a reduction, made by separate stages.

A unit's copy engine requires rows that start at multiples of some bytes, and some matrix atoms read operands along the reduction
only. An input with another layout is copied through registers element by element, for every tile that reads it. Or a preceding
stage copies it once into an array with the required layout. The model decides which is faster: `layouts` returns the expressions to
compare.

    rows    (b 4095 x 4095 -> 4095 x 4096)            the innermost dimension stays, padded with zeros
    along   (x n, c, h, w  -> n, h, w, c; c padded)   a dimension of the reduction becomes the innermost one

    apart   (y n, f, h, w  <- n, h, w, f)         results are grouped by factors too, and transposed by a stage after the product

A padded dimension ends with zeros. If a reduction walks one, all factors are padded, and it walks to the padded end: 0 * 0 adds
nothing, whatever else the arrays hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from roller.ir.expr import ELEMENT_BYTES, Axis, Stage, Tensor, TensorExpr, free_name
from roller.ir.nest import factors_of
from roller.ir.scalar import Affine, Cast, Load, Scalar, loads, rewrite
from roller.target.hardware import STORED_AS, HardwareSpec

Ways = tuple[bool, ...]
MOST_PADDED = 2  # max padding factor of a dimension, relative to the one with the least padding


@dataclass(frozen=True)
class Layout:
    """The layout of an array's copy: its dimensions, outermost first, and their extents with padding."""

    order: tuple[int, ...]
    extents: tuple[int, ...]


def layouts(expr: TensorExpr, spec: HardwareSpec, row_bytes: int) -> tuple[TensorExpr, ...]:
    """Returns the expression itself, then the few with copies of inputs that would otherwise be copied element by element.

    `row_bytes`: rows that start at multiples of it are copied whole; 0: alignment does not matter.
    """
    if not row_bytes or spec.spread:
        return (expr,)
    found = [expr]
    for along in (False, True):
        other = _relaid(expr, spec, row_bytes, along)
        if other is not None and other not in found:
            found.append(other)
    apart = [_results_together(other) for other in found[1:]]
    return (*found, *(other for other in apart if other is not None))


def _relaid(expr: TensorExpr, spec: HardwareSpec, row_bytes: int, along: bool) -> TensorExpr | None:
    """Returns the expression with copies of all product operands that need them; None if no operand does."""
    stages: list[Stage] = []
    made: dict[tuple[str, Layout], Stage] = {}
    taken = set(expr.tensors)
    for stage in expr.stages:
        wanted = _Wanted.of(stage, expr, spec, row_bytes)
        chosen = wanted.layouts(along) if wanted is not None else {}
        for load, layout in chosen.items():
            key = load.tensor, layout
            if key not in made:
                made[key] = _copying(expr.tensors[load.tensor], layout, taken)
                stages.append(made[key])
        copies = {load: made[load.tensor, layout].output for load, layout in chosen.items()}
        stages.append(_reading(stage, copies, chosen) if chosen else stage)
    return TensorExpr(expr.inputs, tuple(stages)) if made else None


@dataclass(frozen=True)
class _Wanted:
    """The operands of a sum of products that are inputs.

    `loads`: by the array. `turned`: whether an atom reads operands only along the reduction. `multiple`: the required multiple of a
    row's elements.
    """

    stage: Stage
    loads: Mapping[Load, Tensor]
    turned: bool
    multiple: Mapping[Load, int]

    @staticmethod
    def of(stage: Stage, expr: TensorExpr, spec: HardwareSpec, row_bytes: int) -> _Wanted | None:
        """Returns None for a stage whose operands are no plain inputs, or that no matrix atom computes."""
        factors = factors_of(stage)
        opened = [_opened(factor) for factor in factors]
        if len(factors) != 2 or stage.reducer != "sum" or any(load is None or not load.zero_outside for load in opened):
            return None
        found = [load for load in opened if load is not None]
        inputs = {tensor.name: tensor for tensor in expr.inputs}
        if any(load.tensor not in inputs for load in found):
            return None
        narrow = {stage.factor_dtype, *(load.dtype for load in found)}
        atoms = [a for a in spec.atoms if a.kind == "matrix" and a.in_dtype in narrow]
        if not atoms or any(load.dtype != STORED_AS.get(atoms[0].in_dtype, atoms[0].in_dtype) for load in found):
            return None
        multiple = {load: max(1, row_bytes // ELEMENT_BYTES[load.dtype]) for load in found}
        turned = any(a.operand_rows != "any" for a in atoms)
        return _Wanted(stage, {load: inputs[load.tensor] for load in found}, turned, multiple)

    def layouts(self, along: bool) -> dict[Load, Layout]:
        """Returns the loads to read from copies, each with the copy's layout; if a reduction is padded, all loads that it walks."""
        inner = {load: self._innermost(load, along) for load in self.loads if self._misplaced(load)}
        inner = {load: dim for load, dim in inner.items() if dim is not None}
        if not inner:
            return {}
        padded = self._padded(inner)
        for load in self.loads:
            walks = [d for d, index in enumerate(load.index) if index.alone in padded]
            if load not in inner and walks:
                last = self._last(load)
                inner[load] = walks[-1] if self._spoils(load, last) else last
        return {load: self._layout(load, dim, self._padded(inner)) for load, dim in inner.items() if dim is not None}

    def _misplaced(self, load: Load) -> bool:
        """Returns True if no engine can copy the array's rows as they are, or no atom can read them; False for an empty array."""
        tensor, inner = self.loads[load], self._last(load)
        if not tensor.elements:
            return False
        last, strides = load.index[inner], [s for s, e in zip(tensor.strides, tensor.shape, strict=True) if e > 1 and s > 1]
        unaligned = any(stride % self.multiple[load] for stride in strides)
        return unaligned or last.alone is None or (self.turned and not self._reduces(last))

    def _last(self, load: Load) -> int:
        """Returns the dimension along which elements are contiguous: the last one with an extent above 1."""
        shape = self.loads[load].shape
        return next((d for d in reversed(range(len(shape))) if shape[d] > 1), len(shape) - 1)

    def _reduces(self, index: Affine) -> bool:
        name = index.alone
        return any(axis.name == name and axis.is_reduce for axis in self.stage.axes)

    def _innermost(self, load: Load, along: bool) -> int | None:
        """Returns the array dimension that becomes the innermost one; None if there is none.

        The innermost dimension stays, if that is possible; else it is a dimension of a reduction with little padding.
        """
        tensor, most = self.loads[load], self._last(load)
        single = [d for d, index in enumerate(load.index) if index.alone is not None and not self._spoils(load, d)]
        may = [d for d in single if self._reduces(load.index[d])]
        if not self.turned and most in single and most not in may:
            may.append(most)
        waste = {d: _up(tensor.shape[d], self.multiple[load]) / tensor.shape[d] for d in may}
        fit = [d for d in may if waste[d] <= MOST_PADDED * min(waste.values())]
        if not fit:
            return None
        if most in fit and (not along or fit == [most]):
            return most
        return max((d for d in fit if self._reduces(load.index[d])), key=lambda d: (tensor.shape[d], d), default=most)

    def _spoils(self, load: Load, dim: int) -> bool:
        """Returns True if padding a dimension would extend a reduction to positions where another factor is not zero."""
        name, whole = load.index[dim].alone, self.loads[load].shape[dim] % self.multiple[load] == 0
        if whole or not self._reduces(load.index[dim]):
            return False
        places = [[index.alone for index in other.index if index.coefficient(name or "")] for other in self.loads]
        return any(found != [name] for found in places)

    def _padded(self, inner: Mapping[Load, int | None]) -> dict[str, int]:
        """Returns axes of the reduction that walk a padded dimension, with their padded extents."""
        found: dict[str, int] = {}
        for load, dim in inner.items():
            if dim is not None and self._reduces(load.index[dim]):
                name, extent = load.index[dim].alone or "", self.loads[load].shape[dim]
                whole = _up(extent, self.multiple[load])
                if whole > extent and self.stage.extents[name] == extent:
                    found[name] = max(found.get(name, 0), whole)
        return found

    def _layout(self, load: Load, inner: int, padded: Mapping[str, int]) -> Layout:
        tensor = self.loads[load]
        order = (*(d for d in range(len(tensor.shape)) if d != inner), inner)
        extents = []
        for d in order:
            extent = padded.get(load.index[d].alone or "", tensor.shape[d])
            extents.append(_up(extent, self.multiple[load]) if d == inner else extent)
        return Layout(order, tuple(extents))


def _copying(tensor: Tensor, layout: Layout, taken: set[str]) -> Stage:
    """Returns the stage that makes a copy; it reads zeros beyond the array's ends."""
    name = free_name(f"{tensor.name}_laid", taken)
    axes = tuple(Axis(f"l{d}", extent) for d, extent in zip(layout.order, layout.extents, strict=True))
    index = tuple(Affine.axis(f"l{d}") for d in range(len(tensor.shape)))
    padded = any(e > tensor.shape[d] for d, e in zip(layout.order, layout.extents, strict=True))
    body = Load(tensor.name, index, tensor.dtype, 0 if padded else None)
    store = tuple(Affine.axis(axis.name) for axis in axes)
    return Stage(axes, body, Tensor(name, layout.extents, tensor.dtype, tensor.finite), store)


def _reading(stage: Stage, copies: Mapping[Load, Tensor], chosen: Mapping[Load, Layout]) -> Stage:
    """Returns the stage with operands from the copies, reductions to their padded ends, and the innermost dimension last."""
    ends: dict[str, int] = {}
    last: list[str] = []
    for load, layout in chosen.items():
        for d, extent in zip(layout.order, layout.extents, strict=True):
            name = load.index[d].alone
            if name is not None:
                ends[name] = max(ends.get(name, 0), extent)
        last.append(load.index[layout.order[-1]].alone or "")

    def change(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node not in copies:
            return None
        return replace(node, tensor=copies[node].name, index=tuple(node.index[d] for d in chosen[node].order))

    walked = {name for load in chosen for index in load.index for name, _ in index.terms}
    axes = [replace(a, extent=ends.get(a.name, a.extent)) if a.is_reduce and a.name in walked else a for a in stage.axes]
    axes.sort(key=lambda a: (a.is_reduce, a.is_reduce and a.name in last))
    return replace(stage, axes=tuple(axes), body=rewrite(stage.body, change))


def _results_together(expr: TensorExpr) -> TensorExpr | None:
    """Returns the expression with each factor's result dimensions adjacent, transposed by a later stage; None if unchanged.

    It applies to products whose results are mixed (n, f, h, w: images by filters by pixels; new: n, h, w, f).
    """
    stages: list[Stage] = []
    taken = set(expr.tensors)
    for stage in expr.stages:
        order = _gathered(stage)
        if order is None:
            stages.append(stage)
            continue
        shape, name = stage.output.shape, free_name(f"{stage.name}_laid", taken)
        laid = Tensor(name, tuple(shape[d] for d in order), stage.output.dtype)
        stages.append(replace(stage, output=laid, store=tuple(stage.store[d] for d in order)))
        axes = tuple(Axis(f"l{d}", extent) for d, extent in enumerate(shape))
        body = Load(name, tuple(Affine.axis(f"l{d}") for d in order), laid.dtype)
        stages.append(Stage(axes, body, stage.output, tuple(Affine.axis(axis.name) for axis in axes)))
    return TensorExpr(expr.inputs, tuple(stages)) if len(stages) > len(expr.stages) else None


def _gathered(stage: Stage) -> tuple[int, ...] | None:
    """Returns the order of a product's result dimensions: those of both factors, of the factor with more of them, of the other one.

    None if each factor's dimensions are already adjacent, or if the results are not of a product.
    """
    factors = factors_of(stage)
    names = [{name for load in loads(factor) for index in load.index for name, _ in index.terms} for factor in factors]
    axes = [index.alone for index in stage.store]
    if len(factors) != 2 or None in axes or not all(stage.output.shape):
        return None
    owners = [tuple(axis in walked for walked in names) for axis in axes]
    long = [owner for owner, extent in zip(owners, stage.output.shape, strict=True) if extent > 1]
    if len([owner for owner, _ in groupby(long)]) == len(set(long)):
        return None
    order = sorted(range(len(axes)), key=lambda d: (owners[d] != (True, True), -owners.count(owners[d]), d))
    return tuple(order)


def _opened(factor: Scalar) -> Load | None:
    """Returns the load that a factor consists of, possibly widened; None for other factors."""
    inner = factor.value if isinstance(factor, Cast) else factor
    return inner if isinstance(inner, Load) else None


def _up(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple
