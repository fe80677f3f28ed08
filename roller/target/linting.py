"""What is doubtful in a spec that is no contradiction: numbers without sources, and numbers that no chip is likely to have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from roller.target.catalog import PROVENANCE, number_paths
from roller.target.hardware import ComputeAtom, HardwareSpec, peak_key

# Known chips read 0.001 to 0.2 bytes of their outermost memory per operation, and wait at most 2 us for an access.
BYTES_PER_FLOP = (1e-4, 10.0)
LATENCY_NS = 10_000.0


def lint(spec: HardwareSpec, file: str | Path | None = None) -> list[str]:
    """Returns the problems of a spec, one line each; an empty list if it is clean. `file`: where it was read from.

    Every number that is not a default has a source. Every source covers some number and begins with its provenance (one of
    PROVENANCE). Every atom's rate can be derived, and its type has a quoted peak. Numbers have a likely size: most that do not are
    in another unit, or those of one core.
    """
    named = (
        [] if file is None or Path(file).stem == spec.chip else [f"chip: {spec.chip!r}, but the file is called {Path(file).name}"]
    )
    return [*named, *_sources(spec), *_rates(spec), *_sizes(spec)]


def _sources(spec: HardwareSpec) -> Iterator[str]:
    fields = list(number_paths(spec, defaults=True))
    for path in number_paths(spec, defaults=False):
        if spec.source(path) is None:
            yield f"{path}: no source"
    for pattern, text in spec.sources.items():
        if not any(fnmatchcase(path, pattern) for path in fields):
            yield f"sources.{pattern}: covers no number of this spec"
        if not re.match(rf"({'|'.join(PROVENANCE)}): \S", text):
            yield f"sources.{pattern}: must begin with one of {', '.join(PROVENANCE)} and a colon"


def _rates(spec: HardwareSpec) -> Iterator[str]:
    for atom in spec.atoms:
        if atom.flops_per_cycle_per_unit is None:
            yield f"atoms.{atom.name}: without flops_per_cycle_per_unit its gflops cannot be checked"
        if peak_key(atom) not in spec.peaks_gflops:
            yield f"peaks_gflops.{peak_key(atom)}: missing, though atoms.{atom.name} computes it"


def _sizes(spec: HardwareSpec) -> Iterator[str]:
    for atom in spec.atoms:
        for name, needed in _operand_bytes(atom, spec).items():
            if needed > (there := spec.level(name).capacity_bytes):
                yield (
                    f"levels.{name}.capacity_bytes: {there} bytes do not hold the {needed} of atoms.{atom.name}; capacities are in "
                    "bytes, of one instance"
                )
    for level in spec.levels:
        if level.latency_ns > LATENCY_NS:
            yield f"levels.{level.name}.latency_ns: {level.latency_ns:g} ns are {level.latency_ns / 1000:g} us for one access"
    fed = [(level.name, level.bandwidth_gbps) for level in spec.levels if level.bandwidth_gbps is not None]
    if fed:
        share = fed[0][1] / max(atom.gflops for atom in spec.atoms)
        if not BYTES_PER_FLOP[0] <= share <= BYTES_PER_FLOP[1]:
            yield f"levels.{fed[0][0]}.bandwidth_gbps: {share:.2g} bytes per operation of the fastest atom (GB/s, GFLOP/s)"


def _operand_bytes(atom: ComputeAtom, spec: HardwareSpec) -> dict[str, int]:
    """Returns the bytes of an atom's factors and sums, by the level that holds them; a streamed extent counts as one row."""
    m, n, k = (extent if isinstance(extent := atom.extents.get(role, 1), int) else 1 for role in "mnk")
    factor, total = (int(re.sub(r"\D", "", dtype)) // 8 for dtype in (atom.stored_dtype, atom.acc_dtype))
    found = dict.fromkeys((level.name for level in spec.levels), 0)
    if atom.registers is not None:
        return found
    found[atom.operand_level or spec.levels[-1].name] += (m * k + k * n) * factor
    found[atom.acc_level or spec.levels[-1].name] += m * n * total
    return found
