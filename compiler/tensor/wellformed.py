"""What is checked of loop nests that come from outside the compiler, as text or as scripts."""

from __future__ import annotations

import math

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer, Load, walk
from compiler.tensor.stmt import (
    Attempt,
    For,
    Intrin,
    Pick,
    PrimFunc,
    Store,
    Sync,
    When,
    accesses,
    family,
    stores,
    walk_stmts,
)

MOST_VALUES = 1 << 16
"""Values of an index that are looked at one by one, where its form does not say how far it goes."""


def check_program(f: PrimFunc) -> None:
    """Refuse programs that cannot mean anything.

    Raises:
        TypeInferenceError: dtypes differ, an element is surely outside its tensor, an input is
            written, or an output is not.
    """
    guarded: set[int] = set()
    for s, path, _ in walk_stmts(f.body):
        if isinstance(s, (When, Pick)):
            guarded |= {id(x) for x, _, _ in walk_stmts(s.body)}
        elif not isinstance(s, For | Attempt | Sync):
            # An extent that depends on other loops guards what is in it, as a condition does.
            runs = id(s) not in guarded and all(
                v.extent is None for loop in path for v in loop.extent.vars()
            )
            check_store(s.store if isinstance(s, Intrin) else s, f.params if runs else [])
    check_grid(f)
    inputs = f.params[: len(f.params) - f.outputs]
    written = {s.buffer for s in stores(f.body)}
    known = {v for b in f.params for d in b.shape for v in d.vars()}
    for v in f.dims:
        if v not in known:
            raise TypeInferenceError(f"{f.name}: dimension {v} is in the shape of no parameter")
    for b in inputs:
        if b in written:
            raise TypeInferenceError(f"{f.name} stores into its input {b.name}")
    for b in f.params[len(inputs) :]:
        if b not in written:
            raise TypeInferenceError(f"{f.name} never stores into its output {b.name}")


def check_grid(f: PrimFunc) -> None:
    """Refuse loops over blocks and threads that are no grid, barriers that not all threads come to,
    and shared memory outside of blocks.

    Raises:
        TypeInferenceError: one of these, by name.
    """
    for s, path, _ in walk_stmts(f.body):
        around = [family(loop) for loop in path]
        if isinstance(s, For) and family(s):
            if any(loop.kind == s.kind for loop in path):
                raise TypeInferenceError(f"{f.name}: loop {s.var} is a {s.kind} inside another")
            if "threadIdx" in around and (family(s) == "blockIdx" or around[-1] != "threadIdx"):
                raise TypeInferenceError(
                    f"{f.name}: loop {s.var} ({s.kind}) must be directly inside the thread loops, "
                    "and these inside the blocks"
                )
            if "threadIdx" in around and len(path[-1].body) > 1:
                raise TypeInferenceError(f"{f.name}: loop {s.var} must be alone in {path[-1].var}")
            if s.extent.vars() & {loop.var for loop in path}:
                raise TypeInferenceError(f"{f.name}: the extent of {s.var} varies")
        if isinstance(s, Sync) and "threadIdx" not in around:
            what = type(s).__name__.lower()
            raise TypeInferenceError(f"{f.name}: a {what} outside of thread loops")
        if isinstance(s, (When, Pick, Attempt)):
            inside = [s.body] if isinstance(s, (When, Pick)) else list(s.parts)
            waits = (x for part in inside for x, _, _ in walk_stmts(part) if isinstance(x, Sync))
            if (x := next(waits, None)) is not None:
                what = type(x).__name__.lower()
                raise TypeInferenceError(f"{f.name}: a {what} that some threads may not come to")
    for b, _, _, path in accesses(f.body):
        if b.scope == "shared" and not any(map(family, path)):
            raise TypeInferenceError(f"{f.name}: {b.name} is shared by the threads of no block")


def check_store(s: Store, params: list[Buffer]) -> None:
    """The checks of one statement; `params`: tensors whose indices are checked.

    Raises:
        TypeInferenceError: see `check_program`.
    """
    for e in (s.value, s.init):
        if e is None:
            continue
        if e.dtype != s.buffer.dtype:
            raise TypeInferenceError(
                f"{s.buffer.name} holds {s.buffer.dtype}, and the value is {e.dtype}: cast it"
            )
        for n in walk(e):
            if isinstance(n, Load) and n.buffer in params:
                _inside(n.buffer, n.idx)
    if s.buffer in params:
        _inside(s.buffer, s.idx)


def _inside(b: Buffer, idx: tuple[Index, ...]) -> None:
    for i, n in zip(idx, b.shape, strict=True):
        reached = _reached(i)
        if reached is None:
            continue
        (low, high), size = reached, n.constant()
        if low < 0 or (size is not None and high >= size):
            raise TypeInferenceError(
                f"index {i} of {b!r} reaches from {low} to {high}, outside 0 to {n - 1}"
            )


def _reached(i: Index) -> tuple[int, int] | None:
    """The smallest and the largest value of an index; None where sizes are not known, or there are
    too many values to look at."""
    loops = sorted(i.vars(), key=str)
    sizes = [None if v.extent is None else v.extent.constant() for v in loops]
    known = [n for n in sizes if n is not None]
    if len(known) < len(loops):
        return None
    low, high = i.range()
    if all(isinstance(a, Var) for a in i.terms):
        return None if low is None or high is None else (low, high)
    if math.prod(known) > MOST_VALUES:
        return None
    grid = np.ogrid[tuple(slice(0, n) for n in known)]
    found = np.asarray(i.value(dict(zip(loops, grid, strict=True))))
    return int(found.min()), int(found.max())
