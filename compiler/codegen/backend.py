"""What generates code: one backend a kind of target, which turns loop nests, and the steps of an
entry point, into text of its language, and text into object code.

A backend knows nothing of graphs, and runs nothing: that is what a loader does
(`compiler.runtime.loader`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.codegen.standalone import Standalone
from compiler.codegen.steps import Step
from compiler.errors import LoweringError
from compiler.symbolic import Var
from compiler.target import cuda
from compiler.target.accelerator import KIND
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.tensor.stmt import For, PrimFunc, Sync, family, walk_stmts


@dataclass(frozen=True)
class Code:
    """Functions in a backend's language; `symbols` are those that others may call, in order.
    `plain`: it only calls other code, so that optimizing it is not worth the time."""

    symbols: tuple[str, ...]
    text: str
    plain: bool = False


class Backend(Protocol):
    """A code generator.

    Attributes:
        language: what intrinsics' emitters are registered under (`Intrinsic.emitter`).
        separate: whether each kernel is compiled by itself, while others are still lowered, and
            linked by the loader; else all code of a program is compiled as one (see `joined`).
    """

    language: str
    separate: bool

    def loops(self, func: PrimFunc) -> PrimFunc:
        """The loops that `kernel` writes for a scheduled loop nest: these, unless a grid of threads
        has to become loops."""

    def kernel(self, func: PrimFunc, tables: Sequence[Buffer], target: Target) -> Code:
        """One function for each top-level statement of a scheduled loop nest without custom dtypes:
        `func.name` with its number after it.

        Each is called with a pointer per parameter, temporary and table, an int64 per dimension,
        and, where the statement has parallel loops, the range [begin, end) of the tasks to do (see
        `compiler.codegen.parallel_tasks`).

        Raises:
            LoweringError: an expression or schedule that cannot be lowered.
        """

    def entry(
        self, steps: Sequence[Step], dims: Sequence[Var], threads: int, target: Target
    ) -> Code:
        """One function, `main_` and a digest, that does the steps in order.

        It is called with tables of the target's pointers to inputs, outputs and constants, the
        workspace, and a table of the symbolic dimensions as int64.
        """

    def joined(self, codes: Sequence[Code]) -> Code:
        """Several pieces as one, which declares once what they share."""

    def standalone(self, codes: Sequence[Code], alone: Standalone, target: Target) -> Code:
        """All code of a program, the entry point last, and its constants: what others link.

        Raises:
            LoweringError: it calls a function that is in no library every system has.
        """

    def relocatable(self, code: Code, target: Target) -> bytes:
        """An object file of code that stands alone, for a linker.

        Raises:
            LoweringError: the code is rejected.
        """

    def prepare(self, target: Target) -> None:
        """What `object` needs once a process, before threads call it."""

    def object(self, code: Code, target: Target) -> bytes:
        """Object code, for the loader of the same kind of target.

        Raises:
            LoweringError: the code is rejected.
        """

    def object_and_assembly(self, code: Code, target: Target) -> tuple[bytes, str]:
        """The same, and its assembly with comments on loops and spilled registers; empty where the
        backend knows none.

        Raises:
            LoweringError: the code is rejected.
        """

    def versions(self) -> tuple[str, ...]:
        """What object code depends on besides text, target, LLVM's version and this package's
        source files."""


def _llvm() -> Backend:
    from compiler.codegen.llvm.backend import LLVM

    return LLVM


def _c() -> Backend:
    from compiler.codegen.c.backend import C

    return C


def _ptx() -> Backend:
    from compiler.codegen.ptx.backend import PTX

    return PTX


def _simt() -> Backend:
    from compiler.codegen.simt.backend import SIMT

    return SIMT


BACKENDS: dict[str, Callable[[], Backend]] = {
    "llvm": _llvm, "c": _c, KIND: _llvm, cuda.KIND: _ptx, cuda.ON_LOOPS: _simt,
}  # fmt: skip
"""`Target.generator` -> what gives its backend, which is imported when it is first wanted."""


def backend_of(target: Target) -> Backend:
    """The backend of a target's kind."""
    return BACKENDS[target.generator]()


def refuse_libraries(symbols: Iterable[str]) -> None:
    """Refuse code that stands alone and calls others' functions.

    Raises:
        LoweringError: names the first one that is not in the mathematical library of C.
    """
    known = {f.c for f in FUNCTIONS.values()}
    for symbol in symbols:
        if symbol not in known and symbol.removesuffix("f") not in known:
            raise LoweringError(
                f"the C function {symbol} is in a library that code which stands alone cannot "
                'take along: lower the format that calls it to "vector" or "table" '
                "(dtype_lowering, --lowering)"
            )


def refuse_grid(f: PrimFunc, kind: str) -> None:
    """Refuse a program for a grid of threads, for a kind of target that has none.

    Raises:
        LoweringError: names the first loop or barrier of a grid.
    """
    has_none = f"targets of kind {kind!r} have no grid of threads"
    for s, _, _ in walk_stmts(f.body):
        if isinstance(s, For) and family(s):
            raise LoweringError(f"{f.name}: loop {s.var} is a {s.kind}, and {has_none}")
        if isinstance(s, Sync):
            raise LoweringError(f"{f.name} has a {type(s).__name__.lower()}, and {has_none}")
