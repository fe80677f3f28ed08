"""`roller cache`: the kernels that are kept on disk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from roller.cache import settings
from roller.cache.entry import DamagedError, header_of
from roller.cache.folder import File, Folder
from roller.cache.key import differences, now_of
from roller.cli.outcome import CHECK_FAILED, BadFileError, Format, guarded, report
from roller.errors import RollerError
from roller.ir import serialization
from roller.runtime.artifact import Artifact

app = typer.Typer(
    no_args_is_help=True,
    help="The kernels that are kept on disk, so that the next process need not compile them.\n\n"
    f"{settings.MODE}=off|ro|rw, ROLLER_CACHE_DIR=FOLDER and {settings.LIMIT}=BYTES change what is kept, and where.",
)

Form = Annotated[Format, typer.Option("--format", help="Format of standard output.")]
SHORT = 12  # digits of a key that tables show, and that commands take
NOTHING = "no kernels are kept"


@dataclass(frozen=True)
class Shown:
    """An entry: its file, and its header and artifact's bytes, or why they cannot be read."""

    file: File
    header: Mapping[str, Any]
    body: bytes
    problem: str = ""


@app.callback()
@guarded
def _checked() -> None:
    settings.mode()
    settings.most_bytes()


def _folder() -> Folder | None:
    """Returns the opened folder; None if there is none yet, `BadFileError` if it cannot be used."""
    try:
        return Folder(settings.folder(), create=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFileError(f"{settings.folder()} is not used: {error.strerror or error}") from error


def _entries(folder: Folder | None) -> Iterator[Shown]:
    for file in folder.files() if folder is not None else ():
        try:
            assert folder is not None
            header, body = header_of(folder.read(file.digest, touch=False) or b"")
            yield Shown(file, header, body, "" if header["key"] == file.digest else "it is an entry of another key")
        except (DamagedError, OSError, ValueError) as error:
            yield Shown(file, {}, b"", str(error))


@app.command()
@guarded
def stats(form: Form = Format.table) -> None:
    """Show how much is kept, and where."""
    folder = _folder()
    files = folder.files() if folder is not None else []
    facts: dict[str, Any] = {
        "folder": str(settings.folder()),
        "mode": settings.mode(),
        "entries": len(files),
        "bytes": sum(file.size for file in files),
        "limit_bytes": settings.most_bytes(),
        "last_used_s_ago": round(time.time() - files[0].used) if files else None,
        "first_to_go_s_ago": round(time.time() - files[-1].used) if files else None,
    }

    def table() -> Table:
        shown = Table(box=None, show_header=False)
        words = {**facts, "bytes": decimal(facts["bytes"]), "limit_bytes": decimal(facts["limit_bytes"])}
        words |= {name: _ago(facts[name]) for name in ("last_used_s_ago", "first_to_go_s_ago")}
        names = {"bytes": "size", "limit_bytes": "at most", "last_used_s_ago": "last used", "first_to_go_s_ago": "evicted next"}
        for name, value in words.items():
            shown.add_row(names.get(name, name), Text(str(value), overflow="fold"))
        return shown

    report(form, "cache stats", table, lambda: facts)


@app.command("ls")
@guarded
def list_command(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show why an entry does not serve this installation.")] = False,
    form: Form = Format.table,
) -> None:
    """List the kept kernels, the one that was used last first."""
    rows = [_row(shown, verbose) for shown in _entries(_folder())]

    def table() -> RenderableType:
        if not rows:
            return Text(NOTHING)
        shown = Table("key", "chip", "operator", "options", "size", "used", *(["serves"] if verbose else []), box=None)
        for row in rows:
            sizes = decimal(row["bytes"]), _ago(row["used_s_ago"])
            cells = [row["key"][:SHORT], row["chip"], row["operator"], row["options"], *sizes]
            serves = [("no" if row["differs"] else "yes")] if verbose else []
            shown.add_row(*(Text(cell, overflow="fold") for cell in [*cells, *serves]))
        reasons = [f"{row['key'][:SHORT]} does not serve: {'; '.join(row['differs'])}" for row in rows if row.get("differs")]
        return Group(shown, *map(Text, reasons))

    report(form, "cache ls", table, lambda: {"entries": rows})


@app.command()
@guarded
def show(
    key: Annotated[str, typer.Argument(help="The key, or as many of its first digits as tell it from others.")],
    form: Form = Format.table,
) -> None:
    """Show one kernel: its operator, program and prediction, and all that its key depends on."""
    shown = _the(key)
    artifact = Artifact.from_bytes(shown.body)
    facts = {
        **_row(shown, True),
        "made": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(shown.header["made"])),
        "predicted_s": artifact.estimate.get("seconds"),
        "programs": len(shown.header["choices"]),
        "artifact": f"{artifact.format}, {len(artifact.data)} bytes",
        "versions": ", ".join(f"{name} {text}" for name, text in artifact.versions.items()),
        "code": ", ".join(f"{name} {(digest or 'unknown')[:SHORT]}" for name, digest in shown.header["parts"]["code"].items()),
        "toolchain": "; ".join(f"{n}: {v}" for n, v in (shown.header["parts"]["toolchain"] or {}).items()),
    }

    def table() -> Table:
        grid = Table(box=None, show_header=False)
        for name, value in facts.items():
            grid.add_row(name, Text("; ".join(value) or "nothing" if isinstance(value, list) else str(value), overflow="fold"))
        return grid

    report(form, "cache show", table, lambda: facts)


@app.command()
@guarded
def verify(form: Form = Format.table) -> None:
    """Check that all entries are intact; exit code 1 if one is not. A damaged entry is never used: it is compiled again."""
    found = list(_entries(_folder()))
    damaged = {shown.file.digest: shown.problem for shown in found if shown.problem}
    for shown in found:
        if not shown.problem:
            try:
                Artifact.from_bytes(shown.body)
            except RollerError as error:
                damaged[shown.file.digest] = str(error)

    def table() -> Group:
        lines = [Text(f"{digest[:SHORT]}: {why}") for digest, why in damaged.items()]
        return Group(*lines, Text(f"{len(found) - len(damaged)} intact, {len(damaged)} damaged"))

    report(form, "cache verify", table, lambda: {"entries": len(found), "damaged": damaged})
    if damaged:
        raise typer.Exit(CHECK_FAILED)


@app.command()
@guarded
def clear(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys, or their first digits. Default: all.")] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only entries that do not serve this installation.")] = False,
    form: Form = Format.table,
) -> None:
    """Remove kept kernels."""
    folder = _folder()
    chosen = [_named(key) for key in keys] if keys else list(_entries(folder))
    chosen = [shown for shown in chosen if not stale or _differs(shown)]
    try:
        for shown in chosen:
            assert folder is not None
            folder.remove(shown.file.digest)
    except OSError as error:
        raise BadFileError(f"{settings.folder()}: {error.strerror}") from error
    freed = sum(shown.file.size for shown in chosen)
    report(
        form,
        "cache clear",
        lambda: Text(f"{len(chosen)} removed, {decimal(freed)}"),
        lambda: {"removed": len(chosen), "bytes": freed},
    )


def _named(key: str) -> Shown:
    """Returns the entry whose key begins with these digits; `BadFileError` if it is none, or several."""
    found = [shown for shown in _entries(_folder()) if shown.file.digest.startswith(key.lower())]
    if len(found) != 1:
        raise BadFileError(f"{len(found) or 'no'} kept kernels have a key that begins with {key!r}: see `roller cache ls`")
    return found[0]


def _the(key: str) -> Shown:
    """Returns the same, for an intact entry."""
    found = _named(key)
    if found.problem:
        raise BadFileError(f"{key}: {found.problem}")
    return found


def _row(shown: Shown, verbose: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"key": shown.file.digest, "chip": "", "operator": "", "options": ""}
    if shown.header:
        parts = shown.header["parts"]
        facts |= {"chip": shown.header["chip"], "operator": _operator(parts["expr"]), "options": _options(parts)}
    facts |= {"bytes": shown.file.size, "used_s_ago": round(time.time() - shown.file.used)}
    return facts | {"differs": _differs(shown)} if verbose else facts


def _differs(shown: Shown) -> list[str]:
    """Returns why an entry does not serve this installation; an empty list if it does."""
    if shown.problem:
        return [shown.problem]
    try:
        now = now_of(shown.header["chip"], shown.header["parts"])
    except RollerError as error:
        return [str(error)]
    return differences(shown.header["parts"], now)


def _operator(expr: Mapping[str, Any]) -> str:
    """Returns an expression in a few words: stages and tensors."""
    read = serialization.expr_from_json(expr)
    sizes = ", ".join(f"{t.name} {'x'.join(map(str, t.shape)) or '1'}:{t.dtype}" for t in read.inputs)
    return f"{' > '.join(stage.name for stage in read.stages)} ({sizes})"


def _options(parts: Mapping[str, Any]) -> str:
    """Returns the options that are not the default."""
    given = {name: value for name, value in parts["options"].items() if value not in (None, False, [], 10)}
    said = [f"{name}={'+'.join(value) if isinstance(value, list) else value}" for name, value in given.items()]
    return ", ".join(said + (["measured"] if parts["measured_on"] else []))


def _ago(seconds: Any) -> str:
    if seconds is None:
        return "never"
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size} {name} ago"
    return f"{seconds} s ago"
