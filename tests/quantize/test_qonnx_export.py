"""QONNX models: the qonnx package executes them, with the bits of the integer graph where float32
holds the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantize_nets import images, mixed_net, net, noise, plan_of, sized

import compiler
import quantize
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.transform.analysis import cost
from compiler.types.dtypes import Array
from quantize import Plan, QConfig
from quantize.onnx.minifloats import Minifloat, minifloat_of
from quantize.onnx.qonnx import DOMAIN, ends_of, quant_range, to_qonnx

onnx = pytest.importorskip("onnx")
BATCH = 8
NAMES = ["mlp", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("resnet8", "dwsep"))]


def contents(path: Path, x: Array, monkeypatch: pytest.MonkeyPatch) -> dict[str, Array]:
    """Every value of a model by qonnx, node after node."""
    wrapper = pytest.importorskip("qonnx.core.modelwrapper")
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    monkeypatch.setattr(onnx, "IR_VERSION", 10)  # it makes models that onnxruntime must know
    model = wrapper.ModelWrapper(str(path)).transform(InferShapes())
    given = {model.graph.input[0].name: x}
    found: dict[str, Array] = execute_onnx(model, given, return_full_exec_context=True)
    return found


def executed(path: Path, x: Array, monkeypatch: pytest.MonkeyPatch) -> Array:
    """The one result of a model by qonnx."""
    (result,) = onnx.load(path).graph.output
    return contents(path, x, monkeypatch)[result.name]


def with_powers(plan: Plan) -> Plan:
    """The plan with every scale the next power of two: sums of products are exact in float32."""

    def power(scale: float) -> float:
        return float(2.0 ** np.ceil(np.log2(scale)))

    values = {k: replace(v, scale=power(v.scale)) for k, v in plan.values.items()}
    weights = {
        k: replace(w, scales=tuple(map(power, w.scales)), bits=w.bits)
        for k, w in plan.weights.items()
    }
    return replace(plan, values=values, weights=weights)


def op_types(model: Any) -> set[str]:
    return {n.op_type for n in model.graph.node if n.domain == DOMAIN}


INT8 = QConfig()
INT4 = QConfig(weight_bits=4, activation_bits=4)
SIGNED = QConfig(activation_dtype="int8", weight_range="asymmetric", weight_bits=6)
E4M3 = QConfig(
    weight_dtype="float8_e4m3fn", activation_dtype="float8_e4m3fn", scales="power_of_two"
)
MIXED = QConfig(weight_dtype="int4", activation_dtype="float8_e5m2", scales="power_of_two")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", [INT8, INT4, SIGNED, E4M3, MIXED])
@pytest.mark.parametrize("name", NAMES)
def test_qonnx_computes_the_bits_of_the_plan(
    name: str, config: QConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = with_powers(plan_of(name, config))
    if not config.in_formats:  # what float32 holds
        assert all(c.bits <= 24 for c in quantize.certify(net(name), plan))
    mod, path = sized(name, BATCH), tmp_path / "q.onnx"
    quantize.export_qonnx(mod, plan, path)
    for start in (0, BATCH):
        x = images()[1][start : start + BATCH]
        want = compiler.build(quantize.realize(mod, plan))(x)
        np.testing.assert_array_equal(executed(path, x, monkeypatch), want)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("config", [INT8, INT4, SIGNED, E4M3, MIXED])
@pytest.mark.parametrize("name", ["mlp", "resnet8", "dwsep"])
def test_what_is_written_is_imported_with_the_bits_of_the_plan(
    name: str, config: QConfig, tmp_path: Path
) -> None:
    """With any scales: layers between Quants are integers again."""
    plan, x = plan_of(name, config), images()[1][:BATCH]
    quantize.export_qonnx(net(name), plan, tmp_path / "q.onnx")
    mod = compiler.from_onnx(tmp_path / "q.onnx")
    assert cost(mod).integer_share == (0 if config.in_formats else 1)
    want = compiler.build(quantize.realize(net(name), plan))(x)
    np.testing.assert_array_equal(compiler.build(mod)(x), want)


def branches() -> tuple[IRModule, Array]:
    """Grouped, dilated and strided convolutions, pools, a sum and a concatenation."""
    rng = np.random.default_rng(7)
    b = FunctionBuilder()

    def weights(*shape: int) -> Any:
        return b.const(rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32))

    x = b.param("x", (4, 4, 12, 12))
    left = b.call("nn.conv2d", x, weights(8, 2, 3, 3), weights(8), groups=2, padding=(1,) * 4)
    left = b.call("nn.relu", left)
    right = b.call("nn.conv2d", x, weights(8, 4, 3, 3), dilation=(2, 2), padding=(2,) * 4)
    both = b.call("concatenate", b.call("add", left, right), left, axis=1)
    small = b.call("nn.max_pool2d", both, pool_size=(2, 2), strides=(2, 2))
    deep = b.call("nn.conv2d", small, weights(16, 1, 3, 3), groups=16, strides=(2, 2))
    mean = b.call("nn.avg_pool2d", b.call("nn.relu", deep), pool_size=(2, 2), strides=(1, 1))
    out = b.call("nn.dense", b.call("nn.batch_flatten", mean), weights(5, 16), weights(5))
    return IRModule({"main": b.finish(out)}), rng.normal(size=(4, 4, 12, 12)).astype(np.float32)


def products() -> tuple[IRModule, Array]:
    """Products of two activations between dense layers."""
    rng = np.random.default_rng(8)
    b = FunctionBuilder()
    x = b.param("x", (2, 6, 16))
    q, k, v = (
        b.call("nn.dense", x, b.const(rng.normal(0, 0.25, (16, 16)).astype(np.float32)))
        for _ in range(3)
    )
    scores = b.call("nn.relu", b.call("nn.matmul", q, b.call("transpose", k, axes=(0, 2, 1))))
    mixed = b.call("nn.matmul", scores, v)
    last = b.const(rng.normal(0, 0.25, (4, 16)).astype(np.float32))
    out = b.call("nn.dense", mixed, last)
    return IRModule({"main": b.finish(out)}), rng.normal(size=(2, 6, 16)).astype(np.float32)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("config", [INT8, INT4, E4M3])
@pytest.mark.parametrize("make", [branches, products])
def test_networks_of_other_layers_have_the_bits_of_the_plan(
    make: Callable[[], tuple[IRModule, Array]],
    config: QConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mod, x = make()
    plan = with_powers(quantize.calibrate(mod, [x], config))
    assert not plan.skipped or config.in_formats
    quantize.export_qonnx(mod, plan, tmp_path / "q.onnx")
    want = compiler.build(quantize.realize(mod, plan))(x)
    np.testing.assert_array_equal(executed(tmp_path / "q.onnx", x, monkeypatch), want)
    imported = compiler.from_onnx(tmp_path / "q.onnx")
    np.testing.assert_array_equal(compiler.build(imported)(x), want)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_at_most_one_code_apart_with_any_scales(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value of the network that is on a grid, from both."""
    mod, plan, x = sized(name, BATCH), plan_of(name), images()[1][:BATCH]
    quantize.export_qonnx(mod, plan, tmp_path / "q.onnx")
    found = contents(tmp_path / "q.onnx", x, monkeypatch)
    traced = quantize.trace_plan(mod, plan, x)
    apart = []
    for value, want in traced.items():
        if want.kind == "integer" and want.params is not None and value in found:
            got = np.rint(found[value] / want.params.scale) + want.params.zero_point
            apart.append(np.abs(got - want.values).reshape(-1))
    assert len(apart) >= len(plan.weights)
    all_of_them = np.concatenate(apart)
    share = 100 * (all_of_them > 0).mean()
    print(f"{name}: {share:.4f} % of {all_of_them.size} values are one code apart")
    assert all_of_them.max() <= 1
    assert share < 0.1


def test_what_is_written_says_widths_signs_and_ranges() -> None:
    model = to_qonnx(net("mlp"), plan_of("mlp", INT4))
    stored = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    quants = [n for n in model.graph.node if n.op_type == "Quant"]
    made = {o: n for n in model.graph.node for o in n.output}
    gemms = [n for n in model.graph.node if n.op_type == "Gemm"]
    for gemm in gemms:
        weight = made[gemm.input[1]]
        flags = {a.name: onnx.helper.get_attribute_value(a) for a in weight.attribute}
        assert flags == {"signed": 1, "narrow": 1, "rounding_mode": b"ROUND"}
        assert stored[weight.input[3]] == 4
        assert stored[weight.input[2]] == 0
        q = stored[weight.input[0]] / stored[weight.input[1]]
        assert np.abs(q - np.rint(q)).max() < 1e-5
    assert len(quants) == 2 * len(gemms)
    assert {o.domain for o in model.opset_import} == {"", DOMAIN}


def test_every_form_of_the_mixed_graph_is_written() -> None:
    mod = mixed_net()
    assert op_types(to_qonnx(mod, quantize.calibrate(mod, [noise(8)]))) == {"Quant"}


def layer(**fields: Any) -> tuple[IRModule, Plan]:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (4, 32))
    first = b.call("nn.dense", x, b.const(rng.normal(size=(32, 32)).astype(np.float32)), name="y")
    last = b.call("nn.dense", first, b.const(rng.normal(size=(8, 32)).astype(np.float32)), name="z")
    mod = IRModule({"main": b.finish(last)})
    data = rng.normal(size=(4, 32)).astype(np.float32)
    return mod, quantize.calibrate(mod, [data], QConfig(**fields))


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        (
            {"weight_dtype": "posit8_es1", "activation_dtype": "float32"},
            ["posit8_es1 is no binary"],
        ),
        (
            {"weight_dtype": "mxfp8_e4m3", "activation_dtype": "float32"},
            ["no scales of blocks or tokens, as y, z have"],
        ),
        ({"activation_granularity": "token"}, ["as y, z have"]),
        ({"activation_dtype": "mxfp8_e4m3"}, ["choose scalar formats or integers"]),
        ({"requantize": "fixed_upward"}, ["no mode that rounds halves up"]),
        (
            {"weight_dtype": "posit8_es1", "activation_dtype": "posit8_es1", "compute": "native"},
            ["y, z are computed in a format"],
        ),
    ],
)
def test_what_qonnx_cannot_say_is_named(
    fields: dict[str, Any], messages: Sequence[str], tmp_path: Path
) -> None:
    mod, plan = layer(**fields)
    with pytest.raises(UnsupportedError) as caught:
        quantize.export_qonnx(mod, plan, tmp_path / "q.onnx")
    assert all(message in str(caught.value) for message in messages)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("float8_e4m3fn", Minifloat(4, 3, 7, 448.0)),
        ("float8_e5m2", Minifloat(5, 2, 15, 57344.0)),
        ("float6_e3m2fn", Minifloat(3, 2, 3, 28.0)),
        ("float6_e2m3fn", Minifloat(2, 3, 1, 7.5)),
        ("float4_e2m1fn", Minifloat(2, 1, 1, 6.0)),
        ("float8_e4m3fnuz", Minifloat(4, 3, 8, 240.0)),
        ("float16", Minifloat(5, 10, 15, 65504.0)),
        ("posit8_es1", None),
        ("takum8", None),
        ("nf4", None),
    ],
)
def test_formats_that_are_binary_floating_point(name: str, kind: Minifloat | None) -> None:
    assert minifloat_of(name) == kind


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "float4_e2m1fn"])
def test_float_quant_rounds_as_the_format_does(name: str) -> None:
    module = pytest.importorskip("qonnx.custom_op.general.floatquant")
    from quantize.formats.element import element

    kind, e = minifloat_of(name), element(name)
    assert kind is not None
    spread = np.linspace(-1.2, 1.2, 4001) * e.high
    near = np.geomspace(e.least / 8, e.high, 3000)
    x = np.concatenate([spread, near, -near]).astype(np.float32)
    got = module.float_quant(
        x, np.float32(1), np.float32(kind.exponent), np.float32(kind.mantissa),
        np.float32(kind.bias), max_val=np.float32(kind.most),
    )  # fmt: skip
    np.testing.assert_array_equal(got, e.rounded(x))


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (0, 255, (8, False, False)),
        (-127, 127, (8, True, True)),
        (-128, 127, (8, True, False)),
        (-3, 252, (9, True, False)),
        (-7, 8, (5, True, False)),
        (0, 15, (4, False, False)),
        (-1, 1, (2, True, True)),
    ],
)
def test_the_least_quant_that_holds_a_range(
    low: int, high: int, want: tuple[int, bool, bool]
) -> None:
    assert quant_range(low, high) == want
    least, most = ends_of(*want)
    assert least <= low <= high <= most
