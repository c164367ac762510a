"""Arithmetic of a format of up to 16 bits in integers: the judge of all pairs of operands.

A code is a signed integer significand times a power of two, so that every result is an integer too,
or an integer and a sticky bit. It is rounded once, by a binary search among the format's exact
boundaries (`Format.boundary`), which is how rounding is defined. Nothing is shared with the codecs
and lowerings on trial: no table of binades, no rounding in floats. The only float is the exact
conversion of an integer, whose exponent field counts the leading zeros.

`rational` judges this judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from compiler.lowering.tables import table
from compiler.tensor.expr import (
    Buffer,
    Expr,
    Gather,
    Select,
    call,
    cast,
    const,
    let,
    maximum,
    minimum,
    select,
)
from compiler.types.dtypes import FLOAT64, INT32, INT64, Array, DType
from datatypes.formats import Format, Special, Value
from datatypes.kernels import Elementwise, compile_elementwise

OPERATIONS = {"Add": 2, "Sub": 2, "Mul": 2, "Div": 2, "Fma": 3}
"""What is judged, with the number of operands. Fma is a * b + c."""

MAX_BITS = 16
_FRAME = 50
"""Bits of a sum's larger operand: the sum stays below 2**52, which float64 holds exactly."""
_ZERO_EXPONENT = -1500
_NEVER = int(np.iinfo(np.int64).max)
"""A key that no result reaches; every one reaches its negative."""
_NEGATIVE, _NAN, _INF = 1, 2, 4
_EXPONENT_BIAS = 1023


@dataclass(frozen=True)
class Tables:
    """What the expressions look up.

    Attributes:
        precision: bits of every nonzero significand.
        fields: int64 per code: exponent of the significand's last bit << 40 | flags << 32 | the
            significand, a signed 32-bit integer.
        starts: int64[2][n]: for either sign the key where magnitude number k + 1 begins, and then
            keys that are never reached.
        codes: uint[2][n]: for either sign the code of magnitude number k, and then of overflow.
        index: int32[2][m]: for either sign and the keys alike in all but their last `dropped` bits,
            how many magnitudes have begun before them.
        first: the smallest of these keys, without the last bits.
        dropped: see `index`.
        depth: steps of the search within an entry of the index.
    """

    precision: int
    fields: Buffer
    starts: Buffer
    codes: Buffer
    index: Buffer
    first: int
    dropped: int
    depth: int

    @property
    def size(self) -> int:
        """n."""
        return int(by_sign(self.starts).shape[1])

    @property
    def entries(self) -> int:
        """m."""
        return int(by_sign(self.index).shape[1])


def by_sign(buffer: Buffer) -> Array:
    """The data of a table, a row for either sign."""
    assert buffer.data is not None
    rows: Array = buffer.data.reshape(2, -1)
    return rows


def judges(fmt: Format) -> bool:
    """Whether the format is narrow enough and regular, and its values are integers short enough."""
    regular = fmt.nbits <= MAX_BITS and not fmt.irregular
    return regular and 2 * tables(fmt).precision + 2 <= _FRAME


def apply(fmt: Format, op: str, *codes: Array) -> Array:
    """Codes of `op` on arrays of codes of one shape; `op` is one of OPERATIONS."""
    return kernel(fmt, op)(*(np.ascontiguousarray(c, fmt.storage) for c in codes))


def encode(fmt: Format, values: Array) -> Array:
    """Codes of float64 numbers (NaN and infinities included), rounded once, by the same search."""
    t, bits = tables(fmt), values.view(np.int64)
    negative, keys = bits < 0, bits & _NEVER  # as subnormal numbers are smaller than any format's
    rows = zip(by_sign(t.starts), by_sign(t.codes), strict=True)
    found = [codes[np.searchsorted(starts, keys, side="right")] for starts, codes in rows]
    result = np.where(negative, found[1], found[0])
    for special, below, above in (
        (values == 0, fmt.zero(True), 0),
        (np.isinf(values), fmt.beyond(fmt.infinity, True), fmt.beyond(fmt.infinity, False)),
        (np.isnan(values), fmt.nan_code, fmt.nan_code),
    ):
        result = np.where(special, np.where(negative, below, above), result)
    return np.asarray(result.astype(fmt.storage))


@lru_cache(maxsize=128)
def kernel(fmt: Format, op: str) -> Elementwise:
    """`apply` as a compiled function of contiguous arrays of `fmt.storage`."""
    storage = DType.parse(fmt.storage)
    judge = _Judge(fmt, tables(fmt))
    inputs = (storage,) * OPERATIONS[op]

    def body(*operands: Expr) -> Expr:
        return judge.result(op, operands)

    return compile_elementwise(f"judge_{op.lower()}", inputs, storage, body)


@lru_cache(maxsize=32)
def tables(fmt: Format) -> Tables:
    """The tables of a format of up to 16 bits."""
    exact = [fmt.decode_exact(code) for code in range(fmt.mask + 1)]
    precision = max(abs(_odd(v)[0]).bit_length() for v in exact if isinstance(v, Fraction) and v)
    fields = [_fields(fmt, code, value, precision) for code, value in enumerate(exact)]
    signs = [_magnitudes(fmt, negative) for negative in (False, True)]
    dropped = 52 - max(precision - 5, 0)
    keys = [key for starts, _ in signs for key in starts if key != -_NEVER] or [0]
    first, last = (min(keys) >> dropped) - 1, (max(keys) >> dropped) + 1
    floors = np.arange(first, last + 1) << dropped
    index = [np.searchsorted(starts, floors, side="right") for starts, _ in signs]
    depth = int(max(np.diff(begun).max() for begun in index)).bit_length()
    size = max(len(codes) for _, codes in signs) + (1 << depth)
    columns = [
        (starts + [_NEVER] * (size - len(starts)), codes + codes[-1:] * (size - len(codes)))
        for starts, codes in signs
    ]
    return Tables(
        precision,
        table(f"{fmt.name}_fields", np.array(fields, np.int64)),
        table(f"{fmt.name}_starts", np.array([c[0] for c in columns], np.int64).ravel()),
        table(f"{fmt.name}_codes", np.array([c[1] for c in columns], fmt.storage).ravel()),
        table(f"{fmt.name}_index", np.array(index, np.int32).ravel()),
        first,
        dropped,
        depth,
    )


def _odd(value: Fraction) -> tuple[int, int]:
    """(odd integer, power of two) whose product is a nonzero dyadic value."""
    numerator, shift = value.numerator, 1 - value.denominator.bit_length()
    zeros = (numerator & -numerator).bit_length() - 1
    return numerator >> zeros, shift + zeros


def _fields(fmt: Format, code: int, value: Value, precision: int) -> int:
    negative = bool(fmt.negation == "sign" and code & fmt.sign_bit)
    if isinstance(value, Special):
        negative = value is Special.NEG_INF
        flags = (_NAN if value is Special.NAN else _INF) | (_NEGATIVE if negative else 0)
        return flags << 32
    assert isinstance(value, Fraction)  # `judges` leaves irrational formats out
    if value == 0:
        return _ZERO_EXPONENT << 40 | (_NEGATIVE if negative else 0) << 32
    odd, exponent = _odd(value)
    up = precision - abs(odd).bit_length()
    flags = _NEGATIVE if value < 0 else 0
    return (exponent - up) << 40 | flags << 32 | (odd << up) & 0xFFFFFFFF


def _magnitudes(fmt: Format, negative: bool) -> tuple[list[int], list[int]]:
    """Where the magnitudes of one sign begin (as keys), and their codes, from 0 to overflow."""
    sign = -1 if negative else 1
    last = -fmt.lowest if negative else fmt.highest
    starts: list[int] = []
    for k in range(1, last + 1 if fmt.overflow == "saturate" else last + 2):
        boundary = fmt.boundary(-k if negative else k - 1)
        assert isinstance(boundary, Fraction)
        boundary = abs(boundary)
        # A tie goes to the even one of magnitudes k - 1 and k. Past it, a key is one larger.
        starts.append(_key(boundary) + k % 2 if boundary else -_NEVER)
    codes = [fmt.zero(negative), *(fmt.code(sign * k) for k in range(1, last + 1))]
    return starts, [*codes, fmt.beyond(fmt.overflow, negative)]


def _key(value: Fraction) -> int:
    """Key of a positive dyadic number of at most 52 bits: its float64 bits, in any range."""
    odd, exponent = _odd(value)
    length = odd.bit_length()
    fraction = (odd << (53 - length)) - (1 << 52)
    return ((exponent + length - 1 + _EXPONENT_BIAS) << 52) + fraction


class _Judge:
    """The expressions of one format."""

    def __init__(self, fmt: Format, tables: Tables):
        self.fmt, self.t = fmt, tables

    def result(self, op: str, operands: tuple[Expr, ...]) -> Expr:
        """Code of `op` on codes."""

        def unpack(k: int, fields: tuple[Expr, ...]) -> Expr:
            if k == len(operands):
                return self.operate(op, fields)
            field = Gather(self.t.fields, cast(operands[k], INT64))
            return let(field, lambda f: unpack(k + 1, (*fields, f)), f"f{k}")

        return unpack(0, ())

    def operate(self, op: str, fields: tuple[Expr, ...]) -> Expr:
        s = [cast(cast(f, INT32), INT64) for f in fields]
        e = [f >> 40 for f in fields]
        negative = [_bit(f, _NEGATIVE) for f in fields]
        if op == "Sub":
            s[1], negative[1] = 0 - s[1], negative[1] ^ 1
        p = self.t.precision
        if op in ("Add", "Sub"):
            up = _FRAME - p
            regular = self.sum((s[0] << up, e[0] - up), (s[1] << up, e[1] - up), negative)
        elif op == "Mul":
            zero = negative[0] ^ negative[1]
            regular = self.rounded(s[0] * s[1], e[0] + e[1], zero)
        elif op == "Fma":
            up, more = _FRAME - 2 * p, _FRAME - p
            product = (s[0] * s[1]) << up, e[0] + e[1] - up
            addend = s[2] << more, e[2] - more
            regular = self.sum(product, addend, [negative[0] ^ negative[1], negative[2]])
        else:
            regular = self.quotient(s, e, negative)
        flags = fields[0] | fields[1] | fields[2] if op == "Fma" else fields[0] | fields[1]
        return select((flags & (_NAN | _INF) << 32).equal(0), regular, self.special(op, fields))

    def sum(self, a: tuple[Expr, Expr], b: tuple[Expr, Expr], negative: list[Expr]) -> Expr:
        """Of two signed integers in the frame, times powers of two.

        A bit lost in alignment makes the last bit odd: the frame is so long that this bit is far
        below those that rounding looks at, and the larger operand's last bits are zeros.
        """

        def aligned(value: Expr, by: Expr) -> Expr:
            def shifted(d: Expr) -> Expr:
                kept = value >> d
                return kept | _number(_not((kept << d).equal(value)))

            return let(minimum(maximum(by, 0), 62), shifted, "d")

        def added(difference: Expr) -> Expr:
            total = aligned(a[0], 0 - difference) + aligned(b[0], difference)
            return self.rounded(total, maximum(a[1], b[1]), negative[0] & negative[1])

        return let(a[1] - b[1], added, "apart")

    def quotient(self, s: list[Expr], e: list[Expr], negative: list[Expr]) -> Expr:
        """With more bits than rounding looks at, and a sticky bit; of 0, an infinity or NaN."""
        up = self.t.precision + 4
        sign = negative[0] ^ negative[1]
        divisor = Select(s[1].equal(0), const(1, INT64), s[1])

        def divided(quotient: Expr) -> Expr:
            rest = (quotient * divisor).equal(s[0] << up)
            total = quotient << 1
            exact = Select(rest, total, Select(sign.equal(0), total | 1, total - 1))
            return self.rounded(exact, e[0] - e[1] - (up + 1), sign)

        finite = let((s[0] << up) / divisor, divided, "quotient")
        infinite = Select(s[0].equal(0), self.code(self.fmt.nan_code), self.infinity(sign))
        return Select(s[1].equal(0), infinite, finite)

    def rounded(self, total: Expr, exponent: Expr, zero_sign: Expr) -> Expr:
        """Code of total * 2**exponent; `zero_sign` is the sign of a total of 0."""

        t = self.t
        entries, size = t.entries, t.size

        def step(found: Expr, key: Expr, bit: int) -> Expr:
            if bit < 0:
                return Gather(t.codes, found)
            passed = Gather(t.starts, found + ((1 << bit) - 1)) <= key
            return let(
                found + (_number(passed) << bit), lambda more: step(more, key, bit - 1), "found"
            )

        def search(key: Expr, sign: Expr) -> Expr:
            entry = minimum(maximum((key >> t.dropped) - t.first, 0), entries - 1)
            begun = cast(Gather(t.index, entry + sign * entries), INT64)
            return let(begun + sign * size, lambda found: step(found, key, t.depth - 1), "found")

        def nonzero(total: Expr, sign: Expr) -> Expr:
            magnitude = call("bits", cast(call("abs", total), FLOAT64), dtype=INT64)
            return let(magnitude + (exponent << 52), lambda key: search(key, sign), "key")

        def signed(total: Expr) -> Expr:
            code = let(_number(total < 0), lambda sign: nonzero(total, sign), "sign")
            zero = Select(zero_sign.equal(1), self.code(self.fmt.zero(True)), self.code(0))
            return Select(total.equal(0), zero, code)

        return let(total, signed, "total")

    def special(self, op: str, fields: tuple[Expr, ...]) -> Expr:
        """Where an operand is NaN or infinite, by the rules of IEEE 754."""
        nan = self.code(self.fmt.nan_code)
        flags = fields[0] | fields[1] | fields[2] if op == "Fma" else fields[0] | fields[1]
        some_nan = _bit(flags, _NAN).equal(1)
        sign = [_bit(f, _NEGATIVE) for f in fields]
        inf = [_bit(f, _INF).equal(1) for f in fields]
        zero = [(cast(f, INT32).equal(0)) & _not(i) for f, i in zip(fields, inf, strict=True)]
        if op in ("Add", "Sub"):
            other = sign[1] ^ 1 if op == "Sub" else sign[1]
            opposite = inf[0] & inf[1] & _not(sign[0].equal(other))
            value = Select(inf[0], self.infinity(sign[0]), self.infinity(other))
            return Select(some_nan | opposite, nan, value)
        product = sign[0] ^ sign[1]
        if op == "Div":
            small = Select(product.equal(1), self.code(self.fmt.zero(True)), self.code(0))
            value = Select(inf[0], self.infinity(product), small)
            return Select(some_nan | (inf[0] & inf[1]), nan, value)
        invalid = (inf[0] & zero[1]) | (zero[0] & inf[1])
        if op == "Mul":
            return Select(some_nan | invalid, nan, self.infinity(product))
        infinite = inf[0] | inf[1]
        invalid = invalid | (infinite & inf[2] & _not(product.equal(sign[2])))
        value = Select(infinite, self.infinity(product), self.infinity(sign[2]))
        return Select(some_nan | invalid, nan, value)

    def infinity(self, sign: Expr) -> Expr:
        """What an infinity of a sign becomes: the format's rule."""
        rule, fmt = self.fmt.infinity, self.fmt
        below, above = fmt.beyond(rule, True), fmt.beyond(rule, False)
        return Select(sign.equal(1), self.code(below), self.code(above))

    def code(self, bits: int) -> Expr:
        return const(bits, DType.parse(self.fmt.storage))


def _bit(field: Expr, flag: int) -> Expr:
    """0 or 1: a flag of an operand."""
    return field >> (32 + flag.bit_length() - 1) & 1


def _number(condition: Expr) -> Expr:
    return cast(condition, INT64)


def _not(condition: Expr) -> Expr:
    return condition ^ const(True, condition.dtype)
