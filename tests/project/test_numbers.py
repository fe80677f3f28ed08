"""Numbers of search and model have names, and docs/numbers.md lists them with their kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {0, 1, 2, 0.5, 1e-6, 1e-9, 1e9}  # counts of things, halves, and units of measure
FILES = sorted([*(ROOT / "roller" / "search").rglob("*.py"), *(ROOT / "roller" / "cost").rglob("*.py")])


def numbers(node: ast.AST) -> Iterator[float]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, int | float) and not isinstance(part.value, bool):
            yield part.value


def named(tree: ast.Module) -> Iterator[str]:
    """The names of a module's numbers."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and list(numbers(node.value)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def inside(node: ast.FunctionDef | ast.ClassDef) -> Iterator[float]:
    """The numbers of a function or class without those that are defaults of arguments or fields."""
    named = [part for one in ast.walk(node) if isinstance(one, ast.arguments) for part in [*one.defaults, *one.kw_defaults]]
    named += [part.value for part in node.body if isinstance(node, ast.ClassDef) and isinstance(part, ast.AnnAssign)]
    apart = {id(part) for one in named if one is not None for part in ast.walk(one)}
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and id(part) not in apart and type(part.value) in (int, float):
            yield part.value


def defaults(tree: ast.Module) -> Iterator[str]:
    """The names of arguments and of fields of classes whose defaults are other numbers than plain ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            pairs = [
                *zip(reversed(positional), reversed(node.defaults), strict=False),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ]
            yield from (argument.arg for argument, value in pairs if value is not None and set(numbers(value)) - PLAIN)
        elif isinstance(node, ast.ClassDef):
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and part.value is not None]
            yield from (ast.unparse(part.target) for part in fields if part.value is not None and set(numbers(part.value)) - PLAIN)


def test_the_page_lists_every_number_of_search_and_model() -> None:
    trees = [ast.parse(file.read_text()) for file in FILES]
    known = {name for tree in trees for name in named(tree) if name.isupper()} | {name for tree in trees for name in defaults(tree)}
    page = (ROOT / "docs" / "numbers.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert listed == known
    assert {row[3].strip() for row in rows} == {"budget", "source", "estimate", "default"}


def test_no_other_number_decides_anything() -> None:
    """Inside functions there are none but counts, halves and units of measure. Defaults have names of their own."""
    found = []
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found += [(file.name, node.name, number) for number in inside(node) if number not in PLAIN]
    assert not found, found
