"""Tensor maps: 128-byte array descriptions for the copy engine (TMA) of compute capability 9.0 and newer, passed by value.

The driver's function is called directly: the structure that cuda-bindings 12.9 passes to it is not aligned to 64 bytes, as the
driver requires.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller.plugin import ELEMENT_BYTES, STORED_AS, LaunchError
from roller_cuda.runtime import driver
from roller_cuda.runtime.driver import StatusError

BYTES, ALIGNMENT = 128, 64  # bytes of a map, and their alignment
SINCE = 12000  # the CUDA version that introduced these maps
DIMENSIONS_MAX, BOX_MAX, STEP_MAX = 5, 256, 8
STRIDE_MULTIPLE, STRIDE_END, ADDRESS_MULTIPLE = 16, 1 << 40, 16
TYPES: Mapping[str, str] = {
    "uint8": "UINT8",
    "int8": "UINT8",  # copies only depend on the size of the values
    "bool": "UINT8",
    "uint16": "UINT16",
    "int16": "UINT16",
    "uint32": "UINT32",
    "int32": "INT32",
    "uint64": "UINT64",
    "int64": "INT64",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "bfloat16": "BFLOAT16",
    "tfloat32": "TFLOAT32",  # float32 in memory; copied values are rounded to the nearest
}
SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p),
    *(ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)),
    *(ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32)),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int),
)


class TensorMap:
    """One map of a launch description: `point` fills it for an array's address; `place` is the address of its bytes.

    `described`: "tensor" (the array's name), "dtype", "extents" (innermost first), "strides_bytes" (of all but the innermost),
    "box", "steps" (element strides), "swizzle_bytes". Reads beyond an extent give zeros.
    """

    def __init__(self, name: str, described: Mapping[str, Any]) -> None:
        self.tensor = str(described["tensor"])
        self._name = name
        _check(name, described)
        self._encode = _encoder()
        self._room = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        start = ctypes.addressof(self._room)
        self.place = start + -start % ALIGNMENT
        self._type, self._swizzle, self._interleave, self._promotion, self._fill = (
            int(driver.constant(f"CUtensorMap{kind}.CU_TENSOR_MAP_{value}"))
            for kind, value in (
                ("DataType", f"DATA_TYPE_{TYPES[described['dtype']]}"),
                ("Swizzle", f"SWIZZLE_{SWIZZLES[described['swizzle_bytes']]}"),
                ("Interleave", "INTERLEAVE_NONE"),
                ("L2promotion", "L2_PROMOTION_L2_256B"),
                ("FloatOOBfill", "FLOAT_OOB_FILL_NONE"),
            )
        )
        self._extents = _words(ctypes.c_uint64, described["extents"])
        self._strides = _words(ctypes.c_uint64, described["strides_bytes"])
        self._box, self._steps = (_words(ctypes.c_uint32, described[field]) for field in ("box", "steps"))
        self._address = 0

    def point(self, address: int) -> None:
        """Points the map at the array at this address; does nothing if it points there already."""
        if address == self._address:
            return
        if address % ADDRESS_MULTIPLE:
            raise LaunchError(f"{self.tensor}: the array must start at a multiple of {ADDRESS_MULTIPLE} bytes; copy it first")
        status = self._encode(
            *(self.place, self._type, len(self._extents), address, self._extents, self._strides, self._box, self._steps),
            *(self._interleave, self._swizzle, self._promotion, self._fill),
        )
        if status:
            self._address = 0
            said = driver.made("CUresult", status).name
            raise StatusError("cuTensorMapEncodeTiled", said).told(f"the map {self._name!r} of {self.tensor}")
        self._address = address


def _encoder() -> Callable[..., int]:
    found = driver.call("cuGetProcAddress", b"cuTensorMapEncodeTiled", SINCE, 0)
    address = int(found[0] if isinstance(found, tuple) else found)
    if not address:
        raise LaunchError("the CUDA driver has no cuTensorMapEncodeTiled: update it")
    return _ENCODE(address)


def _words(kind: Any, values: Sequence[int]) -> Any:
    return (kind * max(len(values), 1))(*values)


def _size(dtype: str) -> int:
    return ELEMENT_BYTES[STORED_AS.get(dtype, dtype)]


def _check(name: str, described: Mapping[str, Any]) -> None:
    """Raises `LaunchError` for a map that the hardware lacks; the rules are those of cuTensorMapEncodeTiled's documentation."""
    extents, strides, box, steps = (list(described[field]) for field in ("extents", "strides_bytes", "box", "steps"))
    dtype, swizzle = described["dtype"], described["swizzle_bytes"]
    wrong = (
        f"{len(extents)} dimensions, 1 to {DIMENSIONS_MAX} can be"
        if not 1 <= len(extents) <= DIMENSIONS_MAX
        else f"{len(strides)} strides, {len(box)} box extents and {len(steps)} steps for {len(extents)} dimensions"
        if (len(strides), len(box), len(steps)) != (len(extents) - 1, len(extents), len(extents))
        else f"no map has elements of type {dtype}"
        if dtype not in TYPES
        else f"a swizzle of {swizzle} bytes"
        if swizzle not in SWIZZLES
        else f"extents {extents}, 1 to 2^32 can be"
        if not all(1 <= extent <= 1 << 32 for extent in extents)
        else f"strides {strides}, multiples of {STRIDE_MULTIPLE} bytes below 2^40 can be"
        if any(stride % STRIDE_MULTIPLE or not 0 < stride < STRIDE_END for stride in strides)
        else f"a box of {box}, 1 to {BOX_MAX} can be"
        if not all(1 <= extent <= BOX_MAX for extent in box)
        else f"steps {steps}, 1 to {STEP_MAX} can be"
        if not all(1 <= step <= STEP_MAX for step in steps)
        else f"rows of {box[0]} {dtype}, multiples of 16 bytes can be"
        if box[0] * _size(dtype) % 16
        else f"rows of {box[0]} {dtype}, at most {swizzle} bytes can be swizzled so"
        if swizzle and box[0] * _size(dtype) > swizzle
        else ""
    )
    if wrong:
        raise LaunchError(f"the map {name!r}: {wrong}; compile the operator again")
