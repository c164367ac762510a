"""Builds many modules for the C backend with one call of the C compiler."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.codegen.backend import Code
from compiler.codegen.c.backend import C, CBackend
from compiler.codegen.kernel_abi import Stage
from compiler.codegen.parallel_tasks import parallel_tasks
from compiler.codegen.steps import ZERO, Pointer, Step
from compiler.ir.expr import IRModule
from compiler.runtime.beside import Beside
from compiler.runtime.executable import GraphExecutable, Sized
from compiler.runtime.loader import register_target_kind, remove_target_kind
from compiler.runtime.program import Program
from compiler.runtime.shared_library import address, opened
from compiler.symbolic import Var
from compiler.target.registry import Target, TargetKind
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import Array

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler is installed"
)


class _Parts(CBackend):
    """Leaves the parts of programs for one source file."""

    def joined(self, codes: Sequence[Code]) -> Code:
        return Code(tuple(s for c in codes for s in c.symbols), "\0".join(c.text for c in codes))

    def object(self, code: Code, target: Target) -> bytes:
        return b""


class Together:
    """Programs that are compiled when `compile` is called; until then they cannot run."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self._library: ctypes.CDLL | None = None

    def prepare(self, threads: int, beside: Beside) -> None:
        """See Loader."""

    def link(self, code: bytes, symbols: Sequence[str], target: Target) -> None:
        """See Loader."""

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        """See Loader."""
        self.programs.append(program)
        return GraphExecutable(program, 0, sized)

    def compile(self) -> None:
        """Compile all of them as one source file."""
        texts = dict.fromkeys(t for p in self.programs for t in p.entry.text.split("\0"))
        whole = C.joined([Code((self.programs[-1].symbol,), t) for t in texts])
        self._library = opened(C.object(whole, Target.parse("c")))

    def compiled(self, exe: compiler.Executable) -> GraphExecutable:
        """One of the programs, ready to run."""
        assert self._library is not None
        assert isinstance(exe, GraphExecutable)
        return GraphExecutable(exe.program, address(self._library, exe.program.symbol))


@contextmanager
def together() -> Iterator[Together]:
    """Within, target `parts` builds what `compile` compiles at once."""
    made, backend = Together(), _Parts()
    register_target_kind(TargetKind("parts"), lambda: backend, lambda: made)
    try:
        yield made
    finally:
        remove_target_kind("parts")


def same_bits(a: Array, b: Array) -> bool:
    """Whether arrays hold the same bits, but that any NaN is like any other."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    kind = f"u{a.dtype.itemsize}"
    return bool(((a.view(kind) == b.view(kind)) | (np.isnan(a) & np.isnan(b))).all())


Run = tuple[str, IRModule, Sequence[Array]]
"""A module by name, and its operands."""


def check_same(runs: Sequence[Run]) -> None:
    """Build modules for both backends: they give the same bits."""
    with together() as made:
        pairs = [(compiler.build(m, target="parts"), compiler.build(m)) for _, m, _ in runs]
        made.compile()
        for (name, _, args), (c, llvm) in zip(runs, pairs, strict=True):
            got, want = (listed(exe(*args)) for exe in (made.compiled(c), llvm))
            assert all(same_bits(a, b) for a, b in zip(got, want, strict=True)), name


def listed(results: Any) -> list[Array]:
    """The results of a call, be they one or several."""
    return results if isinstance(results, list) else [results]


def run_kernel(
    func: PrimFunc, arrays: Sequence[Array], dims: Mapping[Var, int] | None = None, parts: int = 1
) -> None:
    """Run the C functions of a PrimFunc on its parameters; parallel loops in some parts, the last
    one first."""
    env = dict(dims or {})
    temps = [np.zeros(int(b.size.value(env)) * b.dtype.nbytes + 512, np.uint8) for b in func.temps]
    pointers = tuple(Pointer("output", k) for k in range(len(arrays) + len(temps)))
    code = C.kernel(func, [], Target.parse("c"))
    steps = []
    for symbol, s in zip(code.symbols, func.body, strict=True):
        extent = parallel_tasks(s)[0]
        steps.append(Step(Stage(symbol, extent, ZERO), pointers, tuple(func.dims)))
    entry = C.entry(steps, func.dims, 1, Target.parse("c"))
    text = re.sub(
        r"^  (\w+_\d+\(.*), 0, (.*)\);$", partial(_in_parts, parts), entry.text, flags=re.M
    )
    library = opened(C.object(C.joined([code, Code(entry.symbols, text)]), Target.parse("c")))
    table = (ctypes.c_void_p * len(pointers))(*(a.ctypes.data for a in (*arrays, *temps)))
    sizes = (ctypes.c_int64 * max(1, len(env)))(*(env[v] for v in func.dims))
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(address(library, entry.symbols[0]))
    run(None, ctypes.addressof(table), None, None, ctypes.addressof(sizes))


def _in_parts(parts: int, call: re.Match[str]) -> str:
    ends = [f"({call[2]}) * {k} / {parts}" for k in range(parts + 1)]
    calls = [f"  {call[1]}, {ends[k]}, {ends[k + 1]});" for k in reversed(range(parts))]
    return "\n".join(calls)
