"""An artifact on one GPU: the code object, its constants, and launches in which nothing is left to prepare but addresses."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from roller.plugin import ELEMENT_BYTES, Artifact, DeviceUnavailableError, KernelError, LaunchError, address, constants_of
from roller_rocm import hip
from roller_rocm.gpu import LOCAL_BYTES, MAX_GRID, MAX_LANES, Gpu
from roller_rocm.hip import StatusError

APART = 256  # bytes: workspaces of one call start at multiples of this
LANES_END = 1 << 32  # of a launch; so many are too many
_LANES_OF_KERNEL, _LOCAL_OF_KERNEL = 0, 1  # hipFunction_attribute


class Loaded:
    """A program's kernels on one GPU. Several threads may launch it, on several streams: each call has workspaces of its own."""

    def __init__(self, artifact: Artifact, gpu: Gpu) -> None:
        self.gpu = gpu
        launch = artifact.launch
        fits(str(launch["arch"]), gpu)
        self._places: dict[str, int] = {}
        self._spaces, self._workspace_bytes = _laid_out(launch["workspaces"])
        self._owned = owned = Owned(gpu)
        self._dropped = weakref.finalize(self, owned.drop)
        self._dropped.atexit = False  # at exit the runtime is gone before
        with gpu.current():
            for name, array in constants_of(artifact).items():
                self._places[name] = owned.constant(address(array), array.nbytes)
            self._kernels = [_Kernel(owned.module(artifact.data), described, gpu) for described in launch["kernels"]]
        self._lock = threading.Lock()

    def launch(self, places: Mapping[str, int], stream: int) -> None:
        """Enqueue the kernels for arrays at these addresses, by name; the GPU is the thread's."""
        with self.gpu.room(self._workspace_bytes, stream) as base:
            spaces = {name: base + offset for name, offset in self._spaces.items()}
            everything = {**self._places, **spaces, **places}
            with self._lock:
                for kernel in self._kernels:
                    kernel.launch(everything, stream)

    def close(self) -> None:
        """Wait for what runs, then give the GPU's memory back."""
        self._kernels = []
        self._dropped.detach()
        self._owned.release()


class Owned:
    """What a loaded code object and its arrays hold of the runtime; given back at most once."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._memory: list[int] = []
        self._module = 0
        self._code = b""

    def constant(self, source: int, size: int) -> int:
        """Values on the GPU, copied at once."""
        place = hip.handle("hipMalloc", max(size, 1), what=f"a constant of {size} bytes on {self._gpu}")
        self._memory.append(place)
        if size:
            hip.call("hipMemcpyHtoD", place, source, size)
        return place

    def module(self, code: bytes) -> int:
        """The code object as the runtime holds it: it may read the bytes as long as it does."""
        if not self._module:
            self._code = code
            self._module = hip.handle("hipModuleLoadData", code, what=f"loading the kernel on {self._gpu}")
        return self._module

    def drop(self) -> None:
        """As `release`, when the collector of garbage asks: nobody is there to hear of a GPU that failed before."""
        with suppress(KernelError):
            self.release()

    def release(self) -> None:
        """Wait for what runs, then give everything back."""
        if hip.is_forked():  # what the parent holds is the parent's
            return
        with self._gpu.current():
            self._gpu.wait()
            while self._memory:
                hip.call("hipFree", self._memory.pop())
            if self._module:
                hip.call("hipModuleUnload", self._module)
                self._module = 0


class _Kernel:
    """One kernel with everything that its launches have in common."""

    def __init__(self, module: int, described: Mapping[str, Any], gpu: Gpu) -> None:
        self._name = str(described["name"])
        self._blocks, self._threads = int(described["blocks"]), int(described["threads"])
        self._function = hip.handle("hipModuleGetFunction", module, self._name.encode(), what=f"kernel {self._name!r}")
        _check_limits(described, self._function, gpu)
        self._names = list(described["arguments"])
        room = max(len(self._names), 1)
        self._slots = (ctypes.c_uint64 * room)()
        start = ctypes.addressof(self._slots)
        self._pointers = (ctypes.c_void_p * room)(*range(start, start + 8 * room, 8))

    def launch(self, places: Mapping[str, int], stream: int) -> None:
        """Enqueue it; one thread at a time, as the addresses are written where the last launch had its own."""
        for index, name in enumerate(self._names):
            self._slots[index] = places[name]
        sizes = (self._blocks, 1, 1, self._threads, 1, 1, 0)  # local memory is declared in the kernel, none is added
        try:
            hip.tried("hipModuleLaunchKernel", self._function, *sizes, stream, self._pointers, None)
        except StatusError as error:
            raise error.told(f"kernel {self._name!r}") from error


def fits(arch: str, gpu: Gpu) -> None:
    """`DeviceUnavailableError` where the GPU cannot run a code object for this architecture: it runs on no other."""
    if gpu.arch != arch:
        raise DeviceUnavailableError(
            f"the kernel was compiled for {arch}, {gpu} is {gpu.arch}; compile it for the attached chip (device='rocm')"
        )


def _laid_out(workspaces: Sequence[Mapping[str, Any]]) -> tuple[dict[str, int], int]:
    """Where each workspace lies in one block of memory, and the block's bytes."""
    offsets, end = {}, 0
    for space in workspaces:
        offsets[space["name"]] = end
        size = max(space["elements"], 1) * ELEMENT_BYTES[space["dtype"]]
        end += size + -size % APART
    return offsets, end


def _check_limits(described: Mapping[str, Any], function: int, gpu: Gpu) -> None:
    """`LaunchError` for a launch that this GPU cannot do."""
    name, blocks, threads = described["name"], int(described["blocks"]), int(described["threads"])
    declared = max(int(described["shared_bytes"]), hip.number("hipFuncGetAttribute", _LOCAL_OF_KERNEL, function))
    compiled_for = hip.number("hipFuncGetAttribute", _LANES_OF_KERNEL, function)
    limits = (
        ("blocks", blocks, gpu.attribute(MAX_GRID)),
        ("threads a block", threads, min(gpu.attribute(MAX_LANES), compiled_for)),
        ("threads together", blocks * threads, LANES_END - 1),
        ("bytes of local memory a block", declared, gpu.attribute(LOCAL_BYTES)),
    )
    for what, wanted, most in limits:
        if wanted > most:
            raise LaunchError(f"kernel {name!r} wants {wanted} {what}, {gpu} has {most}; compile it for the attached chip")
    if blocks < 1 or threads < 1:
        raise LaunchError(f"kernel {name!r}: {blocks} blocks of {threads} threads cannot be launched")
