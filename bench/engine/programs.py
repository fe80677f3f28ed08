"""What construction chooses, to the last bit: programs, estimates and source text. Nothing is built and nothing runs.

    python -m bench.engine.programs --out DIR                  the paper's operators and random ones, six chips
    python -m bench.engine.programs --compare BEFORE AFTER     what differs between two such folders, and how much longer choices
                                                               are predicted to take; 1 if anything differs
The same tree gives the same folder on every machine. A change that only moves and renames gives the same folder as before it; for a
change of names alone, `--rename OLD=NEW` puts the new words into the older folder's text before they are compared.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.common import figures
from bench.engine.construction import Case
from bench.engine.construction import cases as constructed
from bench.gpu.expressions import layer_norm, softmax
from roller import RollerError, SymbolicTensor, compiler, ops, pipeline
from roller.program import record

CHIPS = "cpu:zen5,cpu:skylake-avx512,cuda:a100,cuda:h100,rocm:mi300x,ipu_sim:bow"
DRAWN, SEED, KEPT, SHOWN = 60, 5, 10, 12  # random expressions, and programs of each; lines shown where texts differ


def cases(count: int = DRAWN) -> list[Case]:
    """The paper's operators, then random ones: half are single operators, half have elementwise work or several stages."""
    plain, chance = constructed(1, count - count // 2), random.Random(SEED)
    kinds = (_product_and_work, _convolution_and_work, _rows, _attention, _chain, _bytes)
    return [*plain, *(kinds[number % len(kinds)](number, chance) for number in range(count // 2))]


def _case(number: int, what: str, build: Callable[[], SymbolicTensor]) -> Case:
    return Case(f"random {number}: {what}", what, build)


def _product_and_work(number: int, chance: random.Random) -> Case:
    m, n, k = (chance.choice((1, 31, 64, 197, 384, 1024, 3072)) for _ in range(3))
    dtype, work = chance.choice(("float32", "float16", "bfloat16")), chance.choice((ops.relu, ops.gelu, ops.tanh))
    turned = chance.choice((False, True))

    def build() -> SymbolicTensor:
        b = ops.tensor((n, k) if turned else (k, n), dtype)
        return work(ops.matmul(ops.tensor((m, k), dtype), b, transpose_b=turned) + ops.tensor((n,), dtype))

    return _case(number, "product and work", build)


def _convolution_and_work(number: int, chance: random.Random) -> Case:
    images, channels, side = chance.choice((1, 16)), chance.choice((3, 32, 96)), chance.choice((7, 14, 56))
    window, depthwise = chance.choice((1, 3)), chance.choice((False, True))

    def build() -> SymbolicTensor:
        x = ops.tensor((images, channels, side, side))
        w = ops.tensor((channels, 1 if depthwise else channels, window, window))
        groups = channels if depthwise else 1
        return ops.relu(ops.conv2d(x, w, 1, window // 2, groups=groups) + ops.tensor((channels, 1, 1)))

    return _case(number, "convolution and work", build)


def _rows(number: int, chance: random.Random) -> Case:
    shape, dtype = (chance.choice((7, 128, 4096)), chance.choice((60, 768, 3000))), chance.choice(("float32", "float16"))
    work = chance.choice((softmax, layer_norm))
    return _case(number, "rows", lambda: work(ops.tensor(shape, dtype)))


def _attention(number: int, chance: random.Random) -> Case:
    heads, rows, width = chance.choice((1, 12)), chance.choice((60, 128, 384)), chance.choice((32, 64))

    def build() -> SymbolicTensor:
        q, k, v = (ops.tensor((heads, rows, width)) for _ in range(3))
        return ops.batch_matmul(softmax(ops.batch_matmul(q, k, transpose_b=True)), v)

    return _case(number, "attention", build)


def _chain(number: int, chance: random.Random) -> Case:
    shape = tuple(chance.choice((3, 16, 50, 128)) for _ in range(3))
    axes = chance.sample(range(3), 3)
    return _case(number, "movement", lambda: ops.transpose(ops.exp(ops.tensor(shape)) * ops.tensor(shape), axes))


def _bytes(number: int, chance: random.Random) -> Case:
    m, n, k = (chance.choice((1, 33, 256, 1024)) for _ in range(3))
    turned = chance.choice((False, True))

    def build() -> SymbolicTensor:
        b = ops.tensor((n, k) if turned else (k, n), "int8")
        return ops.matmul(ops.tensor((m, k), "int8"), b, transpose_b=turned)

    return _case(number, "bytes", build)


def written(case: Case, chip: str) -> tuple[dict[str, Any], str]:
    """The best programs of one operator with their estimates, numbers as hexadecimal text; and the source text of the first."""
    try:
        expr = compiler.expression_of(case.build())
        plan, expr = compiler.planned(expr, chip, None, None, None, False)
        choices = pipeline.constructed(plan, expr, KEPT)
        source = plan.device.codegen(plan.chip, choices[0].program, plan.options)
    except RollerError as error:
        return {"error": f"{type(error).__name__}: {error}"}, ""
    programs = [{"program": record.program_to_json(c.program), "estimate": record.estimate_to_json(c.estimate)} for c in choices]
    return {"programs": _exact(programs)}, source.text


def _exact(value: Any) -> Any:
    """JSON with every float as hexadecimal text."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    return [_exact(item) for item in value] if isinstance(value, list | tuple) else value


def write(folder: Path, chips: Sequence[str], every: Sequence[Case]) -> None:
    """A folder for each chip; in it for each operator one file of programs and one of source text."""
    for chip in chips:
        below = folder / chip.replace(":", "-")
        below.mkdir(parents=True, exist_ok=True)
        for number, case in enumerate(every):
            found, source = written(case, chip)
            name = f"{number:03}"
            (below / f"{name}.json").write_text(json.dumps({"case": case.name, **found}, indent=1) + "\n")
            (below / f"{name}.source").write_text(source)
        print(f"{chip}: {len(every)} operators", flush=True)


def differences(before: Path, after: Path, renamed: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """The files that differ between two folders, each with the lines that do."""
    for name in sorted({str(p.relative_to(folder)) for folder in (before, after) for p in folder.rglob("*.*")}):
        texts = [path.read_text() if (path := folder / name).exists() else "" for folder in (before, after)]
        for old, new in renamed:
            texts[0] = texts[0].replace(old, new)
        if texts[0] != texts[1]:
            yield name, list(difflib.unified_diff(texts[0].splitlines(), texts[1].splitlines(), "before", "after", "", "", 0))


def predicted(before: Path, after: Path) -> Iterator[tuple[str, list[tuple[float, str]]]]:
    """For each chip how much longer the choice for each operator is predicted to take, with the operator's name."""
    for folder in sorted(path for path in after.iterdir() if path.is_dir()):
        pairs = [(before / folder.name / path.name, path) for path in sorted(folder.glob("*.json"))]
        both = [tuple(json.loads(p.read_text()) for p in pair) for pair in pairs if pair[0].exists()]
        ratios = [(_seconds(new) / _seconds(old), new["case"]) for old, new in both if "programs" in old and "programs" in new]
        if ratios:
            yield folder.name, ratios


def _seconds(written: dict[str, Any]) -> float:
    return float.fromhex(written["programs"][0]["estimate"]["seconds"])


def compare(before: Path, after: Path, renamed: Sequence[tuple[str, str]]) -> int:
    """Says what differs; 1 if anything does, or there is nothing to compare."""
    console, files = Console(soft_wrap=True, highlight=False, markup=False), len(list(after.rglob("*.*")))
    found = list(differences(before, after, renamed))
    for name, lines in found:
        console.print("\n".join([f"{name}:", *lines[:SHOWN]]))
    console.print(f"{len(found)} of {files} files differ")
    for chip, ratios in predicted(before, after):
        worst, case = max(ratios)
        console.print(f"{chip}: predicted {figures.geomean(r for r, _ in ratios):.4f} times as long, at worst {worst:.3f} ({case})")
    return int(bool(found) or not files)


def main() -> int:
    """Write a folder, or compare two."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, help="the folder to write")
    made.add_argument("--chips", default=CHIPS)
    made.add_argument("--every", type=int, default=1, help="one of so many operators only")
    made.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    made.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    options = made.parse_args()
    if options.compare:
        for folder in options.compare:
            if not folder.is_dir():
                made.error(f"no folder {folder}: --out writes one")
        parts = [pair.partition("=") for pair in options.rename]
        if not all(old and equals for old, equals, _ in parts):
            made.error("--rename OLD=NEW: a word, and the one that took its place")
        before, after = options.compare
        return compare(before, after, [(old, new) for old, _, new in parts])
    if options.out is None:
        made.error("--out DIR or --compare BEFORE AFTER")
    write(options.out, options.chips.split(","), cases()[:: options.every])
    return 0


if __name__ == "__main__":
    sys.exit(main())
