"""Regions of engines in files of executables: as text, of which the engine makes them again; and
the C of those that were written in C, which are read without their engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from compiler.boundary.external import External
from compiler.engines.c_source import SourceRunner
from compiler.engines.linking import Runners, compile_region
from compiler.errors import DtypelabError, ModelError
from compiler.ir.expr import IRModule
from compiler.ir.parser import parse
from compiler.ir.regions import Decision, Region, regions
from compiler.pattern.tables import known_engines
from compiler.runtime.executable import Executable
from compiler.saved.file import Reader, Writer
from compiler.target.registry import Target, host


def code_target(exe: Executable) -> Target:
    """What the code of an executable is for: beside an accelerator, this machine."""
    return exe.target if exe.target.design is None else host()


def written(exe: Executable, writer: Writer) -> dict[str, Any]:
    """What a manifest says of the regions of an executable, and of what engines were handed as it
    was imported."""
    said = {
        "accelerator": exe.target.text if exe.target.design is not None else "",
        "imported": [_row(r) for r in exe.imported],
        "decisions": [d.row() for d in exe.decisions],
    }
    if not isinstance(exe.runners, Runners) or not exe.regions:
        return said
    held = exe.runners
    text = IRModule(held.functions).astext(show_meta_data=True).encode()
    sources = {
        name: writer.add("text", runner.source.encode())
        for name, runner in held.made.items()
        if isinstance(runner, SourceRunner)
    }
    functions = [writer.add("region", text), len(text)]
    return {**said, "regions": {"functions": functions, "names": held.names, "sources": sources}}


def _row(r: Region) -> list[Any]:
    return [r.name, r.engine, list(r.nodes)]


@dataclass(frozen=True)
class Found:
    """The regions of a file, whose runners are registered.

    Attributes:
        target: what the executable says it is for, if that is an accelerator.
        names: what a runner was registered as -> what it is now.
        runners: what keeps them registered.
        regions, imported, decisions: as an executable has them.
    """

    target: Target | None
    names: Mapping[str, str]
    runners: Runners
    regions: tuple[Region, ...]
    imported: tuple[Region, ...]
    decisions: tuple[Decision, ...]

    def renamed(self, e: External) -> External:
        """A call of a registered function, which may be a runner."""
        return replace(e, name=self.names.get(e.name, e.name))

    def tell(self, exe: Executable) -> None:
        """Let an executable say what is known of its regions."""
        exe.regions, exe.imported, exe.decisions = self.regions, self.imported, self.decisions
        exe.runners = self.runners
        exe.target = self.target or exe.target


def read(reader: Reader) -> Found:
    """The regions of a file, as their engines make them now.

    Raises:
        ModelError: an engine is not registered here; names it.
        UnsupportedError: what an engine needs is not installed, or it does not make a region.
        ValueError: this is not what `written` makes.
    """
    m, runners = reader.manifest, Runners()
    target = _accelerator(str(m["accelerator"])) if m["accelerator"] else None
    imported = tuple(Region(str(n), str(e), tuple(map(str, some))) for n, e, some in m["imported"])
    decisions = tuple(map(Decision.of, m["decisions"]))
    if "regions" not in m:
        return Found(target, {}, runners, (), imported, decisions)
    held = m["regions"]
    mod = _parsed(reader.content(*held["functions"]).decode())
    found, names = regions(mod), {}
    with _designed(target):
        for r in found:
            f = mod[r.name]
            if r.name in held["sources"]:
                source = reader.content(held["sources"][r.name]).decode()
                runners.add(r, f, SourceRunner(f, r.name, source))
            else:
                _known(reader.path, r)
                runners.add(r, f, compile_region(mod, r, f))
            names[str(held["names"][r.name])] = runners.names[r.name]
    return Found(target, names, runners, found, imported, decisions)


def _accelerator(text: str) -> Target:
    try:
        target = Target.parse(text)
    except DtypelabError as e:
        raise ValueError(str(e)) from None
    if target.design is None:
        raise ValueError(f"{text!r} is no accelerator")
    return target


def _parsed(text: str) -> IRModule:
    try:
        return parse(text)
    except DtypelabError as e:
        raise ValueError(f"its regions: {e}") from None


def _known(path: str, r: Region) -> None:
    if r.engine not in known_engines():
        raise ModelError(
            f"{path} holds region @{r.name} of engine {r.engine!r}, which is not registered here: "
            "register it (compiler.register_engine) before this is loaded"
        )


@contextmanager
def _designed(target: Target | None) -> Iterator[None]:
    if target is None or target.design is None:
        yield
        return
    from compiler.engines.accelerator import designed

    with designed(target.design):
        yield
