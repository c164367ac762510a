"""Sums that are held in a format of their own: the reference against fractions, compiled code
against the reference, and what users see."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from accumulator_oracle import AccumulatorOracle, codes_of, rounding, rows_of_sums
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_oracle import SUMS, Sum, dtype_of
from test_every_sum import exact_values, module, operands

import compiler
import datatypes
from compiler.errors import DtypelabError, LoweringError, TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.accumulator import Accumulator, accumulator, of_table
from compiler.op.accumulator_presets import PRESETS
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from datatypes.formats import get
from experiments import zoo
from experiments.data import datasets

PAIRS = (
    ("float8_e4m3fn", "float16"), ("float8_e4m3fn", "bfloat16"), ("float8_e4m3fn", "float22_e8m13"),
    ("bfloat16", "float22_e8m13"), ("bfloat16", "float16"), ("posit8_es2", "posit16_es2"),
    ("posit16_es1", "posit32_es2"), ("posit8_es0", "fixed16_8"), ("float16", "takum16"),
    ("float8_e5m2", "float16_truncate"), ("fixed8_4", "fixed8_4"), ("float16", "float16"),
)  # fmt: skip
"""Formats of data and of sums."""
STAGED = (
    ("float8_e4m3fn", '{format = "float16", chunk = 4}'),
    ("float8_e4m3fn", '{format = "float16", chunk = 3, outer = "float32"}'),
    ("bfloat16", '{format = "float22_e8m13", order = "tree4"}'),
    ("float16", '{format = "bfloat16", order = "pairwise"}'),
    ("float16", '{format = "float16", order = "tree2", chunk = 5, products = "rounded"}'),
    ("bfloat16", '{format = "bfloat16", products = "rounded"}'),
    ("float8_e5m2", '{format = "float16", compensated = true}'),
    ("bfloat16", '{format = "float32", chunk = 5, compensated = true}'),
    ("float8_e4m3fn", '{format = "float22_e8m13", compensated = true}'),
    ("bfloat16", '{format = "bfloat16", chunk = 7, compensated = true}'),
    ("float8_e4m3fn", '{format = "float32", align_bits = 14, group = 4}'),
    ("float16", '{format = "float32", rounding = "truncate", align_bits = 24, group = 4}'),
    ("float8_e5m2",
     '{format = "float22_e8m13", chunk = 8, outer = "float32", rounding = "truncate", '
     'align_bits = 14, group = 4}'),
    ("posit8_es2",
     '{format = "posit16_es1", chunk = 6, outer = "posit32_es2", order = "pairwise"}'),
    ("posit16_es1", '{format = "float64", order = "tree2"}'),
    ("posit16_es1", '{format = "posit16_es1", chunk = 4}'),
    ("float8_e4m3fn", '{format = "float32", align_bits = 14}'),
    ("fixed8_4", '{format = "fixed16_8", rounding = "truncate", order = "tree8"}'),
    *(("float8_e4m3fn" if "fp8" in name else "float16", name) for name in PRESETS),
)  # fmt: skip
"""Formats of data, and accumulators that add in parts."""
ONE_BY_ONE = ("cumsum", "scatter_elements", "scatter_nd")
"""Operators whose sums go on from one another: their terms come in sequence."""


def has_sums(op: str, mode: str) -> bool:
    """Whether an operator has sums in an accumulator."""
    how = accumulator(mode)
    assert how is not None
    return op not in ONE_BY_ONE or (how.order == "sequential" and not how.align_bits)


EVERY = [(s, *pair) for s in SUMS for pair in (*PAIRS, *STAGED) if has_sums(s.op, pair[1])]


def check_reference(s: Sum, data: str, held: str, seed: int = 0) -> None:
    """The reference against fractions."""
    fmt = get(data)
    args = operands(s, fmt, seed)
    got = np.asarray(compiler.evaluate(module(s, fmt, held), *args))
    oracle = AccumulatorOracle(fmt, held)
    want = s.oracle(oracle, *(exact_values(fmt, a) for a in args))
    wanted = np.asarray(np.asarray(want, object), float)
    np.testing.assert_array_equal(datatypes.decode(fmt, got), wanted)


@pytest.mark.sampled(120)
@pytest.mark.parametrize(("s", "data", "held"), EVERY, ids=str)
def test_the_reference_is_that_of_fractions(s: Sum, data: str, held: str) -> None:
    check_reference(s, data, held)


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(st.sampled_from(EVERY), st.integers(0, 2**32 - 1))
def test_any_reference_is_that_of_fractions(run: tuple[Sum, str, str], seed: int) -> None:
    check_reference(*run, seed)


@pytest.mark.sampled(416)
@pytest.mark.parametrize(("s", "data", "held"), EVERY, ids=str)
def test_compiled_code_gives_the_bits_of_the_reference(s: Sum, data: str, held: str) -> None:
    fmt = get(data)
    mod, args = module(s, fmt, held), operands(s, fmt, 1)
    want = np.asarray(compiler.evaluate(mod, *args))
    for lowering in (None, "library"):
        got = np.asarray(compiler.build(mod, dtype_lowering=lowering)(*args))
        np.testing.assert_array_equal(got, want)


@settings(max_examples=20)
@given(st.integers(-(2**40), 2**40), st.integers(-60, 20))
def test_the_oracle_rounds_floats_as_their_codes_do(n: int, exponent: int) -> None:
    x = n * Fraction(2) ** exponent
    for name in ("float16", "bfloat16", "float22_e8m13", "float32_e8m23"):
        for truncate in (False, True):
            fmt = get(f"{name}_truncate" if truncate else name)
            want = fmt.decode_exact(fmt.encode_exact(x))
            if isinstance(want, Fraction):
                assert rounding(name, truncate)(x) == want
                assert rounding(fmt.name, False)(x) == want


# ---- many sums -----------------------------------------------------------------------------------
def check_many(data: str, mode: str, rows: int, columns: int, seed: int = 0) -> None:
    """rows x columns random sums of products: interpreted, compiled, and in fractions."""
    x, w = codes_of(get(data), rows, seed), codes_of(get(data), columns, seed + 1)
    got = products(data, mode, x, w)
    want = rows_of_sums(get(data), mode, x, w)
    np.testing.assert_array_equal(datatypes.decode(get(data), got), want)


def products(data: str, mode: str, x: Array, w: Array) -> Array:
    """Codes of x @ w.T, compiled; interpreted it is the same."""
    b = FunctionBuilder()
    factors = (b.param(n, v.shape, dtype_of(get(data))) for n, v in (("x", x), ("w", w)))
    mod = IRModule({"main": b.finish(b.call("nn.dense", *factors, accumulate=mode))})
    want = np.asarray(compiler.evaluate(mod, x, w))
    np.testing.assert_array_equal(np.asarray(compiler.build(mod)(x, w)), want)
    return want


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("data", "held"), [*PAIRS, *STAGED], ids=str)
def test_sums_of_any_magnitudes(data: str, held: str) -> None:
    check_many(data, held, 4, 18)


@pytest.mark.slow
@pytest.mark.parametrize(("data", "held"), [*PAIRS, *STAGED], ids=str)
def test_ten_thousand_sums_of_any_magnitudes(data: str, held: str) -> None:
    check_many(data, held, 100, 100, 7)


@pytest.mark.thorough
def test_subnormal_factors_have_the_exponent_of_the_least_normal_number() -> None:
    """As published models of tensor cores have it. 2**-9 is subnormal: beside 2**-9 * 2**8, whose
    exponent is that of 2**-6 * 2**8, the last bit kept is 2**(2 - 13), and 2**-12 is none."""
    fmt = get("float8_e4m3fn")
    for first, left in (((2.0**-9, 2.0**8), 0.0), ((2.0**-1, 1.0), 31 * 2.0**-12)):
        x = np.zeros((1, 64))
        w = np.zeros((1, 64))
        x[0, :32], w[0, :32] = 2.0**-9, 2.0**-3
        x[0, 0], w[0, 0] = first
        x[0, 32], w[0, 32] = -(2.0**-1), 1  # of the next group
        codes = [np.asarray(datatypes.encode(fmt, v)) for v in (x, w)]
        got = datatypes.decode(fmt, products("float8_e4m3fn", "h100_fp8", *codes))
        np.testing.assert_array_equal(got, datatypes.decode(fmt, datatypes.encode(fmt, [[left]])))
        np.testing.assert_array_equal(got, rows_of_sums(fmt, "h100_fp8", *codes))


COMPENSATED = (
    ("float8_e5m2", "float8_e5m2"), ("float8_e4m3fn", "float8_e4m3fn"), ("float16", "float16"),
    ("bfloat16", "bfloat16"), ("float8_e5m2", "float22_e8m13"), ("posit8_es2", "posit8_es2"),
    ("float8_e5m2", "float8_e5m2_truncate"), ("float6_e3m2fn", "float6_e3m2fn"),
)  # fmt: skip
"""Formats of data and of Kahan's sums: those that keep the errors of sums, and others."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("data", "held"), COMPENSATED, ids=str)
def test_compensated_sums_of_any_codes(data: str, held: str) -> None:
    """Infinities, NaN, subnormal numbers and the largest ones among them; ones, and small weights,
    so that sums stay finite for a while."""
    fmt = get(data)
    rng = np.random.default_rng(3)
    x = rng.integers(0, fmt.mask + 1, (12, 9)).astype(fmt.storage)
    w = np.asarray(datatypes.encode(fmt, rng.choice([1.0, -1.0, 0.5, 0.25, 0.0], (40, 9))))
    x[::3, 4:] = np.asarray(datatypes.encode(fmt, rng.normal(size=x[::3, 4:].shape)))
    products(data, f'{{format = "{held}", compensated = true}}', x, w)


OPEN = (
    "h100_fp8", '{format = "float16", chunk = 6, outer = "float32", order = "tree4"}',
    '{format = "float22_e8m13", rounding = "truncate", align_bits = 14, group = 3, chunk = 7}',
    '{format = "posit16_es1", chunk = 5, compensated = true}', "v100_fp16",
    '{format = "float16", compensated = true}', '{format = "bfloat16", products = "rounded"}',
)  # fmt: skip
"""Accumulators that add up an open number of terms in parts."""


@pytest.mark.sampled(24)
@pytest.mark.parametrize("held", OPEN)
@pytest.mark.parametrize("op", ["nn.matmul", "nn.softmax", "sum"])
def test_sums_in_parts_may_have_an_open_number_of_terms(op: str, held: str) -> None:
    n, fmt = Var("n"), get("float8_e4m3fn")
    shapes = [(2, n), (n, 3)] if op == "nn.matmul" else [(4, n)]
    b = FunctionBuilder()
    args = [b.param(f"x{k}", s, dtype_of(fmt)) for k, s in enumerate(shapes)]
    attrs: dict[str, Any] = {} if op == "nn.matmul" else {"axis": 1}
    mod = IRModule({"main": b.finish(b.call(op, *args, accumulate=held, **attrs))})
    compiled, rng = compiler.build(mod), np.random.default_rng(0)
    for terms in (1, 2, 6, 7, 13, 33):
        data = [
            np.asarray(datatypes.encode(fmt, rng.normal(size=[terms if s is n else s for s in t])))
            for t in shapes
        ]
        data[0][:, :-1][rng.random(data[0][:, :-1].shape) < 0.05] = 0x7F  # NaN
        want = np.asarray(compiler.evaluate(mod, *data))
        np.testing.assert_array_equal(np.asarray(compiled(*data)), want)


@pytest.mark.parametrize(
    ("held", "axis", "text"),
    [
        ('{format = "float16", order = "pairwise"}', (2,), "levels of pairs .* order = 'tree8'"),
        ("h100_fp8", (1, 2), "are of m x n terms: only the first size may be open"),
    ],
)
def test_what_has_no_open_number_of_terms_is_said(
    held: str, axis: tuple[int, ...], text: str
) -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, Var("m"), Var("n")), "custom[float8_e4m3fn]8")
    mod = IRModule({"main": b.finish(b.call("sum", x, axis=axis, accumulate=held))})
    with pytest.raises(LoweringError, match=text):
        compiler.build(mod)


TIES = (
    ("float16", "float16", 11), ("posit16_es1", "float16", 11), ("bfloat16", "bfloat16", 8),
    ("float16", '{format = "float16", compensated = true}', 11),
)  # fmt: skip
"""Formats of data, and of sums, of so many bits, whose steps are computed in different floats."""


@pytest.mark.thorough
@pytest.mark.parametrize(("data", "held", "bits"), TIES, ids=str)
def test_sums_beside_ties(data: str, held: str, bits: int) -> None:
    """Numbers of which the last place is odd, and half of that place, but for the square of an
    error: no float between may take this for a tie."""
    fmt, half, error = get(data), 2.0**-bits, 2.0 ** (1 - bits)
    acc = 1 + error * np.array([1, 5, 2**bits // 2 - 1])
    x = np.array([(v, s * half * (1 + d), 0.0) for v in acc for s in (1, -1) for d in (0, error)])
    w = np.array([(1, f * (1 - d), 1) for f in (1, 2.0**-4) for d in (-error / 2, 0, error)])
    x[::5, 2] = error * 2.0**-9
    codes = [np.asarray(datatypes.encode(fmt, v)) for v in (x, w)]
    got, want = products(data, held, *codes), rows_of_sums(fmt, held, *codes)
    np.testing.assert_array_equal(datatypes.decode(fmt, got), want)


# ---- rounding toward zero ------------------------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "divide", "sqrt"])
@pytest.mark.parametrize("name", ["float16_truncate", "float22_e8m13_truncate"])
def test_lanes_truncate_as_codes_do(name: str, op: str) -> None:
    fmt, rng = get(name), np.random.default_rng(5)
    x, y = (rng.integers(0, fmt.mask + 1, 3000).astype(fmt.storage) for _ in range(2))
    y[:1500] = x[:1500] ^ rng.integers(0, 1 << 9, 1500).astype(fmt.storage)
    args = [x] if op == "sqrt" else [x, y]
    b = FunctionBuilder()
    params = [b.param(f"p{k}", v.shape, dtype_of(fmt)) for k, v in enumerate(args)]
    mod = IRModule({"main": b.finish(b.call(op, *params))})
    got = np.asarray(compiler.build(mod, dtype_lowering="vector")(*args))
    want = np.asarray(compiler.build(mod, dtype_lowering="library")(*args))
    np.testing.assert_array_equal(got, want)


# ---- float32 networks ----------------------------------------------------------------------------
@pytest.mark.thorough
@pytest.mark.parametrize("held", ["float16", "float22_e8m13", "posit16_es1"])
def test_a_float32_network_has_sums_in_a_format(held: str) -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.normal(size=(n, 21)).astype(np.float32) for n in (3, 18))
    bias = rng.normal(size=18).astype(np.float32)
    b = FunctionBuilder()
    y = b.call("nn.dense", b.param("x", x.shape), b.const(w), b.const(bias))
    mod = datatypes.change_dtype(
        IRModule({"main": b.finish(y)}), "float32", "float32", accumulate=held
    )
    want = np.asarray(compiler.evaluate(mod, x))
    np.testing.assert_array_equal(np.asarray(compiler.build(mod)(x)), want)
    fmt = get(held)

    def of(row: Array, unit: Array, last: float) -> float:
        acc = Fraction(0)
        terms = [Fraction(float(a)) * Fraction(float(c)) for a, c in zip(row, unit, strict=True)]
        for term in [*terms, Fraction(float(last))]:
            found = fmt.decode_exact(fmt.encode_exact(acc + term))
            assert isinstance(found, Fraction)
            acc = found
        return float(np.float32(float(acc)))

    oracle = [[of(row, unit, c) for unit, c in zip(w, bias, strict=True)] for row in x]
    np.testing.assert_array_equal(want, oracle)


@pytest.mark.thorough
@pytest.mark.parametrize("network", ["mnist_mlp", "mnist_resnet8", "mnist_dwsep"])
@pytest.mark.parametrize("name", PRESETS)
def test_networks_on_published_hardware(name: str, network: str) -> None:
    """Compiled as interpreted, bit for bit."""
    x = datasets.load("mnist1k").x[:1]
    mod = compiler.from_onnx(zoo.FOLDER / f"{network}.onnx", shapes={"input": x.shape})
    fmt = "float8_e4m3fn" if "fp8" in name else "float16"
    retyped = datatypes.change_dtype(mod, "float32", fmt, accumulate=name)
    want = np.asarray(compiler.evaluate(retyped, x))
    np.testing.assert_array_equal(np.asarray(compiler.build(retyped)(x)), want)


def test_sums_by_layer() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 8))
    w = b.const(np.eye(8, dtype=np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", b.call("nn.dense", x, w), w))})
    choice: Any = {"0": ("bfloat16", "float22_e8m13"), "*": ("float32", {"format": "float16"})}
    text = datatypes.change_dtype(mod, choice).astext()
    assert 'accumulate="float22_e8m13"' in text
    assert 'accumulate="float16"' in text


# ---- what is written -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "table",
    [
        {"format": "float16"},
        {"format": "float16", "chunk": 128, "outer": "float32"},
        {"format": "float22_e8m13", "order": "tree8", "rounding": "truncate"},
        {"format": "bfloat16", "compensated": True, "products": "rounded"},
        {"format": "float32", "align_bits": 14, "group": 32},
    ],
)
def test_a_description_is_printed_as_it_is_read(table: dict[str, Any]) -> None:
    found = of_table(table)
    assert accumulator(str(found)) == found
    assert of_table(dict(reversed(table.items()))) == found
    assert str(Accumulator("float16", chunk=0)) == "float16"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("float17", "unknown accumulation 'float17'"),
        ({"format": "float17"}, "float17"),
        ({"chunk": 3}, "needs a format"),
        ({"format": "float16", "chunks": 3}, "its keys are format, chunk"),
        ({"format": "float16", "chunk": "3"}, "chunk must be int"),
        ({"format": "float16", "order": "tree7"}, "order is one of"),
        ({"format": "float16", "rounding": "up"}, "nearest or truncate"),
        ({"format": "float16", "outer": "float32"}, "needs chunk"),
        ("bfloat16_stochastic", "stochastically"),
        ("lns16_8", "no meaning"),
        ("float8_e4m3fn", "narrower than products of custom.bfloat16"),
        ("{format = ", "no inline table"),
        ({"format": "float32", "align_bits": 8}, "keeps 8 bits is narrower than products"),
        ({"format": "float32", "align_bits": 48}, "sums of 16 terms .* keep at most 47"),
        ({"format": "float32", "align_bits": 10**9, "group": 64}, "keep at most 45"),
        ("{format = " + "{a = " * 9999, "no inline table"),
        ({"format": "float16", "order": "tree4", "compensated": True}, "sequential"),
    ],
)
def test_what_is_no_accumulator_is_refused_in_a_sentence(given: Any, text: str) -> None:
    b = FunctionBuilder()
    y = b.call("sum", b.param("x", (2, 9)), axis=1)
    mod = IRModule({"main": b.finish(y)})
    with pytest.raises(DtypelabError, match=text):
        datatypes.change_dtype(mod, "float32", "bfloat16", accumulate=given)


def test_as_many_bits_as_may_be_kept_are_added_exactly() -> None:
    for group, bits in ((1, 51), (4, 49), (64, 45)):
        held = f'{{format = "float64", align_bits = {bits}, group = {group}}}'
        check_many("bfloat16", held, 3, 3, seed=group)


@pytest.mark.thorough
def test_a_name_that_was_no_format_may_become_one() -> None:
    b = FunctionBuilder()
    mod = IRModule({"main": b.finish(b.call("sum", b.param("x", (2, 9)), axis=1))})
    with pytest.raises(DtypelabError, match="unknown accumulation 'made_later'"):
        datatypes.change_dtype(mod, "float32", "bfloat16", accumulate="made_later")
    datatypes.define("made_later", exponent=6, mantissa=11)
    changed = datatypes.change_dtype(mod, "float32", "bfloat16", accumulate="made_later")
    assert 'accumulate="made_later"' in str(changed)


@pytest.mark.thorough
def test_a_format_made_now_that_rounds_by_chance_has_no_nearest_name() -> None:
    datatypes.define("by_chance", exponent=5, mantissa=7, rounding="stochastic")
    with pytest.raises(DtypelabError, match="stochastically; choose a format that rounds to near"):
        assert Accumulator("by_chance").dtype.bits


def test_integers_have_no_accumulator_in_a_format() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 9), "int8")
    with pytest.raises(TypeInferenceError, match="is for float32 and custom datatypes"):
        b.call("nn.dense", x, x, out_dtype="int32", accumulate="float16")
