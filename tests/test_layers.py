"""Imports point one way: compiler <- datatypes, quantize <- experiments."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "compiler": {"compiler"},
    "datatypes": {"compiler", "datatypes"},
    "quantize": {"compiler", "quantize"},
    "experiments": {"compiler", "datatypes", "quantize", "experiments"},
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def at_load(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(module, name) of what statements import as the module loads: not in functions, nor for
    types only."""
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            yield from at_load([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from at_load(
                [*node.body, *node.orelse, *(x for h in node.handlers for x in h.body)]
            )


@pytest.mark.parametrize("package", ALLOWED)
def test_import_direction(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    wrong = {
        str(f.relative_to(ROOT)): bad
        for f in files
        if (bad := (imported(f) & set(ALLOWED)) - ALLOWED[package])
    }
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = [f for package in ALLOWED for f in (ROOT / package).rglob("*.py")]
    names = {f: ".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files}
    modules = {name.removesuffix(".__init__"): f for f, name in names.items()}
    imports: dict[str, set[str]] = {}
    for name, f in modules.items():
        # A name that is imported from a package may be one of its modules.
        found = [(m, f"{m}.{attribute}") for m, attribute in at_load(tree(f).body)]
        loaded = {inner if inner in modules else m for m, inner in found}
        imports[name] = (loaded & modules.keys()) - {name}
    assert sum(map(len, imports.values())) > 1000
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_only_the_frontend_imports_onnx() -> None:
    users = {f for f in (ROOT / "compiler").rglob("*.py") if "onnx" in imported(f)}
    assert {f.parent.name for f in users} == {"frontend"}


def test_importing_the_packages_loads_nothing_heavy() -> None:
    code = (
        "import sys, compiler, quantize, datatypes, experiments;"
        "print([m for m in ('onnx', 'pandas', 'llvmlite', 'rich', 'click', '_softposit') "
        "if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"
