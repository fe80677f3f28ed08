"""`roller specs`: the chips with spec files."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

import roller
from roller.cli.outcome import CHECK_FAILED, Format, guarded, progress, report
from roller.device.plugins import load_device
from roller.errors import PluginError
from roller.target.catalog import dump_spec
from roller.target.linting import lint

app = typer.Typer(help="List, show, check and measure chips.", invoke_without_command=True)

Form = Annotated[Format, typer.Option("--format", help="Format of standard output.")]
Chip = Annotated[str, typer.Argument(help='"zen5", "cpu:zen5", or the path of a .toml file.')]


@app.callback()
@guarded
def _default(context: typer.Context) -> None:
    """List the chips (the default without a command)."""
    if context.invoked_subcommand is None:
        _list(None, Format.table)


@app.command("list")
@guarded
def list_command(
    device: Annotated[str | None, typer.Argument(help="Only chips of this device.")] = None, form: Form = Format.table
) -> None:
    """List the chips."""
    _list(device, form)


def _list(device: str | None, form: Format) -> None:
    found = roller.specs(device)
    table = Table("device", "chip", "file", box=None, header_style="italic")
    for entry in found:
        table.add_row(entry.device, entry.chip, Text(str(entry.path), overflow="fold"), style=None)
    entries = [{"device": e.device, "chip": e.chip, "file": str(e.path)} for e in found]
    report(form, "specs list", lambda: table, lambda: {"specs": entries})


@app.command()
@guarded
def show(chip: Chip, form: Form = Format.table) -> None:
    """Show a chip as its spec file."""
    spec = roller.load_spec(chip)
    report(form, "specs show", lambda: Syntax(dump_spec(spec), "toml"), lambda: {"spec": spec.model_dump(mode="json")})


@app.command("lint")
@guarded
def lint_command(chips: Annotated[list[str], typer.Argument(help="Chip names or .toml files.")], form: Form = Format.table) -> None:
    """Lint hardware specs; exit code 1 if problems are found."""
    problems = {chip: lint(roller.load_spec(chip), chip if chip.endswith(".toml") else None) for chip in chips}

    def table() -> Group:
        lines = [Text(f"{chip}: {line}") for chip, found in problems.items() for line in found or ["clean"]]
        return Group(*lines)

    report(form, "specs lint", table, lambda: {"problems": problems})
    if any(problems.values()):
        raise typer.Exit(CHECK_FAILED)


@app.command()
@guarded
def calibrate(
    device: Annotated[str, typer.Argument(help="The device whose attached chip is measured.")] = "cpu", form: Form = Format.table
) -> None:
    """Measure the attached chip again, and store the result as a user spec file."""
    with progress("measuring"):
        spec = load_device(device).measure_spec()
    if spec is None:
        raise PluginError(f"the {device!r} device cannot measure its chip", device)
    measured: Any = spec
    report(form, "specs calibrate", lambda: Syntax(dump_spec(measured), "toml"), lambda: {"spec": measured.model_dump(mode="json")})
