"""The rooms that READMEs of packages open with: all there are, in the order that imports go, and
every stop of the way through them is a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("quantize", "experiments")
MODULE = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")


def opening(package: str) -> str:
    """A package's README up to its second heading."""
    return (ROOT / package / "README.md").read_text().partition("\n## ")[0]


def rooms(package: str) -> list[str]:
    """The rooms as listed, folders and files, without endings."""
    listed = re.findall(r"^    ([a-z_]+)(?:/|\.py) +\S", opening(package), re.MULTILINE)
    return [str(name) for name in listed]


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, anywhere in it, or names in a text."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*parts[: -node.level], node.module or ""] if node.level else [])
            module = base.rstrip(".") if node.level else node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and MODULE.fullmatch(str(node.value)):
            yield str(node.value)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_listed_once(package: str) -> None:
    folder = ROOT / package
    there = {p.parent.name for p in folder.glob("*/__init__.py")}
    there |= {p.stem for p in folder.glob("*.py")} - {"__init__"}
    assert sorted(rooms(package)) == sorted(there)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_down_the_rooms(package: str) -> None:
    rank = {room: k for k, room in enumerate(rooms(package))}
    wrong = []
    for path in (ROOT / package).rglob("*.py"):
        own = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        for module in imports(path) if own != "__init__" else ():
            top, _, rest = module.partition(".")
            if top == package and rank.get(rest.partition(".")[0], -1) > rank[own]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_every_stop_is_a_file(package: str) -> None:
    stops = re.findall(r"\[([^]]+)\]\(([^)]+)\)", opening(package))
    assert len(stops) > 10
    for shown, link in stops:
        assert shown == link
        assert (ROOT / package / link).is_file(), link
    # The way visits nearly every room.
    visited = {link.partition("/")[0].removesuffix(".py") for _, link in stops}
    assert len(visited) >= len(rooms(package)) // 2
