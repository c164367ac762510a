"""The last step of every operation: one rounding, by a format's own rules, to a code."""

from __future__ import annotations

from datatypes.formats import Format
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Number


def incremented(fmt: Format, c: Circuit, code: Bits, sign: Bits, guard: Bits, sticky: Bits) -> Bits:
    """A magnitude's code, one bit wider, after rounding.

    Args:
        fmt: whose rule is followed: `Format.rounding`.
        c: the circuit that it is put in.
        code: rounded toward zero.
        sign: of the number.
        guard: the first bit that was left out.
        sticky: whether any below it is set.
    """
    up: Bits | None = None
    if fmt.rounding == "nearest":
        up = guard & (sticky | code[0])
    elif fmt.rounding == "nearest_away":
        up = guard
    elif fmt.rounding == "up":
        up = ~sign & (guard | sticky)
    elif fmt.rounding == "down":
        up = sign & (guard | sticky)
    wide = code.zero_extended(code.width + 1)
    return wide if up is None else wide + up.zero_extended(wide.width)


def finished(fmt: Format, c: Circuit, x: Number, magnitude: Bits, over: Bits | None) -> Bits:
    """The code of a number: sign, zero, NaN and infinity, and what lies beyond the range.

    Args:
        fmt: the format.
        c: the circuit that it is put in.
        x: the number.
        magnitude: [nbits - 1] code of its size, rounded.
        over: whether it rounds beyond the range; None if `magnitude` saturates by itself.
    """
    low = fmt.nbits - 1
    if fmt.underflow == "minpos":
        magnitude = magnitude | (~magnitude.any()).zero_extended(low)
    if over is not None:
        edge = c.constant(fmt.highest, low)
        directed = {"up": x.sign, "down": ~x.sign, "zero": c.constant(1, 1)}.get(fmt.rounding)
        if fmt.overflow == "inf":
            beyond = c.constant(fmt.highest + 1, low)
            edge = beyond if directed is None else directed.chosen(edge, beyond)
        magnitude = over.chosen(edge, magnitude)
    sign = x.sign
    if not fmt.signed_zero:
        sign = sign & magnitude.any()
    code = signed(fmt, c, sign, magnitude)
    if over is not None and fmt.overflow == "nan":
        nan = over if directed is None else over & ~directed
        code = nan.chosen(c.constant(fmt.nan_code, fmt.nbits), code)
    zero = c.constant(fmt.zero(False), fmt.nbits)
    if fmt.signed_zero:
        zero = x.sign.chosen(c.constant(fmt.zero(True), fmt.nbits), zero)
    code = x.zero.chosen(zero, code)
    positive, negative = (
        c.constant(fmt.beyond(fmt.infinity, side), fmt.nbits) for side in (False, True)
    )
    code = x.inf.chosen(x.sign.chosen(negative, positive), code)
    return x.nan.chosen(c.constant(fmt.nan_code, fmt.nbits), code)


def signed(fmt: Format, c: Circuit, sign: Bits, magnitude: Bits) -> Bits:
    """The code of a magnitude with a sign, by the format's way to negate."""
    if fmt.negation == "sign":
        return c.joint(sign, magnitude)
    wide = magnitude.zero_extended(fmt.nbits)
    return (wide ^ sign.repeated(fmt.nbits)) + sign.zero_extended(fmt.nbits)
