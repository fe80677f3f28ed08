"""Arrays of other libraries in a GPU's memory, as CUDA has them; what all kinds of GPUs share is the core's.

What is not torch's comes and goes through DLPack or, without that, the CUDA array interface, by way of cuda.core.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from roller.plugin import Block, Foreign, Taken, Wanted
from roller_cuda import driver

ON_GPU = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged
INTERFACE = "__cuda_array_interface__"
_NAMELESS = {"bfloat16": 4}  # DLPack's codes of the types that cuda.core does not export, all of 16 bits
_HEADER_BYTES = 32  # of DLManagedTensorVersioned before its DLTensor: version, context, deleter, flags
_CODE_AT = 20  # in a DLTensor: behind the address, the device and the rank
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def _ordinal_at(address: int) -> int:
    """The GPU that memory belongs to; an array without elements has none, and goes to the first."""
    if not address:
        return 0
    which = driver.constant("CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL")
    return int(driver.call("cuPointerGetAttribute", which, address))


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


class _Arrays(Foreign):
    """Arrays on NVIDIA GPUs."""

    backend = "cuda"
    default_stream = driver.LEGACY_STREAM
    with_streams = "torch, CuPy or cuda.core"

    def lies_on(self, value: Any) -> int | None:
        """As DLPack says, or the array interface."""
        if hasattr(value, "__dlpack_device__"):
            kind, ordinal = value.__dlpack_device__()
            return int(ordinal) if int(kind) in ON_GPU else None
        if hasattr(value, INTERFACE):
            return _ordinal_at(int(getattr(value, INTERFACE)["data"][0]))
        return None

    def stream_told(self, value: Any) -> int | None:
        """The one of the array interface; DLPack has none."""
        if not hasattr(value, "__dlpack__") and hasattr(value, INTERFACE):
            told = getattr(value, INTERFACE).get("stream")
            return None if told is None else int(told) or None
        return None

    def viewed(self, value: Any, stream: int, own: int | None) -> Taken:
        """By way of cuda.core."""
        return _viewed(value, stream, own)

    def lent(self, block: Block, wanted: Wanted) -> DeviceArray:
        """With DLPack and the array interface."""
        return DeviceArray(block, wanted)


ARRAYS = _Arrays()
take = ARRAYS.take


# --- results ---------------------------------------------------------------------------------------------------------------


def _rename(capsule: Any, code: int) -> None:
    """Write another type code into a capsule that nobody has taken yet; where it lies is fixed by DLPack's ABI."""
    versioned = "dltensor_versioned" in repr(capsule)
    start = _pointer_of(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    ctypes.c_uint8.from_address(start + (_HEADER_BYTES if versioned else 0) + _CODE_AT).value = code


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
