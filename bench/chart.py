"""The committed results as one picture: python -m bench.chart docs/ratios.svg (needs the extra bench)"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.common.harness import RESULTS

CPU, GPU = "amd-epyc-family-26-model-2-2c", "nvidia-h200"
SCRIPTS = ("gemm", "conv", "memory", "fused")
OURS, BEHIND = "#2a6f97", "#c1666b"
FAMILIES = {
    "GEMM": "products",
    "weights at call time": "convolutions",
    "weights as constants": "… with constant weights",
    "reduce": "reductions",
    "transpose": "transposes",
    "batch_matmul": "batched products",
}
# Groups of the GPU's results, and what they are called here; tests of the summary hold the names.
GROUPS = {
    "paper119": "the paper's 119, float32",
    "fp16 GEMM square": "square products, float16",
    "fp16 GEMM ragged": "products with remainders",
    "fp16 GEMM skinny": "products of 1 to 128 rows",
    "int8": "products, int8",
    "ResNet-50 fp16, batch 64": "ResNet-50, float16, batch 64",
    "BERT fp16": "BERT, float16",
    "reductions fp16": "reductions, float16",
    "fused": "fused chains",
    "rows": "softmax, layer norm, attention",
}
Bar = tuple[str, float, float]  # what it is of, geometric mean, worst case


def cpu() -> list[Bar]:
    """The families of the CPU's scripts, on one thread."""
    bars = []
    for script in SCRIPTS:
        found = _read(f"{CPU}/{script}-1t.json")
        for family, row in found["summary"].items():
            if isinstance(row, dict) and row.get("geomean") and family != "all":
                bars.append((FAMILIES.get(family, family), row["geomean"], row["worst"]))
    return bars


def gpu() -> list[Bar]:
    """Groups of the GPU's operators."""
    summary = _read(f"{GPU}/cuda.json")["summary"]
    return [(said, summary[name]["geomean"], summary[name]["worst"]) for name, said in GROUPS.items()]


def _read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / path).read_text(encoding="utf-8"))
    return found


def draw(axes: Any, title: str, bars: list[Bar]) -> None:
    """Bars from 1 to the mean, in the colour of who is faster; a dot for the worst case."""
    for place, (_, mean, worst) in enumerate(bars):
        axes.barh(place, mean - 1, left=1, height=0.62, color=OURS if mean >= 1 else BEHIND)
        axes.plot(worst, place, "o", color="#333333", markersize=3.2)
        axes.annotate(f"{mean:.2f}", (max(mean, 1), place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=8.5)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.25, 16)
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 8, 16], ["¼", "½", "1", "2", "4", "8", "16"], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9.5, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def picture() -> Any:
    """Both panels."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (the numbers need no library)

    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(left, "CPU: AMD EPYC (Zen 5), one thread, against\nthe best of NumPy, SciPy, torch, oneDNN", cpu())
    draw(right, "GPU: NVIDIA H200, against the best of\ncuBLAS, cuDNN, torch, torch.compile", gpu())
    caption = "time of the best library ÷ roller's time, geometric mean (dot: worst case); right of 1, roller is faster"
    figure.supxlabel(caption, fontsize=8.5)
    return figure


def main(path: Path) -> None:
    """Writes the picture; text stays text."""
    import matplotlib as mpl  # noqa: PLC0415  (as above)

    with mpl.rc_context({"svg.hashsalt": "roller", "svg.fonttype": "none", "font.family": "sans-serif"}):
        picture().savefig(path, metadata={"Date": None, "Creator": None} if path.suffix == ".svg" else {})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
