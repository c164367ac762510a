"""Exact sums that float64 does not hold: parts of operands, on any data, rounded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import softposit
from test_accumulate import LAYERS, by_rationals, check_layer, dot, layer

import compiler
import datatypes
from compiler.errors import InputError, LoweringError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.accumulate import MOST_OPEN
from compiler.symbolic import Var
from compiler.types.dtypes import Array, DType
from datatypes.formats import Format, get

ZOO = Path(__file__).resolve().parents[2] / "experiments" / "zoo"
WIDE = ("posit16_es1", "posit16_es2", "posit8_es2", "float8_e5m2", "float16", "bfloat16")


def some_codes(fmt: Format, shape: tuple[int, ...], seed: int) -> Array:
    """Finite codes of any magnitude."""
    rng = np.random.default_rng(seed)
    orders = rng.integers(max(fmt.lowest, -fmt.highest), fmt.highest + 1, shape)
    return np.vectorize(fmt.code, otypes=[fmt.storage])(orders)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", LAYERS)
def test_every_operator_of_posit16_gives_the_bits_of_its_reference(name: str) -> None:
    check_layer(name, "posit16_es1", "exact")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WIDE)
def test_dot_products_of_any_codes_are_those_of_exact_rationals(name: str) -> None:
    fmt = get(name)
    x, w = some_codes(fmt, (24, 7), 0), some_codes(fmt, (5, 7), 1)
    got = datatypes.decode(fmt, dot(fmt, "exact", x, w, "vector"))
    want = [[by_rationals(fmt, "exact", a, b) for b in w.tolist()] for a in x.tolist()]
    np.testing.assert_array_equal(got, datatypes.decode(fmt, np.array(want, fmt.storage)))


@pytest.mark.thorough
def test_parts_of_posit32_are_enough() -> None:
    fmt = get("posit32_es2")
    x, w = some_codes(fmt, (3, 5), 2), some_codes(fmt, (2, 5), 3)
    got = dot(fmt, "exact", x, w, "vector")
    want = [[by_rationals(fmt, "exact", a, b) for b in w.tolist()] for a in x.tolist()]
    assert got.tolist() == want


@pytest.mark.thorough
@pytest.mark.parametrize("lowering", ["vector", "library"])
@pytest.mark.parametrize("name", ["posit16_es1", "posit16_es2"])
def test_what_is_left_after_cancellation_is_not_lost(name: str, lowering: str) -> None:
    fmt = get(name)
    most, least, one = fmt.code(fmt.highest), fmt.code(1), 0x4000
    minus = fmt.code(-fmt.highest)
    x = np.array([[most] * 20 + [least] + [minus] * 20, [least] * 20 + [most] + [least] * 20])
    w = np.array([[most] * 20 + [least] + [most] * 20, [one] * 41], fmt.storage)
    got = dot(fmt, "exact", x.astype(fmt.storage), w, lowering)
    want = [[by_rationals(fmt, "exact", a, b) for b in w.tolist()] for a in x.tolist()]
    assert got.tolist() == want
    assert got[0, 1] == least


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["posit16_es1", "float8_e5m2", "float16"])
def test_what_is_no_number_stays_so(name: str) -> None:
    fmt = get(name)
    x = datatypes.encode(fmt, [[1.0, np.nan], [np.inf, 2.0], [np.inf, -np.inf], [0.5, 2.0]])
    w = datatypes.encode(fmt, [[1.0, 0.0], [2.0**-14, 3.0], [0.0, 0.0], [-1.0, -1.0]])
    want = dot(fmt, "exact", x, w)
    for lowering in ("vector", "library"):
        got = datatypes.decode(fmt, dot(fmt, "exact", x, w, lowering))
        np.testing.assert_array_equal(got, datatypes.decode(fmt, want))
    values = datatypes.decode(fmt, want)
    assert np.isnan(values[0]).all()
    if fmt.has_inf:
        assert values[1].tolist()[:2] == [np.inf, np.inf]
        assert np.isnan(values[1, 2])


@pytest.mark.parametrize(
    ("name", "posit", "quire"),
    [
        ("posit8_es0", softposit.posit8, softposit.quire8),
        ("posit16_es1", softposit.posit16, softposit.quire16),
    ],
)
def test_exact_sums_equal_softposit_within_the_capacity_of_its_quire(
    name: str, posit: Any, quire: Any
) -> None:
    fmt = get(name)
    x, w = some_codes(fmt, (6, 30), 4), some_codes(fmt, (4, 30), 5)
    got = dot(fmt, "exact", x, w, "vector")
    for i, j in np.ndindex(6, 4):
        q = quire()
        for a, b in zip(x[i].tolist(), w[j].tolist(), strict=True):
            q.qma(posit(bits=a), posit(bits=b))
        assert int(q.toPosit().v.v) == got[i, j]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fmt", ["posit8_es0", "posit16_es1"])
def test_threads_do_not_change_bits(fmt: str) -> None:
    mod, data = layer("plain", fmt, "exact", seed=3)
    one, two = (compiler.build(mod, threads=n)(data) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_exact_average_pools_divide_by_the_same_counts(
    ceil_mode: bool, count_include_pad: bool
) -> None:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (1, 3, 8, 7))
    options = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    y = b.call(
        "nn.avg_pool2d", x, pool_size=(3, 2), strides=(3, 2), padding=(1, 0, 1, 1), **options
    )
    mod = datatypes.change_dtype(
        IRModule({"main": b.finish(y)}), "float32", "posit16_es1", accumulate="exact"
    )
    data = rng.normal(size=(1, 3, 8, 7)).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(mod)(data), compiler.evaluate(mod, data))


@pytest.mark.thorough
def test_formats_of_too_wide_a_range_say_what_to_do() -> None:
    fmt = get("takum16")
    x = some_codes(fmt, (2, 3), 0)
    with pytest.raises(LoweringError, match="more than 256 products of parts; accumulate in float"):
        dot(fmt, "exact", x, x, "vector")


@pytest.mark.thorough
def test_sums_over_open_axes_are_exact_up_to_a_length_that_is_taken_for_granted() -> None:
    n = Var("n")
    b = FunctionBuilder()
    kind = DType.parse("custom[float8_e5m2]8")
    x, y = b.param("x", (2, n), kind), b.param("y", (n, 3), kind)
    shares = b.call("nn.softmax", x, axis=-1, accumulate="exact")
    mod = IRModule({"main": b.finish(b.call("nn.matmul", shares, y, accumulate="exact"))})
    exe, fmt = compiler.build(mod), get("float8_e5m2")
    for size in (1, 5, 40):
        args = some_codes(fmt, (2, size), size), some_codes(fmt, (size, 3), size + 1)
        np.testing.assert_array_equal(exe(*args), compiler.evaluate(mod, *args))
    (taken,) = compiler.assumptions(mod)
    assert taken.holds({n: MOST_OPEN})
    assert not taken.holds({n: MOST_OPEN + 1})
    with pytest.raises(InputError, match="n"):
        exe(np.zeros((2, MOST_OPEN + 1), np.uint8), np.zeros((MOST_OPEN + 1, 3), np.uint8))
    means = []
    for name in ("custom[float8_e5m2]8", "custom[float16]16"):
        b = FunctionBuilder()
        x = b.param("x", (2, n), DType.parse(name))
        total = b.call("mean", x, axis=(1,), accumulate="exact")
        means.append(IRModule({"main": b.finish(total)}))
    codes = some_codes(fmt, (2, 9), 3)
    np.testing.assert_array_equal(
        compiler.build(means[0])(codes), compiler.evaluate(means[0], codes)
    )
    with pytest.raises(LoweringError, match=r"exact means of n terms.*give the model fixed shapes"):
        compiler.build(means[1])


def test_each_layer_of_a_network_has_its_own_accumulation() -> None:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    y: Any = b.param("x", (2, 6))
    for k in range(3):
        w = b.const(rng.normal(size=(6, 6)).astype(np.float32))
        y = b.call("nn.dense", y, w, name=f"layer{k}")
    mod = IRModule({"main": b.finish(y)})
    choices = {"layer0": ("posit16_es1", "exact"), "layer1": ("posit8_es0", "fma")}
    mixed = datatypes.change_dtype(mod, {**choices, "layer2": "posit16_es1"}, accumulate="float64")
    text = mixed.astext()
    assert [text.count(f'accumulate="{m}"') for m in ("exact", "fma", "float64")] == [1, 1, 1]
    x = rng.normal(size=(2, 6)).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(mixed)(x), compiler.evaluate(mixed, x))


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["fma", "exact", "float32", "float64"])
def test_a_whole_network_of_any_batch_size_gives_the_bits_of_the_library_lowering(
    mode: str,
) -> None:
    mod = compiler.from_onnx(ZOO / "mnist_dwsep.onnx")
    changed = datatypes.change_dtype(mod, "float32", "posit16_es1", accumulate=mode)
    x = np.random.default_rng(0).normal(size=(2, 1, 28, 28)).astype(np.float32)
    fast, plain = (compiler.build(changed, dtype_lowering=k)(x) for k in ("vector", "library"))
    np.testing.assert_array_equal(fast, plain)
