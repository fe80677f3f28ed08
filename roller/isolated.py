"""A worker process for what may crash or hang: warm, reused, replaced when it dies.

The worker is a plain child that imports what the function needs, not a copy of the caller: it never runs the caller's main
script again. Functions travel by name, so they must live at the top of an importable module.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from roller.errors import KernelError, RollerError

T = TypeVar("T")
DEADLINE_SECONDS = 60.0
_START = "import sys; sys.path[:] = {path!r}; from roller.isolated import _serve; _serve({descriptor})"

_lock = threading.Lock()
_worker: _Worker | None = None


def run_isolated(
    function: Callable[..., T],
    *arguments: Any,
    deadline_s: float = DEADLINE_SECONDS,
    error: Callable[[str], RollerError] = KernelError,
) -> T:
    """What the function gives, computed in the worker process.

    Its exceptions are raised here. `error(text)` is raised where the worker crashes (the text names the signal), takes longer than
    `deadline_s`, or cannot be sent the call; the next call gets a new worker.
    """
    what = getattr(function, "__qualname__", repr(function))
    if getattr(function, "__module__", "__main__") == "__main__":
        raise error(f"{what} must live in an importable module to run in a worker process")
    try:
        message = pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as cause:
        raise error(f"{what} cannot be sent to a worker process: {cause}") from cause
    with _lock:
        worker = _current()
        try:
            done, value = worker.ask(message, deadline_s)
        except TimeoutError:
            worker.stop()
            raise error(f"{what} took longer than {deadline_s:g} s; its process was stopped") from None
        except (EOFError, OSError):
            raise error(f"{what} crashed its process: {worker.stop()}") from None
        except BaseException:
            worker.stop()
            raise
    if done:
        result: T = value
        return result
    raise value


class _Worker:
    """The child process and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            start = _START.format(path=[p for p in sys.path if p], descriptor=theirs.fileno())
            # Its stdout goes where errors go: ours may be a JSON document.
            self.process = subprocess.Popen(
                [sys.executable, "-c", start], stdin=subprocess.DEVNULL, stdout=2, pass_fds=(theirs.fileno(),), process_group=0
            )
        self.connection = Connection(ours.detach())
        self.owner = os.getpid()

    def ask(self, message: bytes, deadline_s: float) -> Any:
        self.connection.send_bytes(message)
        if not self.connection.poll(deadline_s):
            raise TimeoutError
        return self.connection.recv()

    def stop(self) -> str:
        """End the process and say how it ended."""
        self.connection.close()
        try:
            status = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _current() -> _Worker:
    """The live worker of this process, started if there is none (a forked child starts its own)."""
    global _worker  # noqa: PLW0603  (the one warm worker is process-wide on purpose)
    if _worker is None or _worker.owner != os.getpid() or _worker.process.poll() is not None or _worker.connection.closed:
        _worker = _Worker()
    return _worker


@atexit.register
def _stop() -> None:
    if _worker is not None and _worker.owner == os.getpid() and not _worker.connection.closed:
        _worker.stop()


def _serve(descriptor: int) -> None:
    """The worker's loop: answer calls until the caller closes the connection."""
    connection = Connection(descriptor)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        except Exception as problem:
            answer: tuple[bool, Any] = (False, KernelError(f"the call cannot be read: {type(problem).__name__}: {problem}"))
        else:
            answer = _answer(function, arguments)
        connection.send_bytes(_sendable(answer))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except Exception as problem:
        return False, problem


def _sendable(answer: tuple[bool, Any]) -> bytes:
    try:
        return pickle.dumps(answer)
    except Exception as problem:
        reason = f"the result cannot be sent back: {type(problem).__name__}: {problem}: {answer[1]!r:.200}"
        return pickle.dumps((False, KernelError(reason)))
