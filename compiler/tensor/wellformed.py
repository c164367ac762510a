"""What is checked of loop nests that come from outside the compiler, as text or as scripts."""

from __future__ import annotations

from compiler.errors import TypeInferenceError
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Load, walk
from compiler.tensor.stmt import Attempt, Buffer, For, Intrin, PrimFunc, Store, stores, walk_stmts


def check_program(f: PrimFunc) -> None:
    """Refuse programs that cannot mean anything.

    Raises:
        TypeInferenceError: dtypes differ, an element is surely outside its tensor, an input is
            written, or an output is not.
    """
    for s, path, _ in walk_stmts(f.body):
        if not isinstance(s, (For, Attempt)):
            # An extent that depends on other loops guards what is in it.
            runs = all(v.extent is None for loop in path for v in loop.extent.vars())
            check_store(s.store if isinstance(s, Intrin) else s, f.params if runs else [])
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
        exact = all(isinstance(a, Var) and a.extent is not None and not a.extent.terms
                    for a in i.terms)  # fmt: skip
        low, high = i.range()
        size = n.constant()
        if exact and ((low or 0) < 0 or (size is not None and (high or 0) >= size)):
            raise TypeInferenceError(
                f"index {i} of {b!r} reaches from {low} to {high}, outside 0 to {n - 1}"
            )
