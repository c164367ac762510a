"""The exact scalar codec against the specifications and against brute force."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import DtypelabError
from datatypes.formats import Format, Special, get
from datatypes.formats.posit import PositCode

SMALL = [
    *("posit2_es0", "posit3_es1", "posit5_es3", "posit6_es4", "posit8_es0", "posit8_es2"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float5_e2m2"),
    *("float6_e3m2fn", "float4_e2m1fn", "fixed8_4", "fixed3_0", "fixed2_4", "takum8", "takum5"),
]


@pytest.mark.parametrize(
    ("name", "code", "value"),
    [
        ("posit16_es3", 0b0000110111011101, Fraction(477, 134217728)),  # Gustafson 2017, figure 5
        ("posit8_es2", 0x7F, Fraction(2) ** 24),  # Posit Standard 2022: maxpos = 2**(4n - 8)
        ("posit16_es2", 0x7FFF, Fraction(2) ** 56),
        ("posit32_es2", 0x7FFFFFFF, Fraction(2) ** 120),
        ("posit32_es2", 1, Fraction(1, 2**120)),
        ("posit32_es2", 0xC0000000, Fraction(-1)),
        ("posit16_es1", 0x4000, Fraction(1)),
        ("posit8_es0", 0x81, Fraction(-64)),
        ("posit2_es0", 0b01, Fraction(1)),
        ("float16", 0x7BFF, Fraction(65504)),
        ("float16", 0x0001, Fraction(1, 2**24)),
        ("bfloat16", 0x3F81, 1 + Fraction(1, 128)),
        ("float8_e4m3fn", 0x7E, Fraction(448)),  # OFP8, table 1
        ("float8_e4m3fn", 0x01, Fraction(1, 2**9)),
        ("float8_e5m2", 0x7B, Fraction(57344)),
        ("float8_e4m3fnuz", 0x7F, Fraction(240)),
        ("float8_e5m2fnuz", 0x7F, Fraction(57344)),
        ("float6_e2m3fn", 0x1F, Fraction(15, 2)),  # OCP MX, table 5
        ("float6_e3m2fn", 0x1F, Fraction(28)),
        ("float4_e2m1fn", 0x7, Fraction(6)),
        ("float32_e8m23", 0x3FC00000, Fraction(3, 2)),
        ("fixed8_4", 0x80, Fraction(-8)),
        ("fixed8_4", 0x7F, Fraction(127, 16)),
        ("takum16", 0x4000, Fraction(1)),
        ("takum16", 0x4800, Fraction(2)),
        ("takum16", 0x4C00, Fraction(4)),
        ("takum16", 0x3800, Fraction(1, 2)),
        ("takum8", 0xC0, Fraction(-1)),
    ],
)
def test_known_values(name: str, code: int, value: Fraction) -> None:
    assert get(name).decode_exact(code) == value
    assert get(name).encode_exact(value) == code


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("posit16_es1", math.inf, 0x8000),
        ("posit16_es1", math.nan, 0x8000),
        ("posit16_es1", 1e300, 0x7FFF),
        ("posit16_es1", -1e300, 0x8001),
        ("posit16_es1", 1e-300, 0x0001),
        ("posit16_es1", -1e-300, 0xFFFF),
        ("posit16_es1", -0.0, 0),
        ("posit8_es2", 2.0**21, 0x7E),  # between 2**20 and 2**24 the tie is 2**22, not the mean
        ("posit8_es2", 2.0**22, 0x7E),
        ("posit8_es2", 2.0**22 + 1, 0x7F),
        ("bfloat16", 3.4e38, 0x7F80),
        ("bfloat16", -math.inf, 0xFF80),
        ("bfloat16", math.nan, 0x7FC0),
        ("bfloat16", -1e-45, 0x8000),
        ("bfloat16", -0.0, 0x8000),
        ("float16", 65519.99, 0x7BFF),
        ("float16", 65520.0, 0x7C00),
        ("float8_e4m3fn", 464.0, 0x7E),
        ("float8_e4m3fn", 464.001, 0x7F),
        ("float8_e4m3fn", math.inf, 0x7F),
        ("float8_e4m3fnuz", -0.0, 0),
        ("float8_e4m3fnuz", -1e-9, 0),
        ("float8_e4m3fnuz", math.nan, 0x80),
        ("float4_e2m1fn", 1e9, 0x7),
        ("float4_e2m1fn", -math.inf, 0xF),
        ("fixed8_4", -100, 0x80),
        ("fixed8_4", math.inf, 0x7F),
        ("fixed8_4", math.nan, 0),
        ("fixed8_4", 1 / 32, 0),
        ("fixed8_4", 3 / 32, 2),
    ],
)
def test_rules_at_the_edges(name: str, value: float, code: int) -> None:
    assert get(name).encode_exact(value) == code


@pytest.mark.parametrize("name", SMALL)
def test_orders_number_the_values(name: str) -> None:
    fmt = get(name)
    orders = range(fmt.lowest, fmt.highest + 1)
    values = [fmt.value(order) for order in orders]
    assert values == sorted(set(values))
    assert values[-fmt.lowest] == 0
    assert all(fmt.order(fmt.code(order)) == order for order in orders)
    assert all(
        fmt.encode_exact(value) == fmt.code(order)
        for order, value in zip(orders, values, strict=True)
    )
    # Every other code is a special one or -0.
    others = set(range(fmt.mask + 1)) - {fmt.code(order) for order in orders}
    assert all(
        isinstance(fmt.decode_exact(code), Special) or (fmt.signed_zero and code == fmt.sign_bit)
        for code in others
    )


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", [n for n in SMALL if get(n).ties == "value"])
@given(st.fractions(min_value=-600, max_value=600), st.integers(0, 12))
def test_nearest_of_all_values(name: str, value: Fraction, halvings: int) -> None:
    fmt = get(name)
    value /= 2**halvings
    finite = [c for c in range(fmt.mask + 1) if isinstance(fmt.decode_exact(c), Fraction)]
    distance = {c: abs(fmt.value(fmt.order(c)) - value) for c in finite}
    best = min(distance.values())
    got = fmt.encode_exact(value)
    if isinstance(fmt.decode_exact(got), Fraction):
        assert distance[got] == best
        tied = {fmt.value(fmt.order(c)) for c in finite if distance[c] == best}
        assert len(tied) == 1 or fmt.order(got) % 2 == 0
    else:
        assert fmt.overflow != "saturate"
        step = fmt.maxpos - fmt.value(fmt.highest - 1)
        assert abs(value) >= fmt.maxpos + step / 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("es", [0, 1, 2, 3])
@given(st.fractions(min_value=0, max_value=2**30), st.integers(0, 30), st.booleans())
def test_posit_rounds_its_bit_string(
    es: int, value: Fraction, halvings: int, negative: bool
) -> None:
    """Posit Standard 2022, 4.1: the code of a much longer posit, cut to n bits, nearest even."""
    fmt, longer = get(f"posit8_es{es}"), 60
    value /= 2**halvings
    got = fmt.encode_exact(-value if negative else value)
    if negative:
        got = -got & fmt.mask
    if value == 0:
        assert got == 0
        return
    if value <= fmt.minpos or value >= fmt.maxpos:
        assert got == (1 if value <= fmt.minpos else fmt.highest)
        return
    low, high = 0, 1 << (longer - 1)  # the longer posit at or below the value
    while high - low > 1:
        middle = (low + high) // 2
        at_middle = PositCode(es)(middle, longer)
        assert isinstance(at_middle, Fraction)
        low, high = (middle, high) if at_middle <= value else (low, middle)
    dropped = longer - 8
    kept, rest = low >> dropped, low & ((1 << dropped) - 1)
    inexact = PositCode(es)(low, longer) != value
    half = 1 << (dropped - 1)
    up = rest > half or (rest == half and (inexact or kept % 2 == 1))
    assert got == max(kept + up, 1)


def test_codes_out_of_range_are_refused() -> None:
    with pytest.raises(DtypelabError, match="256 is not a 8-bit code of posit8_es0"):
        get("posit8_es0").decode_exact(256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nbits": 33}, "nbits is 33"),
        ({"overflow": "clip"}, "overflow is 'clip', choose one of saturate, inf, nan"),
        ({"ties": "up"}, "ties is 'up'"),
        ({"infinity": "inf"}, "has no infinity"),
        ({"nan_code": 256}, "nan_code 256"),
        ({"decoder": PositCode(9)}, "reaches beyond"),
        ({"decoder": lambda bits, nbits: Special.NAN}, "no positive value"),
    ],
)
def test_descriptions_are_checked(changes: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {
        "name": "mine",
        "nbits": 8,
        "decoder": PositCode(1),
        "nan_code": 128,
    }
    with pytest.raises(DtypelabError, match=message):
        Format(**(fields | changes))


@given(
    st.sampled_from(["posit8_es2", "float8_e5m2", "fixed8_4", "nf4", "lns8_3", "takum8"]),
    st.fractions(-300, 300) | st.floats(-1e4, 1e4),
    st.integers(-300, 300),
)
def test_a_guess_of_the_result_changes_nothing(name: str, value: float, near: int) -> None:
    fmt = get(name)
    assert fmt.encode_exact(value, near=near) == fmt.encode_exact(value)
