"""Operations of one and two operands, casts and codes: compiled code against the judge."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compiler.arithmetic.scalar_functions import UNARY
from compiler.types.dtypes import BOOL, FLOAT32, FLOAT64, INT32, INT64, UINT8, Array, DType
from datatypes.arithmetic import mathfun, oracle
from datatypes.formats import Format, Power, Special, decode, encode
from datatypes.proof import integers, peers, rational, samples
from datatypes.proof.judge import TABULATED_BITS, Judge
from datatypes.proof.report import Operands, Row, compared
from datatypes.proof.subject import FUNCTIONS, Subject

EXACT = tuple(fn for fn in FUNCTIONS if fn not in UNARY or UNARY[fn].exact)
"""Functions that are exact or correctly rounded in formats of any width."""
ENCLOSED = tuple(fn for fn in FUNCTIONS if fn in UNARY and UNARY[fn].enclose is not None)
"""Functions that are correctly rounded by exact bounds."""
_TUPLES = 2000


# ---- the judge -----------------------------------------------------------------------------------
def round_trips(judge: Judge, codes: Array, rng: np.random.Generator) -> Iterator[Row]:
    """decode, then encode: every code gives itself, or what stands for all its like. By the judge
    for all codes, and with Fractions for up to `_TUPLES` of them."""
    fmt = judge.fmt
    same = np.where(judge.is_nan(codes), fmt.nan_code, codes)
    back, name = judge.encode(judge.decode(codes)), "codes round-trip"
    yield compared(name, [(fmt, codes)], fmt, back, same, judge.name)
    chosen = rng.permutation(codes.size)[:_TUPLES]
    exact = np.array([_again(fmt, int(code)) for code in codes[chosen]])
    yield compared(name, [(fmt, codes[chosen])], fmt, exact, same[chosen], "rational")


def _again(fmt: Format, code: int) -> int:
    value = fmt.decode_exact(code)
    if isinstance(value, Special):
        return fmt.encode_exact(float(value.value))
    if isinstance(value, Power):
        return fmt.encode_exact(float(value))
    return fmt.encode_exact(value) if value else fmt.zero(bool(code & fmt.sign_bit))


def array_codec(judge: Judge, codes: Array, numbers: samples.Numbers) -> Iterator[Row]:
    """`datatypes.decode` and `encode` on arrays: codes; boundaries and beside them."""
    fmt, values = judge.fmt, numbers.float64
    want = judge.decode(codes)
    yield compared("decode of codes", [(fmt, codes)], None, decode(fmt, codes), want, "rational")
    got, judged = encode(fmt, values), judge.encode(values)
    yield compared("encode of boundaries", [(None, values)], fmt, got, judged, judge.name)


def judged(judge: Judge, op: str, rng: np.random.Generator) -> Iterator[Row]:
    """The judge against Fractions, on extremes with extremes and a sample."""
    fmt, count = judge.fmt, integers.OPERATIONS[op]
    ends = samples.extremes(fmt)
    columns = [
        np.concatenate([rng.choice(ends, _TUPLES), samples.anything(fmt, rng, _TUPLES // 2),
                        samples.ordinary(fmt, rng, _TUPLES // 2)])
        for _ in range(count)
    ]  # fmt: skip
    columns[1:] = [rng.permutation(c) for c in columns[1:]]
    exact = [rational.apply(fmt, op, *map(int, xs)) for xs in zip(*columns, strict=True)]
    got = judge.arithmetic(op, *columns)
    name = f"{op}: {judge.name}"
    yield compared(name, [(fmt, c) for c in columns], fmt, got, np.array(exact), "rational")


def functions_judged(judge: Judge, fn: str, rng: np.random.Generator) -> Iterator[Row]:
    """The tables of a function against bounds with as many digits as it takes."""
    fmt = judge.fmt
    codes = rng.permutation(samples.codes(fmt, rng))[:400]
    results = judge.function(fn, codes)
    values, images = decode(fmt, codes), decode(fmt, results)
    proper = np.isfinite(values) & (values != 0) & np.isfinite(images)
    if fn in UNARY:
        proper &= UNARY[fn].inside(values)
    chosen = np.flatnonzero(proper)[:100]
    refined = [mathfun.refine(fmt, fn, int(code)) for code in codes[chosen]]
    operands, got = codes[chosen], results[chosen]
    yield compared(f"{fn}: table", [(fmt, operands)], fmt, got, np.array(refined), "exact bounds")


def peer(judge: Judge, op: str, columns: tuple[Array, ...]) -> Iterator[Row]:
    """The judge's arithmetic against someone else's, if there is any."""
    fmt, other = judge.fmt, peers.find(judge.fmt, op)
    if other is None:
        return
    results = None if op in ("LT", "LE", "EQ") else fmt
    want, got = other.apply(*columns), meaning(judge, op, columns)
    operands: Operands = [(fmt, c) for c in columns]
    yield compared(f"{op}: {judge.name}", operands, results, got, want, other.name)


def meaning(judge: Judge, op: str, columns: tuple[Array, ...]) -> Array:
    """What the judge says of an operation of any kind."""
    if op in integers.OPERATIONS:
        return judge.arithmetic(op, *columns)
    if op in ("Max", "Min"):
        return judge.extreme(op, *columns)
    if op in FUNCTIONS:
        return judge.function(op, columns[0])
    return judge.compare(op, *columns)


# ---- compiled code -------------------------------------------------------------------------------
def binary(
    subject: Subject, judge: Judge, op: str, a: Array, b: Array, want: Array
) -> Iterator[Row]:
    """An operation of two operands, compiled; `want` is the judge's result."""
    fmt = subject.fmt
    results = None if op in ("LT", "GT", "EQ") else fmt
    got = subject.apply(op, a, b)
    operands: Operands = [(fmt, a), (fmt, b)]
    yield compared(f"{op} of pairs", operands, results, got, want, judge.name, subject.target)


def unary(subject: Subject, judge: Judge, fn: str, codes: Array) -> Iterator[Row]:
    """A function, compiled. Formats above 16 bits may be one code off, unless fn is in EXACT."""
    fmt, target = subject.fmt, subject.target
    got, want = subject.apply(fn, codes), judge.function(fn, codes)
    against = "correctly rounded" if fn in ENCLOSED else judge.name
    if fn not in EXACT and fmt.nbits > TABULATED_BITS:
        near = np.abs(judge.orders(got) - judge.orders(want)) <= 1
        want, against = np.where(near, got, want), "1 unit off at most"
    yield compared(f"{fn} of codes", [(fmt, codes)], fmt, got, want, against, target)


def casts_from(subject: Subject, judge: Judge, codes: Array) -> Iterator[Row]:
    """From the format to float64, float32, int32, uint8 and bool."""
    exact = judge.decode(codes)
    for dest in (FLOAT64, FLOAT32, INT32, UINT8, BOOL):
        got = subject.cast(codes, subject.dtype, dest)
        name, operands = f"cast to {dest}", [(subject.fmt, codes)]
        want = _converted(exact, dest)
        yield compared(name, operands, None, got, want, "rational", subject.target)
    back = subject.cast(exact, FLOAT64, subject.dtype)
    same = np.where(judge.is_nan(codes), subject.fmt.nan_code, codes)
    operands = [(subject.fmt, codes)]
    name = "codes round-trip"
    yield compared(name, operands, subject.fmt, back, same, "themselves", subject.target)


def _converted(values: Array, dest: DType) -> Array:
    """float64 values in a built-in dtype: nearest; integers toward zero, saturating, NaN to 0."""
    with np.errstate(all="ignore"):
        if not dest.is_integer:
            return np.asarray(values.astype(dest.storage))
        limits = np.iinfo(dest.storage)
        cut = np.trunc(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))
        return np.asarray(cut.clip(limits.min, limits.max).astype(dest.storage))


def casts_to(subject: Subject, judge: Judge, numbers: samples.Numbers) -> Iterator[Row]:
    """To the format: from floats at and beside every boundary, and from integers."""
    for source in (FLOAT64, FLOAT32, INT32, INT64, UINT8):
        values: Array = getattr(numbers, str(source))
        got = subject.cast(values, source, subject.dtype)
        with np.errstate(invalid="ignore"):  # of signalling NaNs
            wide = values.astype(np.float64)
        if source == INT64:
            wide = oracle.integers_to_float64(values)
        want, name = judge.encode(wide), f"cast from {source}"
        yield compared(name, [(None, values)], subject.fmt, got, want, judge.name, subject.target)
