"""Arrays of other libraries in a GPU's memory: read where they lie, and results given back as arrays of the caller's library.

torch is asked for addresses itself, and allocates its results: so they take part in its memory pool, its streams and its
graphs. All others come and go through DLPack or, without that, the CUDA array interface. Nothing is copied or converted.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.plugin import KernelError, LaunchError, Wanted
from roller_cuda import driver
from roller_cuda.gpu import Gpu

ON_GPU = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged
INTERFACE = "__cuda_array_interface__"
_NAMELESS = {"bfloat16": 4}  # DLPack's codes of the types that cuda.core does not export, all of 16 bits
_HEADER_BYTES = 32  # of DLManagedTensorVersioned before its DLTensor: version, context, deleter, flags
_CODE_AT = 20  # in a DLTensor: behind the address, the device and the rank
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_UNREADABLE = (BufferError, RuntimeError, TypeError, ValueError, AttributeError, KeyError)


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


def library_of(value: Any) -> str:
    """The package that made a value."""
    return type(value).__module__.partition(".")[0]


def ordinal_of(value: Any) -> int | None:
    """The number of the GPU whose memory an array lies in; None for everything else."""
    if type(value) is np.ndarray:
        return None
    try:
        if library_of(value) == "torch" and hasattr(value, "is_cuda"):
            return int(value.device.index) if value.is_cuda else None
        if hasattr(value, "__dlpack_device__"):
            kind, ordinal = value.__dlpack_device__()
            return int(ordinal) if int(kind) in ON_GPU else None
        if hasattr(value, INTERFACE):
            return _ordinal_at(int(getattr(value, INTERFACE)["data"][0]))
    except _UNREADABLE:  # traced, deleted or spread over devices: reading it says why
        return None
    return None


def _ordinal_at(address: int) -> int:
    """The GPU that memory belongs to; an array without elements has none, and goes to the first."""
    if not address:
        return 0
    which = driver.constant("CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL")
    return int(driver.call("cuPointerGetAttribute", which, address))


def stream_of(value: Any, gpu: Gpu) -> int | None:
    """The stream that an array's library works on now, as a driver's handle; None where it has none to tell."""
    library = library_of(value)
    if library == "torch":
        return int(sys.modules["torch"].cuda.current_stream(gpu.ordinal).cuda_stream) or driver.LEGACY_STREAM
    if library == "cupy":
        cuda = sys.modules["cupy"].cuda
        with cuda.Device(gpu.ordinal):
            return int(cuda.get_current_stream().ptr) or driver.LEGACY_STREAM
    if not hasattr(value, "__dlpack__") and hasattr(value, INTERFACE):
        told = getattr(value, INTERFACE).get("stream")
        return None if told is None else int(told)
    return None


def stream_from(stream: Any) -> int:
    """A stream that the caller names: a driver's handle, or a stream of cuda.core, torch or CuPy."""
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1]) or driver.LEGACY_STREAM
    for field in ("cuda_stream", "ptr"):
        if hasattr(stream, field):
            return int(getattr(stream, field)) or driver.LEGACY_STREAM
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream or driver.LEGACY_STREAM
    raise LaunchError(f"stream=: a {type(stream).__name__} given; a stream of torch, CuPy or cuda.core wanted, or a handle (int)")


def take(value: Any, wanted: Wanted, gpu: Gpu, stream: int, written: bool = False) -> Taken:
    """An array in a GPU's memory, ready for work on the stream; `LaunchError` where it is not as wanted."""
    try:
        own = stream_of(value, gpu)
        taken = _torch_taken(value, wanted.name, own) if library_of(value) == "torch" else _viewed(value, stream, own)
    except _UNREADABLE as error:
        if isinstance(error, KernelError):
            raise
        raise LaunchError(f"{wanted.name}: {type(value).__name__} cannot be read as an array: {error}") from error
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
    taken.size = math.prod(wanted.shape) * wanted.dtype.itemsize
    if library_of(value) == "torch" and taken.stream is not None:  # the others were told of the stream when they gave the array
        gpu.order(taken.stream, stream)
    return taken


def _torch_taken(value: Any, name: str, own: int | None) -> Taken:
    if value.requires_grad:
        raise LaunchError(f"{name}: the tensor requires a gradient, which a kernel cannot give; pass {name}.detach()")
    if value.is_neg():
        raise LaunchError(f"{name}: what lies in the tensor's memory are its values negated; pass {name}.resolve_neg()")
    dtype = str(value.dtype).removeprefix("torch.")
    return Taken(value.data_ptr(), tuple(value.shape), dtype, value.is_contiguous(), True, own, value)


def _viewed(value: Any, stream: int, own: int | None) -> Taken:
    from cuda.core.utils import StridedMemoryView  # noqa: PLC0415  (an extra)

    view = StridedMemoryView.from_any_interface(value, stream_ptr=stream)
    shape = tuple(view.shape)
    dense, step = True, 1
    for extent, stride in zip(reversed(shape), reversed(view.strides or ()), strict=False):
        dense = dense and (extent == 1 or stride == step)
        step *= extent
    dtype = "unknown" if view.dtype is None else np.dtype(view.dtype).name
    return Taken(int(view.ptr), shape, dtype, dense or 0 in shape, not view.readonly, own, (view, value))


# --- results ---------------------------------------------------------------------------------------------------------------


def fresh(like: Any, wanted: Wanted, gpu: Gpu, stream: int) -> tuple[int, Callable[[], Any]]:
    """Memory for a result, free for work on the stream: its address, and what gives it, once that work is enqueued, as an array of
    the library that made `like`.
    """
    if library_of(like) == "torch":
        tensor = _torch_empty(wanted, gpu, stream)
        return tensor.data_ptr(), lambda: tensor
    size = math.prod(wanted.shape) * wanted.dtype.itemsize
    block = Block(gpu.allocate(size, stream), size, gpu, stream)
    return block.address, lambda: _given(DeviceArray(block, wanted), like)


def _torch_empty(wanted: Wanted, gpu: Gpu, stream: int) -> Any:
    """A new tensor, of memory that is free for work on the stream."""
    torch = sys.modules["torch"]
    device = torch.device("cuda", gpu.ordinal)
    dtype = getattr(torch, wanted.dtype.name, None)
    if dtype is None:
        raise LaunchError(f"{wanted.name}: torch has no element type {wanted.dtype.name}; give out= of another library")
    if (int(torch.cuda.current_stream(gpu.ordinal).cuda_stream) or driver.LEGACY_STREAM) == stream:
        return torch.empty(wanted.shape, dtype=dtype, device=device)
    default = stream == driver.LEGACY_STREAM
    chosen = torch.cuda.default_stream(gpu.ordinal) if default else torch.cuda.ExternalStream(stream, device=device)
    with torch.cuda.stream(chosen):
        return torch.empty(wanted.shape, dtype=dtype, device=device)


def _given(array: DeviceArray, like: Any) -> Any:
    """Our array as one of the library that made `like`; itself, where that library does not take DLPack."""
    namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else sys.modules.get(library_of(like))
    return namespace.from_dlpack(array) if namespace is not None and hasattr(namespace, "from_dlpack") else array


def _rename(capsule: Any, code: int) -> None:
    """Write another type code into a capsule that nobody has taken yet; where it lies is fixed by DLPack's ABI."""
    versioned = "dltensor_versioned" in repr(capsule)
    start = _pointer_of(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    ctypes.c_uint8.from_address(start + (_HEADER_BYTES if versioned else 0) + _CODE_AT).value = code


class Block:
    """Memory of ours that others use: given back in the order of every stream that was told to read it."""

    def __init__(self, address: int, size: int, gpu: Gpu, stream: int) -> None:
        self.address, self.size, self.gpu = address, size, gpu
        self.written_on = stream
        self.streams = {stream}

    def __del__(self) -> None:
        if sys.is_finalizing() or driver.is_forked():
            return
        with suppress(KernelError), self.gpu.current():  # nobody is there to hear of a GPU that failed before
            for stream in sorted(self.streams):
                self.gpu.order(stream, self.gpu.stream)
            self.gpu.free(self.address, self.gpu.stream)


class DeviceArray:
    """A result in a GPU's memory, for whoever speaks DLPack or the CUDA array interface."""

    def __init__(self, block: Block, wanted: Wanted) -> None:
        self._block, self.shape, self.dtype = block, wanted.shape, wanted.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return ON_GPU[0], self._block.gpu.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule whose values the consumer's stream (None: the legacy one; -1: it will wait itself) sees complete."""
        from cuda.core import Buffer  # noqa: PLC0415  (an extra)
        from cuda.core.utils import StridedMemoryView  # noqa: PLC0415

        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the array is given where it lies, and not copied")
        with self._block.gpu.current():
            if stream != -1:
                reader = stream or driver.LEGACY_STREAM
                self._block.gpu.order(self._block.written_on, reader)
                self._block.streams.add(reader)
            buffer = Buffer.from_handle(self._block.address, max(self._block.size, 1), owner=self._block)
            like = np.dtype(np.int16) if self.dtype.name in _NAMELESS else self.dtype
            view = StridedMemoryView.from_buffer(buffer, self.shape, dtype=like)
            capsule = view.__dlpack__(stream=-1, max_version=max_version)
        if like is not self.dtype:
            _rename(capsule, _NAMELESS[self.dtype.name])
        return capsule

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; whoever reads waits for the stream that it names."""
        if self.dtype.kind == "V":
            raise AttributeError(f"the CUDA array interface has no element type {self.dtype.name}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._block.address, False),
            "strides": None,
            "stream": self._block.written_on,
            "version": 3,
        }
