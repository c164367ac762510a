"""The saturating twins of OFP8's formats: the ordinary format, but nothing is beyond the range."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest

import compiler
import datatypes
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array, DType
from datatypes.formats import get

TWINS = (("float8_e4m3fn_sat", "float8_e4m3fn"), ("float8_e5m2_sat", "float8_e5m2"))
LOWERINGS = ("library", "table", "vector")
OPS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}


def saturating(x: Array, plain: str) -> Array:
    """float64 values of the plain format nearest to `x`, at most the largest of it; NaN stays."""
    most = float(get(plain).maxpos)
    return datatypes.decode(plain, datatypes.encode(plain, np.clip(x, -most, most)))


def same(got: Array, want: Array) -> None:
    """Equal values and signs of zeros, NaN where the other is."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    kept = ~np.isnan(want)
    np.testing.assert_array_equal(got[kept], want[kept])
    np.testing.assert_array_equal(np.signbit(got[kept]), np.signbit(want[kept]))


@pytest.mark.parametrize(("name", "plain"), TWINS)
def test_every_half_of_float32_saturates(name: str, plain: str) -> None:
    top = np.arange(1 << 16, dtype=np.uint32) << 16
    values = np.concatenate([(top | low).view(np.float32) for low in (0, 1, 0x8000, 0xFFFF)])
    same(datatypes.decode(name, datatypes.encode(name, values)), saturating(values, plain))
    most = float(get(plain).maxpos)
    ends = np.array([np.inf, -np.inf, 1e30, -1e30, np.nan])
    got = datatypes.decode(name, datatypes.encode(name, ends))
    np.testing.assert_array_equal(got, [most, -most, most, -most, np.nan])


@pytest.mark.parametrize(("name", "plain"), TWINS)
def test_finite_codes_are_those_of_the_plain_format(name: str, plain: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    ours, theirs = datatypes.decode(name, codes), datatypes.decode(plain, codes)
    same(ours, np.where(np.isinf(theirs), np.nan, theirs))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "plain"), TWINS)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_all_pairs_saturate_in_every_lowering(name: str, plain: str, lowering: str) -> None:
    """1 / 0 is the largest value too; 0 / 0 is NaN."""
    values = datatypes.decode(name, np.arange(256, dtype=np.uint8)).astype(np.float32)
    a, b = np.repeat(values, 256), np.tile(values, 256)
    f = FunctionBuilder()
    x, y = f.param("x", a.shape), f.param("y", a.shape)
    mod = IRModule({"main": f.finish(*(f.call(op, x, y) for op in OPS))})
    ours = datatypes.change_dtype(mod, "float32", name)
    got = compiler.build(ours, dtype_lowering=lowering)(a, b)
    for op, g, e in zip(OPS, got, compiler.evaluate(ours, a, b), strict=True):
        with np.errstate(all="ignore"):
            exact = OPS[op](a.astype(np.float64), b.astype(np.float64))
        same(g, saturating(exact, plain))
        same(e, g)


def test_scaled_and_block_formats_take_the_twins() -> None:
    rng = np.random.default_rng(0)
    f = FunctionBuilder()
    x = f.param("x", (4, 32))
    w = f.const(rng.normal(0, 1, (8, 32)).astype(np.float32))
    mod = IRModule({"main": f.finish(f.call("nn.dense", x, w))})
    data = rng.normal(0, 1, (4, 32)).astype(np.float32)
    for n, (name, plain) in enumerate(TWINS):
        blocks = [
            quantize.define_block_format(f"sat{n}_{k}", e).name for k, e in enumerate((name, plain))
        ]
        for a, b in ((name, plain), blocks):
            runs = [
                compiler.build(quantize.quantize(mod, [data], quantize.QConfig(
                    weight_dtype=e, activation_dtype=e
                )))(data)
                for e in (a, b)
            ]  # fmt: skip
            np.testing.assert_array_equal(*runs)  # scaled formats saturate either way


FORMATS = (*("float6_e2m3fn", "float4_e2m1fn", "float8_e4m3fnuz", "float8_e4m3fn_sat"),
           *("posit8_es0", "posit16_es1", "fixed8_4", "takum16", "bfloat16"))  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("source", "dest"), list(itertools.permutations(FORMATS, 2)))
def test_a_zero_has_the_sign_that_its_format_has(source: str, dest: str) -> None:
    """A number that a format without -0 rounds to zero is +0 in the next format too; one that a
    format with -0 rounds to zero keeps its sign."""
    x = np.array([-1e-30, 1e-30, -0.0, 0.0, -(2.0**-8), -1.0], np.float32)
    f = FunctionBuilder()
    value = f.param("x", x.shape)
    for name in (source, dest):
        value = f.call("cast", value, dtype=str(DType.parse(name)))
    mod = IRModule({"main": f.finish(f.call("cast", value, dtype="float32"))})
    first = datatypes.decode(source, datatypes.encode(source, x))
    want = datatypes.decode(dest, datatypes.encode(dest, first)).astype(np.float32)
    same(compiler.evaluate(mod, x), want)
    same(compiler.build(mod)(x), want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [n for n in datatypes.list_formats() if n.startswith("float") and "_e8m0" not in n]
)
def test_small_negative_numbers_round_to_the_zero_of_ml_dtypes(name: str) -> None:
    if importlib.util.find_spec("ml_dtypes") is None:
        pytest.skip("ml_dtypes is not installed")
    import ml_dtypes

    dtype = getattr(ml_dtypes, name.removesuffix("_sat"), np.float16)
    least = float(get(name).minpos)
    x = np.float32([-least / 2, least / 2, -least / 3, -1e-30, -0.0, 0.0, -least * 0.51])
    with np.errstate(under="ignore"):
        want = x.astype(dtype).astype(np.float64)
    same(datatypes.decode(name, datatypes.encode(name, x)), want)
    f = FunctionBuilder()
    down = f.call("cast", f.param("x", x.shape), dtype=str(DType.parse(name)))
    mod = IRModule({"main": f.finish(f.call("cast", down, dtype="float32"))})
    for lowering in (None, "library", *(["table"] if get(name).nbits <= 8 else [])):
        same(compiler.build(mod, dtype_lowering=lowering)(x), want.astype(np.float32))
