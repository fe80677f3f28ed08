"""Exchange of arrays in CUDA memory with other libraries; the part shared by all kinds of GPUs is in the core.

Arrays of libraries other than torch pass through DLPack or, without it, the CUDA array interface, by way of cuda.core.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.plugin import Block, DeviceArray, Foreign, Taken, Wanted
from roller_cuda.runtime import driver

ON_GPU = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged
INTERFACE = "__cuda_array_interface__"


def _ordinal_at(address: int) -> int:
    """Returns the GPU that memory belongs to; an array without elements has none, and goes to the first."""
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
        """Returns the GPU that DLPack or the array interface reports."""
        if hasattr(value, "__dlpack_device__"):
            kind, ordinal = value.__dlpack_device__()
            return int(ordinal) if int(kind) in ON_GPU else None
        if hasattr(value, INTERFACE):
            return _ordinal_at(int(getattr(value, INTERFACE)["data"][0]))
        return None

    def stream_told(self, value: Any) -> int | None:
        """Returns the stream of the array interface; DLPack has none."""
        if not hasattr(value, "__dlpack__") and hasattr(value, INTERFACE):
            told = getattr(value, INTERFACE).get("stream")
            return None if told is None else int(told) or None
        return None

    def viewed(self, value: Any, stream: int, own: int | None) -> Taken:
        """Returns the view of cuda.core."""
        return _viewed(value, stream, own)

    def lent(self, block: Block, wanted: Wanted) -> CudaArray:
        """Returns an array with DLPack and the array interface."""
        return CudaArray(block, wanted, ON_GPU[0], self)


ARRAYS = _Arrays()
take = ARRAYS.take


class CudaArray(DeviceArray):
    """A result in a GPU's memory, for consumers of DLPack or the CUDA array interface."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; a consumer waits for the stream that it names."""
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
