"""A GPU's memory, handed out in the order of streams and kept for the next call.

HIP has an allocator like this (hipMallocAsync). It is not used: from ROCm 5.4 to 7.2 it is reported to give no memory, to crash, or
to give memory that others still use, on processors where hipMalloc works.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict

from roller_rocm.runtime import hip
from roller_rocm.runtime.hip import StatusError

SMALLEST = 256  # bytes; every size is a multiple of it
_STEPS = 8  # sizes of blocks between a power of two and the next: less than an eighth of a block goes unused
_NO_TIMES = 2  # flag of an event


class Pool:
    """Blocks of the GPU that is the thread's. `lasting`: streams that are never given back, so that a handle means one of them."""

    def __init__(self, lasting: frozenset[int]) -> None:
        self._lasting = lasting
        self._lock = threading.RLock()
        self._sizes: dict[int, int] = {}  # of all blocks, by address
        self._kept: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # stream, size → addresses, marks

    @property
    def kept(self) -> int:
        """How many blocks nobody has."""
        return sum(map(len, self._kept.values()))

    def take(self, size: int, stream: int) -> int:
        """The address of memory (bytes), for work that is enqueued on the stream from now on; `StatusError` where there is none."""
        size = _rounded(size)
        with self._lock:
            kept = self._kept[stream, size]
            address, mark = kept.pop() if kept else self._left_over(size)
        if mark:  # of a stream that had this handle; whether it still is the same one nobody knows
            hip.call("hipStreamWaitEvent", stream, mark, 0)
            hip.call("hipEventDestroy", mark)
        if address:
            return address
        found = ctypes.c_void_p(0)
        hip.tried("hipMalloc", ctypes.byref(found), size)
        if not found.value:
            raise StatusError("hipMalloc", hip.OUT_OF_MEMORY)
        self._sizes[found.value] = size
        return found.value

    def _left_over(self, size: int) -> tuple[int, int]:
        """A block of another stream that is done with it; none (0) where that would have to be waited for."""
        for (_, other), blocks in self._kept.items():
            if other == size and blocks and blocks[0][1] and reached(blocks[0][1]):
                return blocks.pop(0)
        return 0, 0

    def give(self, address: int, stream: int) -> None:
        """Back, once the work that is on the stream now is done."""
        mark = 0
        if stream not in self._lasting:
            mark = marked(stream)
        with self._lock:
            self._kept[stream, self._sizes[address]].append((address, mark))

    def trim(self) -> None:
        """Give the system what nobody has, once the GPU is done with it."""
        with self._lock:
            kept, self._kept = self._kept, defaultdict(list)
        hip.call("hipDeviceSynchronize")
        for blocks in kept.values():
            for address, mark in blocks:
                del self._sizes[address]
                if mark:
                    hip.call("hipEventDestroy", mark)
                hip.call("hipFree", address)


def marked(stream: int) -> int:
    """An event behind what is on the stream now."""
    event = hip.handle("hipEventCreateWithFlags", _NO_TIMES)
    hip.call("hipEventRecord", event, stream)
    return event


def reached(event: int) -> bool:
    """True where all work before it is done."""
    try:
        hip.tried("hipEventQuery", event)
    except StatusError as error:
        if error.status != hip.NOT_READY:
            raise error.told() from error
        return False
    return True


def _rounded(size: int) -> int:
    """The next of a few sizes, so that blocks fit again."""
    step = max(SMALLEST, (1 << max(size - 1, 1).bit_length() - 1) // _STEPS)
    return max(-(-size // step), 1) * step
