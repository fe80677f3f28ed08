"""The commands: they parse arguments, call roller, and print; they contain no other logic."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

import roller
from roller import trial
from roller.cli import cache, files, specs
from roller.cli.grammar import parse
from roller.cli.outcome import INTERRUPTED, BadFileError, Format, complain, guarded, progress, report
from roller.device.plugins import device_names, load_device
from roller.errors import DeviceUnavailableError, ExpressionError, KernelError, RollerError
from roller.explain.report import candidates_table
from roller.explain.texts import duration
from roller.kernel import Kernel

NEGATIVE = re.compile(r"-\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Compile tensor operators to kernels without search.",
)
app.add_typer(specs.app, name="specs")
app.add_typer(cache.app, name="cache")

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATOR...",
        help='such as: matmul 1024x512 512x2048 | "relu(matmul(64x32, 32x8))" | "mk,kn->mn" 64x32 32x8 | '
        "conv2d 1x64x56x56 128x64x3x3 padding=1 | maximum 64x32 0.5 (an integer would be an input: 64 is a vector)",
    ),
]
DType = Annotated[str, typer.Option(help="Default element type of inputs; 64x32:int8 sets it for one.")]
DeviceName = Annotated[
    str | None, typer.Option("--device", "-d", help='"name" or "name:chip". Default: that of the spec file, else cpu.')
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the kernel to this file (-: to standard output).")]
SourceFile = Annotated[Path | None, typer.Option("--source", help="Write its source text to this file (-: to standard output).")]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page with a timeline to this file (-: to standard output).")]
SpecFile = Annotated[Path | None, typer.Option("--spec", help="A spec file (machine description) to use instead of a chip.")]
Threads = Annotated[int | None, typer.Option(help="Max number of CPU threads, or of simulated tiles; not for GPUs. Default: all.")]
Precision = Annotated[str, typer.Option(help="ieee; tf32: factors of float32 products may be rounded to tf32.")]
Math = Annotated[str, typer.Option(help="ieee; strict: fused multiply-adds in reductions only; fast: not limited to IEEE 754.")]
Top = Annotated[int, typer.Option("--top", min=1, help="Number of candidate programs to keep.")]
Measure = Annotated[bool, typer.Option("--measure", help="Build and time all candidates on this machine; use the fastest.")]
Verify = Annotated[bool, typer.Option("--verify", help="Compare the kernel with the float64 reference.")]
KEPT = ("dtype", "device", "spec", "threads", "precision", "math", "top")  # options that are fixed in a saved kernel
Form = Annotated[Format, typer.Option("--format", help="Format of standard output.")]


class OperatorCommand(TyperCommand):
    """A command with an operator argument, whose operands may be negative numbers: no option is a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words; negative numbers are operands."""
        return super().parse_args(ctx, [f" {word}" if NEGATIVE.fullmatch(word) else word for word in args])


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="roller")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(roller.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Compile tensor operators to fast kernels by construction instead of search."""


@app.command("compile", cls=OperatorCommand)
@guarded
def compile_command(
    operator: Words,
    *,
    dtype: DType = "float32",
    device: DeviceName = None,
    spec: SpecFile = None,
    threads: Threads = None,
    precision: Precision = "ieee",
    math: Math = "ieee",
    top: Top = 10,
    measure: Measure = False,
    verify: Verify = False,
    output: Output = None,
    source: SourceFile = None,
    language: Annotated[
        str | None,
        typer.Option("--language", help="Language of the source text, if the device has several."),
    ] = None,
    form: Form = Format.table,
) -> None:
    """Compile an operator; save the kernel with --output, its source text with --source."""
    if language is not None and source is None:
        raise typer.BadParameter("it is that of the text that --source FILE gets", param_hint="--language")
    told = files.checked(form, output=output, source=source)
    op = parse(operator, dtype)
    options: Any = {"device": device, "spec": spec, "top_k": top, "threads": threads, "precision": precision, "math": math}
    if language is not None and source is not None and output is None and not measure and not verify:
        with progress("constructing"):  # text for another toolchain needs none of the device's own
            made = roller.construct(op, **options)
            files.write(source, made.source_in(language).encode())
        if told:
            said = f"the {language} text of {made.program.describe()} is in {source}; it was not built"
            report(form, "compile", lambda: Text(said), lambda: {"source": str(source), "program": made.program.to_dict()})
        return
    with progress("compiling"):
        kernel = roller.compile(op, measure=measure, verify=verify, **options)
        if output is not None:
            files.write(output, kernel.artifact.to_bytes())
        if source is not None:
            files.write(source, (kernel.source if language is None else kernel.source_in(language)).encode())
    if not told:
        return
    saved, text = (None if path is None else str(path) for path in (output, source))
    report(
        form,
        "compile",
        lambda: _summary(kernel, verify, saved, text),
        lambda: {**_described(kernel), "verified": verify, "saved": saved, "source": text},
    )


@app.command(cls=OperatorCommand)
@guarded
def explain(
    context: typer.Context,
    operator: Words,
    *,
    dtype: DType = "float32",
    device: DeviceName = None,
    spec: SpecFile = None,
    threads: Threads = None,
    precision: Precision = "ieee",
    math: Math = "ieee",
    top: Top = 10,
    why_not: Annotated[
        str | None,
        typer.Option(
            "--why-not",
            metavar="m=256,n=128",
            help="A unit's tile, or some of its extents: say which rule or which terms speak against it.",
        ),
    ] = None,
    form: Form = Format.table,
) -> None:
    """Explain the program of an operator, or of a saved kernel (a .roller file)."""
    tile = None if why_not is None else _tile(why_not)
    options: Any = {"device": device, "spec": spec, "threads": threads, "precision": precision, "math": math}
    try:
        explanation = _kernel(context, operator, dtype, top=top, **options).explain(tile)
    except DeviceUnavailableError as error:
        explanation = roller.construct(parse(operator, dtype), top_k=top, **options).explain(tile)
        complain(f"explained as predicted, because no kernel can be built here: {error}")
    report(form, "explain", lambda: explanation, explanation.to_dict)


@app.command(cls=OperatorCommand)
@guarded
def profile(
    context: typer.Context,
    operator: Words,
    *,
    dtype: DType = "float32",
    device: DeviceName = None,
    spec: SpecFile = None,
    threads: Threads = None,
    precision: Precision = "ieee",
    math: Math = "ieee",
    html: Page = None,
    form: Form = Format.table,
) -> None:
    """Show simulated cycles per step and memory for an operator, or a saved kernel; nothing is executed."""
    told = files.checked(form, html=html)
    kernel = _kernel(context, operator, dtype, device=device, spec=spec, threads=threads, precision=precision, math=math, top=1)
    found = kernel.profile()
    if html is not None:
        files.write(html, found.html().encode())
    if told:
        report(form, "profile", found.text, lambda: {**found.to_dict(), "saved": None if html is None else str(html)})


@app.command(cls=OperatorCommand)
@guarded
def bench(
    context: typer.Context,
    operator: Words,
    *,
    dtype: DType = "float32",
    device: DeviceName = None,
    spec: SpecFile = None,
    threads: Threads = None,
    precision: Precision = "ieee",
    math: Math = "ieee",
    seconds: Annotated[float, typer.Option(min=0.01, max=60.0, help="Seconds to measure.")] = 1.0,
    form: Form = Format.table,
) -> None:
    """Time an operator, or a saved kernel, on this machine."""
    kernel = _kernel(context, operator, dtype, device=device, spec=spec, threads=threads, precision=precision, math=math, top=1)
    with progress("measuring"):
        (measured,) = trial.measure([kernel.artifact], seconds)
    if measured is None:
        raise KernelError("the kernel does not run on this machine")
    numbers = {
        "measured_s": measured,
        "predicted_s": kernel.estimate.seconds,
        "gflops": kernel.expr.flops / measured * 1e-9,
        "gbps": kernel.expr.compulsory_bytes / measured * 1e-9,
    }
    report(form, "bench", lambda: _numbers(kernel, numbers), lambda: {**_described(kernel), **numbers})


@app.command("verify")
@guarded
def verify_command(
    context: typer.Context,
    operator: Words,
    *,
    dtype: DType = "float32",
    device: DeviceName = None,
    spec: SpecFile = None,
    threads: Threads = None,
    precision: Precision = "ieee",
    math: Math = "ieee",
    emulate: Annotated[bool, typer.Option("--emulate", help="Run on the device's emulator (slow; no device needed).")] = False,
    form: Form = Format.table,
) -> None:
    """Compare the kernel of an operator, or a saved one, with the reference: every element, or a sample of large operators."""
    kernel = _kernel(context, operator, dtype, device=device, spec=spec, threads=threads, precision=precision, math=math, top=1)
    with progress("comparing with the reference"):
        trial.verify(kernel.artifact, kernel.expr, emulate)
    where = "emulator" if emulate else "device"
    formats = dict.fromkeys(stage.factor_dtype for stage in kernel.expr.stages if stage.factor_dtype is not None)
    rounded = f", with factors rounded to {' or '.join(formats)} at most" if formats else ""
    said = f"right on the {where}, for random numbers and for whole ones{rounded}: {repr(kernel).strip('<>')}"
    report(form, "verify", lambda: Text(said), lambda: {**_described(kernel), "verified": True, "where": where})


@app.command()
@guarded
def devices(form: Form = Format.table) -> None:
    """List the installed devices: the chip of each with the source of its numbers, or the device's missing requirements."""
    with progress("asking the devices"):
        found = [_state(name) for name in device_names()]
    table = Table("device", "state", "chip", box=None, header_style="italic")
    for entry in found:
        table.add_row(entry["device"], Text(entry["state"]), Text(_chip(entry)))  # texts may contain brackets, which are no markup
    report(form, "devices", lambda: table, lambda: {"devices": found})


def _tile(text: str) -> dict[str, int]:
    """Returns a tile from text such as "m=256,n=128"."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    if not all(name.strip() and extent.strip().isdecimal() and extent.strip().strip("0") for name, _, extent in pairs):
        raise typer.BadParameter(f"{text!r} is no tile such as m=256,n=128, with positive extents", param_hint="--why-not")
    try:
        found = {name.strip(): int(extent) for name, _, extent in pairs}
    except ValueError:  # thousands of digits
        raise typer.BadParameter("no dimension is that long", param_hint="--why-not") from None
    if len(found) < len(pairs):
        raise typer.BadParameter(f"{text!r} names a dimension twice", param_hint="--why-not")
    return found


def _state(name: str) -> dict[str, Any]:
    """Returns the entry of a device in `roller devices`; `chip` and `numbers` are null if it has no chip of its own."""
    entry: dict[str, Any] = {"device": name, "usable": False, "chip": None, "title": None, "clock_ghz": None, "numbers": None}
    try:
        device = load_device(name)
        lacking = device.requirements()
        entry |= {"usable": not lacking, "state": "; ".join(lacking) or "ready"}
        if not lacking:
            spec = device.default_spec()
            entry |= {"chip": spec.chip, "title": spec.title, "clock_ghz": spec.clock_ghz, "numbers": spec.source("clock_ghz")}
    except RollerError as error:
        entry |= {"usable": False, "state": str(error)}
    return entry


def _chip(entry: Mapping[str, Any]) -> str:
    if entry["chip"] is None:
        return ""
    return f"{entry['chip']}: {entry['title']}\n{entry['clock_ghz']:g} GHz, {entry['numbers'] or 'of unnamed source'}"


def _kernel(
    context: typer.Context,
    words: list[str],
    dtype: str,
    *,
    device: str | None,
    spec: Path | None,
    threads: int | None,
    precision: str,
    math: str,
    top: int,
) -> Kernel:
    """Returns the kernel of an operator, or of a file."""
    if len(words) == 1 and words[0].endswith(".roller"):
        return _saved(context, words[0], device)
    op = parse(words, dtype)
    with progress("compiling"):
        return roller.compile(op, device, spec=spec, top_k=top, threads=threads, precision=precision, math=math)


def _saved(context: typer.Context, path: str, device: str | None) -> Kernel:
    """Returns the kernel of a file; refuses compile options that differ from those of the kernel."""
    try:
        kernel = roller.load(path)
    except (KernelError, ExpressionError) as error:
        raise BadFileError(str(error)) from error
    mine = f"{kernel.spec.device}:{kernel.spec.chip}"
    for name in KEPT:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and (name != "device" or device not in (kernel.spec.device, mine)):
            raise typer.BadParameter(f"{path} is a kernel already, for {mine}", param_hint=f"--{name}")
    return kernel


def _described(kernel: Kernel) -> dict[str, object]:
    return {
        "device": kernel.spec.device,
        "chip": kernel.spec.chip,
        "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in kernel.inputs],
        "output": {"name": kernel.output.name, "shape": list(kernel.output.shape), "dtype": kernel.output.dtype},
        "flops": kernel.expr.flops,
        "program": kernel.program.to_dict(),
        "estimate": kernel.estimate.to_dict(),
        "resources": dict(kernel.artifact.resources),
        "candidates": kernel.explain().to_dict()["candidates"],
    }


def _summary(kernel: Kernel, verified: bool, saved: str | None, text: str | None) -> Group:
    lines = [Text(repr(kernel).strip("<>"), style="bold")]
    lines.append(Text(f"resources: {', '.join(f'{k} {v}' for k, v in kernel.artifact.resources.items()) or 'not reported'}"))
    lines += [Text("verified against the reference")] if verified else []
    lines += [Text(f"saved to {saved}")] if saved is not None else []
    lines += [Text(f"its text is in {text}")] if text is not None else []
    return Group(*lines, candidates_table(kernel.candidates))


def _numbers(kernel: Kernel, numbers: dict[str, float]) -> Table:
    table = Table("measured", "predicted", "GFLOP/s", "GB/s", "program", box=None, header_style="italic")
    times = [duration(numbers[key]) for key in ("measured_s", "predicted_s")]
    table.add_row(*times, f"{numbers['gflops']:.4g}", f"{numbers['gbps']:.4g}", Text(kernel.program.describe()))
    return table
