"""Temporaries of loop nests that take the memory of others, which nobody reads any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from compiler.tensor.expr import Buffer, Load, walk
from compiler.tensor.stmt import Attempt, Pick, Stmt, When, accesses, stores, walk_stmts


def same_memory(body: Sequence[Stmt], temps: Collection[Buffer]) -> dict[Buffer, Buffer]:
    """Temporary -> the one whose memory it takes: itself, or one of its shape and dtype that is
    last read before the statement of `body` that fills it; or in that, by each store of an element
    the very element."""
    spans: dict[Buffer, tuple[int, int]] = {}
    for k, s in enumerate(body):
        for b, *_ in accesses([s]):
            if b in temps:
                spans[b] = (spans.get(b, (k, k))[0], k)
    home: dict[Buffer, Buffer] = {}
    holds: dict[Buffer, Buffer] = {}
    for b in sorted(spans, key=lambda b: spans[b]):
        first, _ = spans[b]
        for whole, held in holds.items():
            last = spans[held][1]
            done = last < first or (last == first and _in_place(body[first], held, b))
            if done and (whole.shape, whole.dtype) == (b.shape, b.dtype):
                home[b], holds[whole] = whole, b
                break
        else:
            home[b] = holds[b] = b
    return home


def _in_place(s: Stmt, old: Buffer, new: Buffer) -> bool:
    """Whether a statement that fills `new` reads of `old` only the element that it stores."""
    if any(isinstance(x, Attempt | When | Pick) for x, _, _ in walk_stmts([s])):
        return False
    for st in stores([s]):
        given = [st.value] if st.init is None else [st.value, st.init]
        read = [n for e in given for n in walk(e) if getattr(n, "buffer", None) is old]
        fits = st.buffer is new and not st.update
        if read and not (fits and all(isinstance(n, Load) and n.idx == st.idx for n in read)):
            return False
    return True
