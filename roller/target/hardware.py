"""Machine descriptions (specs): memory levels, the unit that tiles are scheduled on, and its compute atoms.

Pure data, frozen and hashable, with consistency checks. Units are in the field names: bytes, nanoseconds (ns), microseconds (us),
GB/s (1e9 bytes), GFLOP/s (1e9; a multiply-add counts two, integer types alike). `roller.target.catalog` reads these models from
TOML. A validator's message is "field: error".

Levels run from 0 (outermost) inwards. `instances` relative to `unit.count` determines the owner of a level: fewer is *shared*,
equal is *private*, more is *per lane group*. All numbers about a transfer (bandwidth, transaction, access lanes, latency, depth,
copy issue, step overhead) belong to the level that the data moves INTO.
"""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from roller.target.atoms import ComputeAtom, peak_key
from roller.target.quantities import (
    STORED_AS,
    Bytes,
    Count,
    Flag,
    Fraction,
    Frozen,
    Holds,
    Name,
    NonNegative,
    Options,
    Peaks,
    Positive,
    Share,
    Sources,
    agree,
)
from roller.target.row_shares import RowShares

__all__ = ["STORED_AS", "Banks", "ComputeAtom", "HardwareSpec", "MemoryLevel", "RowShares", "SchedulableUnit", "peak_key"]

SCHEMA_VERSION = 1


class Banks(Frozen):
    """The banks of a memory: `count` of them, each serving `width_bytes` a cycle."""

    count: Count
    width_bytes: Count


class MemoryLevel(Frozen):
    """One level of memory; capacities are of ONE instance, bandwidth of all together.

    `reserved_bytes` is the overhead in an instance for every resident tile; `tile_max_bytes` is the limit of one tile if that is
    less. `usable_fraction` is the share of an unmanaged level (a cache) that the model counts on. `holds` names the tensors that
    may stay here; `carved_from` is the level whose bytes this one really uses.
    """

    name: Name
    instances: Count
    capacity_bytes: Count
    reserved_bytes: Bytes = 0
    tile_max_bytes: Count | None = None
    bandwidth_gbps: Positive | None = None  # into this level; absent only at level 0
    unit_bandwidth_gbps: Positive | None = None  # max bandwidth of one unit from a shared level; absent: all of it
    row_shares: RowShares | None = None  # of the bandwidth, for rows that are read in turn; absent: all of it
    unit_row_shares: RowShares | None = None  # of the bandwidth of one unit, while the others are idle
    transaction_bytes: Count
    access_lanes: Count = 1  # lanes whose accesses form transactions together
    banks: Banks | None = None
    latency_ns: NonNegative = 0.0  # of an access to the next outer level
    managed: Flag  # True: software places the data (scratchpad, registers); False: a cache
    usable_fraction: Fraction = 1.0
    holds: tuple[Holds, ...] = ("input", "output", "accumulator")
    carved_from: Name | None = None
    depth_max: Count = 1  # staged copies in flight; 1: no asynchronous copy
    multicast_max: Count = 1  # max instances that one copy reaches; groups of that size must leave no unit idle
    multicast_saves: Share = 1.0  # saved share of the way to each further instance that a copy reaches; its own port takes the rest
    copy_issue: Literal["lanes", "engine", "hardware"] = "hardware"
    step_overhead_ns: NonNegative = 0.0  # a barrier, or the set-up of an exchange
    overlap_loss: Share | None = None  # of data that moves into this level; absent: the chip's

    @property
    def usable_bytes(self) -> int:
        """The bytes of one instance that one tile may take."""
        usable = int((self.capacity_bytes - self.reserved_bytes) * self.usable_fraction)
        return usable if self.tile_max_bytes is None else min(usable, self.tile_max_bytes)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.transaction_bytes & (self.transaction_bytes - 1):
            raise ValueError(f"transaction_bytes: {self.transaction_bytes} is not a power of two")
        if self.reserved_bytes >= self.capacity_bytes:
            raise ValueError("reserved_bytes: leave nothing of capacity_bytes")
        if (self.tile_max_bytes or 0) > self.capacity_bytes:
            raise ValueError("tile_max_bytes: more than capacity_bytes")
        if self.unit_row_shares is not None and (self.row_shares is None or not self.row_shares.alike(self.unit_row_shares)):
            raise ValueError("unit_row_shares: must have the rows and run_bytes of row_shares")
        if not self.holds or len(set(self.holds)) != len(self.holds):
            raise ValueError("holds: must name at least one tensor, and none twice")
        return self


class SchedulableUnit(Frozen):
    """The unit that runs one tile at a time (core, SM, CU): `count` of them, each with up to `lanes_max` lanes.

    With `lanes_max` 1 a unit runs sub-tiles one after another, with more concurrently. Lane storage is the register file of one
    unit. It is allocated in granules of `lane_storage_granule` bytes a lane, up to `lane_storage_max_bytes` a lane;
    `lane_reserved_bytes` of a lane hold addresses and counters. A lane holds all operands of one step but the largest, which
    streams through registers for one atom at a time. With `lane_operands` "whole" it holds the largest too: the compiler loads all
    values before it uses any.
    `chains` is the number of independent accumulators that a unit keeps in flight at peak (latency x issue width). `issue_groups`:
    lane-group instructions of any kind that a unit issues a cycle, if operand reads take issue slots from arithmetic; None if they
    take none.
    """

    name: Name
    count: Count
    lanes_max: Count = 1
    lane_group: Count = 1
    lanes_fixed: Flag = False  # True: an idle lane's slot is lost to the others
    resident_tiles_max: Count = 1
    resident_lanes_max: Count | None = None
    lane_storage_bytes: Bytes = 0
    lane_storage_granule: Count = 1
    lane_storage_max_bytes: Count | None = None
    lane_reserved_bytes: Bytes = 0
    lane_operands: Literal["streamed", "whole"] = "streamed"
    chains: Count
    issue_groups: Count | None = None
    combine: tuple[Literal["atomic", "second_pass", "exchange", "shuffle"], ...] = ()
    launch_overhead_us: NonNegative
    dispatch_ns: NonNegative = 0.0  # interval between the dispatch of two tiles
    cluster_overhead_us: NonNegative = 0.0  # units wait for one another before the first and after the last copy
    sync_ns: NonNegative = 0.0  # a barrier over all units

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lanes_max % self.lane_group:
            raise ValueError(f"lanes_max: {self.lanes_max} is not a multiple of lane_group = {self.lane_group}")
        if self.resident_lanes_max is not None and self.resident_lanes_max < self.lanes_max:
            raise ValueError("resident_lanes_max: less than lanes_max")
        if len(set(self.combine)) != len(self.combine):
            raise ValueError("combine: names a way twice")
        return self


class HardwareSpec(Frozen):
    """One chip, as one spec file describes it.

    `peaks_gflops` are the vendor's figures (dense, at the boost clock), or measured ones if the chip cannot sustain that clock:
    "<in dtype>" without matrix units, "<in dtype>_matrix" with them. The fastest atom of that key must reach it within 5 %.
    `overlap_loss` is 0 if copies and compute overlap perfectly, 1 if they never overlap; a level may have its own. `options` belong
    to the plugin: the core never reads them. `sources` maps dotted fields (patterns such as "levels.L2.*") to "<provenance>: text",
    which `roller.target.linting.lint` checks.
    """

    schema_version: Literal[1] = SCHEMA_VERSION  # type: ignore[assignment]
    device: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
    chip: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._+-]*$", max_length=64)]
    title: Annotated[str, Field(min_length=1, max_length=200)]
    clock_ghz: Positive
    overlap_loss: Share = 0.1
    levels: Annotated[tuple[MemoryLevel, ...], Field(min_length=1)]
    unit: SchedulableUnit
    atoms: Annotated[tuple[ComputeAtom, ...], Field(min_length=1)]
    peaks_gflops: Peaks = Field(default={}, validate_default=True)
    options: Options = Field(default={}, validate_default=True)
    sources: Sources = Field(default={}, validate_default=True)

    @property
    def outermost(self) -> MemoryLevel:
        """Level 0, where tensors start and end."""
        return self.levels[0]

    @property
    def spread(self) -> bool:
        """True if arrays are spread over the units' memories, without a memory of their own.

        A program chooses their order and parts; units receive boxes of them.
        """
        return self.outermost.carved_from is not None

    def level_index(self, name: str) -> int:
        """Returns the position of a level, 0 outermost; KeyError if there is none."""
        for index, level in enumerate(self.levels):
            if level.name == name:
                return index
        raise KeyError(f"{self.device}:{self.chip} has no level {name!r}")

    def level(self, name: str) -> MemoryLevel:
        """Returns the level of that name; KeyError if there is none."""
        return self.levels[self.level_index(name)]

    def loss(self, level: MemoryLevel) -> float:
        """Returns the share of the time of moving data into a level that other work does not hide."""
        return self.overlap_loss if level.overlap_loss is None else level.overlap_loss

    def shared(self, level: MemoryLevel) -> bool:
        """Returns whether several units share one instance of the level."""
        return level.instances < self.unit.count

    def private(self, level: MemoryLevel) -> bool:
        """Returns whether every unit has exactly one instance of its own."""
        return level.instances == self.unit.count

    def per_lane(self, level: MemoryLevel) -> bool:
        """Returns whether a unit has several instances, each serving some of its lanes."""
        return level.instances > self.unit.count

    def in_place(self, atom: ComputeAtom) -> bool:
        """Returns whether an atom reads its operands in place at an outer level, so that they take no innermost memory."""
        return atom.operand_level is not None and atom.operand_level != self.levels[-1].name

    def units_sharing(self, level: MemoryLevel) -> int:
        """Returns how many units share one instance: 1 if the level is private or per lane."""
        return max(1, self.unit.count // level.instances)

    @property
    def partitions(self) -> int:
        """Parts of a unit with separate innermost memories. A lane group uses one part; fewer groups leave parts idle."""
        groups = self.unit.lanes_max // self.unit.lane_group  # if every lane has its own, whole groups are the parts
        return max(1, min(self.levels[-1].instances // self.unit.count, groups))

    def stored_lanes(self, lanes: int) -> int:
        """Returns the lanes whose storage a tile takes: whole groups, in every partition as many as in the fullest one."""
        groups = -(-lanes // self.unit.lane_group)
        return -(-groups // self.partitions) * self.partitions * self.unit.lane_group

    def source(self, path: str) -> str | None:
        """Returns the source of the number at a path such as `clock_ghz` or `levels.L2.latency_ns`; None if there is none."""
        return next((text for pattern, text in self.sources.items() if fnmatchcase(path, pattern)), None)

    def content_hash(self) -> str:
        """Returns the SHA-256 of all fields that can change a program: all but title and sources, with sorted keys."""
        content = self.model_dump(mode="json", exclude={"title", "sources"})
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_names(self)
        _check_levels(self)
        _check_order(self)
        _check_rates(self)
        return self


def _check_names(spec: HardwareSpec) -> None:
    for kind, things in (("levels", spec.levels), ("atoms", spec.atoms)):
        names = [thing.name for thing in things]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{kind}: two are named {name!r}")
    known = {level.name for level in spec.levels}
    for level in spec.levels:
        if level.carved_from is not None and (level.carved_from not in known or level.carved_from == level.name):
            raise ValueError(f"levels.{level.name}.carved_from: no other level is named {level.carved_from!r}")
    for atom in spec.atoms:
        for field, place in (("operand_level", atom.operand_level), ("acc_level", atom.acc_level)):
            if place is not None and place not in known:
                raise ValueError(f"atoms.{atom.name}.{field}: no level is named {place!r}")


def _check_levels(spec: HardwareSpec) -> None:
    units = spec.unit.count
    if all(spec.shared(level) for level in spec.levels[1:]):
        raise ValueError(f"levels: none inside {spec.outermost.name} belongs to a unit alone; one has instances = {units} or more")
    for index, level in enumerate(spec.levels):
        if (index == 0) != (level.bandwidth_gbps is None):
            raise ValueError(f"levels.{level.name}.bandwidth_gbps: level 0 has none and every other level has one")
        if max(units, level.instances) % min(units, level.instances):
            raise ValueError(f"levels.{level.name}.instances: {level.instances} do not divide among {units} units")
        if level.carved_from is not None:
            owner = spec.level(level.carved_from)
            if level.instances * level.capacity_bytes > owner.instances * owner.capacity_bytes:
                raise ValueError(f"levels.{level.name}.capacity_bytes: more than {owner.name} has to carve from")
        storage = units * spec.unit.lane_storage_bytes
        if spec.per_lane(level) and storage and level.instances * level.capacity_bytes != storage:
            raise ValueError(f"unit.lane_storage_bytes: level {level.name} is the same storage and sums to another")


def _check_order(spec: HardwareSpec) -> None:
    """Checks that, inwards, bandwidth does not shrink and instances of comparable levels do not grow.

    Capacities are compared only if each instance of the inner level is fed by one of the outer, the inner level is not per lane (a
    register file may exceed the scratchpad beside it), and it holds no data that the outer one cannot.
    """
    for outer, inner in zip(spec.levels, spec.levels[1:], strict=False):
        outer_rate = outer.bandwidth_gbps or 0.0
        if inner.bandwidth_gbps is not None and inner.bandwidth_gbps < outer_rate:
            raise ValueError(f"levels.{inner.name}.bandwidth_gbps: less than that of {outer.name} outside it (of all instances)")
        alike = outer.instances <= inner.instances <= spec.unit.count and set(inner.holds) <= set(outer.holds)
        if alike and outer.carved_from is None and inner.capacity_bytes > outer.capacity_bytes:
            raise ValueError(f"levels.{inner.name}.capacity_bytes: more than that of {outer.name} outside it")


def _check_rates(spec: HardwareSpec) -> None:
    best: dict[str, float] = {}
    for atom in spec.atoms:
        if atom.flops_per_cycle_per_unit is not None:
            derived = atom.flops_per_cycle_per_unit * spec.unit.count * (atom.clock_ghz or spec.clock_ghz)
            agree(f"atoms.{atom.name}.gflops", derived, atom.gflops, "GFLOP/s")
        key = peak_key(atom)
        best[key] = max(best.get(key, 0.0), atom.gflops)
    for key, quoted in spec.peaks_gflops.items():
        if key not in best:
            raise ValueError(f"peaks_gflops.{key}: no atom computes it; atoms compute {', '.join(sorted(best))}")
        agree(f"peaks_gflops.{key}", best[key], quoted, "GFLOP/s")
