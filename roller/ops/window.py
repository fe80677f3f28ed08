"""The geometry of sliding windows, shared by convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from roller.errors import ExpressionError
from roller.ir.scalar import Affine
from roller.ops.tensor import SymbolicTensor

Layout = Literal["NCHW", "NHWC"]
Pair = int | tuple[int, int]
Padding = int | tuple[int, int] | tuple[int, int, int, int] | str


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension: input extent, kernel extent, stride, dilation, and padding at both ends.

    `beyond`: how far the last window may extend beyond the padding.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    beyond: int = 0

    @property
    def reach(self) -> int:
        """Input elements from the first to the last one of a window."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def output(self) -> int:
        """Number of window positions."""
        return (self.size + self.before + self.after + self.beyond - self.reach) // self.stride + 1

    @property
    def padded(self) -> bool:
        """True if a window position extends outside the input."""
        return self.before > 0 or (self.output - 1) * self.stride + self.reach - self.before > self.size

    def index(self, position: str, offset: str) -> Affine:
        """Returns the input index of element `offset` of window number `position`."""
        return Affine.of((position, self.stride), (offset, self.dilation), offset=-self.before)

    def ceiled(self) -> Window:
        """Returns this window with one more position for uncovered last elements, if that starts before the padding at the end."""
        left = (self.size + self.before + self.after - self.reach) % self.stride
        more = left > 0 and self.output * self.stride < self.size + self.before
        return replace(self, beyond=self.stride - left) if more else self

    def elements_inside(self, position: int) -> int:
        """Returns the number of elements of window number `position` inside the input."""
        first = position * self.stride - self.before
        return sum(0 <= first + r * self.dilation < self.size for r in range(self.kernel))


def windows(
    what: str, sizes: Sequence[int], kernel: Sequence[int], stride: Pair, padding: Padding, dilation: Pair
) -> tuple[Window, Window]:
    """Returns the windows over height and width; `ExpressionError` if a number is out of range or the kernel does not fit."""
    strides, dilations = pair(what, "stride", stride), pair(what, "dilation", dilation)
    pads = _pads(what, sizes, kernel, strides, dilations, padding)
    found = tuple(Window(sizes[d], kernel[d], strides[d], dilations[d], pads[2 * d], pads[2 * d + 1]) for d in range(2))
    for name, window in zip(("height", "width"), found, strict=True):
        if window.kernel < 1:
            raise ExpressionError(f"{what}: the kernel's {name} is {window.kernel}; it must be at least 1")
        # An empty input stays empty; anything else must hold one whole window.
        if window.output < 1 and window.size > 0:
            have = window.size + window.before + window.after
            raise ExpressionError(
                f"{what}: a kernel reaching over {window.reach} does not fit the padded {name} {have}; "
                "add padding or use a smaller one"
            )
        if window.size == 0:
            raise ExpressionError(
                f"{what}: the input's {name} is 0, so no window has a place; only batch and channels may be empty"
            )
    return found[0], found[1]


def by_letter(what: str, name: str, value: SymbolicTensor, letters: str) -> dict[str, int]:
    """Returns letter → extent of the dimension that it names; `ExpressionError` for another number of dimensions."""
    if value.ndim != len(letters):
        raise ExpressionError(f"{what}: {name} has shape {value.shape}, expected {len(letters)} dimensions ({letters})")
    return dict(zip(letters, value.shape, strict=True))


def check_layout(what: str, layout: str) -> None:
    """Raises `ExpressionError` unless the layout is NCHW or NHWC."""
    if layout not in ("NCHW", "NHWC"):
        raise ExpressionError(f"{what}: layout must be 'NCHW' or 'NHWC', got {layout!r}; use ops.transpose for others")


def pair(what: str, name: str, value: Pair) -> tuple[int, int]:
    """Returns two positive integers, from one or two; `ExpressionError` otherwise."""
    numbers = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(numbers) != 2 or not all(isinstance(v, int) and v >= 1 for v in numbers):
        raise ExpressionError(f"{what}: {name} must be one or two integers of at least 1, got {value!r}")
    return numbers[0], numbers[1]


def _pads(
    what: str, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], padding: Padding
) -> tuple[int, ...]:
    """Returns (top, bottom, left, right). "same" gives ceil(size / stride) positions, with the odd element at the end."""
    if isinstance(padding, str):
        if padding.lower() == "valid":
            return (0, 0, 0, 0)
        if padding.lower() != "same":
            raise ExpressionError(f"{what}: padding must be 'same', 'valid' or numbers, got {padding!r}")
        pads: list[int] = []
        for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
            total = max((-(-size // stride) - 1) * stride + dilation * (extent - 1) + 1 - size, 0)
            pads += [total // 2, total - total // 2]
        return tuple(pads)
    numbers = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(numbers) not in (1, 2, 4) or not all(isinstance(v, int) and v >= 0 for v in numbers):
        raise ExpressionError(
            f"{what}: padding must be an integer, (height, width) or (top, bottom, left, right), none negative; got {padding!r}"
        )
    if len(numbers) == 4:
        return numbers
    high, wide = numbers[0], numbers[-1]
    return (high, high, wide, wide)
