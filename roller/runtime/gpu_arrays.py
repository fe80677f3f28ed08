"""Arrays of other libraries in GPU memory: read in place, and results returned as arrays of the caller's library.

torch is asked for addresses itself and allocates its results, so they use its memory pool, its streams and its graphs. The plugin
decides how arrays of all other libraries are exchanged. No array is copied or converted.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from roller.errors import KernelError, LaunchError
from roller.runtime.arrays import Wanted, without_gradient
from roller.runtime.dlpack import lend
from roller.runtime.gpu import Gpu

UNREADABLE = (BufferError, RuntimeError, TypeError, ValueError, AttributeError, KeyError)
DEFAULT_STREAMS = (0, 1)  # handles of the default stream, with which all others synchronise


@dataclass(slots=True)
class Taken:
    """An array's memory as kernels need it.

    `stream`: the stream that its library works on, which reuses the memory in that order; None if the library reports none.
    `holder` keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    contiguous: bool
    writable: bool
    stream: int | None
    holder: Any
    size: int = 0  # bytes


class Block:
    """Memory of ours that others use: freed in the order of every stream that was registered as a reader."""

    def __init__(self, address: int, size: int, gpu: Gpu, stream: int) -> None:
        self.address, self.size, self.gpu = address, size, gpu
        self.written_on = stream
        self.streams = {stream}

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        with suppress(KernelError), self.gpu.current():  # a GPU that failed before, or a fork, cannot be reported here
            self.gpu.reclaim(self.address, self.streams)


def library_of(value: Any) -> str:
    """Returns the name of the package that made a value."""
    return type(value).__module__.partition(".")[0]


class Foreign(ABC):
    """The exchange of arrays with other libraries for one kind of GPUs; differences between kinds are abstract methods.

    `backend`: the name that torch and CuPy use for that kind and for their modules. `default_stream`: the runtime's handle of the
    default stream, with which all others synchronise. `with_streams`: libraries whose streams can be passed.
    """

    backend: ClassVar[str]
    default_stream: ClassVar[int]
    with_streams: ClassVar[str]

    # --- differences between kinds of GPUs ---------------------------------------------------------------------------------

    @abstractmethod
    def lies_on(self, value: Any) -> int | None:
        """Returns the number of the GPU that holds an array of any library but torch; None if it is elsewhere."""

    @abstractmethod
    def viewed(self, value: Any, stream: int, own: int | None) -> Taken:
        """Returns an array of any library but torch, which is requested to be ready for work on the stream."""

    @abstractmethod
    def lent(self, block: Block, wanted: Wanted) -> Any:
        """Returns a result that supports DLPack."""

    def is_ours(self, torch: Any) -> bool:
        """Returns False for a torch whose GPUs are of another kind that it calls by the same name."""
        return True

    def stream_told(self, value: Any) -> int | None:
        """Returns the stream that an array itself reports; None if it reports none."""
        return None

    # --- location of arrays, and streams -----------------------------------------------------------------------------------

    def ordinal_of(self, value: Any) -> int | None:
        """Returns the number of the GPU whose memory holds an array; None for everything else."""
        if type(value) is np.ndarray:
            return None
        try:
            if library_of(value) == "torch" and hasattr(value, f"is_{self.backend}"):
                there = getattr(value, f"is_{self.backend}") and self.is_ours(sys.modules["torch"])
                return int(value.device.index) if there else None
            return self.lies_on(value)
        except UNREADABLE:  # traced, deleted or spread over devices: the error comes when it is read
            return None

    def stream_of(self, value: Any, gpu: Gpu) -> int | None:
        """Returns the current stream of an array's library, as the runtime's handle; None if the library reports none."""
        library = library_of(value)
        if library == "torch":
            return self._torch_stream(gpu)
        if library == "cupy":
            cupy = getattr(sys.modules["cupy"], self.backend)
            with cupy.Device(gpu.ordinal):
                return self.handle(int(cupy.get_current_stream().ptr))
        return self.stream_told(value)

    def handle(self, stream: int) -> int:
        """Returns the runtime's handle of a stream with this handle in other libraries."""
        return self.default_stream if stream in DEFAULT_STREAMS else stream

    def stream_from(self, stream: Any) -> int:
        """Returns the stream of a `stream` argument: a handle, or an object that has one."""
        protocol = f"__{self.backend}_stream__"
        if hasattr(stream, protocol):
            return self.handle(int(getattr(stream, protocol)()[1]))
        for field in (f"{self.backend}_stream", "ptr"):
            if hasattr(stream, field):
                return self.handle(int(getattr(stream, field)))
        if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
            return self.handle(stream)
        raise LaunchError(f"stream=: a {type(stream).__name__} given; a stream of {self.with_streams} expected, or a handle (int)")

    def _torch_stream(self, gpu: Gpu) -> int:
        current = self._torch_module().current_stream(gpu.ordinal)
        return self.handle(int(getattr(current, f"{self.backend}_stream")))

    def _torch_module(self) -> Any:
        return getattr(sys.modules["torch"], self.backend)

    # --- arguments ---------------------------------------------------------------------------------------------------------

    def take(self, value: Any, wanted: Wanted, gpu: Gpu, stream: int, written: bool = False) -> Taken:
        """Returns an array in a GPU's memory, ready for work on the stream; `LaunchError` if it is not as required."""
        from_torch = library_of(value) == "torch"
        try:
            own = self.stream_of(value, gpu)
            taken = _torch_taken(value, wanted.name, own) if from_torch else self.viewed(value, stream, own)
        except UNREADABLE as error:
            if isinstance(error, KernelError):
                raise
            raise LaunchError(f"{wanted.name}: {type(value).__name__} cannot be read as an array: {error}") from error
        _check(taken, value, wanted, written)
        taken.size = math.prod(wanted.shape) * wanted.dtype.itemsize
        if from_torch and taken.stream is not None:  # the other libraries got the stream when they exported the array
            gpu.order(taken.stream, stream)
        return taken

    # --- results -----------------------------------------------------------------------------------------------------------

    def fresh(self, like: Any, wanted: Wanted, gpu: Gpu, stream: int) -> tuple[int, Callable[[], Any]]:
        """Returns memory for a result, free for work on the stream: its address, and a function that returns the array.

        The function is called once the work is enqueued; it returns an array of the library that made `like`.
        """
        if library_of(like) == "torch":
            tensor = self._torch_empty(wanted, gpu, stream)
            return tensor.data_ptr(), lambda: tensor
        size = math.prod(wanted.shape) * wanted.dtype.itemsize
        block = Block(gpu.allocate(size, stream), size, gpu, stream)
        return block.address, lambda: _given(self.lent(block, wanted), like)

    def _torch_empty(self, wanted: Wanted, gpu: Gpu, stream: int) -> Any:
        """Returns a new tensor whose memory is free for work on the stream."""
        torch, module = sys.modules["torch"], self._torch_module()
        device = torch.device(self.backend, gpu.ordinal)
        dtype = getattr(torch, wanted.dtype.name, None)
        if dtype is None:
            raise LaunchError(f"{wanted.name}: torch has no element type {wanted.dtype.name}; give out= of another library")
        if self._torch_stream(gpu) == stream:
            return torch.empty(wanted.shape, dtype=dtype, device=device)
        default = stream == self.default_stream
        chosen = module.default_stream(gpu.ordinal) if default else module.ExternalStream(stream, device=device)
        with module.stream(chosen):
            return torch.empty(wanted.shape, dtype=dtype, device=device)


class DeviceArray:
    """A result in a GPU's memory that supports DLPack. `kind`: DLPack's number of this kind of GPU."""

    def __init__(self, block: Block, wanted: Wanted, kind: int, foreign: Foreign) -> None:
        self._block, self.shape, self.dtype = block, wanted.shape, wanted.dtype
        self._kind, self._foreign = kind, foreign

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, self._block.gpu.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Returns a capsule that is complete on the consumer's stream (None: the default one; -1: the consumer waits itself)."""
        device = self.__dlpack_device__()
        if copy or dl_device not in (None, device):
            raise BufferError("the array is given where it lies, and not copied")
        if stream != -1:
            reader = self._foreign.handle(stream or self._foreign.default_stream)
            with self._block.gpu.current():
                self._block.gpu.order(self._block.written_on, reader)
            self._block.streams.add(reader)
        versioned = max_version is not None and max_version[0] >= 1
        return lend(self._block.address, self.shape, self.dtype.name, device, self._block, versioned)


def _torch_taken(value: Any, name: str, own: int | None) -> Taken:
    value = without_gradient(value, name)
    if value.is_neg():
        raise LaunchError(f"{name}: what lies in the tensor's memory are its values negated; pass {name}.resolve_neg()")
    dtype = str(value.dtype).removeprefix("torch.")
    return Taken(value.data_ptr(), tuple(value.shape), dtype, value.is_contiguous(), True, own, value)


def _check(taken: Taken, value: Any, wanted: Wanted, written: bool) -> None:
    """Raises `LaunchError` if an array is not as required."""
    if taken.dtype != wanted.dtype.name:
        raise LaunchError(f"{wanted.name}: element type {taken.dtype} given, {wanted.dtype.name} expected; convert it first")
    if taken.shape != wanted.shape:
        raise LaunchError(f"{wanted.name}: shape {taken.shape} given, {wanted.shape} expected")
    if not taken.contiguous:
        raise LaunchError(f"{wanted.name}: the array is not contiguous; copy it first (torch: {wanted.name}.contiguous())")
    if written and library_of(value) in ("jax", "jaxlib"):
        raise LaunchError(f"{wanted.name}: JAX arrays cannot be written; leave out= away and use what the kernel returns")
    if written and not taken.writable:
        raise LaunchError(f"{wanted.name}: the array is read-only")


def _given(array: Any, like: Any) -> Any:
    """Returns our array as one of the library that made `like`; itself, if that library does not support DLPack."""
    namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else sys.modules.get(library_of(like))
    return namespace.from_dlpack(array) if namespace is not None and hasattr(namespace, "from_dlpack") else array
