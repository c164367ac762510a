"""More precision goes where measuring says that it is worth most, as far as is allowed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import datatypes  # noqa: F401  (its formats)
import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from experiments.cli.main import run_command
from experiments.measure import metrics
from quantize import Plan, QConfig
from quantize.annotation.annotate import prepared
from quantize.search import accuracy_target
from quantize.search.accuracy_target import _blocks, agreement, sqnr
from quantize.search.mixed_precision import Choice, chosen
from quantize.search.sensitivity import sensitivities

sys.path.insert(0, str(Path(__file__).parent))

from quantize_nets import images, mixed_net, net, noise

PLAIN = QConfig(bias_correction="none")


def outlying() -> tuple[IRModule, Array]:
    """Three dense layers; the weights of the second have one far larger than the others, the first
    has most of the multiply-accumulates."""
    rng = np.random.default_rng(5)
    b = FunctionBuilder()
    weights = [rng.normal(0, 0.3, s).astype(np.float32) for s in ((32, 24), (8, 32), (6, 8))]
    weights[1][0, 0] = 40.0
    y = b.param("x", (16, 24))
    for k, w in enumerate(weights):
        y = b.call("nn.dense", y, b.const(w), name=f"d{k}", origins=[f"Gemm_{k}"])
        y = b.call("nn.relu", y, name=f"r{k}") if k < 2 else y
    return IRModule({"main": b.finish(y)}), rng.normal(size=(16, 24)).astype(np.float32)


COARSE = QConfig(weight_granularity="tensor", bias_correction="none", calibrate="minmax")


def error_db(mod: IRModule, plan: Plan, x: Array) -> float:
    return metrics.sqnr_db(compiler.build(quantize.realize(mod, plan))(x), compiler.build(mod)(x))


# ---- sensitivity ---------------------------------------------------------------------------------
def test_a_node_alone_rounds_what_it_reads_and_its_weights() -> None:
    """As computed in float64, without the network's own code."""
    mod, x = outlying()
    plan = quantize.calibrate(mod, x, COARSE)
    found = {s.node: s for s in sensitivities(prepared(mod), plan, [{"x": x}])}
    assert list(found) == ["d0", "d1", "d2"]
    weights = [
        b.value.args[1].data.astype(np.float64) for b in mod.main.bindings if "d" in b.var.name
    ]

    def run(rounded: int | None) -> Array:
        y = x.astype(np.float64)
        for k, w in enumerate(weights):
            if k == rounded:
                v = plan.values["x" if k == 0 else f"r{k - 1}"]
                y = (np.clip(np.rint(y / v.scale) + v.zero_point, 0, 255) - v.zero_point) * v.scale
                (scale,) = plan.weights[f"d{k}"].scales
                w = np.clip(np.rint(w / scale), -127, 127) * scale
            y = y @ w.T
            y = np.maximum(y, 0) if k < 2 else y
        return y

    exact = run(None)
    for k in range(3):
        noise = np.square(run(k) - exact).sum() / np.square(exact).sum()
        assert found[f"d{k}"].noise == pytest.approx(noise, rel=1e-3)
        assert found[f"d{k}"].weights == weights[k].size
    assert found["d1"].noise > 5 * max(found["d0"].noise, found["d2"].noise)


@pytest.mark.thorough
def test_sensitivities_of_every_kind_of_node() -> None:
    """Whatever comes before a node or after it."""
    mod, x = mixed_net(), noise(8)
    plan = quantize.calibrate(mod, x, PLAIN)
    found = sensitivities(prepared(mod), plan, [{"image": x}])
    expected = [n for n, p in plan.nodes.items() if n in plan.weights or p.op == "nn.matmul"]
    assert [s.node for s in found] == expected
    assert all(0 < s.noise < 0.1 and s.macs == plan.nodes[s.node].macs for s in found)
    two = sensitivities(prepared(mod), plan, [{"image": x}], threads=2)
    assert two == found


# ---- choosing ------------------------------------------------------------------------------------
@given(
    costs=st.lists(st.tuples(st.floats(0, 9), st.integers(1, 20)), max_size=12),
    budget=st.integers(0, 60),
)
def test_choices_fit_the_budget_and_none_that_fits_is_left(
    costs: list[tuple[float, int]], budget: int
) -> None:
    choices = [Choice(f"n{k}", saved, cost) for k, (saved, cost) in enumerate(costs)]
    taken = chosen(choices, budget)
    left = budget - sum(c.cost for c in taken)
    assert left >= 0
    assert all(c.cost > left for c in choices if c not in taken and c.saved > 0)
    gains = [c.saved / c.cost for c in taken]
    assert gains == sorted(gains, reverse=True)


@pytest.mark.thorough
def test_sensitive_nodes_stay_float_within_the_budget() -> None:
    mod, x = outlying()
    without = quantize.calibrate(mod, x, COARSE)
    total = sum(n.macs for n in without.nodes.values())
    share = without.nodes["d1"].macs / total
    config = QConfig(**{**COARSE.to_dict(), "float_macs": share + 1e-9})
    plan = quantize.calibrate(mod, x, config)
    assert plan == quantize.calibrate(mod, x, config)
    assert plan.config == config
    assert [n for n in ("d0", "d1", "d2") if plan.nodes[n].decision == "float"] == ["d1"]
    assert "its quantization alone adds noise of" in plan.nodes["d1"].reason
    assert plan.steps[0].startswith("d1: left in float")
    assert plan.coverage == pytest.approx(1 - share)
    assert error_db(mod, plan, x) > error_db(mod, without, x) + 3
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.steps[0] in plan.summary()


def test_nothing_stays_float_where_nothing_fits_the_budget() -> None:
    mod, x = outlying()
    plan = quantize.calibrate(mod, x, QConfig(**{**COARSE.to_dict(), "float_macs": 0.01}))
    assert plan.coverage == 1
    assert plan.steps == ()


@pytest.mark.thorough
def test_weights_of_sensitive_nodes_get_more_bits() -> None:
    mod, x = net("resnet8"), images()[0][:32]
    few = QConfig(weight_bits=3, bias_correction="none")
    mixed = QConfig(weight_bits=3, bias_correction="none", mean_weight_bits=4.0)
    plans = [quantize.calibrate(mod, x, c) for c in (few, mixed)]
    sizes = {
        b.var.name: b.value.args[1].data.size
        for b in prepared(mod).main.bindings
        if b.var.name in plans[1].weights
    }
    bits = {name: w.bits for name, w in plans[1].weights.items()}
    assert set(bits.values()) == {3, 8}
    assert sum(bits[n] * sizes[n] for n in bits) <= 4 * sum(sizes.values())
    assert {w.bits for w in plans[0].weights.values()} == {3}
    errors = [error_db(mod, plan, x) for plan in plans]
    assert errors[1] > errors[0] + 1
    assert len(plans[1].steps) == sum(b == 8 for b in bits.values())
    again = QConfig(**{
        **few.to_dict(), "overrides": {n: {"weight_bits": 8} for n in bits if bits[n] == 8},
    })  # fmt: skip
    assert quantize.calibrate(mod, x, again).weights == plans[1].weights


# ---- targets -------------------------------------------------------------------------------------
def test_the_loop_stops_at_the_target_and_says_how() -> None:
    mod, x = outlying()
    start = error_db(mod, quantize.calibrate(mod, x, COARSE), x)
    given_fields = {**COARSE.to_dict(), "float_macs": 0.5, "target_metric": "sqnr"}
    config = QConfig(**{**given_fields, "target": start + 3})
    plan = quantize.calibrate(mod, x, config)
    reached = error_db(mod, plan, x)
    assert reached >= config.target
    assert plan.coverage >= 0.5
    assert plan.steps[0].startswith("0 nodes left in float, 0.00 %")
    assert f"sqnr {start:.4g} dB" in plan.steps[0]
    assert f"sqnr {reached:.4g} dB" in plan.steps[-1]
    easy = quantize.calibrate(mod, x, QConfig(**{**given_fields, "target": start - 1}))
    assert (easy.coverage, len(easy.steps)) == (1, 1)
    with pytest.raises(
        ConfigError, match=r"not reached with at most 50 % .* allow more float_macs"
    ):
        quantize.calibrate(mod, x, QConfig(**{**given_fields, "target": 200.0}))


def cancelling() -> tuple[IRModule, Array]:
    """The difference of two nearly equal layers, whose errors cancel while both are integers, plus
    a third layer, one of whose weights is far larger than the others."""
    rng = np.random.default_rng(7)
    b = FunctionBuilder()
    x = b.param("x", (64, 24))
    same = rng.normal(0, 1, (6, 24)).astype(np.float32)
    other = rng.normal(0, 0.02, (6, 24)).astype(np.float32)
    other[0, 0] = 4.0
    near = rng.normal(0, 0.01, (6, 24)).astype(np.float32)
    weights = {"one": same, "other": other, "two": same + near}
    y = {k: b.call("nn.dense", x, b.const(w), name=k) for k, w in weights.items()}
    difference = b.call("subtract", y["one"], y["two"], name="difference")
    total = b.call("add", difference, y["other"], name="sum")
    return IRModule({"main": b.finish(total)}), rng.normal(size=(64, 24)).astype(np.float32)


@pytest.mark.thorough
def test_what_makes_the_figure_worse_is_not_left_in_float() -> None:
    mod, x = cancelling()
    coarse = replace(COARSE, weight_bits=5)
    start = error_db(mod, quantize.calibrate(mod, x, coarse), x)
    alone = replace(coarse, overrides={"one": {"skip": True}})
    worse = error_db(mod, quantize.calibrate(mod, x, alone), x)
    assert worse < start - 3
    # One node fits the budget, and the most sensitive one is of those that cancel.
    config = replace(coarse, float_macs=0.34, target=start + 1, target_metric="sqnr")
    plan = quantize.calibrate(mod, x, config)
    assert plan == quantize.calibrate(mod, x, config)
    left = [n for n in ("one", "two", "other") if plan.nodes[n].decision == "float"]
    assert left == ["other"]
    assert error_db(mod, plan, x) >= config.target
    assert [", worse: without" in step for step in plan.steps] == [False, True, True, False]
    with pytest.raises(
        ConfigError, match=rf"but this: 1 nodes .* sqnr {error_db(mod, plan, x):.4g}"
    ):
        quantize.calibrate(mod, x, replace(config, target=200.0))


@pytest.mark.thorough
def test_a_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    mod, x = cancelling()
    config = QConfig(bias_correction="none", float_macs=0.34, target=1.0)
    seen: list[float] = []

    def worse(found: Sequence[Array], reference: Sequence[Array]) -> float:
        seen.append(-float(len(seen)))
        return seen[-1]

    for most, measured in ((32, 4), (2, 3)):
        monkeypatch.setattr(accuracy_target, "MOST_PLANS", most)
        seen.clear()
        with pytest.raises(ConfigError, match="but this: 0 nodes left in float"):
            quantize.calibrate(mod, x, config, measure=worse)
        assert len(seen) == measured


@given(st.integers(0, 70))
def test_blocks_double_and_leave_nothing_out(count: int) -> None:
    choices = [Choice(str(k), 1.0, 1.0) for k in range(count)]
    blocks = _blocks(choices)
    assert [c for block in blocks for c in block] == choices
    assert all(len(block) == max(1, 2**k // 2) for k, block in enumerate(blocks[:-1]))


def test_agreement_is_that_of_all_rows_of_an_input() -> None:
    reference = np.eye(4, dtype=np.float32)[[[0, 1], [2, 3], [1, 1]]]
    found = np.eye(4, dtype=np.float32)[[[0, 1], [2, 0], [1, 1]]]
    assert agreement([found[:2], found[2:]], [reference[:2], reference[2:]]) == pytest.approx(2 / 3)
    assert sqnr([found], [found]) == np.inf
    with pytest.raises(ConfigError, match="sqnr"):
        agreement([found[0, 0]], [found[0, 0]])


@pytest.mark.parametrize("far", [1e300, np.inf])
def test_noise_beside_which_nothing_is_left_has_a_ratio(far: float) -> None:
    quiet = np.full((2, 3), 1e-10)
    assert sqnr([quiet + far], [quiet]) == -np.inf
    assert sqnr([quiet], [quiet * 0]) == -np.inf


def test_results_may_be_judged_by_a_function() -> None:
    mod, x = outlying()
    seen: list[float] = []

    def judge(found: list[Array], reference: list[Array]) -> float:
        assert len(found) == len(reference) == 2
        seen.append(-max(float(np.abs(a - b).max()) for a, b in zip(found, reference, strict=True)))
        return seen[-1] if len(seen) < 2 else 1.0

    config = QConfig(**{**COARSE.to_dict(), "float_macs": 0.9, "target": 0.5})
    plan = quantize.calibrate(mod, [x, -x], config, measure=judge)
    assert len(seen) == 2
    assert seen[1] > seen[0]
    assert list(plan.skipped) == ["d1", "r1"]
    assert plan.steps[1].endswith("measure 1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": 0.9}, "needs float_macs"),
        ({"target": 2, "float_macs": 0.1}, "agreement must be at most 1"),
        ({"float_macs": 1.5}, "from 0 to 1"),
        ({"target_metric": "agreements"}, "did you mean 'agreement'"),
        ({"mean_weight_bits": 5.0}, "from weight_bits, 8, to 8"),
        (
            {
                "weight_dtype": "mxfp4_e2m1",
                "wide_weight_dtype": "mxfp8_e4m3",
                "activation_dtype": "float32",
                "mean_weight_bits": 9.0,
            },
            "from mxfp4_e2m1, 4.25, to 8.25, not 9",
        ),
        (
            {
                "weight_dtype": "mxfp4_e2m1",
                "wide_weight_dtype": "mxfp8_e4m3",
                "activation_dtype": "float32",
                "mean_weight_bits": 3.0,
            },
            "from mxfp4_e2m1, 4.25, to 8.25",
        ),
    ],
)
def test_wrong_targets(fields: dict[str, object], message: str) -> None:
    mod, x = outlying()
    with pytest.raises(ConfigError, match=message):
        quantize.calibrate(mod, x, QConfig(**fields))


def test_a_target_from_toml(tmp_path: Path) -> None:
    """On the command line, with nodes skipped and bits given by name as well."""
    x = images()[0][:40]
    np.savez(tmp_path / "x.npz", input=x)
    layers = list(quantize.calibrate(net("mlp"), x, PLAIN).weights)
    (tmp_path / "c.toml").write_text(
        f'bias_correction = "none"\nskip = ["{layers[0]}"]\n'
        'target = 0.5\ntarget_metric = "agreement"\nfloat_macs = 0.9\n'
        f'[overrides."{layers[1]}"]\nweight_bits = 4\n'
    )
    arguments = ["quantize", "mnist_mlp", "--calib", str(tmp_path / "x.npz")]
    arguments += ["--config", str(tmp_path / "c.toml"), "-o", str(tmp_path / "q.onnx")]
    assert run_command([*arguments, "--plan", str(tmp_path / "p.json")]) == 0
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["steps"][0].startswith("0 nodes left in float")
    assert data["nodes"][layers[0]]["decision"] == "float"
    assert data["weights"][layers[1]]["bits"] == 4
    from_python = quantize.calibrate(net("mlp"), x, QConfig.from_toml(tmp_path / "c.toml"))
    assert Plan.from_json(tmp_path / "p.json") == from_python
