"""Test helpers: invented chips, expressions and programs, as functions and as Hypothesis strategies.

`toy_spec` builds a chip from levels and atoms; `with_level`, `with_levels`, `with_unit` and `scaled_units` change one. `specs`,
`expressions` and `programs` are strategies for invented machines, expressions of every family, and legal programs that the engine
did not choose. `DeviceContract` is the test suite for every device plugin. Requires the packages `hypothesis` and `pytest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from roller import ops
from roller.contract import DeviceContract
from roller.cost.parameters import CostParameters
from roller.ir.expr import TensorExpr
from roller.ir.fusion import fuse
from roller.ir.nest import Nest, Tile, variants
from roller.ops import SymbolicTensor
from roller.program.alignment import Multiple, Rules, aligned_extents, atom_tile
from roller.program.rprogram import RProgram, StageProgram, Staging, lane_level, tiled_levels
from roller.search.construct import construct
from roller.search.stages import Candidate
from roller.search.tile_space import mappings
from roller.target.hardware import ComputeAtom, HardwareSpec, MemoryLevel, SchedulableUnit

__all__ = [
    "DTYPE",
    "FAMILIES",
    "LARGE",
    "SMALL",
    "UNIT_COUNTS",
    "DeviceContract",
    "constructed",
    "expression",
    "expressions",
    "gemm",
    "programs",
    "relu",
    "row_sum",
    "scaled_units",
    "specs",
    "toy_atom",
    "toy_level",
    "toy_spec",
    "with_level",
    "with_levels",
    "with_unit",
]

DTYPE = "float32"
SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16)
LARGE = (97, 128, 1000, 1021, 1024, 4096)
UNIT_COUNTS = (1, 2, 3, 4, 7, 64, 132, 1472, 10**6)


# --- chips -----------------------------------------------------------------------------------------------------------


def toy_level(name: str, capacity: int, rate: float, instances: int = 1, managed: bool = True, **more: Any) -> MemoryLevel:
    """Returns a memory level with element-sized transactions; `rate` in GB/s into all instances together."""
    fields = {"name": name, "instances": instances, "capacity_bytes": capacity, "bandwidth_gbps": float(rate)}
    return MemoryLevel.model_validate({**fields, "managed": managed, "transaction_bytes": 4, **more})


def toy_atom(kind: str, gflops: float, dtype: str = DTYPE, **roles: int | str) -> ComputeAtom:
    """Returns an atom: "scalar" without roles, "vector" with n, "matrix" with m, n, k; a role "stream" takes one cycle a row."""
    more: dict[str, object] = {"row_cycles": 1.0} if "stream" in roles.values() else {}
    fields = {"name": kind, "kind": kind, "roles": roles, "in_dtype": dtype, "acc_dtype": dtype, "gflops": float(gflops)}
    return ComputeAtom.model_validate({**fields, **more})


def toy_spec(
    levels: Sequence[MemoryLevel], atoms: Sequence[ComputeAtom] = (), overlap_loss: float = 0.1, carved: bool = False, **unit: Any
) -> HardwareSpec:
    """Returns a chip: a DRAM of 1 TiB around the levels, or (`carved`) the sum of the first level's instances as level 0.

    The default atom is a scalar of 1 GFLOP/s a unit; `unit` has fields of `SchedulableUnit` (default: one unit, lane and chain).
    """
    fields = {"name": "core", "count": 1, "chains": 1, "launch_overhead_us": 0.0, "combine": ("second_pass",), **unit}
    core = SchedulableUnit.model_validate(fields)
    outside: dict[str, Any] = {"name": "DRAM", "instances": 1, "capacity_bytes": 1 << 40}
    if carved:
        inside = levels[0]
        outside |= {"name": "all", "capacity_bytes": inside.capacity_bytes * inside.instances, "carved_from": inside.name}
    outermost = MemoryLevel.model_validate({**outside, "managed": True, "transaction_bytes": levels[0].transaction_bytes})
    return HardwareSpec(
        device="toy",
        chip="toy",
        title="an invented chip",
        clock_ghz=1.0,
        overlap_loss=float(overlap_loss),
        levels=(outermost, *levels),
        unit=core,
        atoms=tuple(atoms) or (toy_atom("scalar", float(core.count)),),
    )


def with_levels(spec: HardwareSpec, levels: Sequence[MemoryLevel], **fields: Any) -> HardwareSpec:
    """Returns the chip with other levels (and other fields), unchecked: a test may need an impossible one."""
    return spec.model_copy(update={"levels": tuple(levels), **fields})


def with_level(spec: HardwareSpec, index: int, **fields: Any) -> HardwareSpec:
    """Returns the chip with fields of one level changed."""
    levels = list(spec.levels)
    levels[index] = levels[index].model_copy(update=fields)
    return with_levels(spec, levels)


def with_unit(spec: HardwareSpec, **fields: Any) -> HardwareSpec:
    """Returns the chip with fields of its unit changed."""
    return spec.model_copy(update={"unit": spec.unit.model_copy(update=fields)})


def scaled_units(spec: HardwareSpec, factor: int) -> HardwareSpec:
    """Returns the chip with `factor` times its units, each with the same rates; shared levels do not change."""
    units = spec.unit.count
    levels = []
    for index, level in enumerate(spec.levels):
        rate, changed = level.bandwidth_gbps, dict[str, Any]()
        if index and level.instances >= units:
            changed = {"instances": level.instances * factor, "bandwidth_gbps": rate * factor if rate else None}
        elif level.carved_from is not None:
            changed = {"capacity_bytes": level.capacity_bytes * factor}
        levels.append(level.model_copy(update=changed))
    atoms = tuple(a.model_copy(update={"gflops": a.gflops * factor}) for a in spec.atoms)
    return with_unit(with_levels(spec, levels, atoms=atoms), count=units * factor)


@st.composite
def specs(
    draw: st.DrawFn, units: Sequence[int] = UNIT_COUNTS, lanes: Sequence[int] = (1, 1, 4, 64), smallest: int = 64
) -> HardwareSpec:
    """Draws an invented machine: two to four levels, caches or scratchpads, with or without lanes, from tiny to huge.

    `smallest` is the min capacity of a level in bytes; only chips with two scratchpads get more than one lane.
    """
    count = draw(st.sampled_from(units))
    flat = ("pad", "cache pad", "cache cache pad", "shared pad") if 1 in lanes else ()
    kinds = draw(st.sampled_from((*flat, "pad pad", "shared pad pad"))).split()
    carved = kinds[0] == "pad" and draw(st.booleans())
    concurrent = draw(st.sampled_from(lanes)) if kinds[-2:] == ["pad", "pad"] else 1
    power = draw(st.integers(0, 10 if carved else 22))
    rate = float(draw(st.sampled_from((1, 10, 100)))) * (1 if kinds[0] == "shared" else count)
    transaction = draw(st.sampled_from((4, 32, 64)))
    levels: list[MemoryLevel] = []
    for number, kind in enumerate(kinds):
        outer = (smallest << power) << (4 * (len(kinds) - 1 - number))
        owners = 1 if kind == "shared" else count
        more: dict[str, Any] = {"transaction_bytes": transaction, "latency_ns": draw(st.sampled_from((0.0, 20.0)))}
        if kind == "pad":
            more["step_overhead_ns"] = draw(st.sampled_from((0.0, 50.0)))
            more["depth_max"] = draw(st.sampled_from((1, 2)))
        else:
            more["usable_fraction"] = 0.5
        levels.append(toy_level(f"{kind}{number + 1}", outer, rate, owners, kind == "pad", **more))
        rate *= draw(st.sampled_from((1, 2, 4))) * (count if kind == "shared" else 1)
    return toy_spec(
        levels,
        draw(_atoms(count)),
        draw(st.sampled_from((0.0, 0.1, 1.0))),
        carved,
        count=count,
        lanes_max=concurrent,
        lane_group=min(concurrent, draw(st.sampled_from((1, 4)))),
        chains=draw(st.sampled_from((1, 4))),
        launch_overhead_us=draw(st.sampled_from((0.0, 1.0))),
    )


@st.composite
def _atoms(draw: st.DrawFn, count: int) -> tuple[ComputeAtom, ...]:
    """Draws a scalar atom; possibly a faster vector; possibly a matrix unit that is faster still."""
    found = [toy_atom("scalar", 2.0 * count)]
    width = draw(st.sampled_from((0, 2, 4, 8)))
    if width:
        found.append(toy_atom("vector", 2.0 * width * count, n=width))
    matrix: tuple[int | str, int, int] | None = draw(st.sampled_from((None, (4, 4, 4), (2, 4, 8), ("stream", 4, 4))))
    if matrix:
        m, n, k = matrix
        found.append(toy_atom("matrix", 128.0 * count, m=m, n=n, k=k))
    return tuple(found)


# --- expressions -----------------------------------------------------------------------------------------------------


def expression(value: SymbolicTensor) -> TensorExpr:
    """Returns the fused expression of a symbolic tensor, as the engine gets it."""
    return fuse(ops.expression(value))


def gemm(m: int, n: int, k: int, dtype: str = DTYPE) -> TensorExpr:
    """C[m, n] = A[m, k] B[k, n]."""
    return expression(ops.matmul(ops.tensor((m, k), dtype, "a"), ops.tensor((k, n), dtype, "b")))


def row_sum(m: int, k: int) -> TensorExpr:
    """Returns the sums of m rows of k elements."""
    return expression(ops.reduce_sum(ops.tensor((m, k), DTYPE, "x"), 1))


def relu(*shape: int) -> TensorExpr:
    """Returns max(x, 0) by element: no value is reused."""
    return expression(ops.relu(ops.tensor(shape, DTYPE, "x")))


FAMILIES = ("matmul", "transposed", "convolution", "reduction", "elementwise", "transpose")


@st.composite
def expressions(
    draw: st.DrawFn, extents: Sequence[int] = SMALL, families: Sequence[str] = FAMILIES, zero: bool = False
) -> TensorExpr:
    """Draws an expression of one stage from one of the families; extents from the list, and 0 if `zero`."""
    pool = st.sampled_from((0, *extents) if zero else tuple(extents))
    family = draw(st.sampled_from(families))
    if family in ("matmul", "transposed"):
        m, n, k = draw(pool), draw(pool), draw(pool)
        if family == "matmul":
            return gemm(m, n, k)
        return expression(ops.einsum("km,nk->mn", ops.tensor((k, m), DTYPE, "a"), ops.tensor((n, k), DTYPE, "b")))
    if family == "convolution":
        return draw(_convolutions(max(extents)))
    shape = tuple(draw(st.lists(pool, min_size=1, max_size=3)))
    x = ops.tensor(shape, DTYPE, "x")
    if family == "reduction":
        axes = draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True))
        empty = any(shape[a] == 0 for a in axes)
        return expression(ops.reduce_max(x, axes) if not empty and draw(st.booleans()) else ops.reduce_sum(x, axes))
    if family == "transpose":
        return expression(ops.transpose(x, draw(st.permutations(range(len(shape))))))
    narrow = tuple(e if e == 0 or draw(st.booleans()) else 1 for e in shape)
    return expression(ops.add(ops.exp(x), ops.tensor(narrow, DTYPE, "y")))


@st.composite
def _convolutions(draw: st.DrawFn, limit: int) -> TensorExpr:
    """Draws a convolution with a window of 1 to 3, strides, and zero padding that reads outside the image."""
    channels, filters, window = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    side = draw(st.integers(max(window, 2), max(window, 2, min(limit, 9))))
    x, w = ops.tensor((1, channels, side, side), DTYPE, "x"), ops.tensor((filters, channels, window, window), DTYPE, "w")
    return expression(ops.conv2d(x, w, stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, window - 1))))


def constructed(expr: TensorExpr, spec: HardwareSpec, top_k: int = 1) -> list[Candidate]:
    """Returns the engine's programs for an expression on a chip without plugin rules; `ConstructionError` as there."""
    return construct(expr, spec, Rules(spec.atoms, {}), CostParameters(), top_k)


# --- programs --------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn, expr: TensorExpr, spec: HardwareSpec, staging: bool = False, dividing: bool = False) -> RProgram:
    """Draws a legal program for an expression of one stage, with aligned tiles and any order of loops over time.

    Capacities are not checked. `staging` also draws panels; `dividing` draws only extents that divide the outer ones.
    """
    nests = variants(expr.stages[-1], expr.tensors, spec.spread)
    choices = [(nest, atom, mapping) for nest in nests for atom, mapping in mappings(nest, spec.atoms, spec.spread)]
    nest, atom, mapping = draw(st.sampled_from(choices))
    levels = tiled_levels(spec)
    inner: Tile = atom_tile(nest, atom, mapping)
    if atom.kind != "matrix":
        inner = tuple(min(t, e) for t, e in zip(inner, nest.extents, strict=True))
    tiles: list[Tile] = []
    for level in reversed(levels):
        if level < len(spec.levels):  # else the atom itself: lanes run it inside a level without a tile per lane
            inner = tuple(_extent(draw, e, t, dividing) for e, t in zip(nest.extents, inner, strict=True))
        tiles.insert(0, inner)
    spatial, reduce = draw(st.permutations(nest.spatial)), draw(st.permutations(nest.reduce))
    orders = [(*spatial, *reduce)] + [tuple(draw(st.permutations(range(len(nest.dims))))) for _ in levels[1:]]
    staged = draw(_panels(nest, levels)) if staging else ()
    stage = StageProgram(nest, atom, mapping, levels, tuple(tiles), tuple(orders), staged, lane_level=lane_level(spec))
    return RProgram(expr, (stage,))


def _extent(draw: st.DrawFn, extent: int, inner: int, dividing: bool) -> int:
    """Draws an aligned extent of one dimension: a multiple of the inner one."""
    choices = [e for e in aligned_extents(extent, max(inner, 1), Multiple()) if not dividing or extent % e == 0]
    return draw(st.sampled_from(choices)) if choices else inner


@st.composite
def _panels(draw: st.DrawFn, nest: Nest, levels: tuple[int, ...]) -> tuple[Staging, ...]:
    """Draws, for each factor that benefits from staging, no panel, one at the unit's level, or one for all units."""
    found = [(f, draw(st.sampled_from((None, levels[0], 0)))) for f in range(len(nest.factors)) if nest.stageable(f)]
    return tuple(Staging("panel", f, level) for f, level in found if level is not None)
