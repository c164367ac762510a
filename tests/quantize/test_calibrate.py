"""Configurations, observers, decisions, plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_nets import images, mixed_net, net, noise, plan_of

import quantize
from compiler.errors import ConfigError, InputError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from quantize import Plan, QConfig
from quantize.plan.params import ValueParams, value_params, weight_params


# ---- configuration -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"calibrat": "kl"}, "did you mean 'calibrate'"),
        ({"calibrate": "percentil"}, "did you mean 'percentile'"),
        ({"weight_granularity": "chanel"}, "did you mean 'channel'"),
        ({"requantize": "fixed_upwards"}, "did you mean 'fixed_upward'"),
        ({"activation_dtype": "int9"}, "did you mean 'int8'"),
        ({"percentile": 101}, "from 50 to 100"),
        ({"activation_granularity": "chanel"}, "did you mean 'channel'"),
        ({"activation_granularity": "channel"}, "with smoothing or equalize"),
        ({"activation_granularity": "group"}, "no integer form"),
        ({"weight_bits": 17}, "from 2 to 16"),
        ({"weight_bits": True}, "must be an integer"),
        ({"kl_bins": 300.5}, "must be an integer"),
        ({"activation_symmetric": "no"}, "true or false"),
        ({"skip": (1,)}, "names or patterns"),
    ],
)
def test_wrong_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QConfig(**values)


def test_configuration_survives_json() -> None:
    config = QConfig(calibrate="kl", skip=("a*", "b"), weight_bits=4, percentile=99.5)
    assert QConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert QConfig(skip="a").skip == ("a",)  # type: ignore[arg-type]


# ---- parameters ----------------------------------------------------------------------------------
@settings(max_examples=200)
@given(
    ends=st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2),
    dtype=st.sampled_from(["int8", "uint8"]),
    bits=st.integers(2, 8),
    symmetric=st.booleans(),
)
def test_parameters_cover_the_range(
    ends: tuple[float, float], dtype: str, bits: int, symmetric: bool
) -> None:
    config = QConfig(activation_dtype=dtype, activation_bits=bits, activation_symmetric=symmetric)
    low, high = sorted(ends)
    p = value_params(low, high, config)
    assert p.scale == float(np.float32(p.scale)) > 0
    assert p.qmin <= p.zero_point <= p.qmax
    assert p.qmax - p.qmin == 2**bits - 1
    real = [(q - p.zero_point) * p.scale for q in (p.qmin, p.qmax)]
    slack = 0.5001 * p.scale
    assert real[0] <= min(low, 0) + slack
    assert real[1] >= max(high, 0) - slack
    assert p.clipped(0.0) == p.zero_point


def test_weight_scales_let_large_biases_fit() -> None:
    weight = np.array([[1e-12, 0], [1, -2]], np.float32)
    bias = np.array([3.0, -4.0], np.float32)
    data = ValueParams(2.0**-10, 0, "uint8")
    p = weight_params(weight, bias, data, QConfig())
    assert p.quantized(weight).tolist() == [[0, 0], [64, -127]]
    real = p.bias(bias, data) * np.array(p.scales) * data.scale
    np.testing.assert_allclose(real, bias, rtol=1e-6)


# ---- data ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no calibration data"),
        ([np.full((1, 1, 28, 28), np.nan, np.float32)], "batch 1: input 'input' holds NaN"),
        ([np.full((1, 1, 28, 28), np.inf, np.float32)], "holds NaN or infinity"),
        ([np.zeros((0, 1, 28, 28), np.float32)], "batch 1: input 'input' is empty"),
        ([np.zeros((2, 28, 28), np.float32)], "rank"),
        ([np.zeros((2, 1, 28, 28))], "float32"),
        ([{"x": np.zeros((1, 1, 28, 28), np.float32)}], "did you mean|unknown input 'x'"),
        (7, "arrays or name"),
    ],
)
def test_wrong_calibration_data(batches: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quantize.calibrate(net("mlp"), batches)


def test_batches_may_be_a_generator_of_dicts_or_one_array() -> None:
    x = images()[0][:40]

    def batches() -> Iterator[dict[str, Array]]:
        for k in range(0, 40, 20):
            yield {"input": x[k : k + 20]}

    config = QConfig(calibrate="minmax")
    plan = quantize.calibrate(net("mlp"), batches(), config)
    assert plan == quantize.calibrate(net("mlp"), x, config)
    assert plan == quantize.calibrate(net("mlp"), [x[:7], x[7:]], config)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["empirical", "analytic"])
def test_plans_do_not_depend_on_threads(how: str) -> None:
    x = images()[0][:48]
    config = QConfig(bias_correction=how)
    one, two = (quantize.calibrate(net("resnet8"), [x[:40], x[40:]], config, n) for n in (1, 2))
    assert one == two
    assert any(w.shift for w in one.weights.values())


# ---- decisions -----------------------------------------------------------------------------------
def test_decisions_have_reasons() -> None:
    nodes = quantize.annotate(mixed_net()).nodes
    assert nodes["soft"].reason == "it has no integer form"
    assert nodes["out"].reason == "no integer operator reads its result"
    assert [k for k, n in nodes.items() if n.decision == "float"] == ["soft", "out"]
    assert quantize.annotate(mixed_net()).observed == (
        "image", "r1", "c2", "r2", "c3", "both", "a", "soft",
    )  # fmt: skip


def chain(*steps: tuple[str, dict[str, Any]], const: bool = True) -> IRModule:
    """dense, the steps, dense."""
    b = FunctionBuilder()
    x = b.param("x", (2, 8))
    w = b.const(np.eye(8, dtype=np.float32)) if const else b.param("w", (8, 8))
    y = b.call("nn.dense", x, w, name="first")
    for k, (op, attrs) in enumerate(steps):
        y = b.call(op, y, name=f"s{k}", **attrs)
    return IRModule({"main": b.finish(b.call("nn.dense", y, w, name="last"))})


def test_decisions_about_small_graphs() -> None:
    def decisions(mod: IRModule, **config: Any) -> dict[str, str]:
        nodes = quantize.annotate(mod, QConfig(**config)).nodes
        return {k: n.decision for k, n in nodes.items()}

    relu, tanh, reshape = ("nn.relu", {}), ("tanh", {}), ("reshape", {"newshape": (2, 8)})
    assert decisions(chain(relu))["s0"] == "folded"
    assert decisions(chain(relu), skip=("s0",))["s0"] == "float"
    assert decisions(chain(relu), skip=("first",))["s0"] == "float"
    assert decisions(chain(tanh, relu)) == {
        "first": "integer", "s0": "float", "s1": "float", "last": "integer",
    }  # fmt: skip
    assert set(decisions(chain(relu, const=False)).values()) == {"float"}
    turned = ("transpose", {"axes": (1, 0)})
    mod = chain(turned, reshape, relu)
    assert [decisions(mod)[f"s{k}"] for k in range(3)] == ["integer", "integer", "integer"]


def test_skip_must_fit_a_node() -> None:
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        quantize.annotate(net("mlp"), QConfig(skip=("linearr",)))


def test_wide_sums_stay_float() -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 70_000))
    y = b.call("nn.dense", x, b.const(np.ones((1, 70_000), np.float32)), name="wide")
    plan = quantize.annotate(IRModule({"main": b.finish(y)}))
    assert "could overflow an int32 accumulator" in plan.nodes["wide"].reason


# ---- plans ---------------------------------------------------------------------------------------
def test_the_same_data_gives_the_same_plan() -> None:
    batches = [noise(8, s) for s in range(2)]
    assert quantize.calibrate(mixed_net(), batches) == quantize.calibrate(mixed_net(), batches)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mlp", "resnet8"])
def test_plans_survive_json(name: str, tmp_path: Path) -> None:
    plan = plan_of(name, QConfig(skip=("logits",)))
    text = plan.to_json(tmp_path / "plan.json")
    assert Plan.from_json(tmp_path / "plan.json") == Plan.from_json(text) == plan
    assert plan.skipped == {"logits": "excluded by skip='logits'"}


def test_summary_and_coverage() -> None:
    plan = plan_of("mlp", QConfig(skip=("logits",)))
    assert plan.coverage == pytest.approx(784 * 128 / (784 * 128 + 128 * 10))
    lines = plan.summary().splitlines()
    assert len(lines) == 1 + len(plan.nodes) + 1
    assert "excluded by skip='logits'" in lines[-2]
    assert lines[-1] == "3 of 4 nodes (75.0 %) in integers, 98.7 % of the multiply-accumulates"
    assert str(plan_of("mlp").values["relu"].scale)[:5] in plan_of("mlp").summary()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=7), "version 7"),
        (lambda d: d.pop("nodes"), "missing nodes"),
        (lambda d: d.update(node={}), "did you mean 'nodes'"),
        (lambda d: d["nodes"]["linear"].update(decision="integr"), "did you mean 'integer'"),
        (lambda d: d["nodes"]["linear"].update(decision="float"), "needs a reason"),
        (lambda d: d["values"]["relu"].update(scale=0.1), "float32 does not hold"),
        (lambda d: d["values"]["relu"].update(scale=-1.0), "must be a positive number"),
        (lambda d: d["values"]["relu"].update(zero_point=256), "from 0 to 255"),
        (lambda d: d["values"]["relu"].update(dtype="int9"), "did you mean 'int8'"),
        (lambda d: d["weights"]["linear"].update(scales=[]), "list of numbers"),
        (lambda d: d["config"].update(calibrate="max"), "did you mean 'minmax'"),
    ],
)
def test_plans_that_are_not_plans(change: Any, message: str) -> None:
    data = json.loads(plan_of("mlp").to_json())
    change(data)
    with pytest.raises(ConfigError, match=message):
        Plan.from_json(json.dumps(data))


def test_plan_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the plan"):
        Plan.from_json(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="is not JSON"):
        Plan.from_json("{")
    with pytest.raises(ConfigError, match="cannot write"):
        plan_of("mlp").to_json(tmp_path / "no" / "plan.json")


def test_concatenated_values_share_parameters() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 8))
    rng = np.random.default_rng(0)
    parts = [
        b.call("nn.dense", x, b.const(rng.normal(0, k, (4, 8)).astype(np.float32)), name=f"d{k}")
        for k in (1, 5)
    ]
    both = b.call("concatenate", *parts, axis=1, name="both")
    y = b.call("nn.dense", both, b.const(np.eye(8, dtype=np.float32)), name="y")
    mod = IRModule({"main": b.finish(y)})
    plan = quantize.calibrate(mod, [rng.normal(size=(2, 8)).astype(np.float32)])
    assert plan.values["d1"] == plan.values["d5"] == plan.values["both"]
    own = replace(plan.values["d1"], scale=plan.values["d1"].scale / 4)
    for edited in (plan, replace(plan, values={**plan.values, "d1": own})):
        q = quantize.realize(mod, edited)
        names = [getattr(getattr(v.value, "op", None), "name", "") for v in q.main.bindings]
        assert names.count("qnn.requantize") == (2 if edited is plan else 3)
