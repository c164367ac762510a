"""Networks computed natively in scaled formats, against the formats' exact oracle."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from format_emulation import assert_same
from quantize_nets import images, net, plan_of, sized

import compiler
import datatypes
from compiler.errors import ConfigError
from compiler.interpret.graph import call_reference, trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, IRModule, Var
from compiler.types.dtypes import FLOAT32, Array
from datatypes.formats import Format, get
from quantize import Plan, QConfig, calibrate, realize
from quantize.annotation.annotate import prepared
from quantize.formats.operand_format import OperandFormat


def native(name: str, **fields: Any) -> QConfig:
    """A configuration that computes in one format."""
    return QConfig(weight_dtype=name, activation_dtype=name, compute="native", **fields)


def encoded(fmt: Format, x: Array, f: OperandFormat) -> Array:
    """Codes of a scaled operand, saturated."""
    most = float(min(fmt.maxpos, Fraction(float(np.finfo(np.float32).max))))
    scales = np.float32(f.scales).reshape(-1, *[1] * (x.ndim - 1)) if len(f.scales) > 1 else None
    ratio = x / (np.float32(f.scales[0]) if scales is None else scales)
    return datatypes.encode(fmt, np.clip(ratio, np.float32(-most), np.float32(most)))


# ---- one layer, in fractions ---------------------------------------------------------------------
def summed(fmt: Format, a: Array, b: Array, mode: str) -> int:
    """Code of a dot product of codes, computed in fractions."""
    acc, products = fmt.zero(False), []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        p, q = fmt.decode_exact(x), fmt.decode_exact(y)
        assert isinstance(p, Fraction)
        assert isinstance(q, Fraction)
        products.append(p * q)
        before = fmt.decode_exact(acc)
        assert isinstance(before, Fraction)
        if mode == "fma":
            acc = fmt.encode_exact(before + p * q)
        else:
            rounded = fmt.decode_exact(fmt.encode_exact(p * q))
            assert isinstance(rounded, Fraction)
            acc = fmt.encode_exact(before + rounded)
    return fmt.encode_exact(sum(products, Fraction(0))) if mode == "exact" else acc


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("float8_e4m3fn", "sequential"),
        ("float8_e4m3fn", "exact"),
        ("posit8_es2", "fma"),
        ("posit8_es2", "sequential"),
        ("fixed8_4", "exact"),
        ("float6_e3m2fn", "fma"),
    ],
)
def test_a_native_layer_is_what_fractions_say(name: str, mode: str) -> None:
    rng, fmt = np.random.default_rng(0), get(name)
    x = rng.normal(0, 3, (4, 21)).astype(np.float32)
    w, bias = rng.normal(0, 0.1, (6, 21)).astype(np.float32), rng.normal(0, 1, 6)
    b = FunctionBuilder()
    p = b.param("x", x.shape)
    weight, shift = (Constant(a.astype(np.float32), FLOAT32) for a in (w, bias))
    mod = IRModule({"main": b.finish(b.call("nn.dense", p, weight, shift))})
    plan = calibrate(mod, x, native(name, accumulate=mode))
    ((fx, fw),) = plan.formats.values()
    a, c = encoded(fmt, x, fx), encoded(fmt, w, fw)
    codes = np.array([[summed(fmt, i, j, mode) for j in c] for i in a])
    scales = (fx.scales[0] * np.float64(fw.scales)).astype(np.float32)
    sums = datatypes.decode(fmt, codes.astype(fmt.storage)).astype(np.float32)
    want = sums * scales + bias.astype(np.float32)
    q = realize(mod, plan)
    assert_same(compiler.evaluate(q, x), want)
    assert_same(compiler.build(q)(x), want)
    assert np.abs(want - (x @ w.T + bias)).max() < 0.5 * np.abs(x @ w.T).max()  # and it is near


# ---- whole networks ------------------------------------------------------------------------------
def emulated(mod: IRModule, plan: Plan, x: Array) -> Array:
    """The float network, but for products and sums, which the operators' references do on codes."""
    f = prepared(mod).main
    values: dict[Var, Array] = {f.params[0]: x}
    for b in f.bindings:
        assert isinstance(b.value, Call)
        args = [a.data if isinstance(a, Constant) else values[a] for a in b.value.args]
        formats = plan.formats.get(b.var.name)
        if formats is None:
            values[b.var] = np.asarray(call_reference(b.value, args, b.var, {}))
            continue
        fmt = get(formats[0].format)
        codes = [encoded(fmt, a, p) for a, p in zip(args, formats, strict=False)]
        one = FunctionBuilder()
        dtype = f"custom[{fmt.name}]{fmt.nbits}"
        atoms = [one.param(f"p{k}", c.shape, dtype) for k, c in enumerate(codes)]
        attrs = vars(b.value.attrs) | {"accumulate": plan.nodes[b.var.name].accumulate}
        alone = IRModule({"main": one.finish(one.call(str(b.value.op), *atoms, **attrs))})
        sums = datatypes.decode(fmt, compiler.evaluate(alone, *codes)).astype(np.float32)
        wide = [1] * (sums.ndim - 2)
        scales = formats[0].scales[0] * np.float64(formats[1].scales).reshape(-1, *wide)
        scaled = sums * scales.astype(np.float32)
        values[b.var] = scaled + args[2].reshape(-1, *wide) if len(args) > 2 else scaled
    (result,) = f.results
    assert isinstance(result, Var)
    return values[result]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("mlp", native("posit8_es2")),
        ("mlp", native("float8_e4m3fn", scales="power_of_two")),
        pytest.param(
            "dwsep",
            native("float8_e4m3fn", accumulate="float32", weight_granularity="tensor"),
            marks=pytest.mark.slow,
        ),
        pytest.param("resnet8", native("posit16_es1"), marks=pytest.mark.slow),
        pytest.param("dwsep", native("takum8", accumulate="exact"), marks=pytest.mark.slow),
    ],
    ids=lambda v: v if isinstance(v, str) else v.weight_dtype,
)
def test_native_networks_have_the_bits_of_the_oracle(name: str, case: QConfig) -> None:
    plan, mod = plan_of(name, case), sized(name, 1)
    x = images()[1][:1]
    want, q = emulated(mod, plan, x), realize(mod, plan)
    assert_same(compiler.evaluate(q, x), want)
    assert compiler.build(q)(x).argmax() == want.argmax()


@pytest.mark.slow
def test_native_networks_are_as_accurate_as_their_sums_allow() -> None:
    x = images()[1][:100]
    exact = compiler.build(net("dwsep"))(x)

    def agreement(config: QConfig) -> float:
        q = realize(net("dwsep"), plan_of("dwsep", config))
        return float((compiler.build(q)(x).argmax(1) == exact.argmax(1)).mean())

    assert agreement(native("posit16_es1")) == 1.0
    assert agreement(native("float8_e4m3fn", accumulate="float32")) >= 0.95
    assert agreement(native("posit8_es2", accumulate="exact")) >= 0.95


@pytest.mark.thorough
def test_the_results_of_native_sums_are_in_range() -> None:
    plan = plan_of("dwsep", native("float6_e3m2fn", accumulate="exact"))
    x = images()[0][:1]
    sums = {f"{node}_float6_e3m2fn" for node in plan.formats}
    found = {b.var.name: v for b, v in trace(realize(sized("dwsep", 1), plan), x)}
    for name in sums:
        values = np.abs(datatypes.decode("float6_e3m2fn", found[name]))
        assert (values == 28.0).mean() < 0.01, name  # the largest number


def test_native_plans_need_one_scalar_format_on_both_sides() -> None:
    plan = plan_of("mlp", native("posit8_es2"))
    data = plan.to_dict()
    data["formats"]["logits"][0]["format"] = "bfloat16"
    with pytest.raises(ConfigError, match="both operands need the same scalar format"):
        realize(net("mlp"), Plan.from_dict(data))


@pytest.mark.thorough
def test_native_sums_are_held_in_a_format_of_their_own() -> None:
    mod, x = sized("mlp", 4), images()[0][:4]
    plain = realize(mod, calibrate(mod, [x], native("float8_e4m3fn", accumulate="fma")))
    modes: list[Any] = ["float16", {"format": "bfloat16", "chunk": 8}, "h100_fp8"]
    for mode in modes:
        plan = calibrate(mod, [x], native("float8_e4m3fn", accumulate=mode))
        realized = realize(mod, Plan.from_dict(plan.to_dict()))
        want = np.asarray(compiler.evaluate(realized, x))
        assert_same(np.asarray(compiler.build(realized)(x)), want)
        assert not np.array_equal(want, compiler.evaluate(plain, x))


# ---- accumulators --------------------------------------------------------------------------------
HELD = {"format": "float16", "order": "pairwise"}


@pytest.mark.parametrize(
    "fields",
    [
        {"accumulate": {"linear": HELD, "*": "h100_fp8"}},
        {"accumulate": "h100_fp8", "overrides": {"linear": {"accumulate": HELD}}},
    ],
)
def test_native_layers_have_accumulators_by_pattern(fields: dict[str, Any]) -> None:
    mod, data = sized("mlp", 1), images()[0][:1]
    real = realize(mod, calibrate(mod, [data], native("float8_e4m3fn", **fields)))
    text = real.astext()
    assert text.count('order = \\"pairwise\\"') == 1
    assert "align_bits = 14" in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"accumulate": "float6_e3m2fn"}, "of 6 bits .* is narrower than products"),
        ({"accumulate": {"format": "float32", "align_bits": 6}}, "keeps 6 bits is narrower"),
        ({"overrides": {"c1": {"accumulate": {"format": "float16", "outer": "x"}}}}, "needs chunk"),
        ({"overrides": {"c1": {"accumulate": {"format": "float16", "of": 3}}}}, "has no 'of'"),
    ],
)
def test_accumulators_that_do_not_fit_a_native_format(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        native("float8_e4m3fn", **fields)
