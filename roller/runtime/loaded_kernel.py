"""An artifact on one GPU: its binary, constants and workspaces, with launches prepared except for addresses."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from roller.errors import KernelError, LaunchError
from roller.ir.expr import ELEMENT_BYTES
from roller.runtime.arrays import address, aligned_empty, numpy_dtype
from roller.runtime.artifact import Artifact
from roller.runtime.gpu import Gpu

Array = npt.NDArray[Any]
APART = 256  # bytes: workspaces of one call start at multiples of this


class Launch(Protocol):
    """One kernel with everything that its launches have in common."""

    def launch(self, places: Mapping[str, int], stream: int) -> None:
        """Enqueues it for arrays at these addresses, by name; one thread at a time."""


Prepare = Callable[[Any, Mapping[str, Any], Any], Launch]  # from a loaded binary, a kernel's description, and the GPU


class Loaded:
    """A program's kernels on one GPU. Several threads may launch it, on several streams: each call has its own workspaces."""

    def __init__(self, artifact: Artifact, gpu: Gpu, prepare: Prepare) -> None:
        self.gpu = gpu
        self._spaces, self._workspace_bytes = _laid_out(artifact.launch["workspaces"])
        self._owned = owned = Owned(gpu)
        self._dropped = weakref.finalize(self, owned.drop)
        self._dropped.atexit = False  # at exit, the driver is gone before
        with gpu.current():
            self._places = {name: owned.constant(array) for name, array in constants_of(artifact).items()}
            self._kernels = [prepare(owned.module(artifact.data), described, gpu) for described in artifact.launch["kernels"]]
        self._lock = threading.Lock()

    def launch(self, places: Mapping[str, int], stream: int) -> None:
        """Enqueues the kernels for arrays at these addresses, by name; requires the GPU to be the thread's current one."""
        with self.gpu.room(self._workspace_bytes, stream) as base:
            spaces = {name: base + offset for name, offset in self._spaces.items()}
            everything = {**self._places, **spaces, **places}
            with self._lock:  # a launch overwrites the addresses of the one before
                for kernel in self._kernels:
                    kernel.launch(everything, stream)

    def close(self) -> None:
        """Waits for running work, then frees the GPU's memory."""
        self._kernels = []
        self._dropped.detach()
        self._owned.release()


class Owned:
    """The GPU resources of a loaded binary and its arrays; released at most once."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._memory: list[int] = []
        self._module: Any = None
        self._code = b""

    def memory(self, size: int, what: str) -> int:
        """Returns the address of `size` bytes on the GPU; `what` names them in an out-of-memory error."""
        place = self._gpu.keep(max(size, 1), f"{what} on {self._gpu}")
        self._memory.append(place)
        return place

    def constant(self, array: Array) -> int:
        """Copies values to the GPU, synchronously, and returns their address."""
        place = self.memory(array.nbytes, f"a constant of {array.nbytes} bytes")
        if array.nbytes:
            self._gpu.write(place, address(array), array.nbytes)
        return place

    def module(self, code: bytes, what: str = "loading the kernel") -> Any:
        """Returns the binary, loaded into the driver."""
        if self._module is None:
            self._code = code
            self._module = self._gpu.load(code, f"{what} on {self._gpu}")
        return self._module

    def drop(self) -> None:
        """Releases as `release` from the garbage collector, where a GPU that failed before cannot be reported."""
        with suppress(KernelError):
            self.release()

    def release(self) -> None:
        """Waits for running work, then releases everything."""
        if self._gpu.forks.forked:  # the parent's resources stay the parent's
            return
        with self._gpu.current():
            self._gpu.wait()
            while self._memory:
                self._gpu.drop(self._memory.pop())
            if self._module is not None:
                self._gpu.unload(self._module)
                self._module = None


def check_limits(described: Mapping[str, Any], gpu: Gpu, limits: Iterable[tuple[str, int, int]]) -> None:
    """Raises `LaunchError` for a launch beyond a GPU's limits. `limits`: name, required amount, available amount."""
    name, blocks, threads = described["name"], int(described["blocks"]), int(described["threads"])
    for what, wanted, most in limits:
        if wanted > most:
            raise LaunchError(f"kernel {name!r} needs {wanted} {what}, {gpu} has {most}; compile it for the attached chip")
    if blocks < 1 or threads < 1:
        raise LaunchError(f"kernel {name!r}: {blocks} blocks of {threads} threads cannot be launched")


def _laid_out(workspaces: Sequence[Mapping[str, Any]]) -> tuple[dict[str, int], int]:
    """Returns each workspace's offset in one block of memory, and the block's bytes."""
    offsets, end = {}, 0
    for space in workspaces:
        offsets[space["name"]] = end
        size = max(space["elements"], 1) * ELEMENT_BYTES[space["dtype"]]
        end += size + -size % APART
    return offsets, end


def constants_of(artifact: Artifact) -> dict[str, Array]:
    """Returns the constants of the artifact, by name."""
    found: dict[str, Array] = {}
    for tensor in artifact.launch["tensors"]:
        raw = artifact.constants.get(tensor["name"])
        if raw is not None:
            values = found[tensor["name"]] = aligned_empty(tuple(tensor["shape"]), numpy_dtype(tensor["dtype"]))
            values[...] = np.frombuffer(raw, values.dtype).reshape(values.shape)
    return found


def inputs_of(artifact: Artifact, moving: tuple[Array, ...]) -> dict[str, Array]:
    """Returns all inputs by name: those of a call, in order, and the constants."""
    fixed = constants_of(artifact)
    names = [name for name in artifact.launch["inputs"] if name not in fixed]
    return {**fixed, **dict(zip(names, moving, strict=True))}
