"""The picture of the README shows the committed results."""

from __future__ import annotations

from pathlib import Path

from bench import chart

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "ratios.svg"


def test_the_picture_shows_the_committed_results() -> None:
    shown = PICTURE.read_text(encoding="utf-8")
    bars = [*chart.cpu(), *chart.gpu()]
    assert len(bars) > 20
    assert [name for name, mean, _ in bars if name not in shown or f">{mean:.2f}<" not in shown] == [], (
        "python -m bench.chart docs/ratios.svg"
    )
