"""Runner of a shared object in this process."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roller.plugin import Artifact, DeviceUnavailableError, LaunchError, address, aligned_empty
from roller_plain_c.toolchain import FORMAT

Array = npt.NDArray[Any]


class SharedObject:
    """A loaded kernel. It may be called from several threads, as each call has its own scratch memory."""

    def __init__(self, artifact: Artifact) -> None:
        if artifact.format != FORMAT:
            raise LaunchError(f"the plain_c device runs {FORMAT}, not {artifact.format}")
        self._function: Callable[..., None] | None = _entry(artifact)
        self._constants = {name: _aligned(raw) for name, raw in artifact.constants.items()}
        self._names: tuple[str, ...] = tuple(artifact.launch["inputs"])
        self._scratch_bytes: int = artifact.launch["scratch_bytes"]

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Computes `out`; `roller.plugin.Runner` describes the arrays."""
        if self._function is None:
            raise LaunchError("the kernel is closed")
        given = iter(inputs)
        arrays = [self._constants[name] if name in self._constants else next(given) for name in self._names]
        scratch = aligned_empty((self._scratch_bytes,), np.dtype(np.uint8))
        self._function(*(ctypes.c_void_p(address(array)) for array in (*arrays, out, scratch)))

    def close(self) -> None:
        """Frees the constants; the code stays mapped, as other kernels may share it."""
        self._function, self._constants = None, {}


def _entry(artifact: Artifact) -> Callable[..., None]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.so"  # a unique path: the loader reuses a library that it has loaded from the same path
        file.write_bytes(artifact.data)
        try:
            function = getattr(ctypes.CDLL(str(file)), artifact.launch["entry"])
        except (AttributeError, OSError) as error:
            raise DeviceUnavailableError(f"this machine cannot load the kernel: {error}") from error
    function.restype = None
    return function  # type: ignore[no-any-return]


def _aligned(raw: bytes) -> Array:
    """Returns a constant's bytes with the kernel's alignment."""
    values = aligned_empty((len(raw),), np.dtype(np.uint8))
    values[:] = np.frombuffer(raw, np.uint8)
    return values
