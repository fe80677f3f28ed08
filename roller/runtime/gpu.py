"""One GPU with its memory and stream order, independent of its driver's interface."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from roller.runtime.driver_errors import ForkGuard, StatusError


class Gpu(ABC):
    """A GPU with a number. `stream`: our own stream, for host arrays and for arrays of libraries without a current stream.

    All methods on memory and streams require the GPU to be the thread's current one. `forks`: guards calls of its driver.
    """

    forks: ClassVar[ForkGuard]

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.stream = 0
        self._held: deque[tuple[Any, Any]] = deque()
        self._lock = threading.RLock()  # objects that are released may call the GPU again

    def __str__(self) -> str:
        return f"GPU {self.ordinal}"

    # --- driver interface --------------------------------------------------------------------------------------------------

    @abstractmethod
    def current(self) -> AbstractContextManager[None]:
        """Makes it the thread's current GPU inside the context, and restores the previous one afterwards."""

    @abstractmethod
    def take(self, size: int, stream: int) -> int:
        """Allocates as `allocate`; `StatusError` if the driver refuses."""

    @abstractmethod
    def trim(self) -> None:
        """Waits for all work, and returns memory cached for later calls to the system."""

    @abstractmethod
    def free(self, address: int, stream: int) -> None:
        """Frees memory once all work now on the stream is done."""

    @abstractmethod
    def bring(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueues a copy from host memory (bytes), which must not change until the stream is synchronised."""

    @abstractmethod
    def fetch(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueues a copy to host memory."""

    @abstractmethod
    def move(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueues a copy within its memory."""

    @abstractmethod
    def finish(self, stream: int) -> None:
        """Waits for all work on the stream."""

    @abstractmethod
    def mark(self, stream: int) -> Any:
        """Returns an event behind all work now on the stream."""

    @abstractmethod
    def reached(self, event: Any) -> bool:
        """Returns True if all work before an event is done."""

    @abstractmethod
    def follow(self, stream: int, event: Any) -> None:
        """Makes later work on the stream wait for an event."""

    @abstractmethod
    def forget(self, event: Any) -> None:
        """Destroys an event."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all work."""

    @abstractmethod
    def keep(self, size: int, what: str) -> int:
        """Returns the address of memory (bytes) that stays allocated until `drop`; `what` names it in an out-of-memory error."""

    @abstractmethod
    def drop(self, address: int) -> None:
        """Frees memory of `keep` that no work uses any more."""

    @abstractmethod
    def write(self, to: int, source: int, size: int) -> None:
        """Copies from host memory (bytes), synchronously."""

    @abstractmethod
    def load(self, code: bytes, what: str) -> Any:
        """Loads a binary into the driver, which may read the bytes until it is unloaded; `what` is the action for an error."""

    @abstractmethod
    def unload(self, module: Any) -> None:
        """Unloads a binary from the driver."""

    # --- memory ------------------------------------------------------------------------------------------------------------

    def allocate(self, size: int, stream: int) -> int:
        """Returns the address of new memory (bytes), usable by work on the stream from now on; aligned to 256 bytes."""
        try:
            return self.take(size, stream)
        except StatusError as error:
            if not error.is_full:
                raise error.told() from error
        try:  # once more, without cached memory
            self.trim()
            return self.take(size, stream)
        except StatusError as error:
            raise error.told(f"{size} bytes requested on {self}") from error

    def reclaim(self, address: int, streams: Collection[int]) -> None:
        """Frees memory once all work now on these streams is done."""
        for stream in sorted(streams):
            self.order(stream, self.stream)
        self.free(address, self.stream)

    @contextmanager
    def room(self, size: int, stream: int) -> Iterator[int]:
        """Allocates memory for the work enqueued inside the context; 0 for 0 bytes."""
        if not size:
            yield 0
            return
        address = self.allocate(size, stream)
        try:
            yield address
        finally:
            self.free(address, stream)

    # --- order -------------------------------------------------------------------------------------------------------------

    def order(self, first: int, then: int) -> None:
        """Makes later work on one stream wait for all work now on the other."""
        if first == then:
            return
        event = self.mark(first)
        try:
            self.follow(then, event)
        finally:
            self.forget(event)

    def hold(self, stream: int, things: Any) -> None:
        """Keeps objects alive until all work now on the stream is done, and releases earlier objects whose work is done."""
        with self._lock:
            self._held.append((self.mark(stream), things))
            while self._held and self.reached(self._held[0][0]):
                self.forget(self._held.popleft()[0])

    def wait(self) -> None:
        """Waits for all work."""
        self.synchronize()
        with self._lock:
            while self._held:
                self.forget(self._held.popleft()[0])
