"""Arrays of other libraries as NumPy views, and memory that every kernel may use: contiguous and 64-byte aligned.

Nothing but NumPy is imported: torch and JAX are recognised by the module of the value's type, and only used if they made
the value. Every refusal is a `LaunchError`.
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

ALIGNMENT = 64  # bytes; kernels load and store whole vectors without looking
ALIASING = 4096  # bytes; a load whose address agrees with an earlier store's modulo this waits for it, for nothing
STAGGER = 23 * ALIGNMENT  # from one array's start to the next one's, modulo ALIASING: of six in a row no two are near
_HOST = (1, 11)  # DLPack's kDLCPU and kDLROCMHost, pinned
_made = itertools.count()

_word: Callable[[int], Any] = ctypes.c_size_t.from_address
_HEADER = object.__basicsize__  # NumPy's array object keeps its data pointer right behind the interpreter's header


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an argument has to be."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.name} {self.shape}"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type of that name; bfloat16 is that of ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def narrowed(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Values as another element type, rounded once, to the nearest (to even of two); beyond its range infinite. ml_dtypes rounds
    what is wider than float32 to that first: here that rounding leaves a mark in the last bit where it lost something.
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
    """True if two arrays of one shape and type hold the same bits, but for those of NaN: its sign and payload are free."""
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
    """True if this interpreter and this NumPy lay array objects out as their ABI says."""
    whole = np.zeros(64, np.uint8)
    return all(_address_by_layout(a) == _address_by_interface(a) for a in (whole, whole[7:], whole[::2], whole[:0]))


# Where the array's first element lies. Reading the pointer takes a sixth of the time of asking for it.
address: Callable[[Array], int] = _address_by_layout if _known_layout() else _address_by_interface


def is_ready(array: Array, alignment: int = ALIGNMENT) -> bool:
    """True if kernels that need this alignment (bytes) may use the memory as it is: C-contiguous and aligned."""
    flags = array.flags
    return flags.c_contiguous and (flags.aligned if alignment <= array.itemsize else address(array) % alignment == 0)


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """A new C-contiguous array whose memory is aligned; its values are not set.

    Large ones that are made one after another start at different places of a page: the system starts all large blocks at the
    same one, and a kernel that walks several arrays at equal pace would load where it just stored, modulo `ALIASING`.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + (ALIASING if size >= ALIASING else ALIGNMENT), np.uint8)
    start = (next(_made) * STAGGER - address(raw)) % ALIASING if size >= ALIASING else -address(raw) % ALIGNMENT
    return np.ndarray(tuple(shape), dtype, raw, start)


def ready(array: Array, alignment: int = ALIGNMENT) -> Array:
    """The array itself if it is ready, else an aligned copy."""
    if is_ready(array, alignment):
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def admit(value: Any, wanted: Wanted) -> tuple[Array, Kind]:
    """The value as a NumPy view of the wanted shape and type (never converted), and whose array it was."""
    array, kind = view(value, wanted.name)
    if array.dtype != wanted.dtype:
        raise LaunchError(f"{wanted.name}: element type {array.dtype} given, {wanted.dtype.name} wanted; convert it first")
    if array.shape != wanted.shape:
        raise LaunchError(f"{wanted.name}: shape {array.shape} given, {wanted.shape} wanted")
    return array, kind


def admit_output(value: Any, wanted: Wanted) -> tuple[Array, Kind]:
    """As `admit`, for an array that is going to be written."""
    array, kind = admit(value, wanted)
    if kind == "jax":
        raise LaunchError(f"{wanted.name}: JAX arrays cannot be written; leave out= away and use what the kernel returns")
    if not array.flags.writeable:
        raise LaunchError(f"{wanted.name}: the array is read-only")
    if any(stride == 0 and extent > 1 for stride, extent in zip(array.strides, array.shape, strict=True)):
        raise LaunchError(f"{wanted.name}: several elements share one place in memory (a broadcast array cannot be written)")
    return array, kind


def view(value: Any, name: str) -> tuple[Array, Kind]:
    """A NumPy view of an array of NumPy, torch, JAX, or any library that speaks DLPack, without a copy."""
    library = type(value).__module__.partition(".")[0]
    try:
        if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray):
            return np.asarray(value), "numpy"
        if library == "torch" and hasattr(value, "data_ptr"):
            return _torch_view(value, name), "torch"
        if library in ("jax", "jaxlib") and hasattr(value, "devices"):
            return _jax_view(value, name), "jax"
        if hasattr(value, "__dlpack_device__") and library != "numpy":  # a masked array would lose its mask
            _on_cpu(name, int(value.__dlpack_device__()[0]) in _HOST, f"DLPack device {value.__dlpack_device__()}")
            return np.from_dlpack(value), "numpy"
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(f"{name}: {type(value).__name__} cannot be read as an array: {error}") from error
    given = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise LaunchError(f"{name}: a {given} given, an array wanted (NumPy, torch, JAX, or another with DLPack)")


def as_kind(array: Array, kind: Kind) -> Any:
    """A result as the kind of array that the caller uses; torch shares its memory, JAX may copy it."""
    if kind == "numpy":
        return array
    if kind == "jax":
        return sys.modules["jax"].numpy.asarray(array)
    torch = sys.modules["torch"]
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def overlaps(array: Array, others: Sequence[Array]) -> bool:
    """True if a contiguous array shares memory with one of the others, contiguous too."""
    first = address(array)
    last = first + array.nbytes
    for other in others:
        begin = address(other)
        if begin < last and first < begin + other.nbytes:
            return True
    return False


def _torch_view(value: Any, name: str) -> Array:
    torch = sys.modules["torch"]
    if not value.is_cpu:
        _on_cpu(name, False, str(value.device))
    if value.requires_grad:
        raise LaunchError(f"{name}: the tensor requires a gradient, which a kernel cannot give; pass {name}.detach()")
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
