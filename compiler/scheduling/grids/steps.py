"""What a step of a sum of products takes of a thread: instructions and registers.

A step of built-in numbers is one instruction. One of a custom dtype rounds, once or twice: what it
takes is counted in the expression that it is lowered to later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from compiler.lowering.custom_dtypes import lower_custom_dtypes
from compiler.scheduling.grids.products import Product
from compiler.symbolic import Index, Var
from compiler.target.registry import Target, kind_of
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    CallExtern,
    Cast,
    Expr,
    Gather,
    Let,
    LetVar,
    Load,
    Select,
)
from compiler.tensor.stmt import Attempt, For, PrimFunc, Store, walk_stmts

WORD = 4
"""Bytes of a register."""
_SHORT = 8
"""Steps of the sum that is looked at."""
_FACTORS = ("a", "b")
_OPERATIONS = (BinOp, Call, CallExtern, Cast, Gather, Select)


@dataclass(frozen=True)
class Step:
    """A step of a sum.

    Attributes:
        instructions: that multiply and add.
        of_row, of_column: others, which one factor alone needs.
        words: registers of a number.
        copies: of a sum that a thread holds: two, where steps may have to be done again.
    """

    instructions: int = 1
    of_row: int = 0
    of_column: int = 0
    words: int = 1
    copies: int = 1

    @property
    def registers(self) -> int:
        """Of a sum."""
        return self.words * self.copies


BUILT_IN = Step()


def step_of(p: Product, update: str, target: Target) -> Step:
    """What a step of a product takes, which is added by `update`."""
    dtypes = (p.store.buffer.dtype, p.rows.value.dtype, p.columns.value.dtype)
    words = max(-(-d.nbytes // WORD) for d in dtypes)
    if not p.store.buffer.dtype.is_custom:
        return Step(words=words)
    kind = kind_of(target.kind)
    body = lower_custom_dtypes(_short(p, update), kind.lowerings, kind.keeps_nan)[0].body
    copies = 2 if any(isinstance(s, Attempt) for s, _, _ in walk_stmts(body)) else 1
    (first, *_) = (
        s for s, _, _ in walk_stmts(body) if isinstance(s, Store) and s.stage == p.store.stage
    )
    counts = _Count()
    counts.of(first.value)
    row, column = (counts.found[frozenset({name})] for name in _FACTORS)
    return Step(counts.found.total() - row - column, row, column, words, copies)


def _short(p: Product, update: str) -> PrimFunc:
    """A sum of few such steps, of operands in memory."""
    init = p.store.init
    assert init is not None
    k = Var("k", _SHORT)
    a, b = (
        Buffer(name, (Index.of(_SHORT),), x.value.dtype)
        for name, x in zip(_FACTORS, (p.rows, p.columns), strict=True)
    )
    total = Buffer("sum", (Index.of(1),), p.store.buffer.dtype, "register")
    value = p.store.value
    assert isinstance(value, BinOp)
    product = BinOp("Mul", Load(a, (Index.of(k),)), Load(b, (Index.of(k),)), value.dtype)
    at = (Index(),)
    add = replace(p.store, buffer=total, idx=at, value=product, update=update, init=None)
    start = Store(f"{p.store.stage}.init", total, at, init)
    return PrimFunc("step", [a, b], 0, [start, For(k, [add], "unroll")])


class _Count:
    """Counts the operations of an expression by the names of the buffers that they depend on; what
    depends on none is known, and what has a name is computed once."""

    def __init__(self) -> None:
        self.found = Counter[frozenset[str]]()
        self.named: dict[LetVar, frozenset[str]] = {}

    def of(self, e: Expr) -> frozenset[str]:
        """Count an expression; returns what it depends on."""
        if isinstance(e, LetVar):
            return self.named[e]
        if isinstance(e, Let):
            self.named[e.var] = self.of(e.value)
            return self.of(e.body)
        used = frozenset[str]().union(*map(self.of, e.children()))
        if isinstance(e, Load):
            used |= {e.buffer.name}
        if isinstance(e, _OPERATIONS) and used and not _is_bits(e):
            self.found[used] += 1
        return used


def _is_bits(e: Expr) -> bool:
    """Whether a number is only looked at as another dtype."""
    return isinstance(e, Call) and e.fn == "bits"


__all__ = ["BUILT_IN", "WORD", "Step", "step_of"]
