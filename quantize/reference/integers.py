"""Arithmetic on integers that float64 arrays hold, for `quantize.reference.trace`.

Everything here is written from the definitions, in numpy, without the operators' own references:
sums of products are float64 (exact below 2^53), fixed-point products are Python's integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.op.accumulator_width import Width, width
from compiler.types.dtypes import Array
from quantize.plan.params import ValueParams

WIDE = "int64"
"""The accumulator of products of 16 bits: it holds every sum."""
LOW, HIGH = -(2.0**31), 2.0**31 - 1


def single(values: Any) -> Array:
    """float64 values rounded to float32, still in float64."""
    return np.asarray(np.asarray(values, np.float64).astype(np.float32), np.float64)


def clipped(real: float, params: ValueParams) -> float:
    """The integer nearest to a real number within the grid's ends."""
    if math.isinf(real):
        return float(params.qmax if real > 0 else params.qmin)
    return float(min(max(round(real / params.scale) + params.zero_point, params.qmin), params.qmax))


def quantized(x: Array, params: ValueParams) -> Array:
    """float32 `x` on a grid: one float32 quotient, halves to even; NaN is the smallest integer."""
    with np.errstate(all="ignore"):
        units = np.asarray(x, np.float32) / np.float32(params.scale)
    q = np.rint(np.nan_to_num(units.astype(np.float64), nan=-np.inf)) + params.zero_point
    return np.asarray(np.clip(q, params.qmin, params.qmax))


def real(q: Array, zero_point: int, scale: Array | float) -> Array:
    """float32 real values of integers: one float32 product."""
    return (single(q - zero_point) * single(scale)).astype(np.float32)


# ---- scaling -------------------------------------------------------------------------------------
def scaled(x: Array, unit: Array, step: float, rounding: str) -> Array:
    """Integers nearest to x * unit / step, by an arithmetic of `compiler.op.qnn.requantize`.

    `unit` is in float64 and broadcasts to `x`. The quotient is of float32 numbers for `float32`.
    """
    if rounding == "float32":
        return np.asarray(np.rint(single(single(x) * single(single(unit) / single(step)))))
    scale = unit / step
    if rounding == "float64":
        return np.asarray(np.rint(x * scale))
    named: dict[str, Callable[[int, float], int]] = {"shift": _by_shift, "gemmlowp": _twice}
    each = named.get(rounding) or partial(_by_multiplier, rounding=rounding)
    whole = np.frompyfunc(lambda v, s: each(int(v), float(s)), 2, 1)(x, scale)
    return np.asarray(whole, np.float64)


def summed(terms: tuple[Array, Array], scales: tuple[float, float], rounding: str) -> Array:
    """Integers nearest to the sum of two terms times scales, by an arithmetic of
    `compiler.op.qnn.add`."""
    if rounding == "float32":
        left, right = (single(x * single(s)) for x, s in zip(terms, scales, strict=True))
        return np.asarray(np.rint(single(left + right)))
    if rounding == "float64":
        left, right = (x * s for x, s in zip(terms, scales, strict=True))
        return np.asarray(np.rint(left + right))
    _, bits = _multiplier(max(map(abs, scales)))
    ma, mb = (int(math.copysign(math.floor(abs(s) * 2.0**bits + 0.5), s)) for s in scales)
    step = _to_even if rounding == "fixed_tonearest_even" else _upward
    whole = np.frompyfunc(lambda a, b: step(int(a) * ma + int(b) * mb, bits), 2, 1)(*terms)
    return np.asarray(whole, np.float64)


def summed_twice(terms: tuple[Array, Array], scales: tuple[float, float], left: int) -> Array:
    """The same by TensorFlow Lite's ADD and SUB, which shift terms to the left first."""
    twice = 2 * max(map(abs, scales))
    signs = [1 if s > 0 else -1 for s in scales]

    def add(a: float, b: float) -> int:
        both = zip((a, b), scales, signs, strict=True)
        total = sum(sign * _twice(int(x) << left, abs(s) / twice) for x, s, sign in both)
        return _twice(total, twice / (1 << left))

    return np.asarray(np.frompyfunc(add, 2, 1)(*terms), np.float64)


def _multiplier(scale: float) -> tuple[int, int]:
    """(m, s): m / 2^s is the scale, to 31 bits."""
    fraction, exponent = math.frexp(scale)
    return math.floor(fraction * 2**31 + 0.5), 31 - exponent


def _by_multiplier(x: int, scale: float, rounding: str) -> int:
    m, s = _multiplier(scale)
    return _to_even(x * m, s) if rounding == "fixed_tonearest_even" else _upward(x * m, s)


def _upward(x: int, s: int) -> int:
    """x / 2^s, halves up."""
    return (2 * x + (1 << s)) >> (s + 1)


def _to_even(x: int, s: int) -> int:
    whole, twice = x >> s, (x % (1 << s)) * 2
    return whole + (twice > 1 << s or (twice == 1 << s and whole % 2 == 1))


def _twice(x: int, scale: float) -> int:
    """MultiplyByQuantizedMultiplier of TensorFlow Lite, with gemmlowp's two functions written out;
    a left shift saturates."""
    m, s = _multiplier(scale)
    if m == 1 << 31:
        m, s = 1 << 30, s - 1
    left, right = max(31 - s, 0), max(s - 31, 0)
    if right > 31:
        return 0
    product = min(max(x << left, int(LOW)), int(HIGH)) * m
    nudged = product + ((1 << 30) if product >= 0 else 1 - (1 << 30))
    high = abs(nudged) // (1 << 31) * (1 if nudged >= 0 else -1)  # C divides toward zero
    half = (1 << right) >> 1
    return (abs(high) + half) // (1 << right) * (1 if high >= 0 else -1)  # halves away from 0


def _by_shift(x: int, scale: float) -> int:
    fraction, exponent = math.frexp(scale)
    assert fraction == 0.5, "a plan for shifts has scales that are powers of two"
    s = 1 - exponent
    return x << -s if s <= 0 else _upward(x, s)


# ---- sums of products ----------------------------------------------------------------------------
def accumulated(terms: Sequence[Array], bias: Array | None, mode: str, start: Array) -> Array:
    """`start` plus all `terms`, in order, and then `bias`, in an accumulator.

    The terms may each be sums themselves unless the accumulator saturates at every step.
    """
    held = width(mode) or Width(32, saturates=False)
    total = start
    for term in terms:
        total = total + term
        if held.saturates:
            total = np.clip(total, held.low, held.high)
    total = total if bias is None else total + bias
    if held.saturates:
        return np.asarray(np.clip(total, held.low, held.high))
    if mode == WIDE:
        return total
    return np.asarray(np.mod(total - held.low, 2.0**held.bits) + held.low)


def steps_matter(mode: str) -> bool:
    """Whether the order in which terms are added decides the sum."""
    held = width(mode)
    return held is not None and held.saturates


def convolved(x: Array, w: Array, bias: Array | None, a: Any, mode: str) -> Array:
    """`x` [N, C, *sizes] (zero where padded) with weights [O, C / groups, *kernel]; `a` are the
    attributes of a convolution."""
    g, per_group, kernel = a.groups, w.shape[1], w.shape[2:]
    rank = len(kernel)
    x = np.pad(x, ((0, 0), (0, 0), *zip(a.padding[:rank], a.padding[rank:], strict=True)))
    n, _, *sizes = x.shape
    steps = list(zip(sizes, kernel, a.strides, a.dilation, strict=True))
    out = [(size - (taps - 1) * apart - 1) // step + 1 for size, taps, step, apart in steps]
    xs = x.reshape(n, g, per_group, *sizes)
    ws = w.reshape(g, w.shape[0] // g, per_group, *kernel)

    def tap(at: tuple[int, ...], c: slice) -> Array:
        under: tuple[Any, ...] = tuple(
            slice(i * apart, i * apart + (count - 1) * step + 1, step)
            for i, count, (_, _, step, apart) in zip(at, out, steps, strict=True)
        )
        k: tuple[Any, ...] = at
        data, weight = xs[:, :, c, *under], ws[:, :, c, *k]
        return np.asarray(np.einsum("ngc...,goc->ngo...", data, weight, optimize=True))

    each = range(per_group) if steps_matter(mode) else range(1)
    size = 1 if steps_matter(mode) else per_group
    terms = [
        tap(at, slice(c, c + size)) for c in each for at in np.ndindex(*kernel)
    ]  # one input channel after the other, as sums that saturate are pinned
    start = np.zeros((n, g, w.shape[0] // g, *out))
    late = None if bias is None else bias.reshape(g, -1, *[1] * rank)
    return accumulated(terms, late, mode, start).reshape(n, w.shape[0], *out)


def products(x: Array, y: Array, mode: str) -> Array:
    """x [..., M, K] times y [..., K, N]."""
    parts = range(x.shape[-1]) if steps_matter(mode) else ()
    terms = [x[..., k, None] * y[..., k, None, :] for k in parts] or [np.matmul(x, y)]
    return accumulated(terms, None, mode, np.zeros_like(terms[0]))


def multiplied(x: Array, w: Array, bias: Array | None, mode: str) -> Array:
    """x [..., K] with weights [N, K]."""
    start = np.zeros((*x.shape[:-1], len(w)))
    if not steps_matter(mode):
        return accumulated([x @ w.T], bias, mode, start)
    terms = [x[..., k, None] * w[:, k] for k in range(w.shape[1])]
    return accumulated(terms, bias, mode, start)


def window_sums(x: Array, a: Any, size: Sequence[int], border: float = 0.0) -> Array:
    """Sums under the windows of a pooling with attributes `a`, [..., *size]; padding holds
    `border`, and what lies beyond it nothing."""
    k = len(size)
    lead = [(0, 0)] * (x.ndim - k)
    pads = list(zip(a.padding[:k], a.padding[k:], strict=True))
    x = np.pad(x, [*lead, *pads], constant_values=border)
    steps = list(zip(size, a.strides, a.pool_size, a.dilation, strict=True))
    reach = [(n - 1) * step + (taps - 1) * apart + 1 for n, step, taps, apart in steps]
    more = [(0, max(0, r - n)) for r, n in zip(reach, x.shape[-k:], strict=True)]
    x = np.pad(x, [*lead, *more])
    total = np.zeros((*x.shape[:-k], *size))
    for at in np.ndindex(*a.pool_size):
        under: tuple[Any, ...] = tuple(
            slice(i * apart, i * apart + (n - 1) * step + 1, step)
            for i, (n, step, _, apart) in zip(at, steps, strict=True)
        )
        total += x[..., *under]
    return total
