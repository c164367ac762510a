"""Products of quotients that may be subnormal, without multiplying subnormal numbers.

A mask of -100 makes exp of a softmax 4e-44 where it masks. CPUs take some 90 cycles to divide or
multiply such a number, in one lane or in all, and the product with values multiplies each of them
by all values. None of that is seen in a result, as a rule, but it could be: a sum may be halfway
between two numbers.

So two sums are formed instead, in the same steps: both take 0 for quotients of tiny numbers, by no
less than 1, and after that one subtracts, the other adds a number that is no smaller than such a
product can be. Rounding is monotonic: the sum that is wanted lies between these two after each
step. Where both are the same number at last, other than 0, so is that; and where they are not, or
something is not finite, or large, everything is computed as it was written; and so are tiles
without subnormal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.scheduling.nests import copied, nest
from compiler.scheduling.tile import is_product
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Expr,
    IntImm,
    Load,
    call,
    const,
    rewrite,
    select,
    subst,
    walk,
)
from compiler.tensor.stmt import For, PrimFunc, Stmt, Store, When, accesses, stores
from compiler.types.dtypes import FLOAT32, INT32

LEAST_NORMAL = 2.0**-126
TINY = 2.0**-118
"""Quotients of smaller numbers are taken for 0: those of others are normal numbers, by divisors of
at most 256."""
SLACK = 2.0**-102
"""No less than a quotient of a tiny number by at least 1, times a value of at most `LARGE`."""
LARGE = 2.0**16


@dataclass(frozen=True, eq=False)
class Sandwich:
    """The quick way to what the last statements of a loop nest compute.

    Attributes:
        look: loops that set `unsure` to whether it is not needed.
        func: its loops.
        unsure: a scalar, which is 0 where it is sure of the results.
        quotients: what the plain way begins with.
    """

    look: PrimFunc
    func: PrimFunc
    unsure: Buffer
    quotients: Buffer


def sandwiched(f: PrimFunc) -> Sandwich | None:
    """The quick way for the last product of `f`, an unscheduled tile of one head's rows, not yet
    scheduled either; None: it has no sums of products of float32 by quotients that nobody else
    reads."""
    for k, root in enumerate(f.body):
        found = _product(f, root)
        if found is not None:
            return _Quick(f, *found).made(f.body[k + 1 :])
    return None


def put(f: PrimFunc, quick: Sandwich) -> None:
    """Let `f`, which is scheduled, go the quick way, scheduled too, where that is needed, and else,
    or where that is not sure, the plain one."""
    first = next(k for k, s in enumerate(f.body) if _stores(s, quick.quotients))
    way = When(Load(quick.unsure, ()) < 1, quick.func.body)
    plain = When(Load(quick.unsure, ()) > 0, f.body[first:])
    f.body[first:] = [*quick.look.body, way, plain]
    f.temps.append(quick.unsure)
    for part in (quick.look, quick.func):
        f.temps += part.temps
        f.prefetch.update(part.prefetch)


def _stores(s: Stmt, b: Buffer) -> bool:
    return any(x.buffer is b for x in stores([s]))


def _product(f: PrimFunc, root: Stmt) -> tuple[Store, list[For], Load, Load] | None:
    """(statement, loops, quotients, values) of a sum of products by quotients of `f`."""
    loops: list[For] = []
    s = root
    while isinstance(s, For) and len(s.body) == 1:
        loops.append(s)
        s = s.body[0]
    if not isinstance(s, Store) or not is_product(s) or s.update != "Add":
        return None
    assert isinstance(s.value, BinOp)
    p, v = s.value.a, s.value.b
    plain = isinstance(p, Load) and isinstance(v, Load) and s.buffer.dtype == FLOAT32
    if not plain or not isinstance(p, Load) or not isinstance(v, Load):
        return None
    made = [x for x in stores(f.body) if x.buffer is p.buffer]
    quotient = len(made) == 1 and _divides(made[0], f)
    readers = sum(b is p.buffer and not stored for b, _, stored, _ in accesses(f.body))
    if p.buffer not in f.temps or v.buffer in f.temps or not quotient or readers != 1:
        return None
    # rows..., columns; the sum: all heads are of one row
    own = [x.var for x in loops]
    ordered = list(s.idx) == own[:-1] and list(p.idx) == [*own[:-2], own[-1]]
    heads = own[:-3]
    if not ordered or len(own) < 3 or any(h.extent != 1 for h in heads):
        return None
    return (s, loops, p, v) if all(x.extent.constant() for x in loops) else None


def _divides(s: Store, f: PrimFunc) -> bool:
    """Whether a stage divides what temporaries hold, element by element."""
    v = s.value
    if not isinstance(v, BinOp) or v.op != "Div" or s.update:
        return False
    plain = isinstance(v.a, Load) and isinstance(v.b, Load) and v.a.idx == s.idx
    return plain and all(isinstance(x, Load) and x.buffer in f.temps for x in (v.a, v.b))


class _Quick:
    """The loops of the quick way."""

    def __init__(self, f: PrimFunc, store: Store, loops: list[For], p: Load, v: Load):
        self.f, self.store, self.p, self.v = f, store, p, v
        (self.made_p,) = (x for x in stores(f.body) if x.buffer is p.buffer)
        self.own = [x.var for x in loops]
        self.columns, self.terms = (x.extent.const for x in loops[-2:])
        self.rows: list[IntLike] = [x.extent for x in loops[:-2]]
        self.body: list[Stmt] = []
        self.temps: list[Buffer] = []

    def made(self, rest: list[Stmt]) -> Sandwich:
        """Its loops, of which `rest` are what follows the product."""
        name, n, k = self.store.stage, self.columns, self.terms
        unsure = Buffer(f"{name}.unsure", (), INT32)
        look = self._look(unsure)
        self.body, self.temps = [], []
        factors = self._temp("factors", [*self.rows, 2, k])
        values = self._temp("values", [*self.rows[:-1], 2 * k, 2 * n])
        sums = self._temp("sums", [*self.rows, 2 * n])
        self._factors(factors)
        self._values(values)

        vs = self._loops("sums", [*self.rows, 2 * n, 2 * k])
        at, r = vs[:-2], vs[-1]
        factor = Load(factors, (*map(Index.of, at), r % 2, r // 2))
        value = Load(values, (*map(Index.of, at[:-1]), Index.of(r), Index.of(vs[-2])))
        self._add(vs, sums, vs[:-1], factor * value, "Add", const(0.0, FLOAT32))

        vs = self._loops("unsure_rows", [*self.rows, n])
        low, high = (Load(sums, (*map(Index.of, vs[:-1]), vs[-1] + m)) for m in (0, n))
        sure = low.equal(high) & ((low < 0) | (low > 0))
        no = select(sure, IntImm(0, INT32), IntImm(1, INT32))
        self._most(vs, no, unsure)

        result = self.f.params[-1]
        if self.store.buffer is result:
            vs = self._loops("out", [*self.rows, n])
            self._add(vs, result, vs, Load(sums, tuple(map(Index.of, vs))))
        self.body += [self._following(s, sums) for s in rest]
        there = [b for b in self.f.temps if any(b is x for x, *_ in accesses(rest))]
        kept = [b for b in there if b is not self.store.buffer]
        given = [*self._operands(), self.v.buffer, *kept]
        func = PrimFunc(f"{self.f.name}_{name}", [*given, unsure, result], 2, self.body, self.temps)
        return Sandwich(look, func, unsure, self.p.buffer)

    def _look(self, unsure: Buffer) -> PrimFunc:
        """Loops that find out whether a quotient is subnormal; and where they say so."""
        needed = self._temp("needed", [], True)
        vs = self._loops("needed_rows", [*self.rows, self.terms])
        size = call("abs", self._divided(vs)[0])
        yes = (size < LEAST_NORMAL) & (size > 0)
        self._most(vs, select(yes, IntImm(1, INT32), IntImm(0, INT32)), needed)
        vs = self._loops("not_needed", [1])
        self._add(vs, unsure, [], IntImm(1, INT32) - Load(needed, ()))
        name = f"{self.f.name}_{self.store.stage}_look"
        return PrimFunc(name, [*self._operands(), unsure], 1, self.body, self.temps)

    def _divided(self, vs: Sequence[IntLike]) -> tuple[Expr, Expr]:
        """Dividend and divisor of the quotient of a row and a term."""
        v = self.made_p.value
        assert isinstance(v, BinOp)
        m: dict[Var, IntLike] = {}
        for i, k in zip(self.made_p.idx, vs, strict=True):
            m |= dict.fromkeys(i.vars(), k)
        return subst(v.a, m), subst(v.b, m)

    def _operands(self) -> list[Buffer]:
        return [x.buffer for x in walk(self.made_p.value) if isinstance(x, Load)]

    def _most(self, vs: list[Var], value: Expr, to: Buffer) -> None:
        """Stages that find the largest value, first of each row."""
        rows = self._temp(self.stage.rsplit(".", 1)[-1], self.rows, True)
        self._add(vs, rows, vs[:-1], value, "Max", IntImm(0, INT32))
        vs = self._loops(to.name.rsplit(".", 1)[-1], self.rows[-1:])
        here = (*(Index.of(0) for _ in self.rows[:-1]), Index.of(vs[0]))
        self._add(vs, to, [], Load(rows, here), "Max", IntImm(0, INT32))

    def _factors(self, factors: Buffer) -> None:
        """Quotients, 0 for those of tiny numbers, and NaN by less than 1; and the slack."""
        for t in range(2):
            vs = self._loops(f"factors{t}", [*self.rows, self.terms])
            x, by = self._divided(vs)
            tiny = call("abs", x) < TINY
            if t:
                given = select(tiny & (call("abs", x) > 0), const(SLACK, FLOAT32), 0.0)
            else:
                given = select(by >= 1, select(tiny, const(0.0), x) / by, float("nan"))
            self._add(vs, factors, [*vs[:-1], t, vs[-1]], given)

    def _values(self, values: Buffer) -> None:
        """Values, twice, NaN for large ones; behind each what the slack is multiplied by."""
        heads = self.rows[:-1]
        for t in range(2):
            for side in range(2):
                vs = self._loops(f"values{t}{side}", [*heads, self.terms, self.columns])
                m: dict[Var, IntLike] = dict(zip(self.own[:-3], vs, strict=False))
                m |= {self.own[-1]: vs[-2], self.own[-2]: vs[-1], self.own[-3]: 0}
                x = subst(self.v, m)
                given = select(call("abs", x) <= LARGE, x, float("nan"))
                sign = const(2.0 * side - 1, FLOAT32)
                to = [*vs[:-2], vs[-2] * 2 + t, vs[-1] + side * self.columns]
                self._add(vs, values, to, sign if t else given)

    def _following(self, s: Stmt, sums: Buffer) -> Stmt:
        """What follows the product, of the sums of one side."""
        out = copied(s, {}, ".sure")

        def read(e: Expr) -> Expr | None:
            there = isinstance(e, Load) and e.buffer is self.store.buffer
            return Load(sums, e.idx) if there and isinstance(e, Load) else None

        for x in stores([out]):
            x.stage += ".sure"
            x.value = rewrite(x.value, read)
        return out

    def _temp(self, name: str, shape: Sequence[IntLike], count: bool = False) -> Buffer:
        dtype = INT32 if count else FLOAT32
        b = Buffer(f"{self.store.stage}.{name}", tuple(map(Index.of, shape)), dtype)
        self.temps.append(b)
        return b

    def _loops(self, name: str, extents: Sequence[IntLike]) -> list[Var]:
        self.stage = f"{self.store.stage}.{name}"
        return [Var(f"{self.stage}.i{k}", n) for k, n in enumerate(extents)]

    def _add(
        self, vs: list[Var], to: Buffer, idx: Sequence[IntLike], value: Expr, update: str = "",
        init: Expr | None = None,
    ) -> None:  # fmt: skip
        at = tuple(map(Index.of, idx))
        self.body.append(nest(vs, Store(self.stage, to, at, value, update, init)))


__all__ = ["Sandwich", "put", "sandwiched"]
