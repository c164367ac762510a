"""Imports point one way: compiler <- datatypes, quantize <- experiments."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "compiler": {"compiler"},
    "datatypes": {"compiler", "datatypes"},
    "quantize": {"compiler", "quantize"},
    "experiments": {"compiler", "datatypes", "quantize", "experiments"},
}


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


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
