"""Results of building: the source text, the artifact (bytes and how to launch them), and the interface of a loaded kernel.

An artifact is one self-describing file: a magic, a JSON header with its SHA-256, and the payload with another (the plugin's bytes,
the source text, then the values of constant inputs). It contains no pickle, but it contains code: load only artifacts that you
trust.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
from pydantic import ValidationError

from roller.errors import KernelError
from roller.frozen import FrozenMap
from roller.storage import write_atomic
from roller.target.hardware import HardwareSpec

ARTIFACT_VERSION = 2
MAGIC = b"\x93ROLLER\n"  # not text, and damaged by any transfer that rewrites line ends
_PREFIX = struct.Struct("<8sQ32s")  # magic, header bytes, SHA-256 of the header


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The inputs of building besides spec and program.

    `threads`: the max number of units to use (None: all). `constants`: names of inputs whose values are fixed when the kernel is
    built. `debug`: keep information that helps to read the result. `language`: the language of the source text, for a device with
    several (None: the one that it builds); the source records it.
    """

    threads: int | None = None
    constants: tuple[str, ...] = ()
    debug: bool = False
    language: str | None = None


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel as text: its language, the entry function, and a launch description of plain JSON values."""

    text: str
    language: str
    entry: str
    launch: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "launch", FrozenMap(self.launch))


class Profile(Protocol):
    """Predictions about a call without making it, such as the simulated cycles of each step."""

    def text(self) -> str:
        """Returns tables of plain text."""

    def html(self) -> str:
        """Returns one self-contained HTML page."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""


class Runner(Protocol):
    """A loaded kernel, as a plugin's `roller_load_kernel` returns it.

    Optional attribute `shortcut`: a function of the tuple of inputs and the output. If the number of inputs is that of `run`, and
    all arrays are NumPy arrays in exactly the required form, it computes and returns True. Otherwise it returns False: then `run`
    is called. It is called first, because it is fast.

    Optional method `resident(arrays, out, stream, wanted)`: for arrays in the device's own memory. Its arguments are the caller's
    values unchanged, in the order of the non-constant inputs; `out` (None: it makes an array); the caller's `stream` (None: it
    chooses one); and the required form of each (`roller.runtime.arrays.Wanted`, the output last). It returns `NotImplemented` if
    none of the arrays lies there: then the arrays are converted to host arrays and `run` is called. Otherwise it checks, computes
    and returns the result, or `out`. It copies only if necessary, and may return before the work is done.

    Optional method `profile()`: returns a `Profile` of a call without making it, if the device can predict one.
    """

    def run(self, inputs: tuple[npt.NDArray[Any], ...], out: npt.NDArray[Any]) -> None:
        """Computes `out` from the non-constant inputs, in the expression's order.

        Every array has the shape and element type of the expression, is C-contiguous, and stays alive for the call. Its alignment
        is "alignment" of the launch description (bytes; 64 if absent; "element": that of its own elements). Inputs may be read-only
        and must not be written; `out` overlaps none of them.
        """

    def close(self) -> None:
        """Frees the kernel's resources; it is not run again."""


class Later(FrozenMap[int]):
    """Resources that are computed on first access: reading them from machine code can take as long as building it."""

    __slots__ = ("_ask", "_found")

    def __init__(self, ask: Callable[[], Mapping[str, int]]) -> None:
        self._ask = ask
        self._found: dict[str, int] | None = None

    @property
    def _items(self) -> dict[str, int]:  # type: ignore[override]
        if self._found is None:
            self._found = dict(self._ask())
        return self._found

    def __reduce__(self) -> tuple[object, ...]:
        return FrozenMap, (dict(self),)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built kernel: portable bytes, the launch description, the toolchain's resource report, and its origin.

    A plugin fills the first six fields, with the resources directly or as `Later`. `compile` adds the rest: the expression and the
    program as JSON (`roller.ir.serialization`), the estimate, the values of constant inputs (row-major bytes), the versions
    involved and the source text.
    """

    format: str
    data: bytes
    launch: Mapping[str, Any]
    resources: Mapping[str, int]
    device: str
    spec: HardwareSpec
    versions: Mapping[str, str] = field(default_factory=dict)
    expr: Mapping[str, Any] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)
    estimate: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, bytes] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("launch", "resources", "versions", "expr", "program", "estimate", "constants"):
            value = getattr(self, name)
            object.__setattr__(self, name, value if isinstance(value, FrozenMap) else FrozenMap(value))

    @property
    def known_resources(self) -> Mapping[str, int]:
        """Returns the resources; an empty mapping if they have not been computed yet."""
        return FrozenMap({}) if isinstance(self.resources, Later) else self.resources

    def to_bytes(self) -> bytes:
        """Returns the artifact as the content of one file."""
        blobs = [self.data, self.source.encode(), *self.constants.values()]
        payload = b"".join(blobs)
        header = {
            "schema_version": ARTIFACT_VERSION,
            "payload_sha256": hashlib.sha256(payload).hexdigest(),
            "blobs": [len(blob) for blob in blobs],
            "constants": list(self.constants),
            "spec": self.spec.model_dump(mode="json"),
        }
        for name in ("format", "launch", "resources", "device", "versions", "expr", "program", "estimate"):
            header[name] = getattr(self, name)
        text = json.dumps(header, default=_plain, separators=(",", ":")).encode()
        return _PREFIX.pack(MAGIC, len(text), hashlib.sha256(text).digest()) + text + payload

    @staticmethod
    def from_bytes(raw: bytes, file: str | Path | None = None) -> Artifact:
        """Returns the artifact of a file; `KernelError`, with the file's name, for anything but an intact file of this version."""
        where = "artifact" if file is None else str(file)
        header, payload = _header(raw, where)
        lengths, names = header.get("blobs"), header.get("constants")
        if not isinstance(lengths, list) or not isinstance(names, list) or len(lengths) != len(names) + 2:
            raise _damaged(where, "its header contradicts itself")
        if not all(isinstance(n, int) and n >= 0 for n in lengths) or sum(lengths) != len(payload):
            raise _damaged(where, f"{len(payload)} bytes of payload, but the header declares {lengths}")
        if hashlib.sha256(payload).hexdigest() != header.get("payload_sha256"):
            raise _damaged(where, "the payload does not match its checksum")
        blobs = [payload[sum(lengths[:i]) : sum(lengths[: i + 1])] for i in range(len(lengths))]
        try:
            given = {n: header[n] for n in ("format", "launch", "resources", "device", "versions", "expr", "program", "estimate")}
            spec = HardwareSpec.model_validate(header["spec"])
            constants = dict(zip(names, blobs[2:], strict=True))
            return Artifact(**given, data=blobs[0], source=blobs[1].decode(), spec=spec, constants=constants)
        except (ValidationError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise _damaged(where, f"its header does not describe a kernel ({type(error).__name__}: {reason})") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the artifact to a file, atomically; `KernelError` if that fails."""
        try:
            target = Path(path)
        except TypeError:
            raise KernelError(f"the path of the file to write expected, not a {type(path).__name__}") from None
        try:
            write_atomic(target, self.to_bytes())
        except (OSError, ValueError) as error:
            raise KernelError(f"{os.fspath(path)}: cannot be written: {getattr(error, 'strerror', None) or error}") from error

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Artifact:
        """Returns the artifact that `save` wrote; `KernelError` if the file is missing, damaged or of another version."""
        try:
            raw = Path(path).read_bytes()
        except TypeError:
            raise KernelError(f"the path of a saved kernel expected, not a {type(path).__name__}") from None
        except (OSError, ValueError) as error:
            raise KernelError(f"{os.fspath(path)}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
        return Artifact.from_bytes(raw, Path(path))


def _plain(value: Any) -> Any:
    """Converts values that JSON lacks: immutable mappings and NumPy scalars; `KernelError` for anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise KernelError(
        f"the artifact holds a {type(value).__name__}, which a file cannot; plain numbers, text, lists and mappings can"
    )


def _header(raw: bytes, where: str) -> tuple[dict[str, Any], bytes]:
    """Returns the checked header and the unchecked payload."""
    if not raw.startswith(MAGIC[: max(len(raw), 1)]):
        raise KernelError(f"{where}: not a roller kernel; files that Kernel.save() wrote can be loaded")
    if len(raw) < _PREFIX.size:
        raise _damaged(where, f"only {len(raw)} bytes")
    _, length, digest = _PREFIX.unpack_from(raw)
    text = raw[_PREFIX.size : _PREFIX.size + length]
    if len(text) != length:
        raise _damaged(where, f"cut off inside its header ({len(text)} of {length} bytes)")
    if hashlib.sha256(text).digest() != digest:
        raise _damaged(where, "the header does not match its checksum")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, "the header is not JSON") from error
    version = header.get("schema_version") if isinstance(header, dict) else None
    if version != ARTIFACT_VERSION:
        raise KernelError(f"{where}: format {version!r}, this roller reads {ARTIFACT_VERSION}; compile the operator again")
    return header, raw[_PREFIX.size + length :]


def _damaged(where: str, what: str) -> KernelError:
    return KernelError(f"{where}: damaged: {what}; compile the operator again, or copy the file anew")
