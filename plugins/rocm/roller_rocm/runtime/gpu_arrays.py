"""Exchange of arrays in an AMD GPU's memory with other libraries; the part shared by all kinds of GPUs is in the core.

Arrays of libraries other than torch pass through DLPack. ROCm builds of torch and CuPy call their GPUs and modules "cuda".
"""

from __future__ import annotations

from typing import Any

from roller.plugin import Block, DeviceArray, Foreign, Taken, Wanted, borrow
from roller_rocm.runtime import hip

ON_GPU = 10  # DLPack's kDLROCM


class _Arrays(Foreign):
    """Arrays on AMD GPUs."""

    backend = "cuda"
    default_stream = hip.DEFAULT_STREAM
    with_streams = "torch or CuPy"

    def is_ours(self, torch: Any) -> bool:
        """Returns whether a torch is built for ROCm: such builds report their HIP version."""
        return getattr(torch.version, "hip", None) is not None

    def lies_on(self, value: Any) -> int | None:
        """Returns the GPU that DLPack reports."""
        if not hasattr(value, "__dlpack_device__"):
            return None
        kind, ordinal = value.__dlpack_device__()
        return int(ordinal) if int(kind) == ON_GPU else None

    def take(self, value: Any, wanted: Wanted, gpu: Any, stream: int, written: bool = False) -> Taken:
        """Takes an array as for all GPUs; `LaunchError` where the library's memory is that of another copy of HIP's runtime."""
        hip.alone(type(value).__module__)
        return super().take(value, wanted, gpu, stream, written)

    def viewed(self, value: Any, stream: int, own: int | None) -> Taken:
        """Returns the array by DLPack; a library with versions also reports whether the array may be written."""
        try:
            capsule = value.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:
            capsule = value.__dlpack__(stream=stream)
        found = borrow(capsule)
        return Taken(found.address, found.shape, found.dtype, found.contiguous, not found.read_only, own, (found, value))

    def lent(self, block: Block, wanted: Wanted) -> DeviceArray:
        """Returns an array with DLPack."""
        return DeviceArray(block, wanted, ON_GPU, self)


ARRAYS = _Arrays()
