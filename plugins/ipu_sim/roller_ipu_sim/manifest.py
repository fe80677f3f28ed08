"""The manifest: one program for a simulated IPU, as JSON, in frozen models: where tensors lie, and supersteps.

All numbers count elements unless they are called addresses or bytes. The models refuse what is malformed by itself; what
contradicts another part or the machine is refused by `check.py`. Everything hashable: ranges, shapes and strides are tuples.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from roller.plugin import KernelError

__all__ = [
    "BYTES",
    "Amp",
    "AmpLoop",
    "Buffer",
    "Copy",
    "Digit",
    "Fill",
    "Loops",
    "Manifest",
    "ManifestError",
    "Map",
    "Number",
    "Placement",
    "Receivers",
    "Reduce",
    "Ref",
    "Send",
    "Step",
    "TensorHome",
    "TileSet",
    "Tree",
    "Vertex",
    "VertexGroup",
    "View",
    "collection_paused",
    "from_json",
    "nodes",
    "number",
    "operands",
    "tiles_in",
    "to_json",
]

DEPTH_MAX = 150  # of a scalar tree: JSON is read to 200 levels, and trees are walked recursively

BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
Dtype = Literal["float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "bool"]

UNARY = frozenset(
    {"neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "sin", "cos", "not"}
)
BINARY = frozenset({"add", "sub", "mul", "div", "max", "min", "pow", "lt", "le", "gt", "ge", "eq", "ne", "and", "or"})

Count = Annotated[int, Field(ge=0, lt=2**40)]
Extent = Annotated[int, Field(ge=1, lt=2**40)]
Stride = Annotated[int, Field(gt=-(2**40), lt=2**40)]
Name = Annotated[str, Field(min_length=1, max_length=200)]

# Tile numbers first + i * step for i < count, several such ranges one after another.
TileSet = Annotated[tuple[tuple[Count, Extent, Extent], ...], Field(min_length=1)]
# A stored coordinate: (i[dim] // divisor) % modulus, without modulus where that is None.
Digit = tuple[Count, Extent, Extent | None]
# JSON has no infinities; text stands for them.
Number = Annotated[
    int | Annotated[float, Field(allow_inf_nan=False)] | Literal["inf", "-inf", "nan"],
    BeforeValidator(lambda value: str(value) if isinstance(value, float) and not math.isfinite(value) else value),
]


class ManifestError(KernelError):
    """Raised when a manifest is malformed, contradicts itself or breaks a rule of its machine: it is refused, never run."""


def number(value: Number) -> float | int:
    """The number that a constant of a manifest stands for."""
    return float(value) if isinstance(value, str) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _arity(node: tuple[Any, ...]) -> tuple[int, int]:
    """How many entries follow a node's name, and the first of them that is an operand."""
    match node[0]:
        case "load":
            return 1, 1
        case "result":
            return 0, 0
        case "const":
            return 2, 2
        case "index":
            return 3, 3
        case "cast":
            return 2, 1
        case "select":
            return 3, 0
        case op if op in UNARY:
            return 1, 0
        case op if op in BINARY:
            return 2, 0
    raise ValueError(f"unknown operation {node[0]!r:.40} in a tree")


def _leaf_is_right(node: tuple[Any, ...]) -> bool:
    match node:
        case ("load", int(which)):
            return which >= 0
        case ("const", value, str(dtype)):
            known = isinstance(value, int | float) and math.isfinite(value)
            return dtype in BYTES and (known or value in ("inf", "-inf", "nan"))
        case ("index", int(loop), int(_), None | str()):
            return loop >= 0
        case ("cast", str(dtype), _):
            return dtype in BYTES
    return node[0] not in ("load", "const", "index", "cast")


def operands(node: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of a tree's node, in order."""
    count, first = _arity(node)
    return node[1 + first : 1 + count]


def nodes(tree: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Every node of a tree, operands before what uses them."""
    for operand in operands(tree):
        yield from nodes(operand)
    yield tree


def _tree(node: Any, depth: int = 0) -> tuple[Any, ...]:
    if depth > DEPTH_MAX:
        raise ValueError(f"a tree more than {DEPTH_MAX} operations deep")
    if not isinstance(node, tuple) or not node or not isinstance(node[0], str):
        raise ValueError(f"a node is [name, ...], not {node!r:.60}")
    if len(node) != 1 + _arity(node)[0] or not _leaf_is_right(node):
        raise ValueError(f"{node!r:.60} is not a node of a tree")
    for operand in operands(node):
        _tree(operand, depth + 1)
    return node


# ["load", number] | ["const", value, dtype] | ["result"] | ["index", loop, scale, origin or None] | ["cast", dtype, Tree]
# | ["select", Tree, Tree, Tree] | [unary, Tree] | [binary, Tree, Tree]
Tree = Annotated[tuple[Any, ...], BeforeValidator(_frozen), AfterValidator(_tree)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Buffer(_Model):
    """Memory at one address in every tile of a set, for the steps from live[0] to live[1]."""

    name: Name
    dtype: Dtype
    elements: Extent
    address: Count
    tiles: TileSet
    live: tuple[Count, Count]

    @property
    def nbytes(self) -> int:
        """Bytes in each tile."""
        return self.elements * BYTES[self.dtype]


class Placement(_Model):
    """Elements first … first + count of a box of the stored array, row-major and dense, in one tile's buffer from `offset` on.

    `count` None: all from `first` on.
    """

    tile: Count
    buffer: Name
    offset: Count
    start: tuple[Count, ...]
    shape: tuple[Extent, ...]
    first: Count = 0
    count: Extent | None = None

    @property
    def elements(self) -> int:
        """Elements that lie in the buffer."""
        return math.prod(self.shape) - self.first if self.count is None else self.count


class TensorHome(_Model):
    """A tensor of the program: its stored (padded, reordered) array and where the parts of that lie."""

    name: Name
    dtype: Dtype
    shape: tuple[Extent, ...]
    role: Literal["input", "constant", "output", "intermediate"]
    layout: tuple[Digit, ...]
    stored: tuple[Extent, ...]
    placements: tuple[Placement, ...]


class Ref(_Model):
    """A place in a buffer of the tile that a vertex runs on."""

    buffer: Name
    offset: Count


class View(_Model):
    """Elements of a buffer: offset + sum of stride * loop index over a map's loops (of its result: those that do not reduce)."""

    buffer: Name
    offset: Count
    strides: tuple[Stride, ...]


class AmpLoop(_Model):
    """One loop of a product, and its step in elements of each operand; 0 in one that it does not touch."""

    role: Literal["m", "n", "k", "g"]
    extent: Extent
    a: Count
    w: Count
    out: Count


Loops = tuple[AmpLoop, ...]


class Amp(_Model):
    """A product on the matrix unit: out[m, n] (+)= sum over k of a * w; loops outermost first, the unit's own n and k last."""

    kind: Literal["amp"] = "amp"
    in_dtype: Dtype
    acc_dtype: Dtype
    zero: bool
    a: Ref
    w: Ref
    out: Ref
    loops: Loops
    k_blocks: Extent
    taps: tuple[Extent, ...] = ()
    n_blocks: Extent
    groups: Extent = 1


class Map(_Model):
    """Elementwise work: for every point of the loops the body, folded over the last `reduce` loops, then the epilogue.

    `accumulate`: the fold starts from what lies in `out`. `vector`: elements of a vector along the last loop that does not reduce.
    """

    kind: Literal["map"] = "map"
    dtype: Dtype
    loops: tuple[Extent, ...]
    reduce: Count = 0
    vector: Extent = 1
    loads: tuple[View, ...] = ()
    body: Tree
    reducer: Literal["sum", "max", "min", "prod"] | None = None
    accumulate: bool = False
    epilogue_loads: tuple[View, ...] = ()
    epilogue: Tree | None = None
    out: View


class Reduce(_Model):
    """out[i] = sum over p of parts[p * step + i], in the order of p, in `acc_dtype`."""

    kind: Literal["reduce"] = "reduce"
    acc_dtype: Dtype
    partials: Extent
    outputs: Extent
    parts: Ref
    step: Count
    out: Ref


class Fill(_Model):
    """Elements set to one value."""

    kind: Literal["fill"] = "fill"
    to: Ref
    elements: Extent
    value: Number


class Copy(_Model):
    """Elements copied inside a tile, between buffers of one type. In JSON the source is called "from"."""

    kind: Literal["copy"] = "copy"
    source: Ref = Field(alias="from")
    to: Ref
    elements: Extent


Vertex = Annotated[Amp | Map | Reduce | Fill | Copy, Field(discriminator="kind")]


class VertexGroup(_Model):
    """The same vertex on each tile of a set; `origins`: numbers that differ by tile, in the order of the set."""

    tiles: TileSet
    vertex: Vertex
    origins: dict[str, tuple[int, ...]] = Field(default_factory=dict)


class Receivers(_Model):
    """The same place in each tile of a set."""

    tiles: TileSet
    buffer: Name
    offset: Count


class Send(_Model):
    """A strided copy from one tile's buffer to the same place in each receiver; the last dimension is a run."""

    tile: Count
    buffer: Name
    offset: Count
    to: Receivers
    shape: tuple[Extent, ...]
    strides: tuple[Count, ...]
    to_strides: tuple[Count, ...]


class Step(_Model):
    """A compute set or an exchange."""

    name: Name
    compute: tuple[VertexGroup, ...] | None = None
    exchange: tuple[Send, ...] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.compute is None) == (self.exchange is None):
            raise ValueError("a step has either compute or exchange")
        return self


class Manifest(_Model):
    """A whole program. Steps run in order; a compute step with the exchange after it is a superstep."""

    format: Literal["roller-ipu-manifest"] = "roller-ipu-manifest"
    version: Literal[1] = 1
    chip: Name
    tiles: Extent
    buffers: tuple[Buffer, ...]
    tensors: tuple[TensorHome, ...]
    steps: tuple[Step, ...]


def tiles_in(tiles: tuple[tuple[int, int, int], ...]) -> Iterator[int]:
    """The numbers of a set of tiles, in its order."""
    for first, count, step in tiles:
        yield from range(first, first + count * step, step)


@contextmanager
def collection_paused() -> Iterator[None]:
    """While many small values are made: few are garbage, and looking for it again and again takes most of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def from_json(text: str | bytes) -> Manifest:
    """The manifest that a JSON text holds; `ManifestError` names the first field that is wrong."""
    try:
        with collection_paused():
            return Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the text"
        count = error.error_count()
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise ManifestError(f"not a manifest: {place}: {first['msg']}{more}; write it again from its program") from error


def to_json(manifest: Manifest) -> str:
    """The manifest as one line of JSON; equal manifests give equal text. Absent parts of a step or a vertex are left out."""
    return manifest.model_dump_json(by_alias=True, exclude_none=True)
