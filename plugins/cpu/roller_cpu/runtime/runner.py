"""Runner of CPU artifacts: machine code, mapped into memory; TVM's thread pool runs its parallel loops.

The launch description has `inputs`, `output`, `constants` (each with name, shape, dtype), `direct_constants` (names of constants
that the kernel reads unpacked), `panels` (elements, dtype), `threads`, `processor`, `requires` (instruction sets), `parallel`
(whether it has parallel loops) and `tiles` (whether it uses AMX's tiles). The kernel's function takes the inputs, the direct
constants, the panels and the output; `prepack`, where there are panels, takes the constants and the panels.
`roller_cpu.toolchain.entry_points` describes the functions that are called here. Every buffer is flat and compact, and has at least
one element. It is aligned to 64 bytes or, with `alignment` "element", to its elements.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from roller.plugin import ELEMENT_BYTES, Artifact, DeviceUnavailableError, LaunchError, address, aligned_empty, numpy_dtype
from roller_cpu.chip import instructions, tile_atoms
from roller_cpu.chip.threads import default_threads
from roller_cpu.runtime import mapping, object_layout
from roller_cpu.runtime.parallel import call
from roller_cpu.toolchain import entry_points, formats, pins

Array = npt.NDArray[Any]


class Code(Protocol):
    """A kernel's machine code in memory."""

    def function(self, name: str) -> Callable[[int], int]:
        """Returns an exported function of one address; it returns an error code."""

    def builtin(self, name: str) -> Callable[..., Any] | None:
        """Returns an exported function of Python's calling convention; None where it cannot be reached."""


class CpuRunner:
    """A loaded kernel. It may be called from several threads; each thread uses its own table of addresses."""

    def __init__(self, artifact: Artifact) -> None:
        code = _code(artifact)
        launch = artifact.launch
        self._count = len(launch["inputs"]) + 1
        constants = _constants(artifact)
        panels = [aligned_empty((max(p["elements"], 1),), numpy_dtype(p["dtype"])) for p in launch.get("panels", ())]
        self._fixed = [*(constants[name] for name in launch.get("direct_constants", ())), *panels]
        types = [
            *map(mapping.of_python, entry_points.OF_PYTHON),
            id(np.ndarray),
            *(id(numpy_dtype(t["dtype"])) for t in (*launch["inputs"], launch["output"])),
        ]
        self._table = _words([*types, *map(address, self._fixed)])
        code.function(entry_points.BIND)(ctypes.addressof(self._table))
        self._run = code.function(entry_points.RUN)
        self.threads = min(int(launch.get("threads") or default_threads()), default_threads())
        self._parallel = bool(launch.get("parallel"))
        self._local = threading.local()
        if panels:
            given = _words([address(array) for array in constants.values()])
            self._called(code.function(entry_points.PREPACK), ctypes.addressof(given))
        short = code.builtin(entry_points.SHORTCUT) if entry_points.has_shortcut(launch) and object_layout.as_expected() else None
        self.shortcut = None if short is None else self._shortcut(short)

    def _shortcut(self, short: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the shortcut of `roller.runtime.artifact.Runner`; it sets the number of threads only where that matters."""
        threads = self.threads

        def beside_others(inputs: tuple[Any, ...], out: Any) -> Any:
            return call(threads, short, inputs, out)

        return beside_others if self._parallel else short

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Computes `out`; `roller.runtime.artifact.Runner` describes the arrays."""
        try:
            table, place = self._local.table
        except AttributeError:
            table = _words([0] * self._count)
            place = ctypes.addressof(table)
            self._local.table = table, place
        for number, array in enumerate(inputs):
            table[number] = address(array)
        table[self._count - 1] = address(out)
        self._called(self._run, place)

    def _called(self, function: Callable[..., int], place: int) -> None:
        code = call(self.threads, function, place) if self._parallel else function(place)
        if code:
            raise LaunchError(f"the kernel failed with code {code}")

    def close(self) -> None:
        """Frees panels and code."""
        self._fixed = []
        self.shortcut = None
        self._run = _closed


def _closed(_: int) -> int:
    raise LaunchError("the kernel is closed")


def _words(values: list[int]) -> Any:
    """Returns a table of 64-bit words."""
    return (ctypes.c_uint64 * max(len(values), 1))(*values)


_REMEDY = "Compile it for 'cpu' to run it here, or check it here with `roller verify … --emulate`"


def _code(artifact: Artifact) -> Code:
    """Returns an artifact's machine code in memory; raises if this machine cannot run it."""
    launch = artifact.launch
    if artifact.format not in formats.ALL:
        raise LaunchError(f"the cpu device runs {' and '.join(formats.ALL)}, not {artifact.format}")
    if launch.get("parallel") or artifact.format == formats.IR:
        _check_tvm(artifact)
    missing = instructions.missing(launch.get("requires", ()))
    if missing:
        lacks = f"the kernel is for {launch['processor']}; this processor lacks {', '.join(missing)}"
        raise DeviceUnavailableError(f"{lacks}. {_REMEDY}")
    if launch.get("tiles") and not tile_atoms.permitted():
        raise DeviceUnavailableError(f"the kernel uses AMX's tiles, which the system does not give to this process. {_REMEDY}")
    if artifact.format == formats.IMAGE:
        return mapping.MappedImage(artifact.data, launch.get("image", {}))
    from roller_cpu.runtime import jit  # noqa: PLC0415  (it imports TVM)

    return jit.Compiled(artifact.data.decode(), launch)


def _check_tvm(artifact: Artifact) -> None:
    """Raises `DeviceUnavailableError` where TVM is not the one that the kernel was built with."""
    if pins.problems():
        raise DeviceUnavailableError("; ".join(pins.problems()))
    for package, built in artifact.versions.items():
        if package in pins.PINNED and built != pins.installed(package):
            here = pins.installed(package)
            raise DeviceUnavailableError(f"the kernel was built with {package} {built}, here is {here}; compile it again")


def _constants(artifact: Artifact) -> dict[str, Array]:
    """Returns the artifact's constants as flat aligned arrays."""
    found: dict[str, Array] = {}
    for tensor in artifact.launch.get("constants", ()):
        elements, dtype = _flat(tensor)
        raw = artifact.constants.get(tensor["name"])
        if raw is None or len(raw) != math.prod(tensor["shape"]) * ELEMENT_BYTES[dtype]:
            raise LaunchError(f"the kernel needs the values of the constant {tensor['name']!r}")
        values = found[tensor["name"]] = aligned_empty((elements,), numpy_dtype(dtype))
        values.view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    return found


def _flat(tensor: Mapping[str, Any]) -> tuple[int, str]:
    return max(math.prod(tensor["shape"]), 1), tensor["dtype"]
