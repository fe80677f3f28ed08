"""The package that `build` writes and `run` reads: kernels with all that is needed to launch, check and judge them.

A folder: `manifest.json` (schema, chips, versions, date), `cases/<chip>/<name>.json` (an operator each, with its programs),
`cubins/<digest>.xz` (each binary once, compressed), `calibration/<chip>/` (kernels that measure a chip). Every file is written
whole or not at all. Nothing here needs more than Python.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cuda.operators import Operator, from_json, ordered

SCHEMA = 1
MOST_BYTES = 50 << 20
DIGEST = 20  # hexadecimal digits that name a binary


class PackageError(Exception):
    """The folder is no package, or a damaged one, or another version's."""


@dataclass(frozen=True)
class Entry:
    """One operator for one chip. `status`: "ok", "failed" (to compile) or "left out"; `programs`, best first, each with `cubin`,
    `launch`, `predicted_s`, `program`, `resources`; `roofline_s`: what the chip's peaks allow."""

    operator: Operator
    chip: str
    status: str
    reason: str
    fingerprint: str
    roofline_s: float
    programs: tuple[Mapping[str, Any], ...]


class Package:
    """A package in a folder; `PackageError` where it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _read(folder / "manifest.json")
        if self.manifest.get("schema") != SCHEMA:
            raise PackageError(f"{folder}: schema {self.manifest.get('schema')!r}, this reads {SCHEMA}; build the package again")

    @property
    def chips(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each chip: arch, capability, units, memory_bytes."""
        return dict(self.manifest["chips"])

    def entries(self, chip: str) -> list[Entry]:
        """A chip's operators, the most important ones first."""
        found = {e.operator.id: e for e in (entry(path) for path in sorted((self.folder / "cases" / chip).glob("*.json"))) if e}
        return [found[op.id] for op in ordered([e.operator for e in found.values()])]

    def cubin(self, digest: str) -> bytes:
        """A binary; `PackageError` if it is missing or damaged."""
        path = self.folder / "cubins" / f"{digest}.xz"
        try:
            data = lzma.decompress(path.read_bytes())
        except (OSError, lzma.LZMAError) as error:
            raise PackageError(f"{path}: {error}; build the package again") from error
        if digest_of(data) != digest:
            raise PackageError(f"{path} is damaged: it does not hold what its name says; build the package again")
        return data


def chip_for(package: Package, capability: tuple[int, int], units: int, memory_bytes: int) -> str:
    """The chip of the package that the attached GPU is most like; `PackageError` where none has kernels that it runs.

    A kernel runs on the architecture that it was compiled for, and without the "a" also on later ones of the same major number.
    """
    fitting = {}
    for chip, known in package.chips.items():
        major, minor = known["capability"]
        if (major, minor) == capability or (not known["arch"].endswith("a") and major == capability[0] and minor <= capability[1]):
            off = abs(known["units"] - units) / units + abs(known["memory_bytes"] - memory_bytes) / memory_bytes
            fitting[chip] = (capability[1] - minor, off)
    if not fitting:
        have = ", ".join(f"{chip} ({known['arch']})" for chip, known in package.chips.items())
        raise PackageError(f"no kernels for compute capability {capability[0]}.{capability[1]}: the package has {have}")
    return min(fitting, key=lambda chip: fitting[chip])


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


def keep_cubin(folder: Path, data: bytes) -> str:
    """Store a binary once; gives its name."""
    digest = digest_of(data)
    path = folder / "cubins" / f"{digest}.xz"
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
