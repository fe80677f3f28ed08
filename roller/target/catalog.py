"""Spec files: discovery, reading, validation, and a lint of their numbers.

A spec directory holds `<device>/<chip>.toml`. The caller's directories precede the built-in one, so a user's file of the same
device and chip wins. Every failure is one `SpecError` of one line, with file and field.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from roller.errors import SpecError
from roller.storage import spec_dir, write_atomic
from roller.target.hardware import SCHEMA_VERSION, Banks, ComputeAtom, HardwareSpec, MemoryLevel, RowShares, SchedulableUnit

_log = logging.getLogger("roller.specs")

__all__ = [
    "PROVENANCE",
    "SpecEntry",
    "builtin_dir",
    "dump_spec",
    "find_spec",
    "json_schema",
    "keep_spec",
    "kept_spec",
    "list_specs",
    "load_spec",
    "number_paths",
    "parse",
    "shipped_specs",
    "spec_from_dict",
    "user_spec_path",
]

FILE_BYTES_MAX = 1 << 20
PROVENANCE = ("datasheet", "query", "measured", "published", "derived", "estimate", "invented")
_TABLES: dict[str, type[BaseModel]] = {
    "levels": MemoryLevel,
    "banks": Banks,
    "row_shares": RowShares,
    "unit_row_shares": RowShares,
    "unit": SchedulableUnit,
    "atoms": ComputeAtom,
}


@dataclass(frozen=True, slots=True)
class SpecEntry:
    """A spec file, found by its path and not yet read."""

    device: str
    chip: str
    path: Path


def builtin_dir() -> Path:
    """Returns the directory of the shipped specs: `roller/_specs` in a wheel, `specs` beside `roller` in a source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_specs"
    return installed if installed.is_dir() else package.parent / "specs"


def list_specs(device: str | None = None, extra_dirs: Iterable[str | Path] = ()) -> tuple[SpecEntry, ...]:
    """Returns the available spec files, of one device or of all, sorted; files are not opened."""
    found: dict[tuple[str, str], SpecEntry] = {}
    for root in [*map(Path, extra_dirs), builtin_dir()]:
        for path in sorted(root.glob("*/*.toml")):
            entry = SpecEntry(path.parent.name, path.stem, path)
            if device in (None, entry.device):
                found.setdefault((entry.device, entry.chip), entry)
    return tuple(found[key] for key in sorted(found))


def shipped_specs(device: str) -> tuple[HardwareSpec, ...]:
    """Returns the specs of a device's chips that ship with roller, sorted by name."""
    return tuple(load_spec(entry.path) for entry in list_specs(device) if builtin_dir() in entry.path.parents)


def find_spec(device: str, chip: str, extra_dirs: Iterable[str | Path] = ()) -> HardwareSpec:
    """Returns the spec of one chip; `SpecError`, with the available chips, if no file describes it."""
    entries = {entry.chip: entry for entry in list_specs(device, tuple(extra_dirs))}
    if chip not in entries:
        there = ", ".join(entries) or "none"
        raise SpecError(f"no spec of chip {chip!r} for device {device!r}{_hint(chip, entries)}; there is: {there}")
    path = entries[chip].path
    spec = load_spec(path)
    for field, expected, found in (("device", device, spec.device), ("chip", chip, spec.chip)):
        if expected != found:
            raise SpecError(f"says {found!r}, but the file is in the place of {expected!r}", path, field)
    return spec


def load_spec(path: str | Path) -> HardwareSpec:
    """Returns the spec of a TOML file."""
    return spec_from_dict(parse(_read(Path(path)), Path(path)), path)


def user_spec_path(device: str, chip: str) -> Path:
    """Returns the path of the user's own file of a chip."""
    return spec_dir() / device / f"{chip}.toml"


def kept_spec(device: str, chip: str) -> HardwareSpec | None:
    """Returns the spec in the user's file of a chip, such as a measured one; None without a file, or (warning) a usable one."""
    path = user_spec_path(device, chip)
    if not path.is_file():
        return None
    try:
        spec = load_spec(path)
    except SpecError as error:
        _log.warning("%s; measure the chip anew with `roller specs calibrate %s`", error, device)
        return None
    if (spec.device, spec.chip) == (device, chip):
        return spec
    _log.warning("%s describes another chip; measure this one anew with `roller specs calibrate %s`", path, device)
    return None


def keep_spec(spec: HardwareSpec) -> HardwareSpec:
    """Writes a spec to the user's own file of its chip, with a warning if that fails; returns the spec."""
    path = user_spec_path(spec.device, spec.chip)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, dump_spec(spec).encode())
    except OSError as error:
        _log.warning("the measured spec cannot be kept in %s: %s", path, error)
    return spec


def spec_from_dict(data: Mapping[str, Any], file: str | Path | None = None) -> HardwareSpec:
    """Returns the spec of a parsed TOML document; `file` is used in errors only."""
    version = data.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        said = "missing" if version is None else f"{version!r:.60} is foreign"
        raise SpecError(f"{said}; this roller reads {SCHEMA_VERSION}", file, "schema_version")
    try:
        return HardwareSpec.model_validate(data)
    except ValidationError as error:
        field, message = _first_complaint(error, data)
        raise SpecError(message, file, field) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        hint = "" if path.suffix else "; a chip of `roller specs list` is named as the device, not as a spec file"
        raise SpecError(f"no such file{hint}", path) from None
    except IsADirectoryError:
        raise SpecError("is a directory, not a spec file", path) from None
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from error
    if len(raw) > FILE_BYTES_MAX:
        raise SpecError(f"larger than {FILE_BYTES_MAX} bytes, so not a spec file", path)
    return raw


def parse(raw: bytes, file: str | Path) -> dict[str, Any]:
    """Returns the tables of a spec file's bytes, unchecked."""
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SpecError(f"not UTF-8 at byte {error.start}", file) from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and integers too long to parse
        raise SpecError(f"not TOML: {_line(error)}", file) from error


def _line(text: object) -> str:
    return " ".join(str(text).split())[:300]


def _hint(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.lower(), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _first_complaint(error: ValidationError, data: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the field and the one-line text of the first error, in the order of the models."""
    complaints = error.errors(include_url=False)
    first = next((c for c in complaints if c["type"] == "extra_forbidden"), complaints[0])  # a typo is why another key is missing
    field = _dotted(first["loc"], data)
    if first["type"] == "value_error":  # our own validators: "field: error"
        inner, _, message = str(first["ctx"]["error"]).partition(": ")
        if message:
            field = f"{field}.{inner}" if field else inner
        message = message or inner
    elif first["type"] == "extra_forbidden":
        message = "unknown key" + _hint(str(first["loc"][-1]), _siblings(first["loc"]))
    elif first["type"] == "missing":
        message = "missing"
    else:
        message = f"{first['msg']}, found {first['input']!r:.60}"
    more = len(complaints) - 1
    return field, _line(message) + (f" (and {more} more)" if more else "")


def _dotted(loc: tuple[int | str, ...], data: Any) -> str:
    """Returns a location in the notation of spec files: a level or an atom by its name, or by its index if it has none."""
    path = ""
    for step in loc:
        if not isinstance(data, Mapping | list):
            break  # the rest is the validator's notation for members of a union
        if isinstance(step, int):
            data = data[step]
            name = data.get("name") if isinstance(data, Mapping) else None
            path += f".{name}" if isinstance(name, str) and name else f"[{step}]"
        else:
            data = data.get(step) if isinstance(data, Mapping) else None
            path += f".{step}"
    return _line(path.removeprefix("."))


def _siblings(loc: tuple[int | str, ...]) -> Iterable[str]:
    """Returns the permitted keys at the location of an unknown one."""
    table = [step for step in loc[:-1] if isinstance(step, str)]
    return (_TABLES[table[-1]] if table else HardwareSpec).model_fields


def dump_spec(spec: HardwareSpec) -> str:
    """Returns the spec as TOML text that `load_spec` reads back to an equal spec; defaults are omitted."""
    data = spec.model_dump(mode="json", exclude_defaults=True)
    return tomli_w.dumps({"schema_version": SCHEMA_VERSION, **data})


def json_schema() -> str:
    """Returns the JSON schema of spec files; `specs/schema.json` holds it."""
    schema = HardwareSpec.model_json_schema(mode="validation")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "roller hardware spec"}
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _numbers(table: Any) -> bool:
    """True for a list of numbers, or of lists of numbers."""
    return bool(table) and all(_numbers(item) if isinstance(item, list) else type(item) in (int, float) for item in table)


def number_paths(spec: HardwareSpec, defaults: bool) -> Iterator[str]:
    """Yields the dotted path of every number in a spec, or only of those that differ from their default."""
    hidden = {"schema_version", "options", "sources"}
    data = spec.model_dump(mode="json", exclude_defaults=not defaults, exclude=hidden)

    def walk(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, dict):
            for key, item in value.items():
                yield from walk(item, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for item in value:
                yield from walk(item, f"{path}.{item['name']}") if isinstance(item, dict) else ()
            yield from [path] if _numbers(value) else []
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path

    return walk(data, "")
