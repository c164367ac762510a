"""What every operator that adds up computes, in fractions: an oracle of its sums in every mode.

Only correctly rounded functions (exp, log, sqrt) are taken from the arithmetic under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.op.library import all_ops
from compiler.types.dtypes import Array, DType
from datatypes.formats import Format, minifloat

SINGLE = minifloat(8, 23)
Number = Fraction
Term = tuple[Number, ...]
"""One factor, or two."""


def dtype_of(fmt: Format) -> DType:
    """The dtype of a format."""
    return DType.parse(f"custom[{fmt.name}]{fmt.nbits}")


@dataclass(frozen=True)
class Oracle:
    """Arithmetic of finite numbers of a format, with sums in a mode."""

    fmt: Format
    mode: str

    def rnd(self, x: Number) -> Number:
        """`x` in the format."""
        found = self.fmt.decode_exact(self.fmt.encode_exact(x))
        assert isinstance(found, Fraction), "choose data that do not overflow"
        return found

    def step(self, acc: Number, term: Term) -> Number:
        """One more term."""
        product = term[0] if len(term) == 1 else term[0] * term[1]
        if self.mode == "sequential":
            return self.rnd(acc + self.rnd(product))
        if self.mode == "fma":
            return self.rnd(acc + product)
        if self.mode == "float32":
            found = SINGLE.decode_exact(SINGLE.encode_exact(acc + product))
            assert isinstance(found, Fraction)
            return found
        return Fraction(float(acc + product)) if self.mode == "float64" else acc + product

    def sum(self, terms: Iterable[Term], start: Number | None = None) -> Number:
        """The sum in the format."""
        acc = Fraction(0) if start is None else start
        for term in terms:
            acc = self.step(acc, term)
        return self.rnd(acc)

    def biased(self, terms: Sequence[Term], bias: Number) -> Number:
        """The sum in the format; a bias is its last term."""
        return self.sum([*terms, (bias, Fraction(1))])

    def mean(self, terms: Sequence[Term]) -> Number:
        """The sum, then one division."""
        return self.rnd(self.sum(terms) / self.rnd(Fraction(len(terms))))

    def fn(self, name: str, x: Number) -> Number:
        """A function of one number."""
        ar = arithmetic(dtype_of(self.fmt))
        code = np.array([self.fmt.encode_exact(x)], self.fmt.storage)
        found = self.fmt.decode_exact(int(ar.call(name, code)[0]))
        assert isinstance(found, Fraction)
        return found


Rows = list[list[Number]]


def _rows(x: Any) -> Rows:
    return [list(row) for row in np.asarray(x, object)]


def _single(v: Sequence[Number]) -> list[Term]:
    return [(x,) for x in v]


def _softmax(o: Oracle, x: Any, log: bool = False) -> Rows:
    out = []
    for row in _rows(x):
        d = [o.rnd(v - max(row)) for v in row]
        e = [o.fn("exp", v) for v in d]
        total = o.sum(_single(e))
        last = o.fn("log", total) if log else total
        out.append([o.rnd(v - last) for v in d] if log else [o.rnd(v / last) for v in e])
    return out


def _layer_norm(o: Oracle, x: Any, gamma: Any, beta: Any) -> Rows:
    out = []
    for row in _rows(x):
        center = o.mean(_single(row))
        d = [o.rnd(v - center) for v in row]
        var = o.mean([(v, v) for v in d])
        s = o.fn("sqrt", o.rnd(var + o.rnd(Fraction(1e-5))))
        scaled = [o.rnd(o.rnd(v / s) * g) for v, g in zip(d, gamma, strict=True)]
        out.append([o.rnd(v + c) for v, c in zip(scaled, beta, strict=True)])
    return out


def _rms_norm(o: Oracle, x: Any, gain: Any) -> Rows:
    out = []
    for row in _rows(x):
        s = o.fn("sqrt", o.rnd(o.mean([(v, v) for v in row]) + o.rnd(Fraction(1e-5))))
        out.append([o.rnd(o.rnd(v / s) * g) for v, g in zip(row, gain, strict=True)])
    return out


def _cumsum(o: Oracle, x: Any) -> Rows:
    return [[o.sum(_single(row[: k + 1])) for k in range(len(row))] for row in _rows(x)]


def _dense(o: Oracle, x: Any, w: Any, bias: Any) -> Rows:
    return [
        [o.biased(list(zip(row, unit, strict=True)), c) for unit, c in zip(w, bias, strict=True)]
        for row in _rows(x)
    ]


def _matmul(o: Oracle, x: Any, w: Any) -> Rows:
    columns = list(zip(*_rows(w), strict=True))
    return [[o.sum(list(zip(row, c, strict=True))) for c in columns] for row in _rows(x)]


def _einsum3(o: Oracle, x: Any, y: Any, z: Any) -> list[Number]:
    """i,j of "ij,ij,ij->i": of three factors, the first two are multiplied in the format."""
    return [
        o.sum([(o.rnd(a * b), c) for a, b, c in zip(*rows, strict=True)])
        for rows in zip(_rows(x), _rows(y), _rows(z), strict=True)
    ]


def _convolution(o: Oracle, x: Any, w: Any) -> Any:
    """[1, channels, *sizes] with kernels of as many axes, no padding."""
    outputs, inputs, *kernel = w.shape
    sizes = [n - k + 1 for n, k in zip(x.shape[2:], kernel, strict=True)]
    out = np.empty((1, outputs, *sizes), object)
    for unit, *at in np.ndindex(outputs, *sizes):
        taps = list(np.ndindex(inputs, *kernel))
        under = [(c, *(i + k for i, k in zip(at, tap, strict=True))) for c, *tap in taps]
        terms = [(x[(0, *i)], w[(unit, *tap)]) for i, tap in zip(under, taps, strict=True)]
        out[(0, unit, *at)] = o.sum(terms)
    return out


def _avg_pool(o: Oracle, x: Any) -> Any:
    """Windows of 2 x 2, one by one, without padding."""
    out = np.empty((*x.shape[:2], x.shape[2] - 1, x.shape[3] - 1), object)
    for n, c, i, j in np.ndindex(*out.shape):
        out[n, c, i, j] = o.mean(_single(list(x[n, c, i : i + 2, j : j + 2].reshape(-1))))
    return out


def _global(o: Oracle, x: Any) -> Any:
    return [[[[o.mean(_single(list(c.reshape(-1))))]] for c in n] for n in x]


POSITIONS = np.array([2, 0, 2, 1, 2, 2, 0, 2])
"""Where the updates of a scattering go, of 4 elements."""


def _scattered(o: Oracle, x: Any, updates: Any) -> list[Number]:
    return [
        o.sum([(u,) for u, p in zip(updates, POSITIONS, strict=True) if p == k], v)
        for k, v in enumerate(x)
    ]


@dataclass(frozen=True)
class Sum:
    """A call of an operator that adds up, and its oracle: (arithmetic, operands as fractions)."""

    op: str
    shapes: Sequence[tuple[int, ...]]
    oracle: Callable[..., Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    indices: Array | None = None
    """The second operand, of integers."""

    def __str__(self) -> str:
        return f"{self.op}{len(self.shapes)}"


_AXIS = {"axis": 1}
SUMS = [
    Sum("sum", [(3, 9)], lambda o, x: [o.sum(_single(r)) for r in _rows(x)], _AXIS),
    Sum("mean", [(3, 9)], lambda o, x: [o.mean(_single(r)) for r in _rows(x)], _AXIS),
    Sum("sum_products", [(3, 9), (3, 9)],
        lambda o, x, w: [o.sum(list(zip(*r, strict=True))) for r in zip(x, w, strict=True)], _AXIS),
    Sum("mean_products", [(3, 9), (3, 9)],
        lambda o, x, w: [o.mean(list(zip(*r, strict=True))) for r in zip(x, w, strict=True)],
        _AXIS),
    Sum("nn.softmax", [(3, 9)], _softmax),
    Sum("nn.log_softmax", [(3, 9)], lambda o, x: _softmax(o, x, log=True)),
    Sum("nn.layer_norm", [(3, 9), (9,), (9,)], _layer_norm),
    Sum("nn.rms_norm", [(3, 9), (9,)], _rms_norm),
    Sum("cumsum", [(3, 9)], _cumsum, _AXIS),
    Sum("nn.dense", [(3, 9), (2, 9), (2,)], _dense),
    Sum("nn.matmul", [(3, 9), (9, 2)], _matmul),
    Sum("einsum", [(3, 9)], lambda o, x: [o.sum(_single(r)) for r in _rows(x)],
        {"equation": "ij->i"}),
    Sum("einsum", [(3, 9), (9, 2)], _matmul, {"equation": "ij,jk->ik"}),
    Sum("einsum", [(3, 9)] * 3, _einsum3, {"equation": "ij,ij,ij->i"}),
    Sum("nn.conv2d", [(1, 2, 3, 3), (2, 2, 2, 2)], _convolution),
    Sum("nn.avg_pool2d", [(1, 2, 3, 3)], _avg_pool, {"pool_size": (2, 2)}),
    Sum("nn.global_avg_pool2d", [(1, 2, 3, 3)], _global),
    Sum("scatter_elements", [(4,), (8,)], _scattered, {"reduction": "add"}, POSITIONS),
    Sum("scatter_nd", [(4,), (8,)], _scattered, {"reduction": "add"}, POSITIONS[:, None]),
]  # fmt: skip
"""At least one for every operator that adds up; those of convolutions that have none follow from
their axes."""
for _op in all_ops().values():
    _axes = _op.contraction
    if _axes is not None and _axes.kernel and _op.name not in {s.op for s in SUMS}:
        _data, _kernel = (1, 2, *[3] * _axes.kernel), (2, 2, *[2] * _axes.kernel)
        SUMS.append(Sum(_op.name, [_data, _kernel], _convolution))
