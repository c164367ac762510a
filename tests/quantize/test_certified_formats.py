"""Certificates of sums in formats: the widths that exact rationals say."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from quantize_nets import mixed_net, net, plan_of

import datatypes
import quantize
from compiler.errors import ConfigError, DtypelabError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.symbolic import Var
from compiler.transform.certificates import Certificate, bits_of, certificates
from compiler.types.dtypes import Array
from quantize import QConfig
from quantize.formats.element import element


def of_format(name: str, weight: Array, x: Array) -> tuple[Certificate, Function]:
    b = FunctionBuilder()
    y = b.call("nn.dense", b.param("x", x.shape), b.const(weight), name="y")
    mod = datatypes.change_dtype(IRModule({"main": b.finish(y)}), "float32", name)
    (c,) = certificates(mod)
    return c, mod.main


def test_sums_and_products_of_two_values_in_a_format() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 6))
    relu = b.call("nn.relu", x)
    y = b.call("sum", relu, axis=(1,), name="s")
    z = b.call("nn.matmul", x, b.call("transpose", relu, axes=(1, 0)), name="m")
    mod = IRModule({"main": b.finish(y, z)})
    found = certificates(datatypes.change_dtype(mod, "float32", "float8_e4m3fn"))
    by = {c.op: c for c in found}
    assert (by["sum"].low, by["sum"].high, by["sum"].unit) == (0, 6 * 448 * 2**9, -9)
    products = by["nn.matmul"]
    assert (products.low, products.high) == (-6 * (448 * 2**9) ** 2, 6 * (448 * 2**9) ** 2)
    assert products.unit == -18


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("weights", "data"),
    [("posit8_es1", "posit8_es1"), ("int4", "float8_e5m2"), ("float8_e4m3fn", "float6_e3m2fn")],
)
def test_stored_formats_need_the_width_of_their_numbers(weights: str, data: str) -> None:
    config = QConfig(weight_dtype=weights, activation_dtype=data)
    plan = plan_of("mlp", config)
    found = quantize.certify(net("mlp"), plan)
    assert [c.node for c in found] == ["linear", "logits"]
    made = {b.var.name: b.value for b in net("mlp").main.bindings}
    known = datatypes.decode(data, np.arange(1 << datatypes.get(data).nbits))
    known = known[np.isfinite(known)]
    for c in found:
        call = made[c.node]
        assert isinstance(call, Call)
        weight = call.args[1]
        assert isinstance(weight, Constant)
        scales = np.asarray(plan.formats[c.node][1].scales, np.float64).reshape(-1, 1)
        values = element(weights).rounded(weight.data / scales)
        rows = [[Fraction(float(v)) for v in row] for row in values]
        most, unit = Fraction(float(known.max())), Fraction(2) ** c.unit
        above = [sum((v for v in row if v > 0), Fraction(0)) * most for row in rows]
        below = [sum((v for v in row if v < 0), Fraction(0)) * most for row in rows]
        if c.node == "linear":  # the other reads what is not negative
            above = [a - b for a, b in zip(above, below, strict=True)]
            below = [-a for a in above]
        assert c.factors == (data, weights)
        assert (c.low * unit, c.high * unit) == (min(below), max(above))
        finest = max(Fraction(float(v)).denominator for v in known)
        assert unit * finest * max(v.denominator for row in rows for v in row) in (1, 2, 4, 8)


def test_scales_that_differ_within_a_sum_are_named() -> None:
    config = QConfig(weight_dtype="mxfp8_e4m3", activation_dtype="mxfp8_e4m3")
    found = quantize.certify(net("mlp"), plan_of("mlp", config))
    reasons = {c.reason for c in found}
    assert reasons == {"its sums go over blocks or groups with scales of their own"}
    assert {c.bits for c in found} == {0}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        *("posit8_es0", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float6_e3m2fn"),
        *("posit8_es2", "takum8", "posit6_es3"),
    ],
)
def test_exact_sums_of_formats_need_the_width_that_fractions_say(name: str) -> None:
    weight = np.random.default_rng(5).normal(0, 0.3, (4, 7)).astype(np.float32)
    c, main = of_format(name, weight, np.zeros((1, 7), np.float32))
    kind = datatypes.get(name)
    calls = [b.value for b in main.bindings if isinstance(b.value, Call)]
    (call,) = (v for v in calls if str(v.op) == "nn.dense")
    values = datatypes.decode(name, call.args[1].data)
    rows = [[Fraction(float(v)) for v in row] for row in values]
    codes = datatypes.decode(name, np.arange(1 << kind.nbits))
    known = [Fraction(float(v)) for v in codes[np.isfinite(codes)]]
    most = max(sum(map(abs, row)) for row in rows) * max(known)
    finest = max(v.denominator for v in known) * max(v.denominator for row in rows for v in row)
    assert Fraction(2) ** -c.unit == finest
    assert c.high == most * finest
    assert c.bits == int(most * finest).bit_length() + 1


def test_certified_sums_of_a_format_are_exact_ones_that_its_widths_hold() -> None:
    rng, name = np.random.default_rng(6), "posit8_es2"
    b = FunctionBuilder()
    y = b.call("nn.dense", b.param("x", (5, 7)), b.const(rng.normal(size=(4, 7)).astype("f4")))
    mod = IRModule({"main": b.finish(y)})
    certified, exact = (
        datatypes.change_dtype(mod, {"*": (name, mode)}) for mode in ("certified", "exact")
    )
    assert certified.astext() == exact.astext()
    (c,) = quantize.certify(certified, None, [rng.normal(size=(5, 7)).astype(np.float32)])
    assert 0 < c.data_bits <= c.bits <= c.step_bits


def test_certified_sums_need_known_numbers() -> None:
    with pytest.raises(DtypelabError, match="has only sequential accumulation"):
        datatypes.change_dtype(mixed_net(), "float32", "lns16_8", accumulate="certified")
    with pytest.raises(ConfigError, match="integers, and for networks all in one format"):
        QConfig(
            weight_dtype="posit8_es1", activation_dtype="posit8_es1", compute="native",
            accumulate="certified",
        )  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["posit8_es2", "float8_e4m3fn", "bfloat16"])
def test_data_need_the_width_of_their_exact_sums(name: str) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 0.3, (4, 7)).astype(np.float32)
    b = FunctionBuilder()
    x = b.param("x", (Var("n"), 7))
    y = b.call("nn.dense", x, b.const(weight), b.const(weight[:, 0]), name="y")
    z = b.call("mean", x, axis=(1,), name="z")
    mod = datatypes.change_dtype(IRModule({"main": b.finish(y, z)}), "float32", name)
    batches = [rng.normal(0, 2, (n, 7)).astype(np.float32) for n in (3, 5)]
    batches[1][0, 0] = np.nan
    found = {c.op: c for c in quantize.certify(mod, None, batches)}

    def numbers(values: Array) -> list[list[Fraction]]:
        rows = datatypes.decode(name, datatypes.encode(name, values))
        return [[Fraction(float(v)) for v in row] for row in rows if np.isfinite(row).all()]

    rows = [row for batch in batches for row in numbers(batch)]
    w = numbers(weight)
    sums = [sum(a * c for a, c in zip(r, v, strict=True)) + v[0] for r in rows for v in w]
    for op, exact in (("nn.dense", sums), ("mean", [sum(r) for r in rows])):
        c = found[op]
        ends = [int(v / Fraction(2) ** c.unit) for v in (min(0, *exact), max(0, *exact))]
        assert c.data_bits == bits_of(*ends) < c.bits
