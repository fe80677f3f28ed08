"""Runner of CPU artifacts: LLVM compiles the IR in memory, TVM's thread pool runs its parallel loops.

The launch description has `inputs`, `output`, `constants` (each with name, shape, dtype), `direct_constants` (names of constants
that the kernel reads unpacked), `panels` (elements, dtype) and `threads`. Function `main` takes the inputs, the direct constants,
the panels and the output; `prepack`, where there are panels, takes the constants and the panels. Every buffer is flat and compact,
and has at least one element. It is aligned to 64 bytes or, with `alignment` "element", to its elements.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from roller.plugin import (
    ELEMENT_BYTES,
    Artifact,
    CodegenError,
    DeviceUnavailableError,
    LaunchError,
    address,
    aligned_empty,
    numpy_dtype,
)
from roller_cpu.chip.threads import call, default_threads
from roller_cpu.runtime import shortcut
from roller_cpu.toolchain import compiling, pins, processors

Array = npt.NDArray[Any]


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class CpuRunner:
    """A loaded kernel. It may be called from several threads; each thread uses its own descriptors."""

    def __init__(self, artifact: Artifact) -> None:
        text = _checked(artifact)
        launch = artifact.launch
        tensors = [*launch["inputs"], launch["output"]]
        constants = _constants(artifact)
        panels = [aligned_empty((max(p["elements"], 1),), numpy_dtype(p["dtype"])) for p in launch.get("panels", ())]
        self._fixed = [*(constants[name] for name in launch.get("direct_constants", ())), *panels]
        self._descriptors = [_described(array) for array in self._fixed]
        fixed = [ctypes.addressof(d) for d in self._descriptors]
        plain = launch.get("alignment") == "element"
        short = shortcut.text(launch["entry"], compiling.processor(text) or "", tensors, fixed) if plain else None
        try:
            self._module = compiling.load_module(text + (short or ""))
            self._main = self._module[launch["entry"]]
        except (AttributeError, RuntimeError) as error:
            if isinstance(error, CodegenError):
                raise
            raise LaunchError(f"the kernel has no function {launch['entry']!r}: {error}") from error
        self.threads = min(int(launch.get("threads") or default_threads()), default_threads())
        self._arguments = [_flat(t) for t in tensors]
        self._local = threading.local()
        if panels:
            held = [_described(array) for array in (*constants.values(), *panels)]
            call(self.threads, self._module["prepack"], *_pointers(held))
        self.shortcut = self._shortcut(short is not None, "TVMBackendParallelLaunch" in text)

    def _shortcut(self, exists: bool, parallel: bool) -> Callable[[int, int], int] | None:
        """Returns the shortcut of `roller.runtime.artifact.Runner`; it sets the number of threads only where that matters."""
        if not exists:
            return None
        short: Callable[[int, int], int] = self._module[shortcut.NAME]
        threads = self.threads

        def beside_others(inputs: int, out: int) -> int:
            return call(threads, short, inputs, out)

        return beside_others if parallel else short

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Computes `out`; `roller.runtime.artifact.Runner` describes the arrays."""
        try:
            moving, output, pointers = self._local.arguments
        except AttributeError:
            moving, output, pointers = self._local.arguments = self._bound()
        for descriptor, array in zip(moving, inputs, strict=True):
            descriptor.data = address(array)
        output.data = address(out)
        try:
            call(self.threads, self._main, *pointers)
        except (RuntimeError, ValueError, TypeError) as error:
            raise LaunchError(f"the kernel refused its arguments: {error}") from error

    def close(self) -> None:
        """Frees panels and code."""
        self._fixed, self._descriptors = [], []
        self.shortcut = None
        self._main = self._module = None

    def _bound(self) -> tuple[list[_DLTensor], _DLTensor, list[ctypes.c_void_p]]:
        """Returns descriptors of inputs and output, whose addresses change, and pointers to all descriptors in argument order."""
        moving = [_descriptor(elements, dtype) for elements, dtype in self._arguments]
        return moving[:-1], moving[-1], _pointers([*moving[:-1], *self._descriptors, moving[-1]])


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


def _checked(artifact: Artifact) -> str:
    """Returns the IR of an artifact; raises if this machine cannot run it."""
    if artifact.format != compiling.FORMAT:
        raise LaunchError(f"the cpu device runs {compiling.FORMAT}, not {artifact.format}")
    if pins.problems():
        raise DeviceUnavailableError("; ".join(pins.problems()))
    for package, built in artifact.versions.items():
        if package in pins.PINNED and built != pins.installed(package):
            here = pins.installed(package)
            raise DeviceUnavailableError(f"the kernel was built with {package} {built}, here is {here}; compile it again")
    text = artifact.data.decode()
    name = compiling.processor(text)
    missing = processors.missing_features(name) if name is not None else ()
    if missing:
        raise DeviceUnavailableError(f"the kernel is for {name}; this processor lacks {', '.join(missing)}")
    return text


def _flat(tensor: Mapping[str, Any]) -> tuple[int, str]:
    return max(math.prod(tensor["shape"]), 1), tensor["dtype"]


def _descriptor(elements: int, dtype: str, data: int | None = None) -> _DLTensor:
    shape = (ctypes.c_int64 * 1)(elements)
    code = shortcut.TYPE_CODES[dtype.rstrip("0123456789")]
    return _DLTensor(data, shortcut.CPU, 0, 1, code, 8 * ELEMENT_BYTES[dtype], 1, shape, None, 0)


def _described(array: Array) -> _DLTensor:
    return _descriptor(array.size, array.dtype.name, address(array))


def _pointers(descriptors: Sequence[_DLTensor]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(ctypes.addressof(d)) for d in descriptors]
