"""Adapters: a user's Python files that bring models, data sets and metrics into a specification.

A specification names a function as FILE.py:FUNCTION, or lists files under `adapters`, which call
`experiments.register_model`, `register_dataset` and `register_metric`. The text of a file travels
with the cells, so that worker processes and other machines run the same one; modules that it
imports from its own folder do not, but count where files are told apart.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.errors import ConfigError
from compiler.files.reading import read_text

from . import activity

#: The packages of this program, which a folder may hold too.
OURS = frozenset({"compiler", "quantize", "datatypes", "experiments"})


@dataclass(frozen=True)
class Adapter:
    """A file's path, as specifications name it, its text, and the modules beside it that it
    imports, directly or not: (path from the folder, SHA-256)."""

    path: str
    text: str
    modules: tuple[tuple[str, str], ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 of the text, and of the modules where there are any."""
        beside = "".join(f"\0{name}\0{key}" for name, key in self.modules)
        return _sha256(self.text + beside)

    @classmethod
    def read(cls, path: str | Path) -> Adapter:
        """The file at `path`.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            text = read_text(path, "adapter")
            found = _modules(text, Path(path).parent)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read adapter {path}: {error}") from error
        return cls(str(path), text, tuple(sorted((n, _sha256(t)) for n, t in found.items())))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _modules(text: str, folder: Path) -> dict[str, str]:
    """The modules in `folder` that a source imports, directly or not: path from there -> text."""
    found: dict[str, str] = {}
    waiting = [(text, folder)]
    while waiting:
        source, here = waiting.pop()
        bases = [here, *(p for p in here.parents if p.is_relative_to(folder))]
        for module in _imported(source):
            parts = module.split(".")
            names = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
            files = [b / f for b in bases for n in names for f in (f"{n}.py", f"{n}/__init__.py")]
            for file in files:
                name = file.relative_to(folder).as_posix()
                if name not in found and os.path.isfile(file):
                    found[name] = file.read_text(encoding="utf-8")
                    waiting.append((found[name], file.parent))
    return found


def _imported(source: str) -> Iterator[str]:
    """Dotted names that a source may import; of `from a import b`, both a and a.b."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # running it will say so
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            names = [node.module or "", *(base + alias.name for alias in node.names)]
        yield from (n for n in names if n and n.partition(".")[0] not in OURS)


_run: dict[str, tuple[Adapter, dict[str, Any]]] = {}


def install(adapter: Adapter) -> dict[str, Any]:
    """Run the adapter, unless it has run as it is now; its names.

    Raises:
        ConfigError: it raises an exception.
    """
    known = _run.get(adapter.path)
    if known is not None and known[0] == adapter:
        return known[1]
    names: dict[str, Any] = {"__name__": Path(adapter.path).stem, "__file__": adapter.path}
    _forget_modules(adapter)
    try:
        with activity.at(f"adapter {adapter.path}"):
            exec(compile(adapter.text, adapter.path, "exec"), names)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"adapter {adapter.path} failed: {activity.in_words(error)}") from error
    _run[adapter.path] = (adapter, names)
    return names


def _forget_modules(adapter: Adapter) -> None:
    """Let the adapter's modules be imported as they are now, not as an earlier run found them."""
    folder = Path(adapter.path).resolve().parent
    files = {str(folder / name) for name, _ in adapter.modules}
    bases = {os.path.basename(file) for file in files}
    for name, module in list(sys.modules.items()) if files else ():
        file = getattr(module, "__file__", None)
        if file is None or os.path.basename(file) not in bases:
            continue
        if str(Path(file).resolve()) in files:
            for inner in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
                del sys.modules[inner]


def sha256_of(names: Mapping[str, Any]) -> str | None:
    """That of the adapter whose functions have `names` as their globals, or of the module beside
    one; None of what belongs to no adapter."""
    file = names.get("__file__")
    for adapter, run in _run.values():
        if run is names:
            return adapter.sha256
        if file is not None and adapter.modules:
            folder = Path(adapter.path).resolve().parent
            for name, _ in adapter.modules:
                if str(folder / name) == str(Path(file).resolve()):
                    return adapter.sha256
    return None


def files_of(*names: str) -> list[str]:
    """The files of those of the names that are written FILE.py:FUNCTION."""
    return [name.rpartition(":")[0] for name in names if is_reference(name)]


def is_reference(name: str) -> bool:
    """Whether `name` is written FILE.py:FUNCTION."""
    file, colon, _ = name.rpartition(":")
    return bool(colon) and file.endswith(".py")


def refresh(name: str) -> None:
    """Run the file of FILE.py:FUNCTION as it is now, unless it has run so.

    Raises:
        ConfigError: it cannot be read, or raises an exception.
    """
    install(Adapter.read(name.rpartition(":")[0]))


def has_run(path: str) -> bool:
    """Whether the file of this path has run in this process, as it is now."""
    try:
        return path in _run and _run[path][0] == Adapter.read(path)
    except ConfigError:
        return False


def current(path: str) -> Adapter:
    """The adapter of this path: the one that has run, or the file.

    Raises:
        ConfigError: it cannot be read.
    """
    return _run[path][0] if path in _run else Adapter.read(path)


def adapter_of(name: str) -> Adapter:
    """The adapter that FILE.py:FUNCTION names; see `current`."""
    return current(name.rpartition(":")[0])


def function(name: str) -> Callable[..., Any]:
    """The function that FILE.py:FUNCTION names.

    Raises:
        ConfigError: the file cannot be read, fails, or has no such function.
    """
    adapter, wanted = adapter_of(name), name.rpartition(":")[2]
    found = install(adapter).get(wanted)
    if not callable(found):
        raise ConfigError(f"adapter {adapter.path} has no function {wanted!r}")
    called: Callable[..., Any] = found
    return called
