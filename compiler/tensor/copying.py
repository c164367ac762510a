"""Copies of PrimFuncs: schedules change loop nests in place, and a module keeps its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.errors import TypeInferenceError
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    Cast,
    Expr,
    FloatImm,
    Gather,
    IndexValue,
    Let,
    LetVar,
    Load,
    rewrite,
)
from compiler.tensor.stmt import (
    Attempt,
    For,
    Intrin,
    Packed,
    Pick,
    PrimFunc,
    Stmt,
    Store,
    Sync,
    When,
)
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType


def copied(
    f: PrimFunc,
    dims: Mapping[Var, IntLike] | None = None,
    dtypes: Mapping[DType, DType] | None = None,
) -> PrimFunc:
    """A copy that shares no statement, buffer or loop variable with `f`.

    Args:
        f: the loop nests.
        dims: symbolic dimensions to replace.
        dtypes: dtypes to replace, everywhere.
    """
    return Copy(dims, dtypes).func(f)


def instantiated(f: PrimFunc, types: Sequence[TensorType]) -> PrimFunc:
    """A copy of `f` for operands and results of these types: its symbolic dimensions become theirs,
    and custom values are held as theirs are.

    Raises:
        TypeInferenceError: they do not fit the parameters.
    """
    if len(types) != len(f.params):
        given = f"{len(types)} operands and results"
        raise TypeInferenceError(f"{f.name} takes {len(f.params)} tensors, not {given}")
    dims: dict[Var, IntLike] = {}
    dtypes: dict[DType, DType] = {}
    for b, t in zip(f.params, types, strict=True):
        if b.dtype.code != t.dtype.code or len(b.shape) != t.rank:
            raise TypeInferenceError(f"{f.name}: {b!r} cannot be {t}")
        dtypes[b.dtype] = t.dtype
        for d, have in zip(b.shape, t.shape, strict=True):
            if d not in dims and (v := _variable(d)) is not None:
                dims[v] = have
    for b, t in zip(f.params, types, strict=True):
        if [d.subst(dims) for d in b.shape] != list(map(Index.of, t.shape)):
            known = ", ".join(f"{v} = {d}" for v, d in dims.items() if v != d)
            raise TypeInferenceError(
                f"{f.name}: {b!r} cannot be {t}{' where ' if known else ''}{known}"
            )
    return copied(
        f,
        {v: d for v, d in dims.items() if v != d},
        {a: b for a, b in dtypes.items() if a != b},
    )


def _variable(d: Index) -> Var | None:
    """The variable that a dimension is, if it is nothing more."""
    ((atom, factor),) = d.terms.items() if len(d.terms) == 1 else (((None, 0)),)
    return atom if isinstance(atom, Var) and factor == 1 and d.const == 0 else None


class Copy:
    """Makes one copy; see `copied`."""

    def __init__(
        self,
        dims: Mapping[Var, IntLike] | None = None,
        dtypes: Mapping[DType, DType] | None = None,
    ):
        self.vars: dict[Var, IntLike] = dict(dims or {})
        self.dtypes = dtypes or {}
        self.buffers: dict[Buffer, Buffer] = {}
        self.names: dict[LetVar, LetVar] = {}

    def func(self, f: PrimFunc) -> PrimFunc:
        """A copy of a PrimFunc."""
        dims = [Index.of(self.vars.get(v, v)) for v in f.dims]
        return PrimFunc(
            f.name,
            [self.buffer(b) for b in f.params],
            f.outputs,
            self.body(f.body),
            [self.buffer(b) for b in f.temps],
            sorted(set().union(*(d.vars() for d in dims)), key=str),
            {self.buffer(b): self.packed(p) for b, p in f.packed.items()},
            {self.buffer(b): n for b, n in f.prefetch.items()},
            f.attrs,
        )

    def buffer(self, b: Buffer) -> Buffer:
        """The buffer in the place of one."""
        if b not in self.buffers:
            dtype = self.dtypes.get(b.dtype, b.dtype)
            self.buffers[b] = replace(b, shape=self.indices(b.shape), dtype=dtype)
        return self.buffers[b]

    def packed(self, p: Packed) -> Packed:
        """A packed parameter."""
        fresh = tuple(self.var(v) for v in p.vars)
        return Packed(self.buffer(p.source), fresh, self.indices(p.idx))

    def var(self, v: Var) -> Var:
        """A new loop variable in the place of one."""
        assert v.extent is not None
        new = self.vars[v] = Var(v.name, v.extent.subst(self.vars))
        return new

    def indices(self, idx: Sequence[Index]) -> tuple[Index, ...]:
        """Indices in the new variables."""
        return tuple(i.subst(self.vars) for i in idx)

    def body(self, stmts: Sequence[Stmt]) -> list[Stmt]:
        """Copies of statements."""
        return [self.stmt(s) for s in stmts]

    def stmt(self, s: Stmt) -> Stmt:
        """A copy of a statement."""
        if isinstance(s, For):
            v = self.var(s.var)
            whole = None if s.whole is None else s.whole.subst(self.vars)
            opaque = frozenset(self.buffer(b) for b in s.opaque)
            return For(v, self.body(s.body), s.kind, opaque, whole, s.fence)
        if isinstance(s, Intrin):
            fresh = {n: self.var(v) for n, v in s.vars.items()}
            leaves = {n: self.expr(e) for n, e in s.leaves.items()}
            return Intrin(s.intrin, self.store(s.store), fresh, leaves)
        if isinstance(s, Attempt):
            body, rest, again = (self.body(part) for part in s.parts)
            return Attempt(body, tuple(self.buffer(b) for b in s.watched), rest, again)
        if isinstance(s, When):
            return When(self.expr(s.condition), self.body(s.body))
        if isinstance(s, Pick):
            at = self.expr(s.at)
            return Pick(self.var(s.var), at, self.body(s.body))
        return replace(s) if isinstance(s, Sync) else self.store(s)

    def store(self, s: Store) -> Store:
        """A copy of a Store."""
        init = None if s.init is None else self.expr(s.init)
        idx, value = self.indices(s.idx), self.expr(s.value)
        return Store(s.stage, self.buffer(s.buffer), idx, value, s.update, init)

    def expr(self, e: Expr) -> Expr:
        """The expression over the new buffers and variables."""
        return rewrite(e, self.node)

    def node(self, n: Expr) -> Expr | None:
        """The replacement of one node; None: it stays."""
        if isinstance(n, Load):
            return Load(self.buffer(n.buffer), self.indices(n.idx))
        if isinstance(n, Gather):
            return Gather(self.buffer(n.buffer), n.at)
        if isinstance(n, IndexValue):
            return IndexValue(n.index.subst(self.vars))
        if isinstance(n, LetVar):
            return self.name(n)
        if isinstance(n, Let):
            return Let(self.name(n.var), n.value, n.body)
        if isinstance(n, (FloatImm, BinOp, Cast, Call)) and n.dtype in self.dtypes:
            return replace(n, dtype=self.dtypes[n.dtype])
        return None

    def name(self, v: LetVar) -> LetVar:
        """The bound value in the place of one."""
        if v not in self.names:
            self.names[v] = LetVar(v.name, self.dtypes.get(v.dtype, v.dtype))
        return self.names[v]
