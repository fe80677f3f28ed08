"""What a run of a GPU benchmark says: JSON, tables, and a section of bench/results/README.md."""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.common import targets
from bench.common.figures import compact, finite, geomean, spearman
from bench.gpu.package import write as write_file
from bench.gpu.platform import Platform, known

SCHEMA = 1
MOST_SHOWN = 40  # slower cases
RESULTS = Path(__file__).parent.parent / "results"
Row = Mapping[str, Any]
Result = dict[str, Any]

# Families that are also summed up together.
GROUPS: Mapping[str, Callable[[Row], bool]] = {
    "paper119": lambda row: row["family"].startswith("paper119"),
    "fp16 GEMM 4096 and 8192": lambda row: row["case"] in ("fp16 4096x4096x4096", "fp16 8192x8192x8192"),
    "all": lambda row: True,
}


# --- results ---------------------------------------------------------------------------------------------------------


def results(
    platform: Platform,
    hello: Mapping[str, Any],
    rows: Sequence[Row],
    quick: bool,
    limit: float,
    calibration: Mapping[str, Any] | None = None,
) -> Result:
    """Everything about a run: provenance, sums, the chip as it was measured, cases, and what was not reached."""
    reached = {row["case"] for row in rows}
    reason = "not asked for" if platform.calibration else f"there are no probes for {platform.maker} GPUs"
    return {
        "schema": SCHEMA,
        "benchmark": platform.device,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "command": command(),
        "clock": f"{platform.events}, cache flushed before every call",
        "quick": quick,
        "limit_s": limit,
        "device": hello["device"],
        "chip": hello["chip"],
        "built": hello["built"],
        "versions": hello["versions"],
        "summary": summary(rows),
        "fidelity": fidelity(rows),
        "calibration": calibration or {"values": [], "clocks": [], "reason": reason},
        "not_reached": [name for name, _ in hello["cases"] if name not in reached],
        "cases": list(rows),
    }


def command() -> str:
    """The command line; of a path elsewhere only the name."""
    return " ".join(["python", *(Path(w).name if Path(w).is_absolute() else w for w in sys.orig_argv[1:])])


def folder(device: Mapping[str, Any]) -> str:
    """The name under which results of a GPU lie together."""
    return "-".join(re.findall(r"[a-z0-9]+", device["gpu"].lower()))


def write(path: Path, found: Result) -> None:
    """Results as a file, whole or not at all."""
    write_file(path, (compact(found) + "\n").encode())


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by family, and the groups that are neither empty nor a single family."""
    found = {family: [r for r in rows if r["family"] == family] for family in sorted({r["family"] for r in rows})}
    for name, belongs in GROUPS.items():
        some = [row for row in rows if belongs(row)]
        if some and some not in found.values():
            found[name] = some
    return found


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Geometric mean and worst ratio of every family and group."""
    return {name: _summary(some) for name, some in groups(rows).items()}


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    timed = [row for row in rows if row.get("ratio")]
    worst = min(timed, key=lambda row: row["ratio"], default=None)
    return {
        "cases": len(rows),
        "timed": len(timed),
        "geomean": finite(geomean(row["ratio"] for row in timed)),
        "geomean_free": finite(geomean(row["ratio_free"] for row in timed)),
        "worst": worst and worst["ratio"],
        "worst_case": worst and worst["case"],
        **{status: sum(row["status"] == status for row in rows) for status in ("wrong", "failed", "left out")},
    }


def fidelity(rows: Sequence[Row]) -> dict[str, Any]:
    """Predictions against measurements: of our first choices by family, and among the ten best programs of some operators.

    Efficiency is the roofline's time over the time: times of unlike sizes correlate however bad the model.
    """
    timed = [row for row in rows if row.get("ours_s")]
    by_group = {name: _fidelity(some) for name, some in groups(timed).items()}
    tens = [row for row in rows if row.get("ten")]
    ranks = [spearman([p["predicted_s"] for p in row["ten"]], [p["median_s"] for p in row["ten"]]) for row in tens]
    regrets = {row["case"]: row["regret"] for row in tens}
    return {
        "first_choice": by_group,
        "operators": len(tens),
        "rank_of_ten": {"median": _median([r for r in ranks if finite(r) is not None])},
        "regret": {
            "median": _median(list(regrets.values())),
            "worst": max(regrets.values(), default=None),
            "worst_case": max(regrets, key=lambda case: regrets[case], default=None),
        },
    }


def _fidelity(rows: Sequence[Row]) -> dict[str, Any]:
    pairs = [(row["sides"]["roller"]["predicted_s"], row["ours_s"], row["roofline_s"]) for row in rows]
    return {
        "operators": len(pairs),
        "spearman_time": finite(spearman([p for p, _, _ in pairs], [m for _, m, _ in pairs])),
        "spearman_efficiency": finite(spearman([r / p for p, _, r in pairs], [r / m for _, m, r in pairs])),
        "predicted_over_measured": _median([p / m for p, m, _ in pairs]),
        "efficiency": _median([r / m for _, m, r in pairs]),
    }


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


# --- tables ----------------------------------------------------------------------------------------------------------


def text(found: Result) -> str:
    """The whole report for people; the sums stand last, where a terminal ends."""
    benchmark, parts = found["benchmark"], [f"{_machine(found)}, {found['date']}"]
    parts.append(found["command"])
    parts.append(", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    slower = sorted((row for row in found["cases"] if (row.get("ratio") or 1.0) < 1.0), key=lambda row: row["ratio"])
    if slower:
        shown = slower[:MOST_SHOWN]
        lines = [[r["case"], f"{r['ratio']:.2f}", _time(r["ours_s"]), _time(r["best_s"]), r["best"], _program(r)] for r in shown]
        more = f", of which these {len(shown)} the most; the file has all" if len(slower) > len(shown) else ""
        parts += [f"Slower than a peer in {len(slower)} cases{more}", _table(SLOWER_HEAD, lines)]
    parts += ["Predicted against measured", _table(FIDELITY_HEAD, list(_fidelity_cells(found["fidelity"])))]
    parts.append(_regret(benchmark, found["fidelity"]))
    parts += ["The chip: what predictions took it to be, and what was measured", *_chip(found["calibration"])]
    troubled = [row for row in found["cases"] if row["status"] != "ok"]
    parts += [f"{row['case']}: {row['status']}: {row['reason']}" for row in troubled]
    others = [row for row in found["cases"] if row.get("others_wrong")]
    parts += [f"{row['case']}: {row['others_wrong']} of its ten best programs are wrong: {row['left_out']}" for row in others]
    if found["not_reached"]:
        parts.append(f"Not reached in {found['limit_s']:g} s ({len(found['not_reached'])}): " + ", ".join(found["not_reached"]))
    parts.append("Time of the best peer ÷ ours; above 1 we are faster")
    parts.append(_table(SUMMARY_HEAD, [_cells(benchmark, name, row) for name, row in found["summary"].items()]))
    return "\n\n".join(parts)


def _machine(found: Result) -> str:
    """The GPU that ran it."""
    platform, device = known(found["benchmark"]), found["device"]
    driver = device.get("driver", device[platform.runtime])
    return f"{device['gpu']}, {device['units']} {platform.units}, {device['memory_gib']:.0f} GiB, driver {driver}"


SUMMARY_HEAD = ("family", "cases", "timed", "geomean", "not charged", "worst", "of", "target")
SLOWER_HEAD = ("case", "ratio", "ours", "its time", "peer", "program")
FIDELITY_HEAD = ("family", "operators", "rank corr. of time", "… of efficiency", "predicted ÷ measured", "roofline ÷ measured")


def _cells(benchmark: str, name: str, row: Row) -> list[str]:
    wish = targets.of_ratios(benchmark, name, row)
    ratios = [_short(row[key]) for key in ("geomean", "geomean_free", "worst")]
    return [name, str(row["cases"]), str(row["timed"]), *ratios, row["worst_case"] or "", wish]


def _fidelity_cells(found: Mapping[str, Any]) -> Iterator[list[str]]:
    keys = ("spearman_time", "spearman_efficiency", "predicted_over_measured", "efficiency")
    for name, row in found["first_choice"].items():
        yield [name, str(row["operators"]), *(_short(row[key]) for key in keys)]


def _regret(benchmark: str, found: Mapping[str, Any]) -> str:
    if not found["operators"]:
        return "No operator ran all of its ten best programs"
    regret, wish = found["regret"], targets.of_sums(benchmark, "regret", found["regret"])
    wish = f"{wish}; " if wish else ""
    ranks = _short(found["rank_of_ten"]["median"])
    return (
        f"First choice against the best of ten, {found['operators']} operators: slower by {regret['median']:.1%} (median), "
        f"{regret['worst']:.1%} (worst, {regret['worst_case']}); {wish}rank correlation among the ten {ranks} (median)"
    )


CHIP_HEAD = ("of the chip", "unit", "spec", "measured", "measured ÷ spec")


def _chip(found: Mapping[str, Any]) -> Iterator[str]:
    """What was measured of numbers that the spec has, and why there is no more."""
    lines = list(_chip_cells(found))
    if lines:
        yield _table(CHIP_HEAD, lines)
    if found["reason"]:
        yield f"Not measured: {found['reason']}"


def _chip_cells(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for what, rows in (("", found["values"]), ("clock of ", found["clocks"])):
        for row in rows:
            if row["spec"]:
                ratio = row["measured"] / row["spec"]
                yield [f"{what}{row['probe']}", row["unit"], f"{row['spec']:.4g}", f"{row['measured']:.4g}", _short(ratio)]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _program(row: Row) -> str:
    return str(row["sides"]["roller"].get("program", ""))


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns with as many blanks between them as it takes."""
    widths = [max(len(line[n]) for line in (head, *lines)) for n in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (head, *lines)]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def markdown(found: Result) -> Iterator[str]:
    """A section of bench/results/README.md."""
    benchmark, versions = found["benchmark"], found["versions"]
    yield f"## {_machine(found)}"
    yield ""
    yield f"| {' | '.join(SUMMARY_HEAD)} |"
    yield "|---" * len(SUMMARY_HEAD) + "|"
    for name, row in found["summary"].items():
        yield f"| {' | '.join(_cells(benchmark, name, row))} |"
    yield ""
    yield f"| {' | '.join(FIDELITY_HEAD)} |"
    yield "|---" * len(FIDELITY_HEAD) + "|"
    for cells in _fidelity_cells(found["fidelity"]):
        yield f"| {' | '.join(cells)} |"
    yield ""
    chip = list(_chip_cells(found["calibration"]))
    if chip:
        yield f"| {' | '.join(CHIP_HEAD)} |"
        yield "|---" * len(CHIP_HEAD) + "|"
        yield from (f"| {' | '.join(cells)} |" for cells in chip)
        yield ""
    yield _regret(benchmark, found["fidelity"]) + f". Not reached: {len(found['not_reached'])} cases."
    yield ""
    chosen = ", ".join(f"{name} {versions[name]}" for name in ("torch", "cudnn", "miopen", "triton") if versions.get(name))
    yield f"`{found['command']}`, {found['date'][:16]}, {chosen}"


class UnreadableError(Exception):
    """A file that holds no results of the benchmark."""


def read(path: Path, platform: Platform) -> Result:
    """Results from a file; `UnreadableError` where there are none."""
    try:
        found: Result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path} cannot be read: {error}") from error
    if found.get("benchmark") != platform.device or found.get("schema") != SCHEMA:
        raise UnreadableError(f"{path} holds no results of this benchmark (schema {SCHEMA})")
    return found


def main(platform: Platform) -> int:
    """Print the report of a file again."""
    if len(sys.argv) != 2:
        print(f"usage: {platform.command('report')} results.json", file=sys.stderr)
        return 2
    try:
        found = read(Path(sys.argv[1]), platform)
    except UnreadableError as error:
        print(error, file=sys.stderr)
        return 2
    print(text(found))
    return 0
