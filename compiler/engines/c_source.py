"""Engines that write C: a region becomes one source, which the system's compiler compiles.

The engine writes a function for each composite; what calls them in turn is written here:

    static void SYMBOL(void *const *v, const int64_t *const *s)

`v` holds the addresses of the composite's parameters, of the constants in it, and of its results,
`s` those of their shapes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
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
        return SourceRunner(f, region, _written(f, region, table, write, header))

    return Engine(name, table, compile_, _no_compiler, doc, on_caller=True)


def _no_compiler() -> str:
    try:
        system_compiler.command()
    except LoweringError:
        return "it needs a C compiler: install gcc or clang, or set CC"
    return ""


class _Values:
    """The values of a region, which have numbers in what calls its composites.

    Attributes:
        every: in the order of their numbers.
        calls: composite -> what it reads and gives.
        results: numbers of what the region gives.
    """

    def __init__(self, f: Function):
        self.every: list[Atom] = []
        self.calls: list[tuple[Function, list[Atom]]] = []
        self._number: dict[object, int] = {}
        for p in f.params:
            self.at(p)
        made = parts(f)
        if len(made) < len(f.bindings):
            raise UnsupportedError("a composite gives a tuple, which C sources do not have")
        for b in made:
            c = composite_of(b.value)
            assert c is not None
            assert isinstance(b.value, Call)
            atoms: list[Atom] = [*b.value.args, *constants_of(c), b.var]
            self.calls.append((c, atoms))
            for a in atoms:
                self.at(a)
        self.results = [self.at(r) for r in f.results]

    def at(self, a: Atom) -> int:
        """The number of a value; constants are one if they hold the same."""
        key = (a.dtype, a.data.shape, _digest(a.data)) if isinstance(a, Constant) else a
        if key not in self._number:
            self._number[key] = len(self.every)
            self.every.append(a)
        return self._number[key]


def _digest(a: Array) -> bytes:
    return hashlib.sha256(a.tobytes()).digest()


def _written(
    f: Function, name: str, table: Sequence[CompositePattern], write: Write, header: str
) -> str:
    """The source of a region."""
    values = _Values(f)

    def listed(atoms: Sequence[Atom], of: str, kind: str) -> str:
        return f"({kind}const[]){{{', '.join(f'{of}[{values.at(a)}]' for a in atoms)}}}"

    texts, calls = [HEADER, header], []
    for k, (c, atoms) in enumerate(values.calls):
        symbol = f"{name}_{k}"
        texts.append(write(found_of(table, c), c, symbol))
        given = f"{listed(atoms, 'v', 'void *')}, {listed(atoms, 's', 'const int64_t *')}"
        calls.append(f"  {symbol}({given});")
    head = f"void {name}(void *const *v, const int64_t *const *s) {{"
    return "\n".join([*texts, head, *calls, "}", ""])


class SourceRunner:
    """Runs the compiled source of a region, on memory that each call takes for values between.

    Attributes:
        source: in C, of what `c_engine` made of the same function.
    """

    def __init__(self, f: Function, name: str, source: str):
        self.source = source
        self._entry = getattr(_library(source), name)
        self._entry.restype = None
        self._f, values = f, _Values(f)
        self._types = [tensor_type(a) for a in values.every]
        self._held = {
            k: np.ascontiguousarray(a.data)
            for k, a in enumerate(values.every)
            if isinstance(a, Constant)
        }
        self._results = values.results
        self._filled = {n: k for k, n in enumerate(values.results)}

    def __call__(self, *arrays: Array) -> None:
        """See `compiler.engines.engine.Runner`."""
        f, dims = self._f, dict[Dim, int]()
        for p, a in zip(f.params, arrays, strict=False):
            bind_dims(tensor_type(p), a, dims, f"%{p.name}")
        results = arrays[len(f.params) :]
        every: list[Array] = []
        for k, t in enumerate(self._types):
            if k < len(f.params):
                every.append(arrays[k])
            elif k in self._held:
                every.append(self._held[k])
            elif k in self._filled:
                every.append(results[self._filled[k]])
            else:
                every.append(np.empty(sizes(t, dims), t.dtype.storage))
        shapes = [(ctypes.c_int64 * max(1, a.ndim))(*a.shape) for a in every]
        self._entry(
            (ctypes.c_void_p * len(every))(*(a.ctypes.data for a in every)),
            (ctypes.c_void_p * len(every))(*map(ctypes.addressof, shapes)),
        )
        for n, to in zip(self._results, results, strict=True):
            if every[n] is not to:  # given as it came, or given twice
                np.copyto(to, every[n])


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
