"""Explanations: the chosen program level by level, the limits of its tiles' growth, and the terms of the prediction."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from roller.cost.model import Model
from roller.cost.occupancy import COPIES, Residents, added_bytes, held_copies, residents, unit_efficiency
from roller.cost.parameters import CostParameters
from roller.cost.stores import past_caches
from roller.cost.traffic import level_traffic
from roller.explain.growth_limits import Growth, Stop
from roller.explain.texts import duration, of_term, predicted, size_text
from roller.explain.why_not import Alternative, why_not
from roller.layout.banks import staged_rows
from roller.program.alignment import Rules
from roller.program.estimate import Estimate
from roller.program.footprint import data_tile, padding_waste
from roller.program.record import Choice
from roller.program.rprogram import RProgram, StageProgram, staged_tensors, staged_touches
from roller.program.window_steps import computed_taps
from roller.program.words import interleaves
from roller.search.tile_space import unsuited
from roller.target.hardware import HardwareSpec

WIDTH = 100
SHOWN = 10  # candidates in a table

NOT_KEPT = "in none of the programs kept: predicted slower, or refused by the device"  # for an atom that might compute the stage


@dataclass(frozen=True, slots=True)
class LevelReport:
    """One memory level: the tile there (None: no tile of its own), its footprint, the usable bytes, the bytes moved in."""

    level: str
    tile: tuple[int, ...] | None
    footprint_bytes: int | None
    usable_bytes: int
    moved_bytes: float | None
    stops: tuple[Stop, ...]


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a program."""

    name: str
    dims: tuple[tuple[str, int, str], ...]  # name, extent, spatial or reduce
    atom: str
    mapping: tuple[tuple[str, str], ...]
    levels: tuple[LevelReport, ...]
    padding_waste: float
    unit_tiles: int
    units: int
    waves: int
    unit_efficiency: float
    split: int
    cluster: int
    band: tuple[str, int] | None
    staged: tuple[str, ...]
    estimate: Estimate
    residents: Residents | None  # occupancy: tiles on a unit at a time, where units hold several
    others: tuple[tuple[str, str], ...] = ()  # the device's other atoms, and why it is not one of them
    factor_dtype: str | None = None  # type to which the factors of products may be rounded
    rounds: bool = False  # whether they are rounded
    copies: tuple[int, int] | None = None  # multi-buffering of panels: copies as predicted, and of its kernel
    requested: tuple[str, ...] = ()  # inputs whose rows are requested ahead
    skipped: tuple[tuple[str, float], ...] = ()  # windows' reductions, and the share of their steps left out, as it reads padding
    past_caches: bool = False  # whether results are stored past the caches
    together: tuple[str, ...] = ()  # the stages of a row group that one kernel computes


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The launch and the resources of one kernel, as its binary reports them; None where it does not."""

    name: str
    blocks: int
    threads: int
    shared_bytes: int | None
    registers: int | None

    def __str__(self) -> str:
        shared = f", {size_text(self.shared_bytes)} of shared memory each" if self.shared_bytes else ""
        registers = f"; {self.registers} registers a thread" if self.registers is not None else ""
        blocks, threads = (f"{n:,} {what}{'' if n == 1 else 's'}" for n, what in ((self.blocks, "block"), (self.threads, "thread")))
        return f"{self.name}: {blocks} of {threads}{shared}{registers}"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """A program explained: print it, show it with rich, or take `to_dict()`. A prompt or a notebook shows it in short."""

    chip: str
    stages: tuple[StageReport, ...]
    estimate: Estimate
    candidates: tuple[Choice, ...]
    kernels: tuple[KernelReport, ...] = ()  # in the order of their launch
    alternative: Alternative | None = None  # the answer about a tile that the user named

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        stages = [{**asdict(s), "estimate": s.estimate.to_dict()} for s in self.stages]
        kernels = [asdict(k) for k in self.kernels]
        candidates = [
            {"program": c.program.describe(), "predicted_s": c.estimate.seconds, "measured_s": c.measured_s, "note": c.note}
            for c in self.candidates
        ]
        return {
            "chip": self.chip,
            "estimate": self.estimate.to_dict(),
            "stages": stages,
            "kernels": kernels,
            "candidates": candidates,
            **({} if self.alternative is None else {"why_not": self.alternative.to_dict()}),
        }

    def __rich__(self) -> RenderableType:
        return self._rich()

    def _rich(self, short: bool = False) -> RenderableType:
        parts: list[RenderableType] = [Text(f"for {self.chip}: predicted {predicted(self.estimate)}", style="bold")]
        for stage in self.stages:
            parts += [Text(""), *_stage(stage, short)]
        if self.alternative is not None:
            parts += [Text(""), *(Text(line) for line in self.alternative.lines())]
        if short:
            return Group(
                *parts, Text(f"{len(self.candidates)} programs were considered; print() shows them, and all reasons", style="dim")
            )
        if self.kernels:
            parts += [Text(""), *(Text(str(kernel)) for kernel in self.kernels)]
        if len(self.candidates) > 1:
            parts += [Text(""), candidates_table(self.candidates)]
        return Group(*parts)

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return _text(self._rich(short=True))

    def _repr_html_(self) -> str:
        """Returns the short form for notebooks."""
        console = Console(file=io.StringIO(), width=WIDTH, record=True)
        console.print(self._rich(short=True))
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _text(shown: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def explain(
    program: RProgram,
    spec: HardwareSpec,
    parameters: CostParameters,
    candidates: Sequence[Choice],
    rules: Rules,
    resources: Mapping[str, int] | None = None,
    tile: Mapping[str, int] | None = None,
) -> Explanation:
    """Explains a program on the chip that it was constructed for.

    `resources`: the known resources of its binary. `tile`: a unit tile, to explain why it was not chosen; `ExpressionError` for one
    that no stage has.
    """
    stages, resources = [], resources or {}
    assumed = residents(program, spec, resources, parameters.room(program))
    for stage, held in zip(program.stages, assumed, strict=True):
        report = _report(Growth.of(stage, spec, rules.of(stage.nest.stage.name), parameters), held)
        others = tuple(_others(stage, rules, candidates))
        stages.append(replace(report, others=others, copies=_copies(stage, spec, resources)))
    chip, kernels = f"{spec.device}:{spec.chip}", tuple(_kernels(resources))
    alternative = None if tile is None else why_not(program, spec, rules, parameters, tile, [c.program for c in candidates])
    return Explanation(chip, tuple(stages), candidates[0].estimate, tuple(candidates), kernels, alternative)


def _copies(program: StageProgram, spec: HardwareSpec, resources: Mapping[str, int]) -> tuple[int, int] | None:
    """Returns the copies of multi-buffered panels as predicted, and as the binary reports them."""
    real = resources.get(f"{program.nest.stage.name}.{COPIES}")
    return None if real is None else (max(held_copies(program, spec), default=0), real)


def _kernels(resources: Mapping[str, int]) -> Iterator[KernelReport]:
    """Yields the launched kernels that the resources list."""
    for name in [key.removesuffix(".threads") for key in resources if key.endswith(".threads")]:
        if f"{name}.blocks" not in resources:
            continue  # a plugin's name with another meaning
        shared, registers = (resources.get(f"{name}.{what}") for what in ("shared_bytes", "registers"))
        yield KernelReport(name, resources[f"{name}.blocks"], resources[f"{name}.threads"], shared, registers)


def _others(program: StageProgram, rules: Rules, candidates: Sequence[Choice]) -> Iterator[tuple[str, str]]:
    """Yields the device's other atoms, each with the reason why another one was chosen."""
    alike = [(c.estimate, s.atom.name) for c in candidates for s in c.program.stages if s.nest.stages == program.nest.stages]
    for atom in rules.atoms:
        if atom.name == program.atom.name:
            continue
        reason = unsuited(program.nest, atom, rules.atoms)
        if reason is None:
            found = [estimate for estimate, name in alike if name == atom.name]
            best = min(found, key=lambda e: e.seconds, default=None)
            reason = NOT_KEPT if best is None else f"predicted {predicted(best)} at best"
        yield atom.name, reason


def _report(growth: Growth, held: Residents) -> StageReport:
    program, spec = growth.program, growth.spec
    model = Model(spec, growth.model.parameters, growth.model.geometry, held.real)
    nest = program.nest
    names = [d.name for d in nest.dims]
    waves = -(-program.unit_tiles // spec.unit.count)
    return StageReport(
        nest.stage.name,
        tuple((d.name, d.extent, "reduce" if d.is_reduce else "spatial") for d in nest.dims),
        program.atom.name,
        tuple((role, names[dim]) for role, dim in program.mapping),
        tuple(_level(growth, index) for index in range(1, len(spec.levels))),
        padding_waste(nest.extents, program.covered),
        program.unit_tiles,
        spec.unit.count,
        waves,
        unit_efficiency(program, spec),
        program.dispatch.split,
        program.dispatch.cluster,
        (names[program.dispatch.band[0]], program.dispatch.band[1]) if program.in_bands and program.dispatch.band else None,
        tuple(_staging(program, spec)),
        model.estimate(program),
        held if program.lane_level is not None else None,
        factor_dtype=nest.stage.factor_dtype,
        rounds=program.atom.rounds,
        requested=model.parameters.prefetched(program) if model.parameters.prefetched is not None else (),
        skipped=tuple(_skipped(model, program)),
        past_caches=_stored_past(model, program),
        together=tuple(stage.name for stage in nest.stages) if nest.before else (),
    )


def _skipped(model: Model, program: StageProgram) -> Iterator[tuple[str, float]]:
    for padded in model.skipped(program):
        left_out = 1 - float(computed_taps(program, program.inner, model.parameters.registers, [padded]))
        if left_out:
            yield program.nest.dims[padded.tap].name, left_out


def _stored_past(model: Model, program: StageProgram) -> bool:
    tile = data_tile(program.nest, program.nest.output, program.inner)
    return bool(past_caches(model.spec, model.parameters, program, tile.elements, tile.run))


def _level(growth: Growth, index: int) -> LevelReport:
    program, level = growth.program, growth.spec.levels[index]
    inner = index == program.levels[-1] if program.levels else False
    model = growth.model
    moved = None if inner else level_traffic(model.walk(program), index).bytes
    if index not in program.levels:
        return LevelReport(level.name, None, None, level.usable_bytes, moved, ())
    position = program.levels.index(index)
    tile = program.tiles[position]
    if inner:
        used, room = growth.fit.inner_bytes(tile, program.mapping, program.atom), growth.fit.lane_bytes(level, program.atom)
    else:
        used = growth.fit.footprint(program.levels, position, tile, growth.inner(position), program.atom)
        used += added_bytes(program, growth.spec, model.geometry, index)
        room = level.usable_bytes
    return LevelReport(level.name, tile, used, room, moved, growth.stops(position))


def _staging(program: StageProgram, spec: HardwareSpec) -> list[str]:
    lines = []
    for staging, held in zip(program.staged, held_copies(program, spec), strict=True):
        what = " x ".join(staged_tensors(program.nest, staging))
        when = "when the kernel is built" if staging.constant else "once" if staging.level == 0 else "for each tile"
        rows = staged_rows(program, spec, staging) if staging.row_padding else None
        padded = f", rows of {rows.row} padded by {staging.row_padding} against bank conflicts" if rows is not None else ""
        padded += f", runs padded by {staging.run_padding} for wide reads" if staging.run_padding else ""
        copies = f", {held} pipeline stages" if held > 1 else ""
        copies += ", multicast to a cluster" if program.brought_once(staged_touches(program.nest, staging)) else ""
        kind = f"{staging.kind}{' of sliding windows' if staging.windowed else ''}"
        kind += " of words" if staging.kind == "box" and interleaves(program, staging.operand) else ""
        lines.append(f"{what} as a {kind} at {spec.levels[staging.level].name}, {when}{copies}{padded}")
    return lines


def _stage(stage: StageReport, short: bool = False) -> list[RenderableType]:
    shape = ", ".join(f"{name} {extent}{' (reduce)' if kind == 'reduce' else ''}" for name, extent, kind in stage.dims)
    lanes = ", ".join(f"{role} on {dim}" for role, dim in stage.mapping)
    work = f"{stage.unit_tiles} tiles on {stage.units} units in {stage.waves} waves ({stage.unit_efficiency:.0%} busy)"
    split = f", reduction split into {stage.split} parts" if stage.split > 1 else ""
    split += f", in clusters of {stage.cluster}" if stage.cluster > 1 else ""
    split += f", rasterised in bands of {stage.band[1]} along {stage.band[0]}" if stage.band is not None else ""
    facts = [f"atom {stage.atom}{f' ({lanes})' if lanes else ''}; {work}{split}; padding {stage.padding_waste:.1%}"]
    if stage.together:
        *before, last = stage.together
        facts.append(f"computes {', '.join(before)} and {last} in one kernel: a tile has whole rows")
    if stage.factor_dtype is not None:
        facts.append(f"factors may be rounded to {stage.factor_dtype}, {'and are' if stage.rounds else 'but are not'}")
    if stage.residents is not None:
        facts.append(_residents(stage.residents))
    if stage.copies is not None and stage.copies[1] < stage.copies[0]:
        wanted, real = stage.copies
        facts.append(f"pipeline stages: {wanted} predicted, the kernel has {real}: lanes lack registers to prefetch more")
    if stage.others and not short:
        facts.append(f"rejected instructions: {_reasons(stage.others)}")
    facts += [f"staged: {line}" for line in stage.staged]
    facts += [f"requested ahead (software prefetch): {', '.join(stage.requested)}"] if stage.requested else []
    facts += (
        [f"taps on padding, left out: {', '.join(f'{name} ({share:.1%})' for name, share in stage.skipped)}"]
        if stage.skipped
        else []
    )
    facts += ["results are stored past the caches (non-temporal stores)"] if stage.past_caches else []
    head = Text(f"{stage.name}: {shape or 'one point'}", style="bold")
    return [head, *(Padding(Text(fact), (0, 0, 0, 2)) for fact in facts), _levels_table(stage), _terms(stage.estimate)]


def _residents(found: Residents) -> str:
    if found.real is None:
        return f"occupancy: {found.predicted} tiles per unit predicted"
    return f"occupancy: {found.predicted} tiles per unit predicted, {found.real} by the binary"


def _reasons(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns the names and reasons as text, grouped by reason."""
    found: dict[str, list[str]] = {}
    for name, reason in pairs:
        found.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in found.items())


def _levels_table(stage: StageReport) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=True, header_style="italic")
    names = [name for name, _, _ in stage.dims]
    table.add_column("level", no_wrap=True)
    table.add_column("tile " + " x ".join(names), overflow="fold")
    table.add_column("footprint", justify="right")
    table.add_column("traffic in", justify="right")
    table.add_column("next extent and its limit", overflow="fold")
    for level in stage.levels:
        tile = " x ".join(map(str, level.tile)) if level.tile is not None else "-"
        used = "-" if level.footprint_bytes is None else f"{size_text(level.footprint_bytes)} of {size_text(level.usable_bytes)}"
        # No bytes move in only where the model assumes that a cache already holds the whole problem.
        moved = "-" if level.moved_bytes is None else size_text(level.moved_bytes) if level.moved_bytes else "all there"
        table.add_row(level.level, tile, used, moved, _stops(level.stops))
    return table


def _stops(stops: Sequence[Stop]) -> str:
    """Returns the dimensions and reasons as text, grouped by reason."""
    return _reasons([(stop.dim if stop.extent is None else f"{stop.dim} {stop.extent}", stop.reason) for stop in stops])


def _terms(estimate: Estimate) -> RenderableType:
    terms = ", ".join(f"{name} {of_term(estimate, seconds)}" for name, seconds in estimate.terms if seconds > 0)
    text = f"predicted {predicted(estimate)}, bound by {estimate.bound_by}; {terms}"
    return Padding(Text(text), (0, 0, 0, 2))


def candidates_table(candidates: Sequence[Choice]) -> Table:
    """Returns a table of the considered programs, best first."""
    table = Table(box=None, padding=(0, 1), header_style="italic")
    table.add_column("#", justify="right")
    table.add_column("predicted", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    table.add_column("program", overflow="fold")
    for rank, choice in enumerate(candidates[:SHOWN], start=1):
        measured = "-" if choice.measured_s is None else duration(choice.measured_s)
        said = f"{choice.program.describe()}{f' ({choice.note})' if choice.note else ''}"
        seconds = choice.estimate.seconds
        time = duration(seconds) if choice.estimate.clock_ghz is None else f"{of_term(choice.estimate, seconds)} simulated cycles"
        table.add_row(str(rank), time, measured, choice.estimate.bound_by, Text(said))
    return table
