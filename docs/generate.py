"""Writes what pages show of the code: docs/modules.md from docstrings, the picture in docs/architecture.md from imports.

`python docs/generate.py` writes both; with `--check` it writes nothing, and exits with 1 if one of them would change.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
MODULES, ARCHITECTURE = ROOT / "docs" / "modules.md", ROOT / "docs" / "architecture.md"
SOURCES = (ROOT / "roller", *sorted(p for p in (ROOT / "plugins").glob("*/roller_*") if p.is_dir()))
FRONT = "front"  # the modules that lie flat in `roller/`: what users call, and what all others stand on
BASE = ("errors", "frozen", "storage")
PICTURE = re.compile(r"(?<=<!-- packages -->\n).*?(?=<!-- end -->)", re.DOTALL)
HEAD = """# Modules

Every module, with the first sentence of its docstring. `python docs/generate.py` writes this page; a test holds it to the code.
How the packages depend on one another is in [architecture](architecture.md).
"""


def purpose(path: Path) -> str:
    """The first sentence of a module's docstring."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = re.split(r"\n\n|(?<=\.)\s+(?=[A-Z`])", said, maxsplit=1)[0]
    return " ".join(sentence.split()).removesuffix(".").replace("|", "\\|")


def folders(top: Path) -> Iterator[Path]:
    """The packages in a folder, itself first."""
    yield top
    for below in sorted(p for p in top.iterdir() if (p / "__init__.py").is_file()):
        yield from folders(below)


def modules() -> str:
    """The text of docs/modules.md."""
    parts = [HEAD]
    for folder in (folder for top in SOURCES for folder in folders(top)):
        files = sorted(p for p in folder.glob("*.py") if p.name != "__init__.py")
        rows = [f"| [`{p.stem}`](../{p.relative_to(ROOT).as_posix()}) | {purpose(p)} |" for p in files]
        table = ["| module | what it is |", "|---|---|", *rows, ""] if rows else []
        parts += [f"## `{folder.relative_to(ROOT).as_posix()}/`", "", purpose(folder / "__init__.py"), "", *table]
    return "\n".join(parts)


def arrows() -> dict[str, set[str]]:
    """Package of the core → packages that it imports; flat modules are two: the front, and what all others stand on."""
    graph, found = grimp.build_graph("roller", cache_dir=None), dict[str, set[str]]()
    for name in graph.modules - {"roller.__main__"}:
        for imported in graph.find_modules_directly_imported_by(name):
            found.setdefault(_package(name), set()).add(_package(imported))
    return {a: {b for b in to if b != a} for a, to in found.items()}


def _package(module: str) -> str:
    first = [*module.split("."), ""][1]
    if (ROOT / "roller" / first).is_dir() and first:
        return first
    return "base" if first in BASE else FRONT


def reduced(found: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Without arrows that follow from others."""

    def reach(a: str) -> set[str]:
        return set().union(*({b} | reach(b) for b in found.get(a, ())))

    return {a: {b for b in to if not any(b in reach(c) for c in to if c != b)} for a, to in found.items()}


def picture() -> str:
    """The packages of the core as a Mermaid flow chart; an arrow goes from the importer to what it imports."""
    flat = [p.stem for p in sorted((ROOT / "roller").glob("[!_]*.py")) if p.stem not in BASE]
    boxes = [f'    {box}["{", ".join(names)}"]' for box, names in ((FRONT, flat), ("base", BASE))]
    lines = [f"    {a} --> {b}" for a, to in sorted(reduced(arrows()).items()) for b in sorted(to)]
    return "\n".join(["```mermaid", "flowchart TB", *boxes, *lines, "```", ""])


def pages() -> dict[Path, str]:
    """The text that each page should have."""
    return {MODULES: modules(), ARCHITECTURE: PICTURE.sub(lambda _: picture(), ARCHITECTURE.read_text(encoding="utf-8"))}


def main(arguments: list[str]) -> int:
    """The command; gives its exit status."""
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'differs' if '--check' in arguments else 'written'}")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
