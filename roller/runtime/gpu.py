"""One GPU with its memory, in the order of streams: all that does not depend on how its driver is called."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from roller.runtime.driver_errors import ForkGuard, StatusError


class Gpu(ABC):
    """The GPU of a number. `stream` is our own: for host arrays, and for arrays of libraries that have no current stream.

    All that concerns memory and streams wants the GPU to be the thread's. `forks`: guards calls of its driver.
    """

    forks: ClassVar[ForkGuard]

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.stream = 0
        self._held: deque[tuple[Any, Any]] = deque()
        self._lock = threading.RLock()  # what is let go may ask the GPU for more

    def __str__(self) -> str:
        return f"GPU {self.ordinal}"

    # --- what drivers do differently ---------------------------------------------------------------------------------------

    @abstractmethod
    def current(self) -> AbstractContextManager[None]:
        """It is the thread's inside; afterwards the one that was before is."""

    @abstractmethod
    def take(self, size: int, stream: int) -> int:
        """As `allocate`; `StatusError` where the driver refuses."""

    @abstractmethod
    def trim(self) -> None:
        """Wait for all work, and give the system what is kept for later calls."""

    @abstractmethod
    def free(self, address: int, stream: int) -> None:
        """Give memory back once the work that is on the stream now is done."""

    @abstractmethod
    def bring(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy from host memory (bytes), which stays as it is until the stream is waited for."""

    @abstractmethod
    def fetch(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy to host memory."""

    @abstractmethod
    def move(self, to: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy within its memory."""

    @abstractmethod
    def finish(self, stream: int) -> None:
        """Wait for what is on the stream."""

    @abstractmethod
    def mark(self, stream: int) -> Any:
        """An event behind what is on the stream now."""

    @abstractmethod
    def reached(self, event: Any) -> bool:
        """True where all work before an event is done."""

    @abstractmethod
    def follow(self, stream: int, event: Any) -> None:
        """Later work on the stream waits for an event."""

    @abstractmethod
    def forget(self, event: Any) -> None:
        """Nobody asks for the event any more."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work."""

    @abstractmethod
    def keep(self, size: int, what: str) -> int:
        """The address of memory (bytes) that stays until it is dropped; `what` names it where there is no room."""

    @abstractmethod
    def drop(self, address: int) -> None:
        """Give back what was kept; no work uses it any more."""

    @abstractmethod
    def write(self, to: int, source: int, size: int) -> None:
        """Copy from host memory (bytes), at once."""

    @abstractmethod
    def load(self, code: bytes, what: str) -> Any:
        """A binary as the driver holds it, which may read the bytes as long as it does; `what` was to be done."""

    @abstractmethod
    def unload(self, module: Any) -> None:
        """The driver holds the binary no longer."""

    # --- memory ------------------------------------------------------------------------------------------------------------

    def allocate(self, size: int, stream: int) -> int:
        """The address of new memory (bytes), which work on the stream may use from now on; aligned to 256 bytes."""
        try:
            return self.take(size, stream)
        except StatusError as error:
            if not error.is_full:
                raise error.told() from error
        try:  # once more, without what is kept for later
            self.trim()
            return self.take(size, stream)
        except StatusError as error:
            raise error.told(f"{size} bytes wanted on {self}") from error

    def reclaim(self, address: int, streams: Collection[int]) -> None:
        """Give memory back once the work that is on these streams now is done."""
        for stream in sorted(streams):
            self.order(stream, self.stream)
        self.free(address, self.stream)

    @contextmanager
    def room(self, size: int, stream: int) -> Iterator[int]:
        """Memory for what is enqueued inside; 0 where no bytes are wanted."""
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
        """Later work on one stream waits for what is on the other now."""
        if first == then:
            return
        event = self.mark(first)
        try:
            self.follow(then, event)
        finally:
            self.forget(event)

    def hold(self, stream: int, things: Any) -> None:
        """Keep things until the work that is on the stream now is done, and let go of what was kept and is done."""
        with self._lock:
            self._held.append((self.mark(stream), things))
            while self._held and self.reached(self._held[0][0]):
                self.forget(self._held.popleft()[0])

    def wait(self) -> None:
        """Until all work is done."""
        self.synchronize()
        with self._lock:
            while self._held:
                self.forget(self._held.popleft()[0])
