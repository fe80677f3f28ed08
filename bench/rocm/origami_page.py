"""What `bench.rocm.origami` found, in numbers and as a page."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from bench.common import figures, report

ABOUT = "No AMD hardware was used and nothing ran: both sides predict."
Row = dict[str, Any]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """For each chip and type: how often tiles agree, how alike the times are, how each rates the other's tile, what differs."""
    names = dict.fromkeys((r["chip"], r["dtype"]) for r in rows)
    return {f"{chip} {dtype}": _summary([r for r in rows if (r["chip"], r["dtype"]) == (chip, dtype)]) for chip, dtype in names}


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    times = [[r[side]["predicted_s"] for r in rows] for side in ("ours", "theirs")]
    rates = [[r["batch"] * r["m"] * r["n"] * r["k"] / t for r, t in zip(rows, side, strict=True)] for side in times]
    return {
        "products": len(rows),
        "same_tile": _share(rows, lambda r: r["why"][0].startswith("same tile")),
        "area_within_2": _share(rows, lambda r: 0.5 <= _area(r["ours"]) / _area(r["theirs"]) <= 2),
        "side_within_2": _share(rows, _near),
        "rank_correlation_of_times": figures.finite(figures.spearman(*times)),
        "rank_correlation_of_rates": figures.finite(figures.spearman(*rates)),
        "our_time_over_theirs": _spread([r["ratio"] for r in rows]),
        "without_launch": _spread([r["ratio_without_launch"] for r in rows]),
        "our_tile_by_their_model": _spread([r["our_tile_by_their_model"] for r in rows]),
        "their_tile_by_our_model": _spread([r["their_tile_by_our_model"] for r in rows]),
        "differences": {word: _of_word(rows, word) for word, _ in Counter(w for r in rows for w in r["why"]).most_common()},
        "by_bound": {bound: _of_bound(rows, bound) for bound, _ in Counter(r["ours"]["bound_by"] for r in rows).most_common()},
    }


def _share(rows: Sequence[Row], true: Callable[[Row], bool]) -> float:
    return sum(true(r) for r in rows) / len(rows)


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Tenth, median and nine tenths of those that there are."""
    known = sorted(v for v in values if v is not None)
    if not known:
        return {"known": 0}
    places = {"tenth": len(known) // 10, "median": len(known) // 2, "nine_tenths": len(known) * 9 // 10}
    return {"known": len(known)} | {name: known[place] for name, place in places.items()}


def _of_word(rows: Sequence[Row], word: str) -> dict[str, Any]:
    chosen = [r for r in rows if word in r["why"]]
    return {"products": len(chosen), "median_ratio": statistics.median(r["ratio_without_launch"] for r in chosen)}


def _of_bound(rows: Sequence[Row], bound: str) -> dict[str, Any]:
    chosen = [r for r in rows if r["ours"]["bound_by"] == bound]
    both = [statistics.median(r[key] for r in chosen) for key in ("ratio", "ratio_without_launch")]
    return {"products": len(chosen), "median_ratio": both[0], "median_without_launch": both[1]}


def _area(side: Row) -> int:
    return int(side["tile"][0] * side["tile"][1])


def _near(found: Row) -> bool:
    """True if both sides of the tiles are within a factor of two of one another."""
    return all(0.5 <= a / b <= 2 for a, b in zip(found["ours"]["tile"][:2], found["theirs"]["tile"][:2], strict=True))


def page(body: dict[str, Any]) -> str:
    """The comparison as Markdown."""
    version = body["versions"].get("rocm-origami", "")
    lines = [
        "# Matrix products beside AMD's Origami",
        "",
        f"`{body['command']}`, {body['date']}, rocm-origami {version}. {ABOUT}",
        "",
    ]
    lines += _agreement(body["summary"]) + _models(body["summary"]) + _differences(body["summary"])
    lines += ["", "The products whose predictions differ most, without our launch:", ""]
    lines += ["| chip, type | batch × m × n × k | ours | theirs | our time ÷ theirs | |", "|---|---|---|---|---|---|"]
    for name in body["summary"]:
        rows = [r for r in body["cases"] if f"{r['chip']} {r['dtype']}" == name]
        ordered = sorted(rows, key=lambda r: r["ratio_without_launch"])
        lines += [_line(name, r) for r in (*ordered[:3], *ordered[-3:])]
    return "\n".join([*lines, ""])


def _agreement(sums: dict[str, Any]) -> list[str]:
    lines = [
        "| chip, type | products | same tile | both sides within 2 | area within 2 | rank correlation of times | of rates "
        "| our time ÷ theirs: tenth, median, nine tenths | without our launch |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, s in sums.items():
        shares = [f"{s[key]:.0%}" for key in ("same_tile", "side_within_2", "area_within_2")]
        alike = [
            f"{s[key]:.2f}" if s[key] is not None else "" for key in ("rank_correlation_of_times", "rank_correlation_of_rates")
        ]
        spreads = [_said(s[key]) for key in ("our_time_over_theirs", "without_launch")]
        lines.append(f"| {name} | {s['products']} | {' | '.join([*shares, *alike, *spreads])} |")
    return lines


def _models(sums: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "How much slower each model expects the other's tile to be than its own choice (1: as fast; tenth, median, nine tenths):",
        "",
    ]
    lines += [
        "| chip, type | our tile by their model | their tile by our model | their tiles that our rules have |",
        "|---|---|---|---|",
    ]
    for name, s in sums.items():
        known = s["their_tile_by_our_model"]["known"]
        spreads = [_said(s[key]) for key in ("our_tile_by_their_model", "their_tile_by_our_model")]
        lines.append(f"| {name} | {' | '.join(spreads)} | {known} of {s['products']} |")
    return lines


def _said(spread: dict[str, Any]) -> str:
    return ", ".join(f"{spread[key]:.2f}" for key in ("tenth", "median", "nine_tenths")) if spread["known"] else ""


def _differences(sums: dict[str, Any]) -> list[str]:
    """For every difference and every bound: of how many products, and their median of our time ÷ theirs without our launch."""
    lines = ["", "In what they differ: products, and their median of our time ÷ theirs without our launch.", ""]
    head = [f"| | {' | '.join(sums)} |", "|---|" + "---|" * len(sums)]
    for part, key, title in (("differences", "median_ratio", ""), ("by_bound", "median_without_launch", "we say bound by: ")):
        words = list(dict.fromkeys(word for s in sums.values() for word in s[part]))
        lines += head if part == "differences" else []
        for word in words:
            found = [s[part].get(word) for s in sums.values()]
            cells = [f"{f['products']} ({f[key]:.2f})" if f else "" for f in found]
            lines.append(f"| {title}{word} | {' | '.join(cells)} |")
    return lines


def _line(name: str, found: Row) -> str:
    def side(s: Row) -> str:
        split = f", split {s['split']}" if s["split"] > 1 else ""
        tile = " × ".join(map(str, s["tile"]))
        return f"{tile}{split}, {s['waves']:.2f} waves, {report.duration(s['predicted_s'])}"

    shape = " × ".join(str(found[key]) for key in ("batch", "m", "n", "k"))
    ratio = f"{found['ratio_without_launch']:.2f}"
    return f"| {name} | {shape} | {side(found['ours'])} | {side(found['theirs'])} | {ratio} | {', '.join(found['why'])} |"
