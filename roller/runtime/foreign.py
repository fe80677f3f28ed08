"""Arrays of other libraries in the memory of GPUs: read where they lie, and results given back as arrays of the caller's library.

torch is asked for addresses itself, and allocates its results: so they take part in its memory pool, its streams and its
graphs. How all others come and go is the plugin's to say. Nothing is copied or converted.
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
from roller.runtime.arrays import Wanted
from roller.runtime.dlpack import lend
from roller.runtime.gpu import Gpu

UNREADABLE = (BufferError, RuntimeError, TypeError, ValueError, AttributeError, KeyError)
DEFAULT_STREAMS = (0, 1)  # handles of the stream that everything waits for


@dataclass(slots=True)
class Taken:
    """An array's memory as kernels need it. `stream`: the one that its library works on, which reuses the memory in that order;
    None where it has none to tell. `holder` keeps the memory alive.
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
    """Memory of ours that others use: given back in the order of every stream that was told to read it."""

    def __init__(self, address: int, size: int, gpu: Gpu, stream: int) -> None:
        self.address, self.size, self.gpu = address, size, gpu
        self.written_on = stream
        self.streams = {stream}

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        with suppress(KernelError), self.gpu.current():  # nobody is there to hear of a GPU that failed before, or of a fork
            self.gpu.reclaim(self.address, self.streams)


def library_of(value: Any) -> str:
    """The package that made a value."""
    return type(value).__module__.partition(".")[0]


class Foreign(ABC):
    """How arrays of other libraries in the memory of one kind of GPUs are taken and given; what they differ in is left open.

    `backend`: what torch and CuPy call that kind, and their modules for it. `default_stream`: the handle by which its runtime
    knows the stream that everything waits for. `with_streams`: the libraries whose streams can be named.
    """

    backend: ClassVar[str]
    default_stream: ClassVar[int]
    with_streams: ClassVar[str]

    # --- what kinds of GPUs differ in --------------------------------------------------------------------------------------

    @abstractmethod
    def lies_on(self, value: Any) -> int | None:
        """The number of the GPU that an array of any library but torch lies on; None where it lies elsewhere."""

    @abstractmethod
    def viewed(self, value: Any, stream: int, own: int | None) -> Taken:
        """An array of any library but torch, which is told to have its values ready for work on the stream."""

    @abstractmethod
    def lent(self, block: Block, wanted: Wanted) -> Any:
        """A result for whoever speaks DLPack."""

    def is_ours(self, torch: Any) -> bool:
        """False for a torch whose GPUs are of another kind that it calls by the same name."""
        return True

    def stream_told(self, value: Any) -> int | None:
        """The stream that an array names itself."""
        return None

    # --- where arrays lie, and streams -------------------------------------------------------------------------------------

    def ordinal_of(self, value: Any) -> int | None:
        """The number of the GPU whose memory an array lies in; None for everything else."""
        if type(value) is np.ndarray:
            return None
        try:
            if library_of(value) == "torch" and hasattr(value, f"is_{self.backend}"):
                there = getattr(value, f"is_{self.backend}") and self.is_ours(sys.modules["torch"])
                return int(value.device.index) if there else None
            return self.lies_on(value)
        except UNREADABLE:  # traced, deleted or spread over devices: reading it says why
            return None

    def stream_of(self, value: Any, gpu: Gpu) -> int | None:
        """The stream that an array's library works on now, as the runtime's handle; None where it has none to tell."""
        library = library_of(value)
        if library == "torch":
            return self._torch_stream(gpu)
        if library == "cupy":
            cupy = getattr(sys.modules["cupy"], self.backend)
            with cupy.Device(gpu.ordinal):
                return self.handle(int(cupy.get_current_stream().ptr))
        return self.stream_told(value)

    def handle(self, stream: int) -> int:
        """The handle of a stream that others know by that one."""
        return self.default_stream if stream in DEFAULT_STREAMS else stream

    def stream_from(self, stream: Any) -> int:
        """A stream that the caller names: a handle, or an object that has one."""
        protocol = f"__{self.backend}_stream__"
        if hasattr(stream, protocol):
            return self.handle(int(getattr(stream, protocol)()[1]))
        for field in (f"{self.backend}_stream", "ptr"):
            if hasattr(stream, field):
                return self.handle(int(getattr(stream, field)))
        if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
            return self.handle(stream)
        raise LaunchError(f"stream=: a {type(stream).__name__} given; a stream of {self.with_streams} wanted, or a handle (int)")

    def _torch_stream(self, gpu: Gpu) -> int:
        current = self._torch_module().current_stream(gpu.ordinal)
        return self.handle(int(getattr(current, f"{self.backend}_stream")))

    def _torch_module(self) -> Any:
        return getattr(sys.modules["torch"], self.backend)

    # --- taken -------------------------------------------------------------------------------------------------------------

    def take(self, value: Any, wanted: Wanted, gpu: Gpu, stream: int, written: bool = False) -> Taken:
        """An array in a GPU's memory, ready for work on the stream; `LaunchError` where it is not as wanted."""
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
        if from_torch and taken.stream is not None:  # the others were told of the stream when they gave the array
            gpu.order(taken.stream, stream)
        return taken

    # --- given -------------------------------------------------------------------------------------------------------------

    def fresh(self, like: Any, wanted: Wanted, gpu: Gpu, stream: int) -> tuple[int, Callable[[], Any]]:
        """Memory for a result, free for work on the stream: its address, and what gives it, once that work is enqueued, as an
        array of the library that made `like`.
        """
        if library_of(like) == "torch":
            tensor = self._torch_empty(wanted, gpu, stream)
            return tensor.data_ptr(), lambda: tensor
        size = math.prod(wanted.shape) * wanted.dtype.itemsize
        block = Block(gpu.allocate(size, stream), size, gpu, stream)
        return block.address, lambda: _given(self.lent(block, wanted), like)

    def _torch_empty(self, wanted: Wanted, gpu: Gpu, stream: int) -> Any:
        """A new tensor, of memory that is free for work on the stream."""
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
    """A result in a GPU's memory, for whoever speaks DLPack. `kind`: what DLPack calls such GPUs."""

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
        """A capsule whose values the consumer's stream (None: the default one; -1: it will wait itself) sees complete."""
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
    if value.requires_grad:
        raise LaunchError(f"{name}: the tensor requires a gradient, which a kernel cannot give; pass {name}.detach()")
    if value.is_neg():
        raise LaunchError(f"{name}: what lies in the tensor's memory are its values negated; pass {name}.resolve_neg()")
    dtype = str(value.dtype).removeprefix("torch.")
    return Taken(value.data_ptr(), tuple(value.shape), dtype, value.is_contiguous(), True, own, value)


def _check(taken: Taken, value: Any, wanted: Wanted, written: bool) -> None:
    """`LaunchError` where an array is not as wanted."""
    if taken.dtype != wanted.dtype.name:
        raise LaunchError(f"{wanted.name}: element type {taken.dtype} given, {wanted.dtype.name} wanted; convert it first")
    if taken.shape != wanted.shape:
        raise LaunchError(f"{wanted.name}: shape {taken.shape} given, {wanted.shape} wanted")
    if not taken.contiguous:
        raise LaunchError(f"{wanted.name}: the array is not contiguous; copy it first (torch: {wanted.name}.contiguous())")
    if written and library_of(value) in ("jax", "jaxlib"):
        raise LaunchError(f"{wanted.name}: JAX arrays cannot be written; leave out= away and use what the kernel returns")
    if written and not taken.writable:
        raise LaunchError(f"{wanted.name}: the array is read-only")


def _given(array: Any, like: Any) -> Any:
    """Our array as one of the library that made `like`; itself, where that library does not take DLPack."""
    namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else sys.modules.get(library_of(like))
    return namespace.from_dlpack(array) if namespace is not None and hasattr(namespace, "from_dlpack") else array
