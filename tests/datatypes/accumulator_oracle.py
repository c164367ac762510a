"""Sums in an accumulator, in fractions, independently of the package's numpy: what a description
means, term by term."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from sum_oracle import Oracle, Term

from compiler.op.accumulator import Accumulator, accumulator
from compiler.types.dtypes import Array
from datatypes.formats import Format, get

Round = Callable[[Fraction], Fraction]


class Outside(Exception):
    """A number that a format does not hold: what follows is NaN or infinite."""


def _rounding(name: str, truncate: bool) -> Round:
    """To a format, or float32 or float64."""
    if name == "float64":
        return lambda x: Fraction(float(x))
    held = {"float32": "float32_e8m23"}.get(name, name)
    fmt = get(f"{held}_truncate" if truncate else held)

    def rounded(x: Fraction) -> Fraction:
        found = fmt.decode_exact(fmt.encode_exact(x))
        if not isinstance(found, Fraction):
            raise Outside
        return found

    return rounded


@dataclass(frozen=True)
class AccumulatorOracle(Oracle):
    """`Oracle` with sums in the accumulator that `mode` describes."""

    @property
    def how(self) -> Accumulator:
        found = accumulator(self.mode)
        assert found is not None
        return found

    def sum(self, terms: Iterable[Term], start: Fraction | None = None) -> Fraction:
        a = self.how
        inner = _rounding(a.format, a.rounding == "truncate")
        acc = Fraction(0) if start is None else inner(start)
        for t in terms:
            acc = inner(acc + (t[0] if len(t) == 1 else t[0] * t[1]))
        return self.rnd(acc)


def codes_of(fmt: Format, rows: int, seed: int, terms: int = 11) -> Array:
    """Rows of codes of finite numbers of many magnitudes, equal ones and zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, terms)) * 2.0 ** rng.integers(-8, 5, (rows, terms))
    values[rng.random(values.shape) < 0.1] = 0
    values[:, -1] = -values[:, 0]
    from datatypes import encode

    return np.asarray(encode(fmt, values))


def rows_of_sums(fmt: Format, mode: str, x: Array, w: Array) -> Array:
    """float64 values of the dot products of rows of codes; NaN for those that leave a format."""
    oracle = AccumulatorOracle(fmt, mode)
    xs, ws = (_values(fmt, v) for v in (x, w))
    return np.array([[_sum(oracle, a, b) for b in ws] for a in xs])


def _sum(oracle: AccumulatorOracle, a: Sequence[Fraction], b: Sequence[Fraction]) -> float:
    return float(oracle.sum(list(zip(a, b, strict=True))))


def _values(fmt: Format, codes: Array) -> list[list[Fraction]]:
    known: dict[int, Fraction] = {}
    for code in set(codes.ravel().tolist()):
        found = fmt.decode_exact(code)
        assert isinstance(found, Fraction)
        known[code] = found
    return [[known[int(c)] for c in row] for row in codes]
