"""Arrays of other libraries in an AMD GPU's memory; what all kinds of GPUs share is the core's.

What is not torch's comes and goes through DLPack. ROCm builds of torch and CuPy call their GPUs and modules "cuda".
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
        """Builds for ROCm say for which HIP."""
        return getattr(torch.version, "hip", None) is not None

    def lies_on(self, value: Any) -> int | None:
        """As DLPack says."""
        if not hasattr(value, "__dlpack_device__"):
            return None
        kind, ordinal = value.__dlpack_device__()
        return int(ordinal) if int(kind) == ON_GPU else None

    def take(self, value: Any, wanted: Wanted, gpu: Any, stream: int, written: bool = False) -> Taken:
        """As for all GPUs; `LaunchError` where the library's memory is that of another copy of HIP's runtime."""
        hip.alone(type(value).__module__)
        return super().take(value, wanted, gpu, stream, written)

    def viewed(self, value: Any, stream: int, own: int | None) -> Taken:
        """By DLPack: where the library knows of versions, it says whether the array may be written."""
        try:
            capsule = value.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:
            capsule = value.__dlpack__(stream=stream)
        found = borrow(capsule)
        return Taken(found.address, found.shape, found.dtype, found.contiguous, not found.read_only, own, (found, value))

    def lent(self, block: Block, wanted: Wanted) -> DeviceArray:
        """With DLPack."""
        return DeviceArray(block, wanted, ON_GPU, self)


ARRAYS = _Arrays()
