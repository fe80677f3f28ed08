"""LLVM in the worker process, with what it says before it ends it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from roller.plugin import CodegenError, run_isolated

T = TypeVar("T")
DEADLINE_SECONDS = 300.0
_SAID = re.compile(r"LLVM ERROR: .*|error: .*|Cannot select: .*|fatal error: .*")


def run(function: Callable[..., T], *arguments: Any) -> T:
    """What a function of this plugin gives in the worker; `CodegenError` with LLVM's words where it ends the process."""
    with tempfile.NamedTemporaryFile(prefix="roller-rocm-", suffix=".log") as log:

        def refused(reason: str) -> CodegenError:
            words = _SAID.findall(Path(log.name).read_text(encoding="utf-8", errors="replace"))
            return CodegenError(f"LLVM: {words[-1]}" if words else f"LLVM: {reason}")

        found: T = run_isolated(_quietly, log.name, function, arguments, deadline_s=DEADLINE_SECONDS, error=refused)
        return found


def _quietly(log: str, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Runs in the worker: the function, its standard error in a file; TVM warns of every device that it does not find."""
    before = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        os.dup2(target, 2)
        return function(*arguments)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, CodegenError):
            raise
        raise CodegenError(f"TVM refused the kernel: {str(error).strip()[-2000:]}") from None
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(target)
