"""Models of the manifest: one program for a simulated IPU as JSON, in frozen models of placements and supersteps.

All numbers count elements unless they are called addresses or bytes. The models refuse malformed parts; `check.py` refuses
contradictions between parts or with the machine. Everything is hashable: ranges, shapes and strides are tuples.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from roller.plugin import KernelError
from roller_ipu_sim.manifest.nodes import BYTES, Number, Tree, nodes, number, operands

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
    "PlaceLoop",
    "Placement",
    "Receivers",
    "Reduce",
    "Ref",
    "Send",
    "SendLoop",
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

VERSION: Literal[2] = 2
LOOPS_MAX = 24  # max loops of a family: with the extents of a box, the max dimensions of an array

Dtype = Literal["float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "bool"]

NAME_LENGTH = 10_000  # max length of the name of a buffer, tensor or step

Count = Annotated[int, Field(ge=0, lt=2**40)]
Extent = Annotated[int, Field(ge=1, lt=2**40)]
Stride = Annotated[int, Field(gt=-(2**40), lt=2**40)]
Name = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH)]

# Tile numbers first + i * step for i < count, in several such ranges.
TileSet = Annotated[tuple[tuple[Count, Extent, Extent], ...], Field(min_length=1)]
# A stored coordinate: (i[dim] // divisor) % modulus, without modulus where that is None.
Digit = tuple[Count, Extent, Extent | None]
# A placement repeated `count` times with these steps: count, tile, offset, start, first.
PlaceLoop = tuple[Extent, Stride, Stride, tuple[Stride, ...], Stride]
# A send repeated `count` times with these steps: count, tile, offset, the receivers' tiles, their offset.
SendLoop = tuple[Extent, Stride, Stride, Stride, Stride]


class ManifestError(KernelError):
    """Raised when a manifest is malformed, contradicts itself or breaks a rule of its machine; it never runs."""


def _this_version(value: object) -> object:
    if value != VERSION:
        raise ValueError(f"version {value!r:.20}, but manifests of version {VERSION} are read here; compile the operator again")
    return value


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

    `count` None: all from `first` on. `strides`: the whole box is not dense, but has these distances between neighbours along each
    of its dimensions; that of the last one is 1. `loops`, outermost first: the same for further tiles and boxes.
    """

    tile: Count
    buffer: Name
    offset: Count
    start: tuple[Count, ...]
    shape: tuple[Extent, ...]
    first: Count = 0
    count: Extent | None = None
    strides: tuple[Extent, ...] | None = None
    loops: Annotated[tuple[PlaceLoop, ...], Field(max_length=LOOPS_MAX)] = ()

    @property
    def elements(self) -> int:
        """Elements that lie in the buffer."""
        return math.prod(self.shape) - self.first if self.count is None else self.count


class TensorHome(_Model):
    """A tensor of the program: its stored (padded, reordered) array and the placements of its parts."""

    name: Name
    dtype: Dtype
    shape: tuple[Extent, ...]
    role: Literal["input", "constant", "output", "intermediate"]
    layout: tuple[Digit, ...]
    stored: tuple[Extent, ...]
    placements: tuple[Placement, ...]


class Ref(_Model):
    """A position in a buffer of the tile that a vertex runs on."""

    buffer: Name
    offset: Count


class View(_Model):
    """Elements of a buffer: offset + sum of stride * loop index over a map's loops (its result: those that do not reduce)."""

    buffer: Name
    offset: Count
    strides: tuple[Stride, ...]


class AmpLoop(_Model):
    """One loop of a product, and its step in elements of each operand; 0 if the operand does not depend on it."""

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

    `accumulate`: the fold starts from the values in `out`. `vector`: elements of a vector along the last loop that does not reduce.
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
    """The same position in each tile of a set."""

    tiles: TileSet
    buffer: Name
    offset: Count


class Send(_Model):
    """A strided copy from one tile's buffer to the same position in each receiver; the last dimension is a run.

    `others`: the sender is none of the receivers. `loops`, outermost first: the same for further tiles and positions.
    """

    tile: Count
    buffer: Name
    offset: Count
    to: Receivers
    shape: tuple[Extent, ...]
    strides: tuple[Count, ...]
    to_strides: tuple[Count, ...]
    others: bool = False
    loops: Annotated[tuple[SendLoop, ...], Field(max_length=LOOPS_MAX)] = ()


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
    version: Annotated[Literal[2], BeforeValidator(_this_version)] = VERSION
    chip: Name
    tiles: Extent
    buffers: tuple[Buffer, ...]
    tensors: tuple[TensorHome, ...]
    steps: tuple[Step, ...]


def tiles_in(tiles: tuple[tuple[int, int, int], ...]) -> Iterator[int]:
    """Yields the numbers of a set of tiles, in its order."""
    for first, count, step in tiles:
        yield from range(first, first + count * step, step)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pauses garbage collection while many small values are made: few are garbage, and collection takes most of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def from_json(text: str | bytes) -> Manifest:
    """Returns the manifest in a JSON text; `ManifestError` names the first field that is wrong."""
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
    """Returns the manifest as one line of JSON; equal manifests give equal text. Absent parts of a step or a vertex are omitted."""
    return manifest.model_dump_json(by_alias=True, exclude_none=True)
