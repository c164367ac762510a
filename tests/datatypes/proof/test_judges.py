"""The judges of proofs against each other: integers against Fractions, peers against integers."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import datatypes
from compiler.types.dtypes import Array
from datatypes.c_libraries import softposit
from datatypes.formats import Format, Special, get
from datatypes.proof import integers, peers, rational, samples
from datatypes.proof.judge import Judge

SMALL = ["posit6_es1", "posit5_es2", "float6_e3m2fn", "float4_e2m1fn", "float5_e2m2", "fixed5_2"]
ARITHMETIC = ("Add", "Sub", "Mul", "Div")

posits = st.builds("posit{}_es{}".format, st.integers(2, 16), st.integers(0, 3))
takums = st.builds("takum{}".format, st.integers(2, 16))
fixed = st.integers(2, 16).flatmap(lambda n: st.builds(f"fixed{n}_{{}}".format, st.integers(0, n)))
floats = st.tuples(st.integers(2, 8), st.integers(1, 7)).map(
    lambda em: f"float{1 + sum(em)}_e{em[0]}m{em[1]}"
)
REGULAR = [name for name in datatypes.list_formats() if not get(name).irregular]
formats = st.one_of(posits, takums, fixed, floats, st.sampled_from(REGULAR))


def exactly(fmt: Format, op: str, *columns: Array) -> Array:
    return np.array([rational.apply(fmt, op, *map(int, xs)) for xs in zip(*columns, strict=True)])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize("name", SMALL)
def test_integers_give_every_pair_of_a_small_format_as_fractions_do(name: str, op: str) -> None:
    fmt = get(name)
    a, b = samples.pairs(fmt, op, np.random.default_rng(0))
    assert a.size == 4**fmt.nbits
    np.testing.assert_array_equal(integers.apply(fmt, op, a, b), exactly(fmt, op, a, b))


@pytest.mark.thorough
@given(formats, st.sampled_from(list(integers.OPERATIONS)), st.data())
@settings(max_examples=60, deadline=None)
def test_integers_give_what_fractions_do_in_any_format(name: str, op: str, data: Any) -> None:
    fmt = get(name)
    if fmt.nbits > integers.MAX_BITS:
        return
    ends = st.sampled_from(samples.extremes(fmt).tolist())
    code = st.one_of(ends, st.integers(0, fmt.mask))
    tuples = data.draw(st.lists(st.tuples(*[code] * integers.OPERATIONS[op]), min_size=1))
    columns = [np.array(column, fmt.storage) for column in zip(*tuples, strict=True)]
    assert integers.judges(fmt)
    np.testing.assert_array_equal(integers.apply(fmt, op, *columns), exactly(fmt, op, *columns))


@pytest.mark.thorough
@given(formats, st.data())
@settings(max_examples=60, deadline=None)
def test_integers_round_numbers_as_fractions_do(name: str, data: Any) -> None:
    fmt = get(name)
    if fmt.nbits > integers.MAX_BITS:
        return
    order = data.draw(st.integers(fmt.lowest, fmt.highest - 1))
    number = float(fmt.boundary(order))
    given_numbers = [number, np.nextafter(number, np.inf), np.nextafter(number, -np.inf)]
    given_numbers += data.draw(st.lists(st.floats()))
    want = [fmt.encode_exact(x) for x in given_numbers]
    assert integers.encode(fmt, np.array(given_numbers)).tolist() == want


def test_formats_too_wide_for_integers_are_refused() -> None:
    assert not integers.judges(get("posit17_es1"))
    assert not Judge(get("posit32_es2")).integer


@pytest.mark.sampled(21)
@pytest.mark.parametrize("op", [*ARITHMETIC, "Fma"])
@pytest.mark.parametrize("name", ["posit32_es2", "takum24", "fixed32_16", "bfloat16"])
def test_the_judge_of_any_width_gives_what_fractions_do(name: str, op: str) -> None:
    fmt, rng = get(name), np.random.default_rng(1)
    columns = [rng.choice(samples.extremes(fmt), 300) for _ in range(integers.OPERATIONS[op])]
    columns[1] = rng.permutation(samples.codes(fmt, rng))[:300]
    got = Judge(fmt).arithmetic(op, *columns)
    np.testing.assert_array_equal(got, exactly(fmt, op, *columns))


# ---- the rational judge, by examples -------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "op", "operands", "want"),
    [
        ("float8_e5m2", "Div", (0x7C, 0x80), 0xFC),  # inf / -0
        ("float8_e5m2", "Div", (0x80, 0x7C), 0x80),  # -0 / inf
        ("float8_e5m2", "Mul", (0x7C, 0x80), 0x7E),  # inf * -0
        ("float8_e5m2", "Sub", (0x7C, 0x7C), 0x7E),  # inf - inf
        ("float8_e5m2", "Fma", (0x7C, 0x3C, 0xFC), 0x7E),  # inf * 1 - inf
        ("float8_e5m2", "Add", (0x80, 0x80), 0x80),  # -0 - 0
        ("float8_e5m2", "Add", (0x3C, 0xBC), 0x00),  # 1 - 1
        ("float8_e4m3fn", "Mul", (0x7E, 0x7E), 0x7F),  # overflow to NaN
        ("posit8_es0", "Div", (0x40, 0x00), 0x80),  # 1 / 0
        ("posit8_es0", "Mul", (0x01, 0x01), 0x01),  # never to zero
        ("posit8_es0", "Add", (0x80, 0x40), 0x80),  # NaR
        ("fixed8_4", "Div", (0x10, 0x00), 0x7F),  # saturates
        ("float4_e2m1fn", "Div", (0x0, 0x0), 0x8),  # no NaN: -0
    ],
)
def test_rational_arithmetic_by_hand(
    name: str, op: str, operands: tuple[int, ...], want: int
) -> None:
    fmt = get(name)
    assert rational.apply(fmt, op, *operands) == want
    columns = [np.array([code], fmt.storage) for code in operands]
    assert integers.apply(fmt, op, *columns).tolist() == [want]


# ---- order ---------------------------------------------------------------------------------------
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*SMALL, "float8_e4m3fn", "takum8"])
def test_order_by_exact_values(name: str) -> None:
    fmt = get(name)
    judge = Judge(fmt)
    a, b = samples.pairs(fmt, "LT", np.random.default_rng(0))
    less, larger = judge.compare("LT", a, b), judge.extreme("Max", a, b)
    for x, y, lt, top in zip(a.tolist(), b.tolist(), less, larger.tolist(), strict=True):
        u, v = fmt.decode_exact(x), fmt.decode_exact(y)
        if isinstance(u, Fraction) and isinstance(v, Fraction):
            assert lt == (u < v)
            assert fmt.decode_exact(top) == max(u, v)
        elif Special.NAN in (u, v):
            assert lt == (fmt.negation == "complement" and u is Special.NAN and v is not u)
            assert top == fmt.nan_code


# ---- samples -------------------------------------------------------------------------------------
@pytest.mark.thorough
@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize("name", ["posit16_es1", "bfloat16", "takum16", "fixed16_8"])
def test_ties_lie_on_boundaries(name: str, op: str) -> None:
    fmt = get(name)
    a, b = samples.ties(fmt, op)
    if name == "fixed16_8" and op in ("Add", "Sub"):
        assert a.size == 0  # sums are exact
        return
    chosen = np.random.default_rng(2).permutation(a.size)[:100]
    assert chosen.size
    calculate = {
        "Add": Fraction.__add__, "Sub": Fraction.__sub__, "Mul": Fraction.__mul__,
        "Div": Fraction.__truediv__,
    }[op]  # fmt: skip
    for k in chosen.tolist():
        x, y = fmt.decode_exact(int(a[k])), fmt.decode_exact(int(b[k]))
        assert isinstance(x, Fraction)
        assert isinstance(y, Fraction)
        result = calculate(x, y)
        order = fmt.nearest(result)
        assert result in (fmt.boundary(order - 1), fmt.boundary(order))


@pytest.mark.thorough
def test_most_boundaries_of_posits_have_a_tie_in_the_sample() -> None:
    fmt = get("posit16_es1")
    between, _ = samples.boundaries(fmt)
    for op, share in (("Add", 0.999), ("Mul", 0.89)):
        a, b = (datatypes.decode(fmt, codes) for codes in samples.ties(fmt, op))
        found = np.unique(a + b if op == "Add" else a * b)
        assert np.isin(found, between).all()
        assert found.size >= share * np.count_nonzero(between)


# ---- peers ---------------------------------------------------------------------------------------
@pytest.mark.sampled(18)
@pytest.mark.parametrize("op", [*ARITHMETIC, "Fma", "LT", "LE", "EQ"])
@pytest.mark.parametrize("name", ["posit8_es0", "posit8_es2", "posit16_es2", "posit11_es2"])
def test_softposit_agrees_with_integers(name: str, op: str) -> None:
    fmt, rng = get(name), np.random.default_rng(3)
    peer = peers.find(fmt, op)
    if op == "Fma" and name != "posit8_es0":
        assert peer is None
        return
    assert peer is not None
    assert peer.name == peers.SOFTPOSIT
    columns = [rng.permutation(samples.anything(fmt, rng, 3000)) for _ in range(2 + (op == "Fma"))]
    judge = Judge(fmt)
    want = judge.compare(op, *columns) if len(op) == 2 else judge.arithmetic(op, *columns)
    np.testing.assert_array_equal(peer.apply(*columns), want)


def test_a_known_error_of_softposit_is_one() -> None:
    """When a release corrects it, the entry goes."""
    operands = (2, 0x7FFFFFFF, 0x5C6CD47B)
    assert softposit.function("p32_mulAdd")(*operands) != rational.apply(
        get("posit32_es2"), "Fma", *operands
    )
    assert list(peers.excluded(get("posit32_es2"))) == ["p32_mulAdd"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float6_e3m2fn"])
def test_ml_dtypes_agrees_with_integers(name: str) -> None:
    if importlib.util.find_spec("ml_dtypes") is None:
        pytest.skip("ml_dtypes is not installed")
    fmt, rng = get(name), np.random.default_rng(4)
    for op in ("Add", "Mul", "Div"):
        peer = peers.find(fmt, op)
        if name == "float6_e3m2fn" and op == "Div":
            assert peer is None
            continue
        assert peer is not None
        a, b = samples.anything(fmt, rng, 3000), samples.anything(fmt, rng, 3000)
        want = peers.one_nan(fmt, Judge(fmt).arithmetic(op, a, b))
        np.testing.assert_array_equal(peer.apply(a, b), want)
