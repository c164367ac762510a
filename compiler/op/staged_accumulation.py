"""The reference of sums whose accumulator adds in chunks, trees or aligned groups, or with a
compensation, term by term (see `compiler.op.accumulator`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler.arithmetic.arrays import Arithmetic, arithmetic
from compiler.arithmetic.fused_multiply_add import add_to_odd
from compiler.op.accumulation import Accumulation
from compiler.op.accumulator import Accumulator
from compiler.types.dtypes import FLOAT64, Array, DType, least_normal

_LEVELS = 40
"""Of a pairwise sum: it has less than 2**_LEVELS terms."""
_LEAST = 2.0**-960

Add = Callable[[Array, Array], Array]


def _rounded(x: Array, dtype: DType) -> Array:
    """float64 values of numbers in a format."""
    held = arithmetic(dtype).cast(np.asarray(x, np.float64), FLOAT64)
    return np.asarray(arithmetic(FLOAT64).cast(held, dtype))


def _adding(dtype: DType) -> Add:
    """a + b of float64, rounded once to a format."""

    def add(a: Array, b: Array) -> Array:
        if dtype == FLOAT64:
            with np.errstate(all="ignore"):
                return np.asarray(a + b)
        return _rounded(add_to_odd(a, b), dtype)

    return add


def _power(x: Array, least: int | None) -> Array:
    """The power of two at or below |x|, and 2**least at least; 0 of 0, infinite of NaN."""
    bits = np.asarray(x, np.float64).view(np.int64) & (0x7FF << 52)
    power = bits.view(np.float64)
    if least is None:
        return power
    return np.asarray(np.where(np.asarray(x) == 0, 0.0, np.maximum(power, 2.0**least)))


class Staged(Accumulation):
    """Sums are records: how many terms came (the same in every array that one is put to), what
    waits for others of its group, and the sums so far; all float64 values."""

    counts_padding = True

    def __init__(self, out: Arithmetic, how: Accumulator):
        super().__init__(out)
        self.how, self.inner, self.outer = how, how.dtype, how.outer_dtype
        self.add_inner, self.add_outer = _adding(self.inner), _adding(self.outer)
        self.least, self.least_held = least_normal(out.dtype), least_normal(self.inner)
        at_once = how.tree or (how.group if how.align_bits else 1)
        self.record = np.dtype(
            [("n", np.int64), ("acc", np.float64), ("lost", np.float64), ("outer", np.float64),
             ("waits", np.float64, (at_once,)), ("powers", np.float64, (at_once,)),
             ("levels", np.float64, (_LEVELS if how.order == "pairwise" else 1,))]
        )  # fmt: skip
        self.at_once = at_once

    def at(self, index: Array) -> Accumulation:
        """The same: no step is random."""
        return self

    def operand(self, a: Array, source: DType, zero_point: int = 0) -> Array:
        """float64 of an operand."""
        return arithmetic(FLOAT64).cast(a, source)

    def start(self) -> Array:
        """The empty sum."""
        return np.zeros((), self.record)

    def begin(self, first: Array) -> Array:
        """The sum of one term."""
        return self.add(np.broadcast_to(self.start(), first.shape), first)

    def step(self, acc: Array, x: Array, w: Array) -> Array:
        """One more product, which is exact or rounded."""
        with np.errstate(all="ignore"):
            product = np.asarray(x * w)
            power = np.asarray(_power(x, self.least) * _power(w, self.least))
        if self.how.products == "rounded":
            product = _rounded(product, self.inner)
        return self._term(acc, product, power)

    def add(self, acc: Array, x: Array) -> Array:
        """One more term."""
        return self._term(acc, x, _power(x, self.least))

    def result(self, acc: Array, bias: Array | None = None) -> Array:
        """The sum, and `bias` as its last term in the outer format, rounded to out's dtype."""
        acc = np.array(acc)
        total = np.zeros(acc.shape)
        for count in np.unique(acc["n"]):  # those of scattered sums differ
            alike = acc["n"] == count
            total[alike] = self._total(acc[alike])
        if bias is not None:
            total = self.add_outer(total, self.operand(bias, self.out.dtype))
        return self.out.cast(np.asarray(total), FLOAT64)

    def _total(self, acc: Array) -> Array:
        """float64 of sums of equally many terms."""
        if self.how.chunk == 0:
            return _rounded(self._closed(acc)["acc"], self.outer)
        if acc["n"].size and acc["n"].flat[0] % self.how.chunk == 0:
            return np.asarray(acc["outer"])
        return self.add_outer(acc["outer"], self._closed(acc)["acc"])

    def _term(self, acc: Array, term: Array, power: Array) -> Array:
        shape = np.broadcast_shapes(acc.shape, np.shape(term))
        new = np.broadcast_to(acc, shape).copy()
        count = int(new["n"].flat[0]) if new.size else 0
        within = count % self.how.chunk if self.how.chunk else count
        new["n"] = count + 1
        if self.how.order == "pairwise":
            self._merged(new, np.broadcast_to(term, shape), within)
        elif self.how.compensated:
            self._compensated(new, term)
        else:
            slot = within % self.at_once
            new["waits"][..., slot], new["powers"][..., slot] = term, power
            if slot == self.at_once - 1:
                self._group(new, self.at_once)
        if self.how.chunk and within == self.how.chunk - 1:
            new["outer"] = self.add_outer(new["outer"], self._closed(new, within + 1)["acc"])
            for name in ("acc", "lost"):
                new[name] = 0
        return new

    def _closed(self, acc: Array, terms: int | None = None) -> Array:
        """The records, with what waits added; `terms` of the chunk that ends."""
        new = acc.copy()
        count = int(new["n"].flat[0]) if new.size else 0
        if terms is None:
            terms = count % self.how.chunk if self.how.chunk else count
        if self.how.order == "pairwise":
            total: Array | None = None
            for k in (k for k in range(_LEVELS) if terms >> k & 1):
                value = new["levels"][..., k]
                value = _rounded(value, self.inner) if k == 0 else value
                total = value if total is None else self.add_inner(value, total)
            new["acc"] = 0 if total is None else total
        elif not self.how.compensated and (left := terms % self.at_once):
            self._group(new, left)
        return new

    def _merged(self, new: Array, term: Array, count: int) -> None:
        """Put a term to a pairwise sum of `count` terms."""
        level = 0
        while count >> level & 1:
            term = self.add_inner(new["levels"][..., level], term)
            level += 1
        new["levels"][..., level] = term

    def _compensated(self, new: Array, term: Array) -> None:
        s, add = new["acc"].copy(), self.add_inner
        y = add(term, new["lost"])
        t = add(s, y)
        new["lost"] = add(y, -add(t, -s))
        new["acc"] = t

    def _group(self, new: Array, size: int) -> None:
        """Add the first `size` terms that wait."""
        terms = [new["waits"][..., k].copy() for k in range(size)]
        if self.how.align_bits:
            powers = [new["powers"][..., k] for k in range(size)]
            new["acc"] = _rounded(self._aligned(new["acc"].copy(), terms, powers), self.inner)
            return
        if self.how.tree:
            first = True
            while len(terms) > 1 or first:
                pairs = zip(terms[::2], terms[1::2], strict=False)
                odd = [_rounded(x, self.inner) for x in terms[len(terms) - len(terms) % 2 :]]
                terms, first = [*(self.add_inner(x, y) for x, y in pairs), *odd], False
        new["acc"] = self.add_inner(new["acc"], terms[0])

    def _aligned(self, acc: Array, terms: list[Array], powers: list[Array]) -> Array:
        """acc and terms, cut off at the same place, added exactly."""
        with np.errstate(all="ignore"):
            every = [*terms, acc]
            largest = np.maximum.reduce([*powers, _power(acc, self.least_held)])
            plain = sum(every[1:], every[0]) + 0.0
            exponent = np.maximum(np.where(np.isfinite(largest), largest, 1.0), _LEAST)
            unit = exponent * 2.0 ** (1 - self.how.align_bits)
            whole = [np.trunc(x / unit) for x in every]
            exact = (sum(whole[1:], whole[0]) + 0.0) * unit
        return np.asarray(np.where(largest < np.inf, exact, plain))
