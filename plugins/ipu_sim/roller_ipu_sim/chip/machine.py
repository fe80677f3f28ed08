"""Constants of the target chip for `cycles`, from the spec's own fields and its `[options]`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from roller.plugin import CodegenError, HardwareSpec, SpecError

__all__ = [
    "Amp",
    "AmpType",
    "Copy",
    "Exchange",
    "Layout",
    "Loops",
    "Machine",
    "Memory",
    "Placing",
    "Reduce",
    "Supervisor",
    "Taps",
    "Vector",
    "VectorType",
    "machine",
]

TILE_MEMORY = "SRAM"  # the level of a tile's own memory
Count = Annotated[int, Field(strict=True, ge=1, le=2**40)]
Cycles = Annotated[int, Field(strict=True, ge=0, le=2**40)]
Flag = Annotated[bool, Field(strict=True)]


def _table(value: Any) -> Any:
    """Converts a frozen table of a spec for pydantic."""
    return tuple(value) if isinstance(value, list | tuple) else dict(value) if isinstance(value, Mapping) else value


def _some(value: Any) -> Any:
    if not value:
        raise ValueError("names nothing")
    return value


Starts = Annotated[tuple[Cycles, Cycles, Cycles, Cycles], BeforeValidator(_table)]  # cycles of a worker with 0, 1, 2, 3 rows


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return _table(value)


class Memory(_Model):
    """A tile's memory.

    Two accesses of a cycle must use different elements. Interleaved elements act in pairs, twice as wide.
    """

    region0_bytes: Count  # not interleaved; code lies here
    region1_bytes: Count  # interleaved
    element_bytes: Count
    interleave: Count  # elements that act as one in region 1
    load_bytes: Count  # a cycle
    store_bytes: Count  # a cycle


class Placing(_Model):
    """The options that programs use: choices, not properties of the chip."""

    in_place: Flag  # parts of arrays are initially stored where tiles read them
    interleaved: Flag  # weights lie in the interleaved region
    inside: Flag = False  # reductions are also split inside a tile
    cheapest: Flag = False  # partial results are added by the cheapest vertex


class Exchange(_Model):
    """The exchange: words, rates in bytes per cycle, cycles of a phase."""

    word_bytes: Count
    in_bytes: Count
    out_bytes: Count
    fragment_cycles: Cycles  # control cycles for each run of words
    route_cycles: Cycles
    row_cycles: Cycles  # for each row of tiles between sender and receiver
    rows: Cycles  # typical distance
    sync_cycles: Cycles
    multicast: Flag
    bus_pairing: Flag


class Supervisor(_Model):
    """Cycles of the supervisor around the workers of a product without kernel positions."""

    entry: Cycles
    group: Cycles
    k_block: Cycles  # after the first
    n_block: Cycles
    block: Cycles
    first_k_block: Cycles
    first_n_block: Cycles
    first_block: Cycles


class Taps(_Model):
    """Cycles of the supervisor and of a worker for a product with kernel positions, or of several runs of rows."""

    entry: Cycles
    group: Cycles
    k_block: Cycles
    n_block: Cycles
    row: Cycles  # a row of kernel positions
    tap: Cycles
    block: Cycles
    wait: Cycles  # after the fastest worker
    zero_n_block: Cycles
    zero_again: Cycles  # branch back, for each group of columns but the last
    zero_worker: Cycles
    worker: Cycles  # start
    run: Cycles
    runs: Starts
    kept: Cycles  # saved in every run, as workers keep their state; paid once
    zero_kept: Cycles


class AmpType(_Model):
    """The matrix unit for one pair of element types. A block is `grain` input by `columns` output channels."""

    units: Count  # columns computed at once
    grain: Count
    columns: Count
    block_bytes: Count  # of weights for one unit
    row_cycles: Count
    zeroing: Starts
    adding: Starts
    zero_row_cycles: Cycles
    kept: Cycles  # saved in every inner loop, as workers keep their state; paid once
    kept_group: Cycles
    supervisor: Supervisor
    taps: Taps

    @property
    def passes(self) -> int:
        """Passes of the units over the rows for one block."""
        return -(-self.columns // self.units)


class Amp(_Model):
    """The matrix unit: weight loads, and the properties that depend on element types, by operand and accumulator type."""

    load_bytes: Count  # a cycle
    interleaved_load_bytes: Count
    conflict_factor: Count  # factor on loads and rows, where operands share a memory element
    wait: Cycles  # after the fastest worker
    types: Mapping[str, Mapping[str, AmpType]]


class Loops(_Model):
    """Cycles around the loop of a vertex: those of the supervisor, then of each worker, and those of a vector if given."""

    supervisor: Cycles
    start: Cycles
    vector: Cycles | None = None


class VectorType(_Model):
    """Elementwise work in some element types.

    `operations`: cycles for a vector beyond the one that overlaps an access; `alone`: vertices of that operation only.
    """

    dtypes: Annotated[tuple[str, ...], BeforeValidator(_table), AfterValidator(_some)]
    width: Count  # elements of a vector
    accumulate: Count  # results that a reduction holds at once
    fill_start: Cycles  # of a worker
    fill_width: Count  # elements that a worker fills in a cycle
    operations: Annotated[Mapping[str, Cycles], AfterValidator(_some)]
    alone: Mapping[str, Loops]


class Vector(_Model):
    """Elementwise work. `starts`: cycles that an operation adds to a worker's start."""

    one: Loops  # one array or none is read
    several: Loops
    reducing: Loops  # over points; `vector` is for each set of results
    starts: Mapping[str, Cycles]
    loop: Cycles  # extra cycles for a vector, where several operations are a compiled loop
    narrow_bytes: Count  # individually stored results with fewer bytes
    narrow_store: Cycles  # take this many extra cycles
    types: Annotated[Mapping[str, VectorType], AfterValidator(_some)]


class Reduce(_Model):
    """Addition of partial results: cycles of a vertex, of a set of results with its first partial, of each further one."""

    start: Cycles
    first: Cycles
    partial: Cycles


class Copy(_Model):
    """Moves inside a tile."""

    start: Cycles
    bytes_per_cycle: Count
    fill_vectors: Count  # the min that a worker fills


class Layout(_Model):
    """Changes of layout inside a tile: thousandths of a cycle per byte, by the bytes that stay together ("2", "4", "8")."""

    start: Cycles
    millicycles: Annotated[Mapping[str, Cycles], AfterValidator(_some)]


class Machine(_Model):
    """One chip. Workers issue in turn, so that a cycle of one worker takes as many cycles of its tile as that has workers."""

    chip: str
    tiles: Count
    clock_ghz: float
    workers: Count
    tile_bytes: Count
    reserved_bytes: Cycles  # reserved in a tile: code, exchange tables, stacks; at the start of region 0
    memory: Memory
    placing: Placing
    exchange: Exchange
    amp: Amp
    vector: Vector
    reduce: Reduce
    copying: Copy
    layout: Layout
    sources: Mapping[str, str]

    @cached_property
    def choices(self) -> dict[tuple[Any, ...], Any]:
        """Cached choices for this machine, by all inputs of a choice: construction requests the same ones repeatedly."""
        return {}

    @property
    def data_bytes(self) -> int:
        """A tile's bytes for data: addresses from `reserved_bytes` to `tile_bytes`, counted from the tile's first byte."""
        return self.tile_bytes - self.reserved_bytes

    @property
    def interleaved_from(self) -> int:
        """The first address in the interleaved region."""
        return self.memory.region0_bytes

    def elements(self, address: int, nbytes: int) -> range:
        """Returns the memory elements under some bytes, numbered from the tile's first; an interleaved pair counts as one."""
        return range(self._element(address), self._element(address + max(nbytes, 1) - 1) + 1)

    def _element(self, address: int) -> int:
        plain, size = self.memory.region0_bytes, self.memory.element_bytes
        return address // size if address < plain else plain // size + (address - plain) // (size * self.memory.interleave)

    def amp_type(self, in_dtype: str, acc_dtype: str) -> AmpType:
        """Returns the matrix unit for the element types; `CodegenError` where there is none."""
        found = self.amp.types.get(in_dtype, {}).get(acc_dtype)
        if found is None:
            known = ", ".join(f"{a} to {c}" for a, accumulators in self.amp.types.items() for c in accumulators)
            raise CodegenError(f"the matrix units of {self.chip} do not multiply {in_dtype} to {acc_dtype}; they do {known}")
        return found

    def vector_type(self, dtype: str) -> VectorType:
        """Returns the elementwise work in an element type; `CodegenError` where there is none."""
        for found in self.vector.types.values():
            if dtype in found.dtypes:
                return found
        known = ", ".join(name for unit in self.vector.types.values() for name in unit.dtypes)
        raise CodegenError(f"{self.chip} does not compute in {dtype}; it does in {known}")

    @model_validator(mode="after")
    def _check(self) -> Self:
        memory = self.memory
        if memory.region0_bytes + memory.region1_bytes != self.tile_bytes:
            raise ValueError(f"memory.region1_bytes: the regions do not sum to the {self.tile_bytes} bytes of {TILE_MEMORY}")
        for name, size in (("region0_bytes", memory.element_bytes), ("region1_bytes", memory.element_bytes * memory.interleave)):
            if getattr(memory, name) % size:
                raise ValueError(f"memory.{name}: not a multiple of {size} bytes")
        if self.reserved_bytes >= memory.region0_bytes:
            raise ValueError(f"memory.region0_bytes: not more than the {self.reserved_bytes} bytes that are reserved")
        for name in self.layout.millicycles:
            if not name.isdigit():
                raise ValueError(f"layout.millicycles.{name}: a key is a number of bytes")
        return self


_known: deque[tuple[HardwareSpec, Machine]] = deque(maxlen=8)  # construction requests the same one thousands of times


def machine(spec: HardwareSpec) -> Machine:
    """Returns the machine of a spec; `SpecError`, with the field, where its options are not those of an IPU."""
    for known, found in tuple(_known):
        if known is spec:
            return found
    made = _read(spec)
    _known.append((spec, made))
    return made


def _read(spec: HardwareSpec) -> Machine:
    try:
        sram = spec.level(TILE_MEMORY)
    except KeyError:
        raise SpecError("an IPU's spec has a level of this name, the memory of a tile", field=f"levels.{TILE_MEMORY}") from None
    own = {
        "chip": spec.chip,
        "tiles": spec.unit.count,
        "clock_ghz": spec.clock_ghz,
        "workers": spec.unit.lanes_max,
        "tile_bytes": sram.capacity_bytes,
        "reserved_bytes": sram.reserved_bytes,
    }
    for name in own:
        if name in spec.options:
            raise SpecError("is a field of the spec itself, not an option", field=f"options.{name}")
    try:
        return Machine.model_validate({**spec.options, **own})
    except ValidationError as error:
        field, message = _complaint(error)
        raise SpecError(f"of {spec.device}:{spec.chip}: {message}", field=field) from error


def _complaint(error: ValidationError) -> tuple[str, str]:
    """Returns field and message of the first error."""
    first = error.errors(include_url=False)[0]
    path = ["options", *(str(step) for step in first["loc"])]
    if first["type"] == "value_error":
        inner, colon, message = str(first["ctx"]["error"]).partition(": ")
        return ".".join([*path, inner] if colon else path), message or inner
    if first["type"] in ("extra_forbidden", "missing"):
        return ".".join(path), "unknown key" if first["type"] == "extra_forbidden" else "missing"
    return ".".join(path), f"{first['msg']}, found {first['input']!r:.60}"
