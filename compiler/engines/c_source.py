"""Engines that write C: a region becomes one source, which the system's compiler compiles.

The engine writes a function for each composite; what calls them in turn is written here:

    static void SYMBOL(void *const *v, const int64_t *const *s)

`v` holds the addresses of the composite's parameters, of the constants in it, and of its results,
`s` those of their shapes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import numpy as np

from compiler.boundary.shapes import bind_dims, sizes
from compiler.codegen.c import system_compiler
from compiler.engines.engine import Engine, Runner
from compiler.engines.sequence import constants_of, found_of, parts
from compiler.errors import LoweringError, UnsupportedError
from compiler.ir.expr import Atom, Call, Constant, Function, tensor_type
from compiler.ir.regions import composite_of
from compiler.pattern.search import Found
from compiler.pattern.tables import CompositePattern
from compiler.runtime.shared_library import opened
from compiler.symbolic import Var as Dim
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

Write = Callable[[Found, Function, str], str]
"""The C text of the function of a composite: of what its pattern's names stand for in it, its
function, and the symbol that the text defines."""

HEADER = """#include <math.h>
#include <stdint.h>
#include <string.h>
"""


def c_engine(
    name: str, patterns: Sequence[CompositePattern], write: Write, header: str = "", doc: str = ""
) -> Engine:
    """An engine that writes C for the composites of its patterns, after its own `header` (not
    registered yet)."""
    table = tuple(patterns)

    def compile_(f: Function, region: str) -> Runner:
        return _Region(f, region, table, write, header).runner()

    return Engine(name, table, compile_, _no_compiler, doc)


def _no_compiler() -> str:
    try:
        system_compiler.command()
    except LoweringError:
        return "it needs a C compiler: install gcc or clang, or set CC"
    return ""


class _Region:
    """The values of a region, which get numbers, and its source."""

    def __init__(
        self, f: Function, name: str, table: Sequence[CompositePattern], write: Write, header: str
    ):
        self.f, self.name = f, name
        self.number: dict[int, int] = {}
        self.values: list[Atom] = []
        texts, calls = [HEADER, header], []
        for p in f.params:
            self._at(p)
        made = parts(f)
        if len(made) < len(f.bindings):
            raise UnsupportedError("a composite gives a tuple, which C sources do not have")
        for k, b in enumerate(made):
            c = composite_of(b.value)
            assert c is not None
            assert isinstance(b.value, Call)
            symbol = f"{name}_{k}"
            texts.append(write(found_of(table, c), c, symbol))
            atoms: list[Atom] = [*b.value.args, *constants_of(c), b.var]
            calls.append(f"  {symbol}({self._table(atoms, 'v')}, {self._table(atoms, 's', True)});")
        head = f"void {name}(void *const *v, const int64_t *const *s) {{"
        self.source = "\n".join([*texts, head, *calls, "}", ""])

    def _at(self, a: Atom) -> int:
        key = id(a.data) if isinstance(a, Constant) else id(a)
        if key not in self.number:
            self.number[key] = len(self.values)
            self.values.append(a)
        return self.number[key]

    def _table(self, atoms: Sequence[Atom], of: str, shape: bool = False) -> str:
        kind = "const int64_t *" if shape else "void *"
        return f"({kind}const[]){{{', '.join(f'{of}[{self._at(a)}]' for a in atoms)}}}"

    def runner(self) -> Runner:
        """What runs the compiled source, on memory that each call takes for values between."""
        library = _library(self.source)
        entry = getattr(library, self.name)
        entry.restype = None
        f, types = self.f, [tensor_type(a) for a in self.values]
        held = {k: np.ascontiguousarray(a.data) for k, a in self._constants()}
        filled = {id(r): k for k, r in enumerate(f.results)}

        def run(*arrays: Array) -> None:
            dims: dict[Dim, int] = {}
            for p, a in zip(f.params, arrays, strict=False):
                bind_dims(tensor_type(p), a, dims, f"%{p.name}")
            results = arrays[len(f.params) :]
            every: list[Array] = []
            for k, (atom, t) in enumerate(zip(self.values, types, strict=True)):
                if k < len(f.params):
                    every.append(arrays[k])
                elif k in held:
                    every.append(held[k])
                elif id(atom) in filled:
                    every.append(results[filled[id(atom)]])
                else:
                    every.append(np.empty(sizes(t, dims), t.dtype.storage))
            shapes = [(ctypes.c_int64 * max(1, a.ndim))(*a.shape) for a in every]
            entry(
                (ctypes.c_void_p * len(every))(*(a.ctypes.data for a in every)),
                (ctypes.c_void_p * len(every))(*map(ctypes.addressof, shapes)),
            )

        return run

    def _constants(self) -> list[tuple[int, Constant]]:
        return [(k, a) for k, a in enumerate(self.values) if isinstance(a, Constant)]


@functools.lru_cache(maxsize=64)
def _library(source: str) -> ctypes.CDLL:
    return opened(b"\n" + system_compiler.shared_library(source))


def c_type(t: TensorType) -> str:
    """The C type of a tensor's elements.

    Raises:
        UnsupportedError: there is none.
    """
    storage = t.dtype.storage
    if storage.kind == "f" and storage.itemsize in (4, 8):
        return "float" if storage.itemsize == 4 else "double"
    if storage.kind in "iub":
        return f"{'int' if storage.kind == 'i' else 'uint'}{8 * storage.itemsize}_t"
    raise UnsupportedError(f"C has no elements of {t.dtype}")
