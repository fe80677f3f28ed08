"""Does the model rank programs as this CPU does? Random programs and our best, measured. python -m bench.cpu.fidelity

Operators: 16 kinds, products with rows a power of two long, and 16 drawn ones. For each operator: 40 programs drawn uniformly,
with a fixed seed, from all aligned ones that fit, and our ten best. All are built, compared with our first choice (which is
compared with the reference), and timed in turns. Odd and even rounds make two repeats, whose rank correlation is the ceiling of
what any model could reach. Regret: our choice's time over the fastest program's, from timing the leaders once more. Every
measured program is kept beside the results, with its expression and the chip's spec: `bench.cpu.stored` lets a changed model
rate them again.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

import roller
from bench.common import figures, harness, machine, report, targets
from bench.common.harness import Array, Side
from bench.cpu import stored
from bench.engine.construction import cases
from roller import SymbolicTensor, ops, study
from roller.cost.model import estimate
from roller.device.plugins import load_device
from roller.ir.serialization import expr_to_json
from roller.plugin import aligned_empty
from roller.program.record import program_to_json
from roller.program.rprogram import RProgram
from roller.runtime.artifact import BuildOptions, Runner
from roller.target.hardware import HardwareSpec

DRAWN, SEED, TOP_K = 40, 22, 10
DRAWN_OPERATORS = 16
REFUSED_FACTOR = 2  # drawn for each one wanted: the device may be unable to run some
LEADERS = 6  # fastest programs that are timed again, beside our ten best
LEADER_ROUNDS = 21  # … so often at least: the least of many medians is too small by what few rounds leave to chance
QUICK_DRAWN = 6


def t(*shape: int) -> SymbolicTensor:
    return ops.tensor(shape)


OPERATORS: dict[str, Callable[[], SymbolicTensor]] = {
    "matmul 1024x1024x1024": lambda: ops.matmul(t(1024, 1024), t(1024, 1024)),
    "matmul 1000x768x512": lambda: ops.matmul(t(1000, 512), t(512, 768)),
    "matmul 64x1024x1024": lambda: ops.matmul(t(64, 1024), t(1024, 1024)),
    "conv 64x56x56 -> 64 k3 s1": lambda: ops.conv2d(t(1, 64, 56, 56), t(64, 64, 3, 3), 1, 1),
    "conv 256x14x14 -> 256 k3 s1": lambda: ops.conv2d(t(1, 256, 14, 14), t(256, 256, 3, 3), 1, 1),
    "conv 256x56x56 -> 64 k1 s1": lambda: ops.conv2d(t(1, 256, 56, 56), t(64, 256, 1, 1)),
    "depthwise 144x56x56 k3 s1": lambda: ops.depthwise_conv2d(t(1, 144, 56, 56), t(144, 1, 3, 3), 1, 1),
    "depthwise 96x112x112 k3 s2": lambda: ops.depthwise_conv2d(t(1, 96, 112, 112), t(96, 1, 3, 3), 2, 1),
    "max pool 64x112x112 k3 s2": lambda: ops.max_pool2d(t(1, 64, 112, 112), 3, 2, 1),
    "avg pool 192x28x28 k3 s1": lambda: ops.avg_pool2d(t(1, 192, 28, 28), 3, 1, 1),
    "relu 4194304": lambda: ops.relu(t(1 << 22)),
    "add 4096x1024 + 1024": lambda: t(4096, 1024) + t(1024),
    "sum 4096x1024 over 1": lambda: ops.reduce_sum(t(4096, 1024), 1),
    "sum 4096x1024 over 0": lambda: ops.reduce_sum(t(4096, 1024), 0),
    "transpose 1024x1024": lambda: ops.transpose(t(1024, 1024)),
    "bmm 12x384x384x64 NT": lambda: ops.batch_matmul(t(12, 384, 64), t(12, 384, 64), transpose_b=True),
}
POWERS: dict[str, Callable[[], SymbolicTensor]] = {  # rows a multiple of 4 KiB long, thin products, and their neighbours
    "matmul 128x2048x2048": lambda: ops.matmul(t(128, 2048), t(2048, 2048)),
    "matmul 128x2064x2048": lambda: ops.matmul(t(128, 2048), t(2048, 2064)),
    "matmul 64x1024x1024 NT": lambda: ops.matmul(t(64, 1024), t(1024, 1024), transpose_b=True),
    "matmul 16x4096x4096": lambda: ops.matmul(t(16, 4096), t(4096, 4096)),
    "matmul 8x3000x5000": lambda: ops.matmul(t(8, 5000), t(5000, 3000)),
    "matmul 16x16x5120": lambda: ops.matmul(t(16, 5120), t(5120, 16)),
}


def operators() -> dict[str, Callable[[], SymbolicTensor]]:
    """Every operator of this benchmark; the drawn ones are the same for every run."""
    drawn = cases(1, DRAWN_OPERATORS)[-DRAWN_OPERATORS:]
    return OPERATORS | POWERS | {case.name: case.build for case in drawn}


@dataclass
class Candidate:
    """One program: where it comes from, what is predicted, and how to run it."""

    name: str
    program: RProgram
    predicted_s: float
    side: Side | None = None
    reason: str = ""


def candidates(op: SymbolicTensor, options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Candidate]:
    """Our ten best, best first, and the drawn ones that the device can run."""
    kernel = roller.compile(op, device="cpu", threads=options.threads, top_k=TOP_K, verify=True)
    top = [choice.program for choice in kernel.candidates]
    yield from (
        Candidate(f"top {n}", p, c.estimate.seconds) for n, (p, c) in enumerate(zip(top, kernel.candidates, strict=True), 1)
    )
    enumerate_programs = getattr(study, "enumerate_programs", None)
    if enumerate_programs is None:
        say("this roller cannot enumerate programs: ranks are those of its own best ones")
        more = roller.compile(op, device="cpu", threads=options.threads, top_k=TOP_K + DRAWN).candidates[TOP_K:]
        yield from (Candidate(f"next {n}", c.program, c.estimate.seconds) for n, c in enumerate(more, 1))
        return
    device, spec, wanted = load_device("cpu"), kernel.spec, QUICK_DRAWN if options.quick else DRAWN
    drawn = enumerate_programs(op, "cpu", threads=options.threads).sample(REFUSED_FACTOR * wanted, SEED)
    able = [p for p in drawn if device.refusal(spec, p) is None and p not in top]
    say(f"{len(drawn)} drawn, {len(able)} can run")
    parameters = device.cost_parameters(spec, kernel.expr)
    for number, program in enumerate(able[:wanted], 1):
        yield Candidate(f"drawn {number}", program, estimate(program, spec, parameters).seconds)


def chip(options: argparse.Namespace) -> HardwareSpec:
    """The host, as the compiler sees it with these threads."""
    return roller.compile(t(8) + t(8), device="cpu", threads=options.threads).spec


def build(found: Sequence[Candidate], inputs: tuple[Array, ...], options: argparse.Namespace) -> None:
    """Build and load each program; one that cannot be says why."""
    device, spec = load_device("cpu"), chip(options)
    chosen = BuildOptions(threads=options.threads)
    for candidate in found:
        try:
            runner = device.load_kernel(device.build(spec, device.codegen(spec, candidate.program, chosen), chosen))
        except roller.RollerError as error:
            candidate.reason = f"{type(error).__name__}: {error}"
            continue
        candidate.side = side_of(candidate.name, runner, inputs, candidate.program)


def side_of(name: str, runner: Runner, inputs: tuple[Array, ...], program: RProgram) -> Side:
    """The program on these inputs."""
    out = aligned_empty(program.expr.output.shape, np.dtype(program.expr.output.dtype))

    def call() -> Array:
        runner.run(inputs, out)
        return out

    return Side(name, call, outs=(out,))


def inputs_of(op: SymbolicTensor) -> tuple[Array, ...]:
    """Random operands in aligned memory."""
    generator = np.random.default_rng(SEED)
    found = []
    for tensor in ops.expression(op).inputs:
        array = aligned_empty(tensor.shape, np.dtype(tensor.dtype))
        array[...] = generator.random(tensor.shape, np.float32) - 0.4  # a mean unlike 0: long sums do not cancel
        found.append(array)
    return tuple(found)


def measured(name: str, op: SymbolicTensor, options: argparse.Namespace) -> dict[str, Any]:
    """One operator: every candidate's prediction and times, correlations, regrets."""

    def say(text: str) -> None:
        print(f"  {name}: {text}", file=sys.stderr)

    row: dict[str, Any] = {"case": name, "status": "ok"}
    found = list(candidates(op, options, say))
    build(found, inputs_of(op), options)
    row["not built"] = {c.name: c.reason for c in found if c.side is None}
    depth = max(math.prod(a.extent for a in s.axes if a.is_reduce) for s in ops.expression(op).stages)
    row["wrong"] = rejected(found, harness.tolerance(depth, ops.expression(op).output.dtype))
    good = [c for c in found if c.side is not None]
    if row["wrong"]:
        row |= {"status": "wrong", "reason": "; ".join(row["wrong"].values())}
    times, _, row["quiet"] = harness.interleave([c.side for c in good if c.side], options)
    halves = [[statistics.median(times[c.name][part::2]) for c in good] for part in (0, 1)]
    medians = {c.name: statistics.median(times[c.name]) for c in good}
    row["spearman"] = figures.finite(figures.spearman([c.predicted_s for c in good], list(medians.values())))
    row["ceiling"] = figures.finite(figures.spearman(*halves))
    row |= regrets(good, medians, options)
    row["candidates"] = [
        {"name": c.name, "predicted_s": c.predicted_s, "median_s": medians[c.name], "rounds_s": times[c.name],
         "program": c.program.describe()}
        for c in good
    ]  # fmt: skip
    row["stored"] = kept(name, good, medians)
    return row


def kept(name: str, good: Sequence[Candidate], medians: dict[str, float]) -> dict[str, Any]:
    """The case as `bench.cpu.stored` reads it."""
    programs = [{"name": c.name, "program": program_to_json(c.program), "median_s": medians[c.name]} for c in good]
    return {"case": name, "expr": expr_to_json(good[0].program.expr), "programs": programs}


def write(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    """The results, and the measured programs beside them; of quick runs and of some cases only where --out says so."""
    cases = [row["stored"] for row in rows if "stored" in row]
    plain = [{key: value for key, value in row.items() if key != "stored"} for row in rows]
    path = report.write("fidelity", {"summary": summary(rows), "cases": plain}, options)
    if path is None or not cases:
        return
    head = report.provenance("fidelity", options.quick) | {"device": machine.device(), "threads": options.threads}
    stored.write(path.with_name(f"programs-{options.threads}t.json.gz"), head, chip(options), cases)


def rejected(found: Sequence[Candidate], allowed: float) -> dict[str, str]:
    """Which programs disagree with the first one, or refuse to run, and how; their sides are taken away."""
    reasons = {}
    first = found[0].side
    for candidate in found:
        try:
            if first is not None and candidate.side is not None:
                harness.checked([first, candidate.side], allowed)
        except (harness.Mismatch, roller.RollerError) as error:
            reasons[candidate.name] = f"{error} ({candidate.program.describe()})"
            candidate.side = None
    return reasons


def regrets(good: Sequence[Candidate], medians: dict[str, float], options: argparse.Namespace) -> dict[str, Any]:
    """Our first choice, and the best of our ten, over the fastest of all; the leaders timed again, against one another only."""
    fastest = sorted(medians, key=lambda name: medians[name])[:LEADERS]
    leaders = [c for c in good if c.name.startswith("top ") or c.name in fastest]
    if not options.quick:
        rounds = max(options.rounds, LEADER_ROUNDS)
        options = argparse.Namespace(**{**vars(options), "rounds": rounds, "limit": 2 * options.limit})
    times, _, _ = harness.interleave([c.side for c in leaders if c.side], options)
    again = {c.name: statistics.median(times[c.name]) for c in leaders}
    best = min(again, key=lambda name: again[name])
    mine = [c.name for c in leaders if c.name.startswith("top ")]
    ten = min(mine, key=lambda name: again[name])
    return {
        "top1_regret": 1 / harness.ratio(times[best], times[mine[0]]) - 1,
        "top10_regret": 1 / harness.ratio(times[best], times[ten]) - 1,
        "fastest": best,
        "again_s": again,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst over the operators."""
    good = [row for row in rows if "candidates" in row]
    found: dict[str, Any] = {"operators": len(rows), "measured": len(good)}
    for key, worst in (("spearman", min), ("ceiling", min), ("top1_regret", max), ("top10_regret", max)):
        values = [row[key] for row in good if row[key] is not None]
        if values:
            found[key] = {"median": statistics.median(values), "worst": worst(values)}
    return found


def table(rows: Sequence[dict[str, Any]], found: dict[str, Any]) -> Table:
    """A row an operator, and the medians and worst."""
    made = Table(title=f"the model on this CPU (wanted: {targets.said('fidelity')})")
    for heading in ("operator", "programs", "Spearman", "ceiling", "top-1 regret", "top-10 regret", "note"):
        made.add_column(heading, justify="left" if heading in ("operator", "note") else "right")

    def numbers(values: dict[str, Any]) -> list[str]:
        said = ["" if values.get(k) is None else f"{values[k]:.2f}" for k in ("spearman", "ceiling")]
        return said + ["" if values.get(k) is None else f"{values[k]:.1%}" for k in ("top1_regret", "top10_regret")]

    for row in rows:
        made.add_row(row["case"], str(len(row.get("candidates", ()))), *numbers(row), row.get("reason", "")[:100])
    made.add_section()
    for kind in ("median", "worst"):
        made.add_row(kind, "", *numbers({k: v[kind] for k, v in found.items() if isinstance(v, dict)}), "")
    return made


def main() -> int:
    """Measure every operator; 1 if a program's result is wrong or an operator fails."""
    options = harness.start(__doc__ or "")
    known = operators()
    names = [n for n in known if any(part in n for part in options.cases.split(","))]
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(names[:2] if options.quick and not options.cases else names, 1):
        print(f"[{number}/{len(names)}] {name}", file=sys.stderr)
        try:
            rows.append(measured(name, known[name](), options))
        except Exception as error:  # one operator that fails must not cost the others' results
            rows.append({"case": name, "status": "failed", "reason": f"{type(error).__name__}: {error}"})
        write(rows, options)
        harness.release()
    report.screen().print(table(rows, summary(rows)))
    return int(any(row["status"] != "ok" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
