"""A stream-ordered pool of a GPU's memory, which is kept for the next call.

HIP has an allocator like this (hipMallocAsync). It is not used: from ROCm 5.4 to 7.2 there are reports that it returns no memory,
crashes, or returns memory that is still in use, on processors where hipMalloc works.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict

from roller_rocm.runtime import hip
from roller_rocm.runtime.hip import StatusError

SMALLEST = 256  # bytes; every size is a multiple of it
_STEPS = 8  # sizes of blocks between a power of two and the next: less than an eighth of a block is unused
_NO_TIMES = 2  # flag of an event


class Pool:
    """Memory blocks of the GPU that is the thread's.

    `lasting`: streams that are never destroyed, so that a handle always means the same one.
    """

    def __init__(self, lasting: frozenset[int]) -> None:
        self._lasting = lasting
        self._lock = threading.RLock()
        self._sizes: dict[int, int] = {}  # of all blocks, by address
        self._kept: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # stream, size → addresses, marks

    @property
    def kept(self) -> int:
        """The number of free blocks."""
        return sum(map(len, self._kept.values()))

    def take(self, size: int, stream: int) -> int:
        """Returns the address of memory (bytes) for work enqueued on the stream from now on; `StatusError` where there is none."""
        size = _rounded(size)
        with self._lock:
            kept = self._kept[stream, size]
            address, mark = kept.pop() if kept else self._left_over(size)
        if mark:  # of a stream with this handle, which may have been destroyed and reused since
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
        """Returns a free block of another stream whose work is done; none (0) if that would require a wait."""
        for (_, other), blocks in self._kept.items():
            if other == size and blocks and blocks[0][1] and reached(blocks[0][1]):
                return blocks.pop(0)
        return 0, 0

    def give(self, address: int, stream: int) -> None:
        """Gives memory back, once the current work on the stream is done."""
        mark = 0
        if stream not in self._lasting:
            mark = marked(stream)
        with self._lock:
            self._kept[stream, self._sizes[address]].append((address, mark))

    def trim(self) -> None:
        """Releases free blocks to the system, once the GPU is done with them."""
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
    """Returns an event behind the current work on the stream."""
    event = hip.handle("hipEventCreateWithFlags", _NO_TIMES)
    hip.call("hipEventRecord", event, stream)
    return event


def reached(event: int) -> bool:
    """True if all work before it is done."""
    try:
        hip.tried("hipEventQuery", event)
    except StatusError as error:
        if error.status != hip.NOT_READY:
            raise error.told() from error
        return False
    return True


def _rounded(size: int) -> int:
    """Returns the next of a few sizes, so that blocks can be reused."""
    step = max(SMALLEST, (1 << max(size - 1, 1).bit_length() - 1) // _STEPS)
    return max(-(-size // step), 1) * step
