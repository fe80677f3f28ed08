"""A worker process for calls that may crash or hang: warm, reused, replaced when it dies.

The worker is a plain child process that imports the function's module, not a copy of the caller: it never runs the caller's main
script again. Functions are sent by name, so they must be at the top level of an importable module.

A worker has its own folder for temporary files, which is always removed: by the caller, or by the worker if the caller dies first.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from roller.errors import KernelError, RollerError

T = TypeVar("T")
DEADLINE_SECONDS = 60.0
_SAID = "said"  # the file with the standard error of a call
_START = "import sys; sys.path[:] = {path!r}; from roller.runtime.worker import _serve; _serve({descriptor}, {folder!r})"

_lock = threading.Lock()
_worker: _Worker | None = None


def run_isolated(
    function: Callable[..., T],
    *arguments: Any,
    deadline_s: float = DEADLINE_SECONDS,
    error: Callable[[str], RollerError] = KernelError,
    quiet: bool = False,
) -> T:
    """Returns the function's result, computed in the worker process.

    The function's exceptions are raised here. `error(text)` is raised if the worker crashes (the text names the signal), takes
    longer than `deadline_s`, or cannot be sent the call; the next call gets a new worker. `quiet`: the function's standard error is
    not shown; if the worker crashes, it is appended to the text on a new line.
    """
    what = getattr(function, "__qualname__", repr(function))
    if getattr(function, "__module__", "__main__") == "__main__":
        raise error(f"{what} must live in an importable module to run in a worker process")
    try:
        message = pickle.dumps((function, arguments, quiet))
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
            said = worker.said() if quiet else ""
            raise error(f"{what} crashed its process: {worker.stop()}{said}") from None
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
        self.folder = tempfile.mkdtemp(prefix="roller-worker-")
        with theirs:
            start = _START.format(path=[p for p in sys.path if p], descriptor=theirs.fileno(), folder=self.folder)
            # Its stdout goes to our stderr: our stdout may be a JSON document.
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

    def said(self) -> str:
        """Returns the call's standard error after a line end; empty if there is none."""
        try:
            text = Path(self.folder, _SAID).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return f"\n{text}" if text else ""

    def stop(self) -> str:
        """Ends the process and the compilers that it started, removes its files, and returns how it ended."""
        self.connection.close()
        try:
            status = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            status = self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _current() -> _Worker:
    """Returns the live worker of this process, started if there is none (a forked child starts its own)."""
    global _worker  # noqa: PLW0603  (the one warm worker is process-wide on purpose)
    ours = _worker if _worker is not None and _worker.owner == os.getpid() and not _worker.connection.closed else None
    if ours is not None and ours.process.poll() is not None:
        ours.stop()
        ours = None
    if ours is None:
        ours = _worker = _Worker()
    return ours


@atexit.register
def _stop() -> None:
    if _worker is not None and _worker.owner == os.getpid() and not _worker.connection.closed:
        _worker.stop()


def _serve(descriptor: int, folder: str) -> None:
    """Runs the worker's loop: answers calls until the caller closes the connection or dies."""
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    threading.Thread(target=_watch, args=(descriptor, folder), daemon=True).start()
    connection = Connection(descriptor)
    try:
        while True:
            connection.send_bytes(_sendable(_next_answer(connection)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        shutil.rmtree(folder, ignore_errors=True)


def _watch(descriptor: int, folder: str) -> None:
    """Ends the worker and the compilers that it started once the caller is dead, also during a computation."""
    connection = select.poll()
    connection.register(descriptor, 0)  # no events but a closed peer, which is always reported
    connection.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _next_answer(connection: Connection) -> tuple[bool, Any]:
    """Returns whether the next call returned a value, and that value or the exception."""
    try:
        function, arguments, quiet = connection.recv()
    except (EOFError, ConnectionResetError):
        raise
    except Exception as problem:
        return False, KernelError(f"the call cannot be read: {type(problem).__name__}: {problem}")
    try:
        if not quiet:
            return True, function(*arguments)
        with _aside(Path(tempfile.gettempdir(), _SAID)):
            return True, function(*arguments)
    except Exception as problem:
        return False, problem


@contextmanager
def _aside(path: Path) -> Iterator[None]:
    """Redirects the process's standard error to a new file."""
    before = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _sendable(answer: tuple[bool, Any]) -> bytes:
    try:
        return pickle.dumps(answer)
    except Exception as problem:
        reason = f"the result cannot be sent back: {type(problem).__name__}: {problem}: {answer[1]!r:.200}"
        return pickle.dumps((False, KernelError(reason)))
