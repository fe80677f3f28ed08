"""Entries of the kernel cache: one file each, which checks itself. It holds JSON and bytes, no pickle."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from roller.cache.key import SCHEMA, Key
from roller.errors import RollerError
from roller.ir import serialization
from roller.ir.expr import TensorExpr
from roller.program import record
from roller.program.record import Choice
from roller.runtime.artifact import Artifact
from roller.target.hardware import HardwareSpec

MAGIC = b"\x93RKEPT\r\n"  # not text, and damaged by any transfer that rewrites line ends
_PREFIX = struct.Struct("<8sQ32s")  # magic, bytes of the header, SHA-256 of header and artifact


@dataclass(frozen=True)
class Kept:
    """A compiled kernel without values of constants, and the programs that were considered, best first."""

    artifact: Artifact
    expr: TensorExpr
    choices: Callable[[], tuple[Choice, ...]]

    def of(self, spec: HardwareSpec, constants: Mapping[str, bytes]) -> Artifact:
        """Returns the artifact for a spec with the same numbers, with these values of constants."""
        return replace(self.artifact, spec=spec, constants=constants)


class DamagedError(ValueError):
    """A file that is no intact entry."""


def written(key: Key, kept: Kept) -> bytes:
    """Returns an entry as the content of one file."""
    exprs: list[Any] = []
    header = {
        "schema": SCHEMA,
        "key": key.digest,
        "parts": dict(key.parts),
        "made": time.time(),
        "chip": f"{kept.artifact.spec.device}:{kept.artifact.spec.chip}",
        "choices": [_choice_to_json(choice, exprs) for choice in kept.choices()],
        "exprs": exprs,
    }
    text, body = json.dumps(header, separators=(",", ":"), default=dict).encode(), kept.artifact.to_bytes()
    return _PREFIX.pack(MAGIC, len(text), hashlib.sha256(text + body).digest()) + text + body


def header_of(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the header of an entry and the artifact's bytes; `DamagedError` for anything but an intact entry of this version."""
    if len(raw) < _PREFIX.size or not raw.startswith(MAGIC):
        raise DamagedError("no entry of the kernel cache")
    _, length, digest = _PREFIX.unpack_from(raw)
    content = raw[_PREFIX.size :]
    if length > len(content) or hashlib.sha256(content).digest() != digest:
        raise DamagedError("it does not match its checksum")
    header = json.loads(content[:length])
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise DamagedError("it is of another version")
    return header, content[length:]


def read(raw: bytes, digest: str) -> Kept:
    """Returns the kernel of an entry; `DamagedError` unless it is an intact entry of this key."""
    header, body = header_of(raw)
    if header["key"] != digest:
        raise DamagedError("it is an entry of another key")
    try:
        artifact = Artifact.from_bytes(body)
        expr = serialization.expr_from_json(artifact.expr)
    except RollerError as error:
        raise DamagedError(str(error)) from error
    return Kept(artifact, expr, cache(lambda: _choices(header)))


def _choices(header: Mapping[str, Any]) -> tuple[Choice, ...]:
    exprs = [serialization.expr_from_json(expr) for expr in header["exprs"]]
    return tuple(
        Choice(
            record.program_from_json(table["program"], exprs[table["expr"]]),
            record.estimate_from_json(table["estimate"]),
            table["measured_s"],
            table["note"],
        )
        for table in header["choices"]
    )


def _choice_to_json(choice: Choice, exprs: list[Any]) -> dict[str, Any]:
    """Returns a choice as plain values; its expression joins the list unless it is there."""
    expr = serialization.expr_to_json(choice.program.expr)
    if expr not in exprs:
        exprs.append(expr)
    return {
        "expr": exprs.index(expr),
        "program": record.program_to_json(choice.program),
        "estimate": record.estimate_to_json(choice.estimate),
        "measured_s": choice.measured_s,
        "note": choice.note,
    }
