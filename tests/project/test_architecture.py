"""The rules of docs/architecture.md that a program can check; import-linter checks the arrows between modules."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import roller
from roller import errors, ops
from roller import plugin as plugin_surface
from roller.device import hookspecs

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(p for p in (ROOT / "plugins").glob("*/roller_*") if p.is_dir())
CORE = sorted((ROOT / "roller").rglob("*.py"))
SOURCES = CORE + sorted(path for folder in PLUGINS for path in folder.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAP = ROOT / "docs" / "architecture.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

MODULE_LINES, FUNCTION_LINES, MANIFEST_LINES, ADR_LINES, HOOKS = 400, 50, 110, 60, 16
FLAT, IN_A_PACKAGE, LAYERS = 16, 14, 14
DEVICE_WORDS = re.compile(r"(?<![a-z])(cuda|rocm|hip|ipu|nvidia|amd|avx\d*|sm_\d+|gfx\d+)(?![a-z])", re.IGNORECASE)
TVM = ("tvm", "tvm_ffi")
MAY_IMPORT_TVM = ("roller/te.py", "roller/lowering/")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=[relative(p) for p in paths])


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_of(path: Path) -> str:
    parts = path.with_suffix("").relative_to(ROOT).parts
    parts = parts[2:] if parts[0] == "plugins" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Size


@named(SOURCES)
def test_modules_and_functions_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES, "cut the module at a noun"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"


def test_manifests_only_forward() -> None:
    for folder in PLUGINS:
        assert len((folder / "__init__.py").read_text(encoding="utf-8").splitlines()) <= MANIFEST_LINES, relative(folder)


def test_the_map_shows_the_layers_as_they_are_checked() -> None:
    (core,) = [c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["name"] == "layers of the core"]
    shown = re.search(r"^## Layers$.*?^```text$(.*?)^```$", MAP.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert shown[1].split("\n")[1:-1] == [re.sub("[()]", "", row) for row in core["layers"]]


def test_decisions_are_short() -> None:
    for path in (ROOT / "docs" / "adr").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name), path.name
        assert len(text.splitlines()) <= ADR_LINES, path.name
        assert all(f"## {part}" in text for part in ("Context", "Decision", "Consequence")), path.name


# Words


def undocumented(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node.body, f"{prefix}{node.name}.")


@named(SOURCES)
def test_everything_public_says_what_it_is(path: Path) -> None:
    tree = tree_of(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    assert list(undocumented(tree.body, "")) == []


def without_docs(tree: ast.Module) -> ast.Module:
    """The tree without docstrings; parsing has dropped the comments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.Call):  # a command's help is documentation too
            node.keywords = [k for k in node.keywords if k.arg not in ("help", "metavar")]
    return tree


@named(CORE)
def test_the_core_knows_no_device(path: Path) -> None:
    found = DEVICE_WORDS.search(ast.unparse(without_docs(tree_of(path))))
    assert found is None, f"{found and found.group()!r} belongs in a plugin or a spec file"


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules that a file imports, those named to import_module among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str))


@named([p for p in CORE if not relative(p).startswith(MAY_IMPORT_TVM)])
def test_tvm_stays_where_it_belongs(path: Path) -> None:
    assert not [name for name in imported(tree_of(path)) if name.split(".")[0] in TVM]


@named(CORE)
def test_the_core_imports_no_plugin_and_only_devices_use_pluggy(path: Path) -> None:
    names = {name.split(".")[0] for name in imported(tree_of(path))}
    assert not names & {folder.name for folder in PLUGINS}
    if relative(path) not in ("roller/device/plugins.py", "roller/device/hookspecs.py"):
        assert "pluggy" not in names


# Surface

HELP = "import sys; sys.argv = ['roller', '--help']\nfrom roller.cli import main\ntry: main()\nexcept SystemExit: pass\n"


@pytest.mark.parametrize(
    "code", ["import roller\n", "from roller import ops\n", "import roller.plugin\n", "import roller_cpu\n", HELP]
)
def test_starting_loads_neither_tvm_nor_torch(code: str) -> None:
    report = "import sys, json; print(json.dumps([m for m in ('tvm', 'tvm_ffi', 'torch', 'scipy') if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def with_all() -> list[Path]:
    return [p for p in SOURCES if re.search(r"^__all__ = ", p.read_text(encoding="utf-8"), re.MULTILINE)]


@named(with_all())
def test_all_is_complete(path: Path) -> None:
    module = importlib.import_module(module_of(path))
    listed = module.__all__
    assert len(set(listed)) == len(listed)
    assert [name for name in listed if not hasattr(module, name)] == []
    tree = tree_of(path)
    names = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    if path.name == "__init__.py" or module is plugin_surface:  # what a surface imports from below it offers
        below = "roller" if module in (roller, plugin_surface) else f"{module.__name__}."
        imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and (n.module or "").startswith(below)]
        names |= {alias.asname or alias.name for n in imports for alias in n.names}
    private = {"Approximate", "Array", "interpret"} if module.__name__ == "roller.verify" else set()
    assert sorted(n for n in names - set(listed) - private if not n.startswith("_")) == []


def test_the_error_tree_is_drawn_once_and_whole() -> None:
    drawn = set(re.findall(r"\b\w+Error\b", errors.__doc__ or "")) - {"ValueError", "RuntimeError"}
    assert drawn == set(errors.__all__)
    assert set(errors.__all__) <= set(roller.__all__)


# The map


def test_the_list_of_modules_and_the_picture_of_packages_are_those_of_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, f"run `python docs/generate.py`: {done.stdout}{done.stderr}"


def packages() -> list[Path]:
    return [p.parent for p in SOURCES if p.name == "__init__.py"]


@named(packages())
def test_packages_stay_small(path: Path) -> None:
    assert len([p for p in path.glob("*.py") if p.name != "__init__.py"]) <= (FLAT if path.name == "roller" else IN_A_PACKAGE)


def test_layers_stay_few() -> None:
    (core,) = [c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["name"] == "layers of the core"]
    assert len(core["layers"]) <= LAYERS


def test_every_package_of_the_core_is_on_its_page() -> None:
    text = MAP.read_text(encoding="utf-8")
    core = [p for p in map(relative, packages()) if re.fullmatch(r"roller(/\w+)?", p)]
    assert [p for p in core if f"| `{p}/` |" not in text] == []


def test_plugins_have_the_same_rooms() -> None:
    for folder in PLUGINS:
        rooms = {p.name for p in folder.iterdir() if (p / "__init__.py").is_file()}
        assert rooms >= {"chip", "codegen", "cost", "runtime", "toolchain"}, relative(folder)
        assert [p.name for p in folder.glob("*.py")] == ["__init__.py"], relative(folder)


def words() -> Iterator[tuple[Path, str]]:
    """What the pages put in backticks, outside code blocks."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        yield from ((page, word) for word in re.findall(r"`([^`\n]+)`", text))


def test_files_that_the_pages_name_exist() -> None:
    paths = re.compile(r"(roller|plugins|specs|docs|tests|bench|examples|\.ci)/[\w./-]*")
    named_files = [(page, word) for page, word in words() if paths.fullmatch(word)]
    assert len(named_files) > 50
    missing = [f"{relative(page)}: {word}" for page, word in named_files if not (ROOT / word).exists()]
    assert missing == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{relative(page)}: {target}"


def test_the_readmes_example_runs(tmp_path: Path) -> None:
    example = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    own = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}  # nothing of the user's is read or written
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True, env=own, timeout=300, cwd=tmp_path
    )
    assert "bound by" in done.stdout


def resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        try:
            for name in parts[cut:]:
                thing = getattr(thing, name)
        except AttributeError:
            return False
        return True
    return False


def test_names_that_the_pages_use_exist() -> None:
    entry_points = {hookspecs.GROUP}
    dotted = {word.split("(")[0] for _, word in words() if re.fullmatch(r"roller(\.\w+)+(\(.*\))?", word)} - entry_points
    assert dotted
    assert sorted(word for word in dotted if not resolves(word)) == []


EXAMPLES = {"roller_plain_c"}  # plugins that pages speak of


def test_pages_know_every_hook_and_every_error() -> None:
    hooks = {name for name in vars(hookspecs) if name.startswith("roller_")}
    assert len(hooks) <= HOOKS, "another hook needs a decision in docs/adr"
    for page in (MAP, ROOT / "docs" / "writing-a-device-plugin.md"):
        text = page.read_text(encoding="utf-8")
        said = set(re.findall(r"\broller_\w+", text)) - {folder.name for folder in PLUGINS} - EXAMPLES
        assert said == hooks, page.name
    assert [name for name in errors.__all__ if name not in MAP.read_text(encoding="utf-8")] == []


def test_every_field_of_a_spec_file_is_explained() -> None:
    text = (ROOT / "docs" / "spec-files.md").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "specs" / "schema.json").read_text(encoding="utf-8"))
    tables = [schema, *schema["$defs"].values()]
    fields = {name for table in tables for name in table.get("properties", {})}
    assert sorted(name for name in fields if f"`{name}`" not in text) == []


# Packaging


def requirements(group: str | None = None) -> list[str]:
    project = PROJECT["project"]
    return list(project["dependencies"] if group is None else project["optional-dependencies"][group])


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", name)[0]).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", line) for line in kept), "names and versions only"
    return {normal(line): line.split("==")[1] for line in kept}


def test_constraints_name_every_dependency_exactly() -> None:
    found = pins()
    wanted = [*requirements(), *requirements("cuda"), *requirements("dev")]
    assert [r for r in wanted if normal(r) not in found] == []
    exact = {normal(r): r.split("==")[1] for r in wanted if "==" in r}
    assert [n for n, version in exact.items() if not fnmatch(found[n], version)] == []
    assert "torch" not in found


def test_the_plugin_pins_the_same_tvm_as_the_project() -> None:
    from roller_cpu.toolchain import pins as plugin_pins

    said = {normal(r): r.split("==")[1] for r in requirements() if "==" in r}
    assert said == plugin_pins.PINNED


def test_every_plugin_is_packaged_and_has_an_entry_point() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    entries = PROJECT["project"]["entry-points"][hookspecs.GROUP]
    for folder in PLUGINS:
        assert relative(folder) in wheel["packages"]
        assert relative(folder.parent) in wheel["dev-mode-dirs"]
        assert entries[folder.parent.name] == folder.name
    assert wheel["force-include"] == {"specs": "roller/_specs"}


def test_every_package_says_that_it_is_typed() -> None:
    assert [f.name for f in (ROOT / "roller", *PLUGINS) if not (f / "py.typed").is_file()] == []


def test_the_interface_is_what_is_listed() -> None:
    assert dir(roller) == sorted(roller.__all__)


def texts() -> Iterator[tuple[str, str]]:
    """Every text file of the project; what tools leave behind is not of it."""
    folders = ("roller", "plugins", "specs", "docs", "examples", "tests", "bench", ".ci")
    files = [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    for path in [*files, *sorted(p for p in ROOT.iterdir() if p.is_file())]:
        try:
            yield relative(path), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_no_machine_is_named() -> None:
    """Paths and hosts of the machine where a line was written mean nothing on another one."""
    folders = "home|root|Users|work|opt|mnt|srv|tmp"
    places = re.compile(
        rf"(?<![\w.<>{{}}~*)-])/({folders})/[\w.]|\b[\w-]+\.(internal|local|lan|corp)\b(?!\()|index-url|localhost:\d"
    )
    own = relative(Path(__file__))
    found = [f"{name}: {hit.group()}" for name, text in texts() if name != own and (hit := places.search(text))]
    assert found == []


def test_continuous_integration_calls_make_test() -> None:
    script = ROOT / ".ci" / "run"
    commands = [line for line in script.read_text(encoding="utf-8").splitlines() if re.match(r"(exec )?make ", line)]
    assert commands == ["exec make test"]
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("name", [n for n in ops.__all__ if n not in ("SymbolicTensor", "expression", "tensor")])
def test_the_page_of_operators_names_every_one_and_its_options(name: str) -> None:
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert re.search(rf"`{name}[(`]|ops\.{name}\(", page)
    options = [p.name for p in inspect.signature(getattr(ops, name)).parameters.values() if p.default is not p.empty]
    assert not [option for option in options if f"{option}=" not in page]
