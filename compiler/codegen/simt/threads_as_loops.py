"""Loop nests without grids, which compute what those of a grid do: blocks become parallel loops,
the threads of a block become loops over what is between two barriers, and loops around barriers go
around these (deep fission of Stratton, Stone and Hwu, MCUDA: An Efficient Implementation of CUDA
Kernels for Multi-core CPUs, 2008).

Asynchronous copies are done at once: that is one of the times at which they may come.

What the threads share is memory of the task; what each thread holds across barriers has an element
for each thread there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from compiler.codegen.launches import grid_loops, launch_of
from compiler.errors import LoweringError
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.copying import Copy
from compiler.tensor.expr import Buffer, Expr, Gather, Load, index_value
from compiler.tensor.stmt import (
    Attempt,
    Barrier,
    Commit,
    For,
    Intrin,
    PrimFunc,
    Stmt,
    Store,
    Wait,
    accesses,
    clone,
    family,
    walk_stmts,
)

_PRIVATE = ("register", "local")


def without_grids(f: PrimFunc) -> PrimFunc:
    """A function that computes what `f` does, without loops over blocks and threads.

    Raises:
        LoweringError: a loop around barriers goes as far as the thread says.
    """
    return replace(f, body=[_without(s) for s in f.body])


def _without(s: Stmt) -> Stmt:
    loops = grid_loops(s)
    if not loops:
        return s
    threads = [loop for loop in loops if family(loop) == "threadIdx"]
    body = loops[-1].body
    used = dict.fromkeys(b for b, *_ in accesses(body))
    waits = _waits(body)
    homes = {b: replace(b, scope="local") for b in used if b.scope == "shared"}
    launch = launch_of(s)
    assert launch is not None
    sizes = dict(zip("xyz", launch.threads, strict=True))
    if waits:
        each = tuple(Index.of(sizes[loop.kind[-1]]) for loop in threads)
        short = _of_one_attempt(body)
        homes |= {
            b: replace(b, scope="local", shape=(*each, *b.shape), align=0)
            for b in used
            if b.scope in _PRIVATE and b not in short
        }
    at = tuple(Index.of(loop.var) for loop in threads) if waits else ()
    plain = [_Elsewhere(homes, at, used).stmt(x) for x in _loops_of(body)]
    made = _by_phases(threads, plain)
    for loop in reversed([x for x in loops if family(x) == "blockIdx"]):
        made = [For(loop.var, made, "parallel")]
    if len(made) == 1:
        return made[0]
    return For(Var("block", 1), made)


def _of_one_attempt(body: Sequence[Stmt]) -> set[Buffer]:
    """What a thread holds within one attempt only: no barrier is in it, and what is watched there
    must stay in registers."""
    parts = [s for s, _, _ in walk_stmts(list(body)) if isinstance(s, Attempt)]
    inside = Counter(b for s in parts for b, *_ in accesses([s]))
    every = Counter(b for b, *_ in accesses(list(body)))
    of = Counter(b for s in parts for b in {b for b, *_ in accesses([s])})
    return {b for b, n in every.items() if inside[b] == n and of[b] == 1}


def _waits(body: Sequence[Stmt]) -> bool:
    return any(isinstance(x, Barrier) for x, _, _ in walk_stmts(list(body)))


def _by_phases(threads: Sequence[For], body: Sequence[Stmt]) -> list[Stmt]:
    """Statements that all threads do, as loops over these between the barriers."""
    out: list[Stmt] = []
    run: list[Stmt] = []

    def flush() -> None:
        if run:
            fresh: dict[Var, IntLike] = {}
            loops = []
            for loop in threads:
                v = Var(loop.var.name, loop.extent)
                fresh[loop.var] = v
                loops.append(v)
            made: list[Stmt] = [clone(x, fresh) for x in run]
            for v in reversed(loops):
                made = [For(v, made)]
            out.extend(made)
            run.clear()

    mine = {loop.var for loop in threads}
    for s in body:
        if isinstance(s, Barrier):
            flush()
        elif isinstance(s, For) and _waits([s]):
            flush()
            if s.extent.vars() & mine:
                raise LoweringError(f"loop {s.var} has barriers, and an extent that threads say")
            out.append(For(s.var, _by_phases(threads, s.body), s.kind))
        else:
            run.append(s)
    flush()
    return out


def _loops_of(body: Sequence[Stmt]) -> list[Stmt]:
    """Statements with the loops that instructions mean in the place of these, which are no
    instructions of this CPU; what is copied is there at once."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Intrin):
            made: Stmt = s.store
            for v in reversed(s.vars.values()):
                lanes = s.intrin.late and v.extent != 1
                made = For(v, [made], "vector" if lanes else "serial")
            out.append(made)
        elif isinstance(s, For):
            out.append(For(s.var, _loops_of(s.body), s.kind))
        elif not isinstance(s, Commit | Wait):
            out.append(s)
    return out


class _Elsewhere(Copy):
    """Statements over other buffers: those of `homes`, of which private ones have an element for
    each thread, `at`. Others stay."""

    def __init__(self, homes: dict[Buffer, Buffer], at: tuple[Index, ...], used: Iterable[Buffer]):
        super().__init__()
        self.at, self.private = at, {b for b in homes if b.scope in _PRIVATE}
        self.buffers = {**{b: b for b in used}, **homes}

    def buffer(self, b: Buffer) -> Buffer:
        """See Copy: what was not seen is a table."""
        return self.buffers.get(b, b)

    def store(self, s: Store) -> Store:
        """See Copy."""
        made = super().store(s)
        return replace(made, idx=(*self._own(s.buffer), *made.idx))

    def node(self, n: Expr) -> Expr | None:
        """See Copy."""
        if isinstance(n, Load) and n.buffer in self.private:
            return Load(self.buffer(n.buffer), (*self._own(n.buffer), *self.indices(n.idx)))
        if isinstance(n, Gather) and n.buffer in self.private and self.at:
            there = self.buffer(n.buffer)
            first = there.flat((*self._own(n.buffer), *(Index() for _ in n.buffer.shape)))
            return Gather(there, n.at + index_value(first).astype(n.at.dtype))
        return super().node(n)

    def _own(self, b: Buffer) -> tuple[Index, ...]:
        if b not in self.private:
            return ()
        return tuple(i.subst(self.vars) for i in self.at)
