"""Words that are gone: pages, docstrings and help texts use the field's terms (docs/glossary.md); only people know and want."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GONE = {  # a pattern, and what stands in its place
    r"nobody|somebody|whoever|those who": "name the part that acts",
    r"(kernel|lane|thread|warp|block|chip|spec|model|engine|tile)s? (wants?|knows?|tells?|sees?)": "needs, has, reports",
    r"told|untold": "with, without",
    r"in passing": "say when",
    r"tried are": "subject, verb, object",
    r"divid(e|es|ing) labour|labour": "warp specialisation; producers and consumers",
    r"ring of|goes? around|going around": "multi-buffering; circular buffer of pipeline stages",
    r"copies that run by themselves|by themselves": "asynchronous copies",
    r"outlet": "epilogue store staged through shared memory",
    r"moves? back|sticks? out": "overlapped boundary tile",
    r"ragged": "remainder; not a multiple",
    r"whole numbers?": "integers",
    r"truth values": "booleans",
    r"the greatest (of|and|or)\b|the least (of|and|or)\b": "max, min",
    r"change places": "XOR swizzle",
    r"dealt out|deals? out": "distributed; split-K",
    r"stands? one after another|stand \w+ after another": "unrolled",
}
PATTERNS = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead) for pattern, instead in GONE.items()]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = [p for folder in ("roller", "plugins", "examples") for p in sorted((ROOT / folder).rglob("*.py"))]


def prose(text: str) -> str:
    """Text without code: blocks, and what stands in backticks."""
    return re.sub(r"`[^`\n]*`", "``", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def said(path: Path) -> Iterator[str]:
    """Docstrings of a file, help texts of its commands, and the words of its errors."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
        elif isinstance(node, ast.Raise):
            yield " ".join(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def gone(text: str) -> list[str]:
    return [f"{m.group()!r}: {instead}" for pattern, instead in PATTERNS for m in pattern.finditer(" ".join(prose(text).split()))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages_use_the_fields_words(path: Path) -> None:
    assert gone(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", CODE, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_docstrings_help_and_errors_use_the_fields_words(path: Path) -> None:
    assert [found for text in said(path) for found in gone(text)] == []


def test_words_that_are_gone_are_found() -> None:
    assert gone("Nobody waits for the ring of panels, of which two `whoever` are told.") != []
    assert len(gone("nobody")) == len(gone("a lane wants registers")) == 1 and gone("`nobody` waits") == []
