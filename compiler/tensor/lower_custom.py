"""Replaces custom datatypes in a loop nest by operations on their storage integers.

Every operation on a custom datatype is handed, with its operands, to that datatype's registered
lowering function; what comes back works on storage integers: calls of C functions, table look-ups,
or expressions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.dtypes import DType, custom
from compiler.errors import LoweringError
from compiler.symbolic import Index
from compiler.tensor.expr import (
    BinOp,
    Call,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    Gather,
    IntImm,
    Load,
    Select,
    rewrite,
    walk,
)
from compiler.tensor.stmt import Buffer, For, PrimFunc, Stmt, Store, accesses

_DEPTH = 8


@dataclass(frozen=True, eq=False, repr=False)
class Stored(Expr):
    """A storage integer seen as the custom dtype it encodes: what lowering functions get as
    operands."""

    bits: Expr
    dtype: DType

    def __repr__(self) -> str:
        return f"{self.dtype}<{self.bits!r}>"


@dataclass(frozen=True, eq=False, repr=False)
class Lane(Expr):
    """A float that equals a value of custom dtype: what vector lowerings get as operands."""

    value: Expr
    dtype: DType

    def __repr__(self) -> str:
        return f"{self.dtype}<{self.value!r}>"


def uses_custom(func: PrimFunc) -> bool:
    """Whether any buffer or expression of `func` has a custom dtype."""
    if any(b.dtype.is_custom for b in [*func.params, *func.temps]):
        return True
    from compiler.tensor.stmt import stores

    return any(n.dtype.is_custom for s in stores(func.body) for n in walk(s.value))


def lower_custom_dtypes(func: PrimFunc, target: str) -> tuple[PrimFunc, list[Buffer]]:
    """(the same function on storage integers, the look-up tables it reads).

    Reductions must have been decomposed.

    Raises:
        LoweringError: an operation has no lowering for its dtype and target.
    """
    lowered = _Lowering(target).run(func) if uses_custom(func) else func
    tables = {b: None for b, *_ in accesses(lowered.body) if b.scope == "constant"}
    return lowered, list(tables)


class _Lowering:
    def __init__(self, target: str):
        self.target = target
        self.buffers: dict[Buffer, Buffer] = {}

    def run(self, f: PrimFunc) -> PrimFunc:
        body = [self.stmt(s) for s in f.body]
        return replace(
            f,
            params=[self.buffer(b) for b in f.params],
            temps=[self.buffer(b) for b in f.temps],
            body=body,
            packed={
                self.buffer(b): replace(p, source=self.buffer(p.source))
                for b, p in f.packed.items()
            },
        )

    def buffer(self, b: Buffer) -> Buffer:
        if not b.dtype.is_custom:
            return b
        if b not in self.buffers:
            self.buffers[b] = replace(b, dtype=b.dtype.storage_dtype)
        return self.buffers[b]

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, For):
            return replace(s, body=[self.stmt(x) for x in s.body])
        if not isinstance(s, Store):
            raise LoweringError(f"{s.intrin.name} cannot be used with custom datatypes")
        if s.init is not None:
            raise LoweringError(f"stage {s.stage}: its reduction was not decomposed")
        value, update = s.value, s.update
        if s.buffer.dtype.is_custom and update:
            value, update = BinOp(update, Load(s.buffer, s.idx), value, s.buffer.dtype), ""
        return Store(s.stage, self.buffer(s.buffer), s.idx, self.value(value), update)

    def value(self, e: Expr, depth: int = 0) -> Expr:
        """`e` on storage integers."""
        if isinstance(e, Stored):
            return e.bits
        if isinstance(e, Load):
            return Load(self.buffer(e.buffer), e.idx)
        kids = [self.value(k, depth) for k in e.children()]
        types = [k.dtype for k in e.children()]
        if isinstance(e, Gather):
            return Gather(self.buffer(e.buffer), kids[0])
        if isinstance(e, Select):
            return Select(*kids)
        if isinstance(e, CallExtern):
            return CallExtern(e.symbol, tuple(kids), e.dtype.storage_dtype)
        if not e.dtype.is_custom and not any(t.is_custom for t in types):
            return e.rebuilt(kids)
        if isinstance(e, Call) and e.fn == "lowest":
            return IntImm(custom(e.dtype.name).lowest(e.dtype), e.dtype.storage_dtype)
        operands = [Stored(k, t) if t.is_custom else k for k, t in zip(kids, types, strict=True)]
        if isinstance(e, BinOp):
            node: Expr = BinOp(e.op, operands[0], operands[1], e.dtype)
        elif isinstance(e, (Cast, Call, FloatImm)):
            node = e.rebuilt(operands)
        else:
            raise LoweringError(f"no lowering of {type(e).__name__} for {e.dtype}")
        owner = e.dtype if e.dtype.is_custom else next(t for t in types if t.is_custom)
        return self.finish(custom(owner.name).lower(node, self.target), node, depth)

    def finish(self, lowered: Expr, node: Expr, depth: int) -> Expr:
        """Strip the storage views; operations the result still does on custom dtypes are lowered
        too."""
        if any(map(_pending, walk(lowered))):
            if depth >= _DEPTH:
                raise LoweringError(f"the lowering of {node!r} does not come to an end")
            return self.value(lowered, depth + 1)

        def strip(x: Expr) -> Expr | None:
            if isinstance(x, Stored):
                return x.bits
            if isinstance(x, CallExtern) and x.dtype.is_custom:
                return CallExtern(x.symbol, x.args, x.dtype.storage_dtype)
            return None

        return rewrite(lowered, strip)


def _pending(e: Expr) -> bool:
    """Whether `e` does, rather than passes on, an operation on custom dtypes."""
    if isinstance(e, (Stored, CallExtern)):
        return False
    return e.dtype.is_custom or any(k.dtype.is_custom for k in e.children())


def table(name: str, data: object) -> Buffer:
    """A constant buffer for look-ups (`Gather(table, position)`) from a one-dimensional array."""
    import numpy as np

    array = np.ascontiguousarray(data)
    return Buffer(name, (Index.of(array.size),), DType.parse(array.dtype), "constant", data=array)
