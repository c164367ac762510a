"""Shared libraries that `compiler.export` wrote: what they say of themselves, and how they are
called from Python."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compiler.boundary.elements import Elements, elements_among
from compiler.boundary.index_ranges import IndexRange, ranges_among
from compiler.codegen.backend import Code
from compiler.errors import ModelError, UnsupportedError
from compiler.files.reading import ARRAYS, open_file
from compiler.runtime.executable import GraphExecutable
from compiler.runtime.program import Program
from compiler.saved.codec import decode, encode
from compiler.target.registry import Target

FORMAT = 3
"""Number of the layout of descriptions, and of how libraries are called."""
MAGIC = b"dtypelab library "
"""What descriptions begin with."""
ELF = b"\x7fELF"
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
_RUN_MAPPED = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)
"""Of libraries whose weights are in a file."""
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, IndexError)


@dataclass(frozen=True)
class Facts:
    """What a module declares of its inputs and outputs (see `Executable`)."""

    elements: Elements
    indices: tuple[IndexRange, ...]


def description(program: Program, name: str, weights: tuple[str, int] | None, facts: Facts) -> str:
    """What a library says of its program, in one line of ASCII; `weights`: the name of their file,
    if they are in one, and how many bytes that has."""
    p, t = program, program.target
    held = {
        "format": FORMAT,
        "name": name,
        "target": [t.text, t.triple, t.cpu, t.features if t.kind == "llvm" else ""],
        "needs": sorted(t.enabled) if t.kind == "llvm" else [],
        "weights": weights,
        "elements": [facts.elements.inputs, facts.elements.outputs],
        "indices": [r.row() for r in facts.indices],
        "plan": encode((p.inputs, p.outputs, p.dims, p.workspace, p.sizes, p.assumed, p.lowerings)),
    }
    return MAGIC.decode() + json.dumps(held, separators=(",", ":"))


class LibraryExecutable(GraphExecutable):
    """The program of a shared library; called as what `compiler.build` makes."""

    @property
    def source(self) -> str:
        """See Executable.

        Raises:
            UnsupportedError: a library does not hold it.
        """
        raise UnsupportedError("a shared library does not hold the source of its program")

    def as_text(self) -> str:
        """See Executable; raises as `source`."""
        return self.source

    def stats(self) -> str:
        """What it is, and the memory plan's size."""
        return f"shared library for {self.target}\n  {self.signature()}"


def is_library(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as shared libraries do."""
    try:
        with open_file(path, "the executable", ModelError, ARRAYS) as file:
            return bytes(file.read(len(ELF))) == ELF
    except OSError:
        return False


def load_library(path: str | os.PathLike[str]) -> LibraryExecutable:
    """The program of a shared library that `compiler.export` wrote; nothing is compiled.

    It holds machine code: load only what you would also run. What it says of itself is read, and
    must fit this machine, before anything in it runs.

    Raises:
        ModelError: it is no such library, is of another version or for another CPU, or its weights
            are not beside it.
    """
    found = described(path, Target.parse("llvm"))
    program, facts = found.program, found.facts
    weights = _weights(Path(path), *found.weights) if found.weights else None
    kind = _RUN if weights is None else _RUN_MAPPED
    try:
        run = kind((program.entry.symbols[0], _opened(Path(path))))
    except (OSError, AttributeError) as error:
        raise ModelError(f"{os.fspath(path)} cannot be loaded: {error}") from None

    def entry(given: int, made: int, constants: int, arena: int, sizes: int) -> None:
        run(given, made, sizes, *(() if weights is None else (weights.ctypes.data,)), arena)

    exe = LibraryExecutable(program, entry)
    exe.elements, exe.indices = facts.elements, facts.indices
    return exe


@dataclass(frozen=True)
class Described:
    """What a library, or an object file, says of itself.

    Attributes:
        program: its inputs, outputs and sizes; no code, but the name of what is called.
        facts: what the module declared.
        weights: the name of the file of weights beside it, and its size; None: there is none.
    """

    program: Program
    facts: Facts
    weights: tuple[str, int] | None


def described(path: str | os.PathLike[str], machine: Target) -> Described:
    """What a library or an object file says of itself; nothing of it runs.

    Args:
        path: the file.
        machine: what it must be for: the CPU that will run it.

    Raises:
        ModelError: it says nothing, is of another version or for another CPU.
    """
    name = os.fspath(path)
    try:
        held = json.loads(_description(Path(path)))
        if held["format"] != FORMAT:
            raise ModelError(f"{name} is of another version of dtypelab: export the model again")
        target = _target(name, held, machine)
        inputs, outputs, dims, workspace, sizes, assumed, lowerings = decode(held["plan"])
        types = [[t for _, t in part] for part in (inputs, outputs)]
        file = (str(held["weights"][0]), int(held["weights"][1])) if held["weights"] else None
        given, made = (list(map(str, part)) for part in held["elements"])
        facts = Facts(
            elements_among(given, made, *types), ranges_among(held["indices"], dict(inputs))
        )
    except _DAMAGE:
        raise ModelError(
            f"{name} is no library that compiler.export has written, or is damaged: export the "
            "model again"
        ) from None
    program = Program(
        target, 1, inputs, outputs, (), (), dims, workspace,
        Code((f"{held['name']}_run",), ""), b"", (), sizes=sizes, assumed=assumed,
        lowerings=lowerings,
    )  # fmt: skip
    return Described(program, facts, file)


def _description(path: Path) -> str:
    """What a library says, found in the file: nothing of it runs."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            at = held.find(MAGIC)
            end = held.find(b"\0", at) if at >= 0 else -1
            return held[at + len(MAGIC) : end].decode("ascii") if end >= 0 else ""
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None


def _opened(path: Path) -> ctypes.CDLL:
    """A library, by a name that none was opened by: of a name that it knows, the system gives what
    was in the file then."""
    with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
        link = Path(folder, path.name)
        link.symlink_to(path.resolve())
        return ctypes.CDLL(str(link))


def _target(name: str, held: Mapping[str, Any], machine: Target) -> Target:
    text, triple, cpu, features = map(str, held["target"])
    needs = frozenset(map(str, held["needs"]))
    missing = sorted(needs - machine.enabled)
    if triple != machine.triple or missing:
        lacks = f"needs {', '.join(missing)}" if missing else f"is for {triple}"
        raise ModelError(f"{name} is for another CPU ({lacks}): export the model for this one")
    return Target(text, triple, cpu, features, needs, machine.runner)


def _weights(path: Path, file: str, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The file of weights beside a library, mapped."""
    there = path.parent / Path(file).name
    try:
        held = there.stat().st_size
        if held != size:
            raise ModelError(
                f"{path} needs {size:,} bytes of weights, but {there} has {held:,}: export the "
                "model again"
            )
        return np.memmap(there, np.uint8, "r") if size else np.zeros(0, np.uint8)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} needs its weights in {there}, which do not open: {error}"
        ) from None
