"""The package that `build` writes and `run` reads: kernels with all that is needed to launch, check and judge them.

A folder: `manifest.json` (schema, device, chips, versions, date), `cases/<chip>/<name>.json` (an operator each, with its programs),
`binaries/<digest>.xz` (each once, compressed), `calibration/<chip>/` (kernels that measure a chip). Every file is written
whole or not at all. Nothing here needs more than Python.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.operators import Operator, from_json, operators
from bench.gpu.platform import Platform

SCHEMA = 2
MOST_BYTES = 50 << 20
DIGEST = 20  # hexadecimal digits that name a binary
# What tells chips apart: how far a chip may be from what the driver says (of its memory a GPU reports what it leaves to users), and
# under which names the driver says it (a spec may count units in either way).
FIGURES: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "units": (0.0, ("units", "compute_units")),
    "local_bytes": (0.0, ("local_bytes",)),
    "memory_bytes": (0.1, ("memory_bytes",)),
}


class PackageError(Exception):
    """The folder is no package, or a damaged one, or another version's."""


class ForAnotherDevice(PackageError):
    """The folder is a package of another maker's kernels."""


@dataclass(frozen=True)
class Entry:
    """One operator for one chip. `status`: "ok", "failed" (to compile) or "left out"; `programs`, best first, each with `binary`,
    `constants` (binaries by array), `launch`, `predicted_s`, `program`, `resources`; `roofline_s`: what the chip's peaks allow."""

    operator: Operator
    chip: str
    status: str
    reason: str
    fingerprint: str
    roofline_s: float
    programs: tuple[Mapping[str, Any], ...]


class Package:
    """A package for one device in a folder; `PackageError` where it cannot be read, or is for another."""

    def __init__(self, folder: Path, platform: Platform) -> None:
        self.folder = folder
        self.manifest = _read(folder / "manifest.json")
        if self.manifest.get("schema") != SCHEMA:
            raise PackageError(f"{folder}: schema {self.manifest.get('schema')!r}, this reads {SCHEMA}; build the package again")
        device = self.manifest.get("device")
        if device != platform.device:
            raise ForAnotherDevice(f"{folder} is for the device {device!r}, this for {platform.device!r}: see bench/{device}")

    @property
    def chips(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each chip: title, arch, units, memory_bytes, cache_bytes, and what only its maker's have."""
        return dict(self.manifest["chips"])

    def entries(self, chip: str) -> list[Entry]:
        """A chip's operators, as `operators` lists them; those that it does not know come last, by name."""
        found = [e for e in (entry(path) for path in sorted((self.folder / "cases" / chip).glob("*.json"))) if e]
        place = {op.id: n for n, op in enumerate(operators())}
        return sorted(found, key=lambda e: place.get(e.operator.id, len(place)))

    def binary(self, digest: str) -> bytes:
        """A binary; `PackageError` if it is missing or damaged."""
        path = self.folder / "binaries" / f"{digest}.xz"
        try:
            data = lzma.decompress(path.read_bytes())
        except (OSError, lzma.LZMAError) as error:
            raise PackageError(f"{path}: {error}; build the package again") from error
        if digest_of(data) != digest:
            raise PackageError(f"{path} is damaged: it does not hold what its name says; build the package again")
        return data


def chip_for(package: Package, platform: Platform, gpu: Mapping[str, Any], wanted: str = "") -> str:
    """The chip of the package that the attached GPU is most like, or the one that is wanted; `PackageError` where it has no kernels
    that the GPU runs.

    Most alike: kernels that fit best, then a chip that differs in the fewest figures, then by the least; names say nothing.
    """
    if wanted and wanted not in package.chips:
        raise PackageError(f"the package has no chip {wanted!r}, only {', '.join(package.chips)}")
    fitting = {}
    for chip, known in package.chips.items():
        preference = platform.preference(gpu, known)
        if preference is not None and wanted in ("", chip):
            fitting[chip] = (preference, *_unlike(gpu, known))
    if not fitting:
        have = ", ".join(f"{chip} ({known['arch']})" for chip, known in package.chips.items() if wanted in ("", chip))
        raise PackageError(f"no kernels for {platform.architecture(gpu)}: the package has {have}")
    return min(fitting, key=lambda chip: fitting[chip])


def _unlike(gpu: Mapping[str, Any], chip: Mapping[str, Any]) -> tuple[int, float]:
    """In how many figures a GPU is not a chip, and how far it is from it."""
    count, far = 0, 0.0
    for figure, (tolerance, names) in FIGURES.items():
        told = [gpu[name] for name in names if gpu.get(name)]
        if told and chip.get(figure):
            mine = min(told, key=lambda value, its=chip[figure]: abs(value - its))  # type: ignore[misc]
            count += abs(mine - chip[figure]) > tolerance * chip[figure]
            far += abs(math.log(mine / chip[figure]))
    return count, far


def entry(path: Path) -> Entry | None:
    """What a case's file says; None where there is none, or an unreadable one."""
    try:
        table = _read(path)
        return Entry(**{**table, "operator": from_json(table["operator"]), "programs": tuple(table["programs"])})
    except (PackageError, KeyError, TypeError, ValueError):
        return None


def case_path(folder: Path, chip: str, operator: str) -> Path:
    """Where an operator's file lies."""
    words = "-".join(re.findall(r"[A-Za-z0-9]+", operator))
    return folder / "cases" / chip / f"{words}-{hashlib.sha256(operator.encode()).hexdigest()[:6]}.json"


def digest_of(data: bytes) -> str:
    """The name of a binary."""
    return hashlib.sha256(data).hexdigest()[:DIGEST]


def keep_binary(folder: Path, data: bytes) -> str:
    """Store a binary once; gives its name."""
    digest = digest_of(data)
    path = folder / "binaries" / f"{digest}.xz"
    if not path.exists():
        write(path, lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    return digest


def write(path: Path, data: bytes) -> None:
    """A file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, table: Any) -> None:
    """Plain values as a file, whole or not at all."""
    write(path, (json.dumps(table, indent=1, ensure_ascii=False) + "\n").encode())


def size(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PackageError(f"{path} cannot be read: {error}") from error
