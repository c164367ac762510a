"""Replaces custom datatypes in a loop nest by operations of built-in dtypes.

Every operation on a custom datatype is handed, with its operands, to that datatype. On codes, what
comes back works on storage integers: calls of C functions, table look-ups, or expressions. On
lanes, it works on floats. Sums in registers first take the datatype's deferred expressions; where
these leave a NaN, some steps of the tile, or all of it, are computed again with those that are
always right (`Attempt`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from compiler.arithmetic.stochastic import Place, RandomDType
from compiler.errors import LoweringError
from compiler.lowering.attempts import in_parts
from compiler.lowering.tables import by_table
from compiler.tensor.custom_dtypes import VectorDType, lowered
from compiler.tensor.expr import (
    At,
    BinOp,
    Buffer,
    Call,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    Gather,
    IntImm,
    Let,
    LetVar,
    Load,
    Select,
    rewrite,
    walk,
)
from compiler.tensor.naming import values
from compiler.tensor.register_sums import in_memory, lives, register_sums
from compiler.tensor.stmt import (
    Attempt,
    For,
    Intrin,
    Pick,
    PrimFunc,
    Stmt,
    Store,
    Sync,
    When,
    accesses,
    stores,
)
from compiler.types.dtypes import FLOAT64, CustomDType, DType, custom

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
    return any(n.dtype.is_custom for e in values(func) for n in walk(e))


def works_on_codes(store: Store) -> bool:
    """Whether a statement does more with codes than to move, decode and encode them: such
    statements are not vectorized."""
    nodes = [n for e in (store.value, store.init) if e is not None for n in walk(e)]
    if store.update and _is_code(store.buffer.dtype):
        return True
    return any(
        not isinstance(n, (Load, Select))
        and not _recoding(n)
        and any(_is_code(t) for t in (n.dtype, *(k.dtype for k in n.children())))
        for n in nodes
    )


def _is_code(d: DType) -> bool:
    return d.is_custom and not d.lane


def _recoding(n: Expr) -> bool:
    """Whether `n` decodes or encodes: casts between codes and lanes of one datatype."""
    if not isinstance(n, Cast) or not (n.dtype.is_custom and n.value.dtype.is_custom):
        return False
    return n.dtype.code == n.value.dtype.code


def lower_custom_dtypes(
    func: PrimFunc, target: str, keeps_nan: bool = True
) -> tuple[PrimFunc, list[Buffer]]:
    """(the same function on storage integers and lanes, the look-up tables it reads).

    Reductions must have been decomposed. `target`, `keeps_nan`: of what it is for, see
    `TargetKind.lowerings` and `keeps_nan`.

    Raises:
        LoweringError: an operation has no lowering for its dtype and target.
    """
    lowered = _Lowering(target, keeps_nan).run(func) if uses_custom(func) else func
    tables = {b: None for b, *_ in accesses(lowered.body) if b.scope == "constant"}
    return lowered, list(tables)


class _Lowering:
    def __init__(self, target: str, keeps_nan: bool):
        self.target, self.keeps_nan = target, keeps_nan
        self.buffers: dict[Buffer, Buffer] = {}
        self.named: dict[LetVar, LetVar] = {}

    def run(self, f: PrimFunc) -> PrimFunc:
        body = self.body(f.body)
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

    # ---- statements ------------------------------------------------------------------------------
    def body(self, body: list[Stmt]) -> list[Stmt]:
        return [new for life in lives(body) for new in self.life(life)]

    def life(self, body: list[Stmt]) -> list[Stmt]:
        sums = register_sums(body)
        if not sums:
            return [self.stmt(s) for s in body]
        parts = in_parts(body, sums)
        if parts is not None:
            return [self.stmt(s) for s in parts]
        # The statements up to the last that adds are tried, those after it use the sums.
        last = max(k for k, s in enumerate(body) if any(x.buffer in sums for x in stores([s])))
        again = [self.stmt(s) for s in in_memory(body)]
        tried = [self.stmt(s, sums) for s in body[: last + 1]]
        rest = [self.stmt(s) for s in body[last + 1 :]]
        return [Attempt(tried, tuple(self.buffer(b) for b in sums), rest, again)]

    def stmt(self, s: Stmt, deferred: tuple[Buffer, ...] = ()) -> Stmt:
        """`s` lowered; sums into the buffers `deferred` by the expressions of that name."""
        if isinstance(s, For):
            body = [self.stmt(x, deferred) for x in s.body] if deferred else self.body(s.body)
            return replace(s, body=body, opaque=frozenset(map(self.buffer, s.opaque)))
        if isinstance(s, Intrin):  # of built-in dtypes, which operands may be decoded to
            leaves = {n: self.value(e) for n, e in s.leaves.items()}
            store = replace(s.store, value=self.value(s.store.value))
            return replace(s, store=store, leaves=leaves)
        if isinstance(s, Attempt):
            tried = [self.stmt(x, s.watched) for x in s.body]
            rest, again = ([self.stmt(x) for x in part] for part in (s.rest, s.again))
            return Attempt(tried, tuple(self.buffer(b) for b in s.watched), rest, again)
        if isinstance(s, When):
            return When(self.value(s.condition), self.body(s.body))
        if isinstance(s, Pick):
            return replace(s, at=self.value(s.at), body=self.body(s.body))
        if isinstance(s, Sync):
            return s
        assert isinstance(s, Store)
        if s.init is not None:
            raise LoweringError(f"stage {s.stage}: its reduction was not decomposed")
        value, update = s.value, s.update
        if s.buffer.dtype.is_custom and update:
            place = value if isinstance(value, At) else None
            value, update = _updated(s, value if place is None else place.value), ""
            if place is not None:
                value = At(value, place.node, place.index, place.step)
        late = s.buffer in deferred
        return Store(s.stage, self.buffer(s.buffer), s.idx, self.value(value, late), update)

    # ---- expressions -----------------------------------------------------------------------------
    def value(
        self, e: Expr, deferred: bool = False, depth: int = 0, place: Place | None = None
    ) -> Expr:
        """`e` on storage integers and lanes; its last operation rounds at `place`."""
        if isinstance(e, At):
            return self.value(e.value, deferred, depth, Place(e.node, e.index, e.step))
        if isinstance(e, Stored):
            return e.bits
        if isinstance(e, Load):
            return Load(self.buffer(e.buffer), e.idx)
        if isinstance(e, LetVar):
            return self.named.get(e, e)
        if isinstance(e, Let) and (e.dtype.is_custom or e.var.dtype.is_custom):
            var = LetVar(e.var.name, e.var.dtype.storage_dtype)
            value, self.named[e.var] = self.value(e.value, deferred, depth), var
            return Let(var, value, self.value(e.body, deferred, depth))
        kids = [self.value(k, deferred, depth) for k in e.children()]
        types = [k.dtype for k in e.children()]
        if isinstance(e, Gather):
            return Gather(self.buffer(e.buffer), kids[0])
        if isinstance(e, Select):
            return Select(*kids)
        if isinstance(e, CallExtern):
            return CallExtern(e.symbol, tuple(kids), e.dtype.storage_dtype)
        if not e.dtype.is_custom and not any(t.is_custom for t in types):
            return e.rebuilt(kids)
        if isinstance(e, Call) and e.fn == "bits":  # of a lane, or as one
            held = e.dtype.storage_dtype
            return kids[0] if kids[0].dtype == held else Call("bits", tuple(kids), held)
        if isinstance(e, Cast) and e.dtype.is_custom and types[0].is_custom:
            return self.between(kids[0], types[0], e.dtype, depth, place)
        operands = [_view(k, t) for k, t in zip(kids, types, strict=True)]
        return self.operation(e, operands, deferred, depth, place)

    def operation(
        self, e: Expr, operands: list[Expr], deferred: bool, depth: int, place: Place | None = None
    ) -> Expr:
        """The lowering of one operation, by the datatype it belongs to."""
        dtypes = [e.dtype, *(k.dtype for k in e.children())]
        held = next(t for t in dtypes if t.is_custom)
        dtype, kind = held.code, custom(held.name)
        if isinstance(e, Call) and e.fn == "lowest":
            return self.constant(kind, kind.lowest(dtype), held)
        if isinstance(e, FloatImm) and held.lane:
            code = kind.encode(np.asarray(e.value, np.float64), dtype)
            return self.constant(kind, int(code), held)
        result = e.dtype.code if e.dtype.is_custom else e.dtype
        if isinstance(e, BinOp):
            node: Expr = BinOp(e.op, operands[0], operands[1], result)
        elif isinstance(e, Cast):
            node = Cast(operands[0], result)
        elif isinstance(e, Call):
            node = Call(e.fn, tuple(operands), result)
        elif isinstance(e, FloatImm):
            node = FloatImm(e.value, result)
        else:
            raise LoweringError(f"no lowering of {type(e).__name__} for {e.dtype}")
        looked_up = by_table(kind, node, operands) if held.form == "table" else None
        if looked_up is not None:
            return looked_up
        if not held.lane:
            return self.finish(self.called(kind, node, place), node, depth)
        late = deferred and isinstance(e, BinOp) and e.op in ("Add", "Mul")
        return _on_lanes(_vector(kind, held).vector(node, late, self.keeps_nan), node, held)

    def called(self, kind: CustomDType, node: Expr, place: Place | None = None) -> Expr:
        """What the datatype makes of an operation on codes, which rounds at `place`."""
        if place is None:
            return lowered(kind).lower(node, self.target)
        assert isinstance(kind, RandomDType)
        return kind.lower_at(node, self.target, place)

    @staticmethod
    def constant(kind: CustomDType, code: int, held: DType) -> Expr:
        if not held.lane:
            return IntImm(code, held.storage_dtype)
        codes = np.asarray([code], held.code.storage)
        (value,) = _vector(kind, held).lane_array(codes, held.code)
        return FloatImm(float(value), held.storage_dtype)

    def between(
        self, value: Expr, source: DType, dest: DType, depth: int, place: Place | None = None
    ) -> Expr:
        """A value of one custom dtype in another, or in another form."""
        a, b = custom(source.name), custom(dest.name)
        if source.code == dest.code:
            if source.lane == dest.lane:
                return value
            if dest.lane:
                return _vector(b, dest).from_bits(value, source)
            return _vector(a, source).to_bits(value, dest)
        source, dest = (d if d.lane else d.code for d in (source, dest))
        if source.lane or dest.lane:  # by way of a float that equals the value
            if source.lane:  # not the lane itself, whose zero may have a sign that no code has
                node: Expr = Cast(Lane(value, source.code), source.storage_dtype)
                value = _on_lanes(_vector(a, source).vector(node, False), node, source)
            else:
                node = Cast(Stored(value, source), FLOAT64)
                value = self.finish(self.called(a, node), node, depth)
            return self.operation(Cast(value, dest), [value], False, depth, place)
        node = Cast(Stored(value, source), dest)
        return self.finish(self.called(b, node, place), node, depth)

    def finish(self, lowered: Expr, node: Expr, depth: int) -> Expr:
        """Strip the views of codes; operations the result still does on custom dtypes are lowered
        too."""
        if any(map(_pending, walk(lowered))):
            if depth >= _DEPTH:
                raise LoweringError(f"the lowering of {node!r} does not come to an end")
            return self.value(lowered, False, depth + 1)

        def strip(x: Expr) -> Expr | None:
            if isinstance(x, Stored):
                return x.bits
            if isinstance(x, CallExtern) and x.dtype.is_custom:
                return CallExtern(x.symbol, x.args, x.dtype.storage_dtype)
            return None

        return rewrite(lowered, strip)


def _updated(s: Store, value: Expr) -> Expr:
    """What a store that updates its element stores."""
    old, dtype = Load(s.buffer, s.idx), s.buffer.dtype
    if s.update == "Add" and value.dtype != dtype:  # it is not rounded before it is added
        return Call("sum", (value, old), dtype)
    if s.update != "Fma":
        return BinOp(s.update, old, value, dtype)
    assert isinstance(value, BinOp)
    return Call("fma", (value.a, value.b, old), dtype)


def _view(value: Expr, dtype: DType) -> Expr:
    """An operand as lowerings get it."""
    if not dtype.is_custom:
        return value
    return Lane(value, dtype.code) if dtype.lane else Stored(value, dtype.code)


def _on_lanes(lowered: Expr, node: Expr, held: DType) -> Expr:
    """What a vector lowering returned, without the views of its operands."""
    out = rewrite(lowered, lambda x: x.value if isinstance(x, Lane) else None)
    want = held.storage_dtype if node.dtype.is_custom else node.dtype
    if out.dtype != want or any(n.dtype.is_custom for n in walk(out)):
        raise LoweringError(f"the vector lowering of {node!r} must be an expression of {want}")
    return out


def _vector(kind: CustomDType, dtype: DType) -> VectorDType:
    if not isinstance(kind, VectorDType):
        raise LoweringError(f"{dtype.code} has no vector lowering, but is held in lanes")
    return kind


def _pending(e: Expr) -> bool:
    """Whether `e` does, rather than passes on, an operation on custom dtypes."""
    if isinstance(e, (Stored, CallExtern)):
        return False
    return e.dtype.is_custom or any(k.dtype.is_custom for k in e.children())
