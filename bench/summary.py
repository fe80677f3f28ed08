"""The committed results as one Markdown table for people: python -m bench.summary > bench/results/README.md"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.common import machine, targets
from bench.common.figures import geomean
from bench.common.harness import RESULTS
from bench.gpu import report as gpu

Result = dict[str, Any]
VECTORS = {"avx512f": ", AVX-512", "avx2": ", AVX2"}  # widest first


def results(folder: Path = RESULTS) -> list[Result]:
    """All result files, by machine and name; those of runs that time nothing name neither threads nor a GPU, and are left out."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/*.json"))]
    return [result for result in found if "threads" in result or "gpu" in result.get("device", {})]


def ratio_lines(found: Result) -> Iterator[str]:
    """A line for each family of a benchmark that compares with libraries."""
    for family, row in found["summary"].items():
        if isinstance(row, dict) and row.get("geomean") is not None:
            cases = f"{row['timed']} of {row['cases']}" if row["timed"] != row["cases"] else str(row["cases"])
            name = f"{found['benchmark']}: {family}" if family != found["benchmark"] else family
            worst = f"{row['worst']:.2f} ({row['worst_case']})"
            free = f"{row['geomean_free']:.2f}" if row.get("geomean_free") else ""
            most = fastest_everywhere(found, family)
            best = f"{most:.2f}" if most else ""
            wish = targets.of_ratios(found["benchmark"], family, row)
            yield f"| {name} | {found['threads']} | {cases} | {row['geomean']:.2f} | {free} | {worst} | {best} | {wish} |"


def fastest_everywhere(found: Result, family: str) -> float | None:
    """The geometric mean if every case of ours that counts operations ran at the highest rate that any side reached in any case
    of the file. What is left to win, as far as that run shows; the processor's own limit may lie a little higher.
    """
    counted = [row for row in found.get("cases", ()) if row.get("ratio") and row.get("flops") and row.get("ours_s")]
    mine = [row for row in counted if family in (row["family"], "all")]
    if not mine:
        return None
    times = [(row["flops"], side["median_s"]) for row in counted for side in row["sides"].values()]
    rate = max(flops / seconds for flops, seconds in times if seconds)
    others = [row for row in found["cases"] if row.get("ratio") and family in (row["family"], "all") and row not in mine]
    return geomean([*(row["ratio"] * rate * row["ours_s"] / row["flops"] for row in mine), *(row["ratio"] for row in others)])


def other_lines(found: Result) -> Iterator[str]:
    """What the other benchmarks sum up, as it is in their files."""
    for key, value in {**found["summary"], **searching(found)}.items():
        if not (isinstance(value, dict) and "geomean" in value):
            said = ", ".join(f"{k} {_short(v)}" for k, v in value.items()) if isinstance(value, dict) else _short(value)
            wish = targets.of_sums(found["benchmark"], key, value)
            yield f"| {found['benchmark']} | {found['threads']} | {key} | {said} | {wish} |"


def searching(found: Result) -> dict[str, Any]:
    """How many times less time than a search finding our program and building it took; nothing where nothing was searched for."""
    times = {}
    for row in found.get("cases", ()):
        sides = row.get("sides", {}).values()
        searched = [side["search_s"] for side in sides if "search_s" in side]
        compiled = [side["compile_s"] for side in sides if "compile_s" in side]
        if searched and compiled:
            times[row["case"]] = searched[0] / compiled[0]
    if not times:
        return {}
    worst = min(times, key=lambda case: times[case])
    return {"less_time": {"geomean_times": geomean(times.values()), "worst_times": times[worst], "worst_case": worst}}


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{k} {_short(v)}" for k, v in value.items()) + ")"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def document(found: list[Result]) -> str:
    """What was measured on each machine."""
    lines = [
        "# Measured",
        "",
        "Time of the best library ÷ ours; above 1 we are faster. [What is compared, and how](../README.md)",
        "",
        "*At the highest rate*: the geometric mean if all our products and convolutions ran at the highest GFLOP/s that any",
        "library or we reached in any case of the same run: what is left to win, as far as that run shows.",
    ]
    on_gpus = [result for result in found if "gpu" in result["device"]]
    found = [result for result in found if result not in on_gpus]
    machines = {machine.folder(result["device"]): result["device"] for result in found}
    for name, device in machines.items():
        lines += ["", *section(device, [result for result in found if machine.folder(result["device"]) == name])]
    for result in on_gpus:
        lines += ["", *gpu.markdown(result)]
    return "\n".join(lines) + "\n"


def section(device: Mapping[str, Any], found: list[Result]) -> Iterator[str]:
    """The tables of one machine, and for every file its command, date and versions."""
    widest = next((said for flag, said in VECTORS.items() if flag in device.get("features", ())), "")
    yield f"## {device['cpu']}, {device['cores']} cores, {device['memory_gib']:.0f} GiB{widest}"
    yield ""
    head = ("benchmark: family", "threads", "cases", "geomean", "not charged", "worst", "at the highest rate", "target")
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for result in found:
        yield from ratio_lines(result)
    yield from ("", "| benchmark | threads | of | | target |", "|---|---|---|---|---|")
    for result in found:
        yield from other_lines(result)
    yield from ("", "| command | date | versions |", "|---|---|---|")
    for result in found:
        versions = result["versions"]
        chosen = ", ".join(f"{n} {versions[n]}" for n in ("apache-tvm", "numpy", "torch", "scipy") if versions.get(n))
        yield f"| `{result['command']}` | {result['date'][:16]} | {chosen} |"


if __name__ == "__main__":
    sys.stdout.write(document(results()))
