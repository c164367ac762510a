"""The compiling of a build, and copies of large constants, done by threads beside the one that
writes the code.

Writing the code of a network's kernels and compiling it take about as long as each other. LLVM does
not hold the interpreter's lock, so on two processors they pass at the same time. Nor does numpy
where it copies: laying out the weights takes a third of a build whose code is in the cache.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compiler.codegen.backend import Code, backend_of
from compiler.errors import LoweringError
from compiler.target.registry import Target
from compiler.tensor.packed_arrays import Together
from compiler.types.dtypes import Array

if TYPE_CHECKING:
    from compiler.runtime.kernels import Compiled

SWITCH = 0.0005
"""Seconds after which the writing thread gives way. LLVM is called in several steps; before each
of them its thread would wait for Python's 5 ms, which is as long as a small kernel takes."""

Blame = Callable[[LoweringError], LoweringError]
"""Adds to an error where it happened."""

_lock = threading.Lock()
_running: list[float] = []  # the intervals that the builds under way have found


class Beside:
    """What LLVM does for one build. Use it in a `with` statement; `finish` ends it.

    Attributes:
        begun: what can be called after `finish`, by a key of the caller's.
        arrays: constants and how they are laid out, by a key of the caller's.
        together: makes those arrays.
    """

    def __init__(self) -> None:
        self.begun: dict[str, Compiled] = {}
        self.arrays: dict[Hashable, tuple[Array, Array]] = {}
        self.together = Together()
        self._jobs: list[tuple[Future[bytes], Callable[[bytes], None], Blame]] = []
        self._blame: Blame = _plainly
        self._thread: ThreadPoolExecutor | None = None
        self._copier: ThreadPoolExecutor | None = None
        self._copies: list[Future[None]] = []

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._copier is not None:
            self._copier.shutdown(cancel_futures=True)
            self._copier = None
        if self._thread is None:
            return
        self._thread.shutdown(cancel_futures=True)
        self._thread = None
        with _lock:
            before = _running.pop()
            if not _running:
                sys.setswitchinterval(before)

    @contextmanager
    def blaming(self, blame: Blame) -> Iterator[None]:
        """Errors of what is begun within are what `blame` makes of them, here and in `finish`."""
        before, self._blame = self._blame, blame
        try:
            yield
        except LoweringError as e:
            raise blame(e) from None
        finally:
            self._blame = before

    def begin(self, code: Code, target: Target, keep: Callable[[bytes], None]) -> None:
        """Have code compiled; `finish` gives `keep` the object code."""
        backend = backend_of(target)
        if self._thread is None:
            backend.prepare(target)  # by one thread
            with _lock:
                _running.append(_running[0] if _running else sys.getswitchinterval())
                sys.setswitchinterval(min(SWITCH, _running[0]))
            self._thread = ThreadPoolExecutor(1, "llvm")
        self._jobs.append((self._thread.submit(backend.object, code, target), keep, self._blame))

    def copy(self, fill: Callable[[], None]) -> None:
        """Have an array filled, before `finish` returns."""
        if self._copier is None:
            self._copier = ThreadPoolExecutor(1, "arrays")
        self._copies.append(self._copier.submit(fill))

    def finish(self) -> None:
        """Wait for everything that was begun, and give it to those who keep it, in order; and for
        the copies.

        Raises:
            LoweringError: the code is rejected, or a C function it calls cannot be found.
        """
        for code, keep, blame in self._jobs:
            try:
                keep(code.result())
            except LoweringError as e:
                raise blame(e) from None
        self._jobs = []
        for copied in self._copies:
            copied.result()
        self._copies = []


def _plainly(e: LoweringError) -> LoweringError:
    return e
