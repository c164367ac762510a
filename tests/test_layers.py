"""Imports point one way: compiler <- datatypes, quantize <- experiments; within each of these, down
the list of its rooms."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
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

ROOMS = {
    "compiler": (
        "errors", "_lazy", "files", "_html", "symbolic", "types", "tensor", "arithmetic", "target",
        "op", "ir", "boundary", "passes", "interpret", "pattern", "lowering", "transform",
        "scheduling", "codegen", "frontend", "script", "runtime", "vm", "engines", "devices",
        "stages", "build", "decoding", "saved", "exporting", "executors", "picture", "tuning",
        "__init__",
    ),
    "datatypes": (
        "formats", "arithmetic", "c_libraries", "registry", "lowering", "kernels", "builtin",
        "vector", "custom", "retype", "proof", "hardware", "__init__",
    ),
    "quantize": (
        "formats", "config", "plan", "annotation", "realization", "trainable", "calibration",
        "reference", "search", "workflow", "onnx", "torch", "__init__",
    ),
    "experiments": (
        "files", "feeds", "user_code", "zoo", "data", "measure", "devices", "costs", "systems",
        "gaps", "torch_backend", "generation", "results", "layers", "spec", "page", "running",
        "cheapest", "training", "__init__", "examples", "benchmarks", "cli",
    ),
}  # fmt: skip
"""Folders and files of a package, bottom to top. A file imports from its own room and from those
before it, at load time, lazily, for types, or by a module's name in a string. `__init__`: the
public names."""
QUOTED = re.compile(r"""["']([a-z_]\w*(?:\.\w+)+)(?::[^"'\s]*)?["']""")
EXCEPTIONS = {
    ("compiler.runtime.executable", "compiler.saved.executables"): (
        "Executable.save: what a user has in hand is what is saved; `saved` makes it of files again"
    ),
}
"""(importer, imported) -> why it may."""


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, those in functions and for types included."""
    found: list[ast.Import | ast.ImportFrom] = []
    left: list[ast.AST] = [tree(path)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            left += inner if isinstance(inner, list) else ()  # of a lambda: an expression
    return found


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif node.module and not node.level:
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


def modules_of(package: Path) -> dict[str, Path]:
    """The modules of a package, by name."""
    names = {
        f: ".".join(f.relative_to(package.parent).with_suffix("").parts)
        for f in package.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): f for f, name in names.items()}


def named(path: Path, module: str, modules: Collection[str]) -> Iterator[str]:
    """Those of `modules` that a file imports, anywhere in it and in any way, or names in a
    string."""
    above = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
            continue
        start = above[: len(above) + 1 - node.level] if node.level else []
        base = ".".join([*start, *([node.module] if node.module else [])])
        inner = (f"{base}.{alias.name}" for alias in node.names)
        yield from (m for name in inner if (m := name if name in modules else base) in modules)
    yield from (name for name in QUOTED.findall(path.read_text()) if name in modules)


def room_of(module: str) -> str:
    """The room that a module of a package is in, or is."""
    return [*module.split("."), "__init__"][1]


def back_going(package: Path, rooms: Sequence[str]) -> set[tuple[str, str]]:
    """(importer, imported) of a package's imports that go up the list of its rooms."""
    rank, modules = {room: k for k, room in enumerate(rooms)}, modules_of(package)
    return {
        (module, other)
        for module, f in modules.items()
        for other in named(f, module, modules)
        if rank[room_of(other)] > rank[room_of(module)]
    }


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_in_the_list(package: str) -> None:
    there = {room_of(name) for name in modules_of(ROOT / package)}
    assert sorted(ROOMS[package]) == sorted(there)


@pytest.mark.parametrize("package", ROOMS)
def test_imports_go_down_the_rooms(package: str) -> None:
    excepted = {pair for pair in EXCEPTIONS if pair[0].startswith(f"{package}.")}
    assert back_going(ROOT / package, ROOMS[package]) == excepted
    assert len(EXCEPTIONS) <= 3


@pytest.mark.parametrize(
    "statement",
    [
        "from pkg.high import f",
        "from pkg.high.part import f",
        "from pkg import high",
        "import pkg.high.part",
        "from ..high import f",
        "from ..high.part import f",
        "from .. import high",
        "def g() -> None:\n    from pkg.high.part import f",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.high import f",
        "import importlib\nf = importlib.import_module('pkg.high.part').f",
        "import pkgutil\nf = pkgutil.resolve_name('pkg.high.part:f')",
        "import pkgutil\ndef g(name: str) -> None:\n    pkgutil.resolve_name(f'pkg.high:{name}')",
        "from pkg import f",
    ],
)
def test_an_import_that_goes_up_is_found(statement: str, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    for room in ("low", "high"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    (package / "__init__.py").write_text("from pkg.high.part import f\n")
    (package / "high" / "part.py").write_text("from pkg.low.part import g\n")
    (package / "low" / "part.py").touch()
    assert not back_going(package, ("low", "high", "__init__"))
    (package / "low" / "other.py").write_text(f"{statement}\n")
    ((importer, imported),) = back_going(package, ("low", "high", "__init__"))
    assert importer == "pkg.low.other"
    assert room_of(imported) in ("high", "__init__")


def opening(package: str) -> str:
    """A package's README up to its second heading."""
    return (ROOT / package / "README.md").read_text().partition("\n## ")[0]


@pytest.mark.parametrize("package", ROOMS)
def test_readme_opens_with_the_rooms(package: str) -> None:
    listed = re.findall(r"^    (\w+)(/|\.py) +\S", opening(package), re.MULTILINE)
    assert [name for name, _ in listed] == [r for r in ROOMS[package] if r != "__init__"]
    for name, end in listed:
        assert (ROOT / package / f"{name}{end}").exists()


@pytest.mark.parametrize("package", ROOMS)
def test_readme_shows_the_way_through_the_rooms(package: str) -> None:
    stops = re.findall(r"\[([^]]+)\]\(([^)]+)\)", opening(package))
    assert len(stops) > 10
    for shown, link in stops:
        assert shown == link
        assert (ROOT / package / link).is_file(), link
    visited = {link.partition("/")[0].removesuffix(".py") for _, link in stops}
    assert len(visited) >= len(ROOMS[package]) // 2


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
    assert {f.relative_to(ROOT / "compiler").parts[0] for f in users} == {"frontend"}


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
