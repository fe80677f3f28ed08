"""Output files of commands, checked before anything is compiled; "-" is standard output."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from roller.cli.outcome import Format
from roller.errors import KernelError
from roller.storage import refuse_special, write_atomic

STDOUT = Path("-")


def checked(form: Format, **options: Path | None) -> bool:
    """Returns whether the options' files leave standard output to the command's own report.

    `BadParameter` for a file that cannot be written, and if two outputs would go to standard output.
    """
    for name, path in options.items():
        if path is None or path == STDOUT:
            continue
        if not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}", param_hint=f"--{name}")
        try:
            refuse_special(path.resolve())
        except OSError as error:
            raise typer.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint=f"--{name}") from None
    printed = [f"--{name}" for name, path in options.items() if path == STDOUT]
    if len(printed) > 1 or (printed and form is Format.json):
        other = printed[1] if len(printed) > 1 else "--format json"
        raise typer.BadParameter(f"{other} goes to standard output as well; name a file for one of them", param_hint=printed[0])
    return not printed


def write(path: Path, data: bytes) -> None:
    """Writes a whole file, or to standard output; `KernelError` if that fails."""
    if path == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        write_atomic(path, data)
    except OSError as error:
        raise KernelError(f"{path}: cannot be written: {error.strerror or error}") from error
