"""Arrays of other libraries as NumPy views, and memory that every kernel can use: contiguous and 64-byte aligned.

Only NumPy is imported. torch and JAX are recognised by the module of the value's type, and used only if they made the value. Every
refusal is a `LaunchError`.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from roller.errors import LaunchError

Array = npt.NDArray[Any]
Kind = Literal["numpy", "torch", "jax"]

ALIGNMENT = 64  # bytes; kernels load and store whole vectors without checking
ALIASING = 4096  # bytes; a load whose address equals an earlier store's modulo this stalls on that store (4K aliasing)
STAGGER = 23 * ALIGNMENT  # between starts of consecutive arrays, modulo ALIASING: no two of six consecutive arrays are near
_HOST = (1, 11)  # DLPack's kDLCPU and kDLROCMHost, pinned
_made = itertools.count()

_word: Callable[[int], Any] = ctypes.c_size_t.from_address
_HEADER = object.__basicsize__  # NumPy's array object keeps its data pointer right behind the interpreter's header


@dataclass(frozen=True, slots=True)
class Wanted:
    """The required name, shape and element type of an argument."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.name} {self.shape}"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the NumPy type of a name; bfloat16 is that of ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def narrowed(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Returns values as another element type, rounded once, to nearest even; values beyond its range become infinite.

    ml_dtypes first rounds types wider than float32 to float32. Here that first rounding sets the last bit if it was inexact (round
    to odd), so the second rounding is right.
    """
    with np.errstate(all="ignore"):
        if dtype != "bfloat16" or values.dtype not in (np.float64, np.int32, np.int64):
            return np.asarray(values.astype(numpy_dtype(dtype)))
        near = values.astype(np.float32)
        wide, exact = (
            (near.astype(np.float64), values) if values.dtype == np.float64 else (near.astype(object), values.astype(object))
        )
        beyond = np.asarray(np.abs(wide) > np.abs(exact), np.uint32)
        lost = np.asarray((wide != exact) & (values == values), np.uint32)  # noqa: PLR0124
        return np.asarray(((near.view(np.uint32) - beyond) | lost).view(np.float32).astype(ml_dtypes.bfloat16))


def same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Returns True if two arrays of one shape and type have equal bits; a NaN's sign and payload may differ."""
    if one.tobytes() == other.tobytes():
        return True
    if one.dtype.kind in "biu":
        return False
    apart = one.view(f"u{one.itemsize}") != other.view(f"u{other.itemsize}")
    return bool(np.all(~apart | (np.isnan(one) & np.isnan(other))))


def _address_by_layout(array: Array) -> int:
    return _word(id(array) + _HEADER).value  # type: ignore[no-any-return]


def _address_by_interface(array: Array) -> int:
    return int(array.ctypes.data)


def _known_layout() -> bool:
    """Returns True if this interpreter and this NumPy lay out array objects as their ABI specifies."""
    whole = np.zeros(64, np.uint8)
    return all(_address_by_layout(a) == _address_by_interface(a) for a in (whole, whole[7:], whole[::2], whole[:0]))


# Address of the array's first element. Reading the pointer takes a sixth of the time of NumPy's interface.
address: Callable[[Array], int] = _address_by_layout if _known_layout() else _address_by_interface


def is_ready(array: Array, alignment: int = ALIGNMENT) -> bool:
    """Returns True if kernels with this alignment (bytes) can use the array's memory: it is C-contiguous and aligned."""
    flags = array.flags
    return flags.c_contiguous and (flags.aligned if alignment <= array.itemsize else address(array) % alignment == 0)


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Returns a new C-contiguous array with aligned, uninitialised memory.

    Consecutive large arrays start at different offsets in a page. The system starts all large blocks at the same offset, and a
    kernel that walks several arrays in parallel would load from addresses that it has just stored to, modulo `ALIASING`.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + (ALIASING if size >= ALIASING else ALIGNMENT), np.uint8)
    start = (next(_made) * STAGGER - address(raw)) % ALIASING if size >= ALIASING else -address(raw) % ALIGNMENT
    return np.ndarray(tuple(shape), dtype, raw, start)


def ready(array: Array, alignment: int = ALIGNMENT) -> Array:
    """Returns the array itself if it is ready, else an aligned copy."""
    if is_ready(array, alignment):
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def admit(value: Any, wanted: Wanted) -> tuple[Array, Kind]:
    """Returns the value as a NumPy view of the wanted shape and type (never converted), and the library of its array.

    Python numbers, and lists of them, have no element type: they become an array of the wanted one.
    """
    return _admitted(_of_numbers(value, wanted), wanted)


def _admitted(value: Any, wanted: Wanted) -> tuple[Array, Kind]:
    array, kind = view(value, wanted.name)
    if array.dtype != wanted.dtype:
        raise LaunchError(f"{wanted.name}: element type {array.dtype} given, {wanted.dtype.name} expected; convert it first")
    if array.shape != wanted.shape:
        raise LaunchError(f"{wanted.name}: shape {array.shape} given, {wanted.shape} expected")
    return array, kind


def _of_numbers(value: Any, wanted: Wanted) -> Any:
    """Returns Python numbers as an array of the wanted type, anything else as it is; floats beyond its range are infinite.

    `LaunchError` for integers beyond its range, floats as integers, and lists that are not of numbers.
    """
    if not isinstance(value, list | tuple | int | float):
        return value
    try:
        kind = np.asarray(value).dtype.kind if value not in ([], ()) else "b"
        if kind in "biu" or (kind == "f" and wanted.dtype.kind not in "biu"):
            with np.errstate(over="ignore"):
                return np.asarray(value, wanted.dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise LaunchError(f"{wanted.name}: the numbers make no array of {wanted.dtype.name}: {error}") from error
    given = "floats" if kind == "f" else "values that are no real numbers"
    raise LaunchError(f"{wanted.name}: {given} given, {wanted.dtype.name} expected; convert them first")


def admit_output(value: Any, wanted: Wanted) -> tuple[Array, Kind]:
    """Returns the same as `admit`, for an array that is written; Python numbers are none."""
    array, kind = _admitted(value, wanted)
    if kind == "jax":
        raise LaunchError(f"{wanted.name}: JAX arrays cannot be written; leave out= away and use what the kernel returns")
    if not array.flags.writeable:
        raise LaunchError(f"{wanted.name}: the array is read-only")
    shared = not array.flags.c_contiguous and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True))
    if shared:
        raise LaunchError(f"{wanted.name}: several elements share one place in memory (a broadcast array cannot be written)")
    return array, kind


def view(value: Any, name: str) -> tuple[Array, Kind]:
    """Returns a NumPy view, without a copy, of an array of NumPy, torch, JAX or any library with DLPack."""
    library = type(value).__module__.partition(".")[0]
    try:
        if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray):
            return np.asarray(value), "numpy"
        if library == "torch" and hasattr(value, "data_ptr"):
            return _torch_view(value, name), "torch"
        if library in ("jax", "jaxlib") and hasattr(value, "devices"):
            return _jax_view(value, name), "jax"
        if hasattr(value, "__dlpack_device__") and library != "numpy":  # NumPy would drop the mask of a masked array
            _on_cpu(name, int(value.__dlpack_device__()[0]) in _HOST, f"DLPack device {value.__dlpack_device__()}")
            return np.from_dlpack(value), "numpy"
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(f"{name}: {type(value).__name__} cannot be read as an array: {error}") from error
    given = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise LaunchError(f"{name}: a {given} given, an array expected (NumPy, torch, JAX, or another with DLPack)")


def as_kind(array: Array, kind: Kind) -> Any:
    """Returns a result as the caller's kind of array; torch shares its memory, JAX may copy it."""
    if kind == "numpy":
        return array
    if kind == "jax":
        return sys.modules["jax"].numpy.asarray(array)
    torch = sys.modules["torch"]
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def overlaps(array: Array, others: Sequence[Array]) -> bool:
    """Returns True if a contiguous array shares memory with one of the others, which are contiguous too."""
    first = address(array)
    last = first + array.nbytes
    for other in others:
        begin = address(other)
        if begin < last and first < begin + other.nbytes:
            return True
    return False


def without_gradient(value: Any, name: str) -> Any:
    """Returns a tensor that records no gradient; `LaunchError` for one that requires a gradient, but under `torch.no_grad()`."""
    if not value.requires_grad:
        return value
    if sys.modules["torch"].is_grad_enabled():
        said = f"{name}: the tensor requires a gradient, which a kernel cannot give"
        raise LaunchError(f"{said}; pass {name}.detach(), or call the kernel under torch.no_grad()")
    return value.detach()


def _torch_view(value: Any, name: str) -> Array:
    torch = sys.modules["torch"]
    if not value.is_cpu:
        _on_cpu(name, False, str(value.device))
    value = without_gradient(value, name)
    if value.dtype == torch.bfloat16:
        half: Array = value.view(torch.int16).numpy()
        return half.view(ml_dtypes.bfloat16)
    whole: Array = value.numpy()
    return whole


def _jax_view(value: Any, name: str) -> Array:
    if isinstance(value, sys.modules["jax"].core.Tracer):
        raise LaunchError(f"{name}: JAX is tracing; call the kernel through jax.pure_callback inside jit, grad or vmap")
    platforms = sorted({device.platform for device in value.devices()})
    _on_cpu(name, platforms == ["cpu"], ", ".join(platforms))
    return np.asarray(value)


def _on_cpu(name: str, there: bool, where: str) -> None:
    if not there:
        raise LaunchError(f"{name}: the array lies on {where}; this kernel takes arrays in host memory")
