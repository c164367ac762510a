"""What runs code: one loader a kind of target, which makes programs executables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from compiler.codegen.backend import BACKENDS, Backend, Code
from compiler.target import cuda
from compiler.target.accelerator import KIND
from compiler.target.registry import Target, TargetKind, add_kind, remove_kind

if TYPE_CHECKING:
    from compiler.runtime.beside import Beside
    from compiler.runtime.executable import GraphExecutable, Sized
    from compiler.runtime.program import Program


class Loader(Protocol):
    """Takes object code of one backend to where it runs."""

    def prepare(self, threads: int, beside: Beside) -> None:
        """Have what programs with so many threads need compiled beside a build, if that must be."""

    def link(self, code: bytes, symbols: Sequence[str], target: Target) -> None:
        """Make the functions `symbols` in object code callable by code that is linked later. What
        is there already stays. Loaders of backends that compile whole programs do nothing.

        Raises:
            LoweringError: a C function that the code calls cannot be found.
        """

    def address(self, symbol: str, target: Target) -> int:
        """Where a linked function is, for calls from this process.

        Raises:
            UnsupportedError: functions of such targets cannot be called one by one.
        """

    def compiled(self, code: Code, target: Target) -> int:
        """Where the one function of `code` is, which is compiled and linked if it was not yet, for
        calls from this process.

        Raises:
            LoweringError: the code is rejected, or a C function that it calls cannot be found.
            UnsupportedError: functions of such targets cannot be called one by one.
        """

    def load(self, program: Program, sized: Sized | None = None) -> GraphExecutable:
        """The program, ready to run. `sized` compiles it for given sizes alone, where there may be
        no elements.

        Raises:
            LoweringError: a C function that the code calls cannot be found.
        """


def _host() -> Loader:
    from compiler.runtime.host import HOST

    return HOST


def _library() -> Loader:
    from compiler.runtime.shared_library import LIBRARY

    return LIBRARY


def _elsewhere() -> Loader:
    from compiler.runtime.elsewhere import ELSEWHERE

    return ELSEWHERE


def _simt() -> Loader:
    from compiler.runtime.simt import SIMT

    return SIMT


def _cuda() -> Loader:
    from compiler.runtime.cuda.loader import CUDA

    return CUDA


_loaders: dict[str, Callable[[], Loader]] = {
    "llvm": _host, "c": _library, KIND: _host, cuda.KIND: _cuda, cuda.ON_LOOPS: _simt,
}  # fmt: skip
"""`Target.generator` -> what gives its loader."""


def loader_of(target: Target) -> Loader:
    """The loader of a target's kind; of LLVM's code, whether it is for this machine counts."""
    return _elsewhere() if _away(target) else _loaders[target.generator]()


def require(target: Target) -> None:
    """See that programs for a target can run, before they are compiled.

    Raises:
        UnsupportedError: it is for another machine, which nothing that is installed runs, or for a
            GPU that is not here.
    """
    if _away(target):
        from compiler.runtime.machines.registry import machine_of

        machine_of(target)
    elif target.generator == cuda.KIND:
        from compiler.runtime.cuda.loader import CUDA

        CUDA.device(target)


def _away(target: Target) -> bool:
    return target.kind == "llvm" and target.elsewhere


def register_target_kind(
    kind: TargetKind, backend: Callable[[], Backend], loader: Callable[[], Loader]
) -> None:
    """Let modules be built for targets of a kind: `backend` and `loader` give what generates their
    code and what runs it.

    Raises:
        UnsupportedError: there is a kind of that name.
    """
    add_kind(kind)
    BACKENDS[kind.name] = backend
    _loaders[kind.name] = loader


def remove_target_kind(name: str) -> None:
    """Forget a kind that was registered."""
    remove_kind(name)
    BACKENDS.pop(name, None)
    _loaders.pop(name, None)
