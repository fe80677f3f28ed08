"""Readable profile: as text, and as one HTML page with a timeline and the memory of tiles. All cycles are simulated."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from roller_ipu_sim.simulator.profile import Profile, Superstep

__all__ = ["Report", "html", "text"]

ROWS_MAX, CLASSES_MAX = 40, 24  # max rows of tables, and max bars; the rest is summed up
WIDTH, BAND = 960, 34  # sizes of drawings in pixels: a timeline, a band of it
COLOURS = {
    "amp": "#2f6db3", "map": "#3f9b6d", "reduce": "#7a5ba8", "fill": "#9a9a9a", "copy": "#b98a3e",
    "exchange": "#c8553d", "sync": "#e3b5a8",
}  # fmt: skip
COLUMNS = (
    "#",
    "superstep",
    "kind",
    "simulated cycles",
    "share",
    "slowest tile",
    "mean / slowest",
    "words in",
    "words out",
    "fragments",
)

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<title>$title</title>
<style>
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1000px; color: #222; background: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 0.15em 0.7em; text-align: right; border-bottom: 1px solid #ddd; }
td:nth-child(2), th:nth-child(2) { text-align: left; }
svg { width: 100%; height: auto; }
.key { display: inline-block; width: 0.9em; height: 0.9em; margin: 0 0.3em 0 1em; vertical-align: -0.1em; }
</style>
</head>
<body>
<h1>$title</h1>
<p>$summary</p>
<h2>Timeline (simulated cycles)</h2>
<p>$legend</p>
$timeline
<h2>Memory of tiles (bytes)</h2>
$memory
<h2>Supersteps (simulated cycles)</h2>
$table
</body>
</html>
""")


@dataclass(frozen=True, slots=True)
class Report:
    """A profile with the interface of `roller.plugin.Profile`."""

    profile: Profile

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return self.profile.to_dict()

    def text(self) -> str:
        """Returns tables of plain text."""
        return text(self.profile)

    def html(self) -> str:
        """Returns one self-contained page: a timeline of supersteps, a bar of memory for each class of tiles."""
        return html(self.profile)


def text(profile: Profile) -> str:
    """Returns supersteps, kinds of work, balance and memory as tables of plain text."""
    steps = Table(title=_title(profile))
    for place, name in enumerate(COLUMNS):
        steps.add_column(name, justify="left" if place in (1, 2) else "right", overflow="fold")
    for row in _rows(profile):
        steps.add_row(*row)
    kinds = Table(title="along the slowest tile of each superstep")
    for name in ("kind", "simulated cycles", "share"):
        kinds.add_column(name, justify="left" if name == "kind" else "right")
    for kind, count in profile.by_kind.items():
        if count:
            kinds.add_row(kind, f"{count:,}", _share(count, profile.cycles))
    out = io.StringIO()
    console = Console(file=out, width=150, color_system=None, markup=False, highlight=False)
    console.print(steps)
    console.print(kinds)
    console.print(_summary(profile))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def html(profile: Profile) -> str:
    """Returns one self-contained page, which is also well-formed XML."""
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in _rows(profile)]
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    keys = (f'<span class="key" style="background:{colour}"></span>{kind}' for kind, colour in COLOURS.items())
    return PAGE.substitute(
        title=escape(_title(profile)),
        summary=escape(_summary(profile)),
        legend="".join(keys),
        timeline=_timeline(profile),
        memory=_memory(profile),
        table=f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>",
    )


def _title(profile: Profile) -> str:
    return f"{profile.chip}: {profile.cycles:,} simulated cycles in {len(profile.supersteps)} supersteps"


def _summary(profile: Profile) -> str:
    most = int(profile.memory.max(initial=0))
    room = profile.capacity - profile.reserved
    return (
        f"{profile.seconds * 1e6:,.2f} simulated microseconds at {profile.clock_ghz} GHz. In compute the mean tile is busy for "
        f"{profile.balance:.1%} of what the slowest one takes. The fullest of {len(profile.memory)} tiles holds {most:,} of "
        f"{room:,} bytes ({profile.reserved:,} more are reserved). Simulated, not measured: no IPU was used."
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _rows(profile: Profile) -> list[tuple[str, ...]]:
    """Returns a row for each superstep; if there are many, the shorter ones are summed up."""
    steps = list(enumerate(profile.supersteps))
    longest = sorted(steps, key=lambda item: (-item[1].cycles, item[0]))[:ROWS_MAX]
    shown = {number for number, _ in longest}
    rows = [_row(number, step, profile.cycles) for number, step in steps if number in shown]
    left = [step.cycles for number, step in steps if number not in shown]
    if left:
        empty = ("",) * (len(COLUMNS) - 5)
        rows.append(("…", f"{len(left)} shorter ones", "", f"{sum(left):,}", _share(sum(left), profile.cycles), *empty))
    return rows


def _row(number: int, step: Superstep, cycles: int) -> tuple[str, ...]:
    traffic = (step.words_in, step.words_out, step.fragments)
    words = ["" if values is None else f"{int(values.max(initial=0)):,}" for values in traffic]
    balance = f"{float(step.tile_cycles.mean()) / step.cycles:.1%}" if step.cycles and step.kind == "compute" else ""
    return (str(number), step.name, step.kind, f"{step.cycles:,}", _share(step.cycles, cycles), str(step.slowest), balance, *words)


def _rectangle(x: float, y: float, width: float, height: float, colour: str, title: str = "") -> str:
    label = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{height:.2f}" fill="{colour}">{label}</rect>'


def _words(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" font-size="11" text-anchor="{anchor}">{escape(words)}</text>'


def _drawing(height: float, parts: Iterable[str]) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">{"".join(parts)}</svg>'


def _timeline(profile: Profile) -> str:
    """Returns a drawing with compute above and exchange below; the grey line under compute shows the mean tile's busy time."""
    scale = WIDTH / max(profile.cycles, 1)
    parts, at = [], 0
    for number, step in enumerate(profile.supersteps):
        top = 0 if step.kind == "compute" else BAND + 8
        x = at * scale
        for kind, count in step.parts.items():
            title = f"{number} {step.name}: {count:,} of {step.cycles:,} simulated cycles {kind}, slowest tile {step.slowest}"
            parts.append(_rectangle(x, top, count * scale, BAND, COLOURS[kind], title))
            x += count * scale
        if step.kind == "compute":
            mean = float(step.tile_cycles.mean())
            parts.append(_rectangle(at * scale, BAND + 2, mean * scale, 4, "#777", f"mean tile: {mean:,.0f} simulated cycles"))
        at += step.cycles
    bottom = 2 * BAND + 24
    axis = [_words(0, bottom, "0"), _words(WIDTH, bottom, f"{profile.cycles:,} simulated cycles", "end")]
    return _drawing(bottom + 6, [*parts, *axis])


def _memory(profile: Profile) -> str:
    """Returns a bar for each class of tiles with equal memory, the fullest first."""
    values, counts = np.unique(profile.memory, return_counts=True)
    classes: Sequence[tuple[int, int]] = [(int(v), int(c)) for v, c in zip(values[::-1], counts[::-1], strict=True)]
    shown, left = classes[:CLASSES_MAX], classes[CLASSES_MAX:]
    scale = (WIDTH - 300) / max(profile.capacity, 1)
    parts = []
    for place, (held, count) in enumerate(shown):
        y = place * 20
        parts.append(_rectangle(0, y, profile.capacity * scale, 14, "#eee", f"{profile.capacity:,} bytes"))
        parts.append(
            _rectangle(0, y, profile.reserved * scale, 14, "#bbb", f"{profile.reserved:,} bytes reserved for code and exchange")
        )
        parts.append(_rectangle(profile.reserved * scale, y, held * scale, 14, COLOURS["amp"], f"{held:,} bytes live"))
        parts.append(_words(WIDTH - 290, y + 11, f"{count} tiles: {held:,} bytes, {profile.reserved:,} reserved"))
    if left:
        tiles = sum(count for _, count in left)
        parts.append(_words(0, len(shown) * 20 + 11, f"and {tiles} tiles that hold less"))
    return _drawing(max(20 * (len(shown) + bool(left)), 1), parts)
