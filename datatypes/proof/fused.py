"""Fused multiply-adds and casts between formats: compiled code against the judge."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.lowering.choose import TABLE_BITS
from compiler.types.dtypes import Array
from datatypes.formats import Format, decode, encode, get
from datatypes.proof import samples
from datatypes.proof.judge import Judge
from datatypes.proof.report import Row, compared
from datatypes.proof.subject import BLOCK, Subject

OTHERS = ("float8_e4m3fn", "float16", "posit8_es0", "fixed8_4")
"""Formats that values are cast to and from: with and without infinities, NaN, signed zeros."""
_SLOW = 4000
"""Cases where a judge works with Fractions."""


def triples(fmt: Format, rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """Operands of fma: any codes, ordinary numbers, extremes, and sums that cancel."""
    ends, quarter = samples.extremes(fmt), count // 4
    columns = [
        np.concatenate([
            samples.anything(fmt, rng, quarter), samples.ordinary(fmt, rng, 2 * quarter),
            rng.choice(ends, quarter),
        ])
        for _ in range(3)
    ]  # fmt: skip
    a, b, c = columns
    with np.errstate(all="ignore"):
        product = decode(fmt, a) * decode(fmt, b)
    near = slice(2 * quarter, 3 * quarter)  # c is the negative of the product, rounded
    c[near] = encode(fmt, -product)[near]
    return a, b, c


def fma(subject: Subject, judge: Judge, rng: np.random.Generator) -> Iterator[Row]:
    """a * b + c, as the second step of a fused sum whose first is c * 1."""
    fmt = subject.fmt
    a, b, c = triples(fmt, rng, BLOCK if judge.integer else _SLOW)
    one = np.full(a.size, fmt.encode_exact(1), fmt.storage)
    f = FunctionBuilder()
    x = f.param("x", (a.size, 1, 2), subject.dtype)
    w = f.param("w", (a.size, 2, 1), subject.dtype)
    run = subject.build(f, f.call("nn.matmul", x, w, accumulate="fma"))
    got = run(np.stack([c, a], 1)[:, None, :], np.stack([one, b], 1)[:, :, None]).ravel()
    start = judge.arithmetic("Fma", c, one, np.full_like(c, fmt.zero(False)))
    want = judge.arithmetic("Fma", a, b, start)
    operands = [(fmt, column) for column in (a, b, c)]
    yield compared("Fma of triples", operands, fmt, got, want, judge.name, subject.target)


def casts(subject: Subject, judge: Judge, codes: Array, rng: np.random.Generator) -> Iterator[Row]:
    """To and from other formats: the exact value, rounded once."""
    fmt, target = subject.fmt, subject.target
    for name in OTHERS:
        there = Subject(get(name), target, subject.lowering)
        if name == fmt.name or (subject.lowering == "table" and there.fmt.nbits > TABLE_BITS):
            continue
        other = Judge(there.fmt)
        got = subject.cast(codes, subject.dtype, there.dtype)
        want = other.encode(judge.decode(codes))
        yield compared(f"cast to {name}", [(fmt, codes)], there.fmt, got, want, other.name, target)
        every = samples.codes(there.fmt, rng)
        if not judge.integer:
            every = every[:: max(1, every.size // _SLOW)]
        got = subject.cast(every, there.dtype, subject.dtype)
        want = judge.encode(other.decode(every))
        yield compared(
            f"cast from {name}", [(there.fmt, every)], fmt, got, want, judge.name, target
        )
