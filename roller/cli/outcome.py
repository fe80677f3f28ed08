"""Results of commands: exit codes, JSON and tables on stdout, progress and errors on stderr.

Exit codes: 0 done · 1 a check failed · 2 wrong usage · 3 invalid operator, spec or file · 4 device or toolchain missing · 5 nothing
could be compiled · 6 a kernel crashed, hung or was refused · 130 interrupted.
"""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import Any, ParamSpec

import typer
from rich.console import Console, RenderableType
from rich.status import Status
from rich.syntax import Syntax

from roller.errors import (
    CodegenError,
    ConstructionError,
    DeviceUnavailableError,
    ExpressionError,
    HookError,
    KernelError,
    PluginError,
    RollerError,
    SettingError,
    SpecError,
    WrongResultError,
)

P = ParamSpec("P")
JSON_VERSION = 1
CHECK_FAILED, INVALID, MISSING, NOT_COMPILED, NOT_RUN, INTERRUPTED = 1, 3, 4, 5, 6, 130
_CODES: tuple[tuple[type[RollerError], int], ...] = (  # the first that matches
    (WrongResultError, CHECK_FAILED),
    (ExpressionError, INVALID),
    (SpecError, INVALID),
    (SettingError, INVALID),
    (HookError, NOT_COMPILED),
    (PluginError, MISSING),
    (DeviceUnavailableError, MISSING),
    (ConstructionError, NOT_COMPILED),
    (CodegenError, NOT_COMPILED),
    (KernelError, NOT_RUN),
)


class Format(StrEnum):
    """The format of stdout."""

    table = "table"
    json = "json"


class BadFileError(Exception):
    """An unreadable kernel file: wrong input, not a failed kernel."""


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Returns the command with roller's errors as one message and their exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RollerError as error:
            complain(f"{type(error).__name__}: {error}")
            raise typer.Exit(next(code for kind, code in _CODES if isinstance(error, kind))) from error
        except BadFileError as error:
            complain(str(error))
            raise typer.Exit(INVALID) from error
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(INTERRUPTED) from None

    return run


def complain(text: str) -> None:
    """Prints a message for people."""
    typer.echo(f"roller: {text}", err=True)


def report(form: Format, command: str, table: Callable[[], RenderableType], data: Callable[[], Mapping[str, Any]]) -> None:
    """Prints the result, as a table or as one JSON document; plain text as it is."""
    if form is Format.json:
        document = {"schema_version": JSON_VERSION, "command": command, **data()}
        typer.echo(json.dumps(_finite(document), indent=2, allow_nan=False))
    else:
        console, shown = Console(), table()
        if isinstance(shown, str):
            typer.echo(shown.rstrip())
        elif isinstance(shown, Syntax) and not console.is_terminal:
            typer.echo(shown.code.rstrip())  # redirected text must be intact, neither wrapped nor padded
        else:
            # Piped output has no width; the tables are made for 100 columns.
            (console if console.is_terminal else Console(width=100)).print(shown)


def _finite(value: Any) -> Any:
    """Returns the value with infinities and NaN, which JSON lacks, as null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Shows progress and the current step if stderr is a terminal."""
    console = Console(stderr=True)
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO if console.is_terminal else logging.WARNING)
    handler.setFormatter(logging.Formatter("roller: %(message)s"))
    logger = logging.getLogger("roller")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    steps = logging.getLogger("roller.step")
    steps.propagate = False  # they are shown in one line and overwritten
    with ExitStack() as undo:
        undo.callback(logger.removeHandler, handler)
        undo.callback(setattr, steps, "propagate", True)
        if console.is_terminal:
            shown = _Shown(undo.enter_context(console.status(text)))
            steps.addHandler(shown)
            undo.callback(steps.removeHandler, shown)
        yield


class _Shown(logging.Handler):
    """A line on the terminal that shows the last message."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        """Shows one message."""
        self._status.update(record.getMessage())
