"""Operators are known by what `OpDef` says of them: outside their definitions and the frontends, no
list of names says what a pass does with which, and a name in a string is that of an operator."""

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from compiler.op.library import all_ops

ROOT = Path(__file__).parent.parent.parent
DEFINED = ("compiler/op/", "compiler/frontend/")
#: Rooms whose words are also those of scalar functions, machine instructions and sizes: there,
#: only names with a dot are operators'.
SCALARS = (
    "datatypes/",
    "experiments/",
    "quantize/config/json_schema.py",
    "quantize/plan/json_schema.py",
    "compiler/runtime/machines/ptx/",
    *(
        f"compiler/{room}/"
        for room in (
            *("symbolic", "types", "tensor", "arithmetic", "target", "codegen", "interpret"),
            "script",
        )
    ),
)
WORDS = {"min", "max", "floor", "tanh"}
"""Compared, these are what symbolic sizes are made of, a rounding of scales, and an attribute."""
FAMILIES = re.compile(r"(nn|qnn|image|annotation)\.[a-z_0-9]+")
MAKERS = {"call", "get_op", "is_op", "self._call", "self._with", "s.call", "s.do", "s.named"}
"""Functions whose first operand is an operator's name."""


@cache
def names() -> frozenset[str]:
    return frozenset(all_ops())


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def quoted() -> re.Pattern[str]:
    """A quoted name of an operator or of a family of them, or a call with some quoted name."""
    known = "|".join(map(re.escape, sorted(names())))
    makers = "|".join(map(re.escape, MAKERS))
    return re.compile(f"[\"']({known}|{FAMILIES.pattern})[\"']|\\b({makers})\\([\"']")


def files(package: str) -> list[Path]:
    """Files that may name operators, those that define them left out."""
    found = sorted((ROOT / package).rglob("*.py"))
    others = [f for f in found if not str(f.relative_to(ROOT)).startswith(DEFINED)]
    return [f for f in others if quoted().search(f.read_text())]


def known(nodes: Sequence[ast.expr | None], path: str) -> list[str]:
    """The names of operators among nodes."""
    found = [n.value for n in nodes if isinstance(n, ast.Constant) and n.value in names()]
    return [str(n) for n in found if "." in str(n) or not path.startswith(SCALARS)]


def lists(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and names of every literal that lists operators, and of every question for one."""
    where = str(path.relative_to(ROOT))
    for node in ast.walk(tree(path)):
        found: list[str] = []
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            found = known(node.elts, where)
        elif isinstance(node, ast.Dict):
            found = max(known(node.keys, where), known(node.values, where), key=len)
        if isinstance(node, ast.expr) and len(found) > 1:
            yield node.lineno, found
        asked: list[str] = []
        if isinstance(node, ast.Compare):
            asked = [n for n in known([node.left, *node.comparators], where) if n not in WORDS]
        elif isinstance(node, ast.MatchValue):
            asked = known([node.value], where)
        if isinstance(node, ast.expr | ast.MatchValue) and asked:
            yield node.lineno, asked


def unknown(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is written like an operator's name, but is none's."""
    scalars = str(path.relative_to(ROOT)).startswith(SCALARS)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if FAMILIES.fullmatch(node.value) and node.value not in names():
                yield node.lineno, node.value
        elif isinstance(node, ast.Call) and node.args and not scalars:
            first = node.args[0]
            made = isinstance(first, ast.Constant) and ast.unparse(node.func) in MAKERS
            if isinstance(first, ast.Constant) and made and first.value not in names():
                yield node.lineno, str(first.value)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("package", ["compiler", "quantize", "datatypes", "experiments"])
def test_no_list_of_operators(package: str) -> None:
    """What a pass does with an operator follows from facts that the operator states."""
    found = {str(f.relative_to(ROOT)): held for f in files(package) if (held := list(lists(f)))}
    assert not found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("package", ["compiler", "quantize", "datatypes", "experiments"])
def test_names_are_registered(package: str) -> None:
    """A name with a typo would never match."""
    found = {str(f.relative_to(ROOT)): bad for f in files(package) if (bad := list(unknown(f)))}
    assert not found


def test_finds_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself sees literals, comparisons and cases, and strings that name nothing."""
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    path = tmp_path / "some_pass.py"
    path.write_text(
        'A = ("nn.conv2d", "nn.dense")\n'
        'B = {"add": 1, "multiply": 2}\n'
        'if op.name == "reshape":\n    pass\n'
        'if name in ("sum", "mean"):\n    pass\n'
        'match name:\n    case "nn.pad":\n        pass\n'
        'call("subtrackt", x)\nC = "nn.conv9d"\ncall("add", x)\n'
    )
    assert [line for line, _ in sorted(lists(path))] == [1, 2, 3, 5, 8]
    assert sorted(unknown(path)) == [(10, "subtrackt"), (11, "nn.conv9d")]
