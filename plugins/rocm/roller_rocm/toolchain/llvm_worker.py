"""LLVM in the worker process, with LLVM's message where it ends the process."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from roller.plugin import CodegenError, run_isolated

T = TypeVar("T")
DEADLINE_SECONDS = 300.0
_SAID = re.compile(r"LLVM ERROR: .*|error: .*|Cannot select: .*|fatal error: .*")


def run(function: Callable[..., T], *arguments: Any) -> T:
    """Returns the result of a plugin's function in the worker; `CodegenError` with LLVM's message where it ends the process."""
    found: T = run_isolated(_asked, function, arguments, deadline_s=DEADLINE_SECONDS, error=refused, quiet=True)
    return found


def refused(reason: str) -> CodegenError:
    """Returns the error for a worker that ended, from LLVM's output; TVM also writes there that it finds no device."""
    ended, _, said = reason.partition("\n")
    words = _SAID.findall(said)
    return CodegenError(f"LLVM: {words[-1] if words else ended}")


def _asked(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Runs the function in the worker; a failure of TVM becomes an error of ours."""
    try:
        return function(*arguments)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, CodegenError):
            raise
        raise CodegenError(f"TVM refused the kernel: {str(error).strip()[-2000:]}") from None
