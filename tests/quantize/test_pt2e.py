"""Plans in torch's own quantization flow: the same integers where float32 arithmetic is exact, at
most one code apart elsewhere. Skipped where torch or torchao is not installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from quantize.plan.plan import Plan

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
pytest.importorskip("torchao")

from torch_networks import (  # noqa: E402
    Residual,
    converted,
    digits,
    exported,
    run,
    trained,
    with_powers,
)

from quantize.torch import DtypelabQuantizer, compare, float_module, plan_of  # noqa: E402

nn: Any = torch.nn
UNSIGNED = {"requantize": "float32"}
SIGNED = {"activation_dtype": "int8", "activation_symmetric": True, "weight_granularity": "tensor"}
NARROW = {"weight_bits": 4, "activation_bits": 5, "activation_range": "restricted"}
UNEVEN = {"weight_bits": 5, "weight_range": "asymmetric"}
FULL = {"weight_bits": 4, "weight_range": "full", "bias_correction": "none"}


def planned(module: Any, x: Any, calibration: Any, **fields: Any) -> tuple[Any, Plan]:
    """The import of a module, and a plan of it."""
    mod = compiler.from_torch(module, (torch.from_numpy(x),))
    size = len(x)
    batches = [calibration[i : i + size] for i in range(0, 5 * size, size)]
    return mod, quantize.calibrate(mod, batches, quantize.QConfig(**fields))


def built(mod: Any, plan: Plan, x: Any) -> Any:
    return compiler.build(quantize.realize(mod, plan))(x)


@pytest.mark.parametrize("fields", [UNSIGNED, SIGNED, NARROW, UNEVEN, FULL], ids=str)
@pytest.mark.parametrize("name", ["mlp", "resnet8", "dwsep"])
def test_powers_of_two_give_the_same_integers(name: str, fields: dict[str, Any]) -> None:
    module, (x, calibration) = trained(name), digits(8)
    mod, plan = planned(module, x, calibration, smoothing=0, **fields)
    plan = with_powers(plan)
    graph = converted(module, DtypelabQuantizer(plan, mod), x)
    found = compare(graph, mod, plan, x)
    assert found.total > 1000
    assert (found.share, found.most) == (1.0, 0), found
    ours = built(mod, plan, x)
    np.testing.assert_array_equal(run(graph, x), ours)
    imported = compiler.from_torch(graph, (torch.from_numpy(x),))
    np.testing.assert_array_equal(compiler.build(imported)(x), ours)
    text = str(imported)
    assert text.count('out_dtype="int32"') == len(plan.weights)


@pytest.mark.parametrize("name", ["mlp", "resnet8", "dwsep"])
def test_other_scales_are_one_code_apart_at_most(name: str) -> None:
    module, (x, calibration) = trained(name), digits(8)
    mod, plan = planned(module, x, calibration)
    graph = converted(module, DtypelabQuantizer(plan, mod), x)
    found, steps = (compare(graph, mod, plan, x, step_by_step=s) for s in (False, True))
    print(f"{name}: {found}\nstep by step: {steps}")
    assert steps.most <= 1, steps
    assert steps.share > 0.9999, steps
    assert found.share > 0.99, found  # what differs early is read by all that follows
    assert "the same, the others at most" in str(found)
    ours = built(mod, plan, x)
    np.testing.assert_allclose(run(graph, x), ours, atol=0.05 * np.abs(ours).max())


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    channels=st.integers(1, 6),
    kernel=st.sampled_from([1, 3]),
    seed=st.integers(0, 1000),
    bias=st.booleans(),
    fields=st.sampled_from([UNSIGNED, SIGNED, NARROW, UNEVEN, FULL]),
    batch=st.integers(1, 3),
)
def test_random_networks_give_the_same_integers(
    channels: int, kernel: int, seed: int, bias: bool, fields: dict[str, Any], batch: int
) -> None:
    module, rng = Residual(channels, kernel, seed, bias), np.random.default_rng(seed)
    x = rng.normal(size=(batch, 2, 8, 8)).astype("float32")
    mod, plan = planned(module, x, np.tile(x, (5, 1, 1, 1)), smoothing=0, **fields)
    plan = with_powers(plan)
    graph = converted(module, DtypelabQuantizer(plan, mod), x)
    found = compare(graph, mod, plan, x)
    assert (found.share, found.most) == (1.0, 0), found
    np.testing.assert_array_equal(run(graph, x), built(mod, plan, x))


def test_a_configuration_is_calibrated_in_torch_as_here() -> None:
    module, (x, calibration) = trained("mlp"), digits(8)
    config = quantize.QConfig(weight_rounding="gptq", weight_bits=4)
    mod = compiler.from_torch(module, (torch.from_numpy(x),))
    quantizer = DtypelabQuantizer(config, mod)
    batches = [calibration[i : i + 8] for i in range(0, 24, 8)]
    graph = converted(module, quantizer, x, *batches)
    plan = quantize.calibrate(mod, batches, config)
    assert quantizer.plan.to_json() == plan.to_json()
    assert compare(graph, mod, plan, x, step_by_step=True).most <= 1


def test_a_plan_comes_back_from_torch(tmp_path: Path) -> None:
    module, (x, calibration) = trained("resnet8"), digits(8)
    mod, plan = planned(module, x, calibration, weight_bits=4, weight_rounding="gptq")
    graph = converted(module, DtypelabQuantizer(plan, mod), x)
    plan_of(graph, mod).to_json(tmp_path / "plan.json")
    back = Plan.from_json(tmp_path / "plan.json")
    assert (back.values, back.nodes, back.model) == (plan.values, plan.nodes, plan.model)
    np.testing.assert_array_equal(built(mod, back, x), built(mod, plan, x))
    again = converted(module, DtypelabQuantizer(tmp_path / "plan.json", mod), x)
    np.testing.assert_array_equal(run(again, x), run(graph, x))
    alone = plan_of(graph)
    np.testing.assert_array_equal(built(float_module(graph), alone, x), built(mod, plan, x))


def test_plans_of_other_quantizers() -> None:
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    module, (x, calibration) = trained("resnet8"), digits(8)
    theirs = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    graph = converted(module, theirs, x, calibration[:8])
    mod = float_module(graph)
    plan = plan_of(graph)
    assert len(plan.weights) == 10
    found = compare(graph, mod, plan, x, step_by_step=True)
    print(found)
    assert found.most <= 1
    assert found.share > 0.999


def test_open_batches() -> None:
    module, (x, calibration) = trained("mlp"), digits(8)
    size = torch.export.Dim("batch", min=2, max=64)
    quantizer = DtypelabQuantizer()
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(exported(module, x, dynamic_shapes=({0: size},)), quantizer)
    for batch in (calibration[:8], calibration[8:15]):
        prepared(torch.from_numpy(batch))
    graph = convert_pt2e(prepared)
    assert compare(graph, quantizer.session.module, quantizer.plan, x[:7]).most <= 1


def test_overrides_are_about_the_network_as_it_was() -> None:
    module, (x, _) = Residual(3, 3, 0, True), (np.ones((2, 2, 8, 8), "float32"), None)
    mod = compiler.from_torch(module, (torch.from_numpy(x),))
    quantizer = DtypelabQuantizer(quantize.QConfig(overrides={"norm": {"weight_bits": 3}}), mod)
    converted(module, quantizer, x, x)
    assert quantizer.plan.weights["norm"].bits == 3
    assert quantizer.session.plan.weights["first"].bits == 3
    again = DtypelabQuantizer(quantizer.plan, mod)
    converted(module, again, x)
    assert again.plan == quantizer.plan


@pytest.mark.slow
def test_resnet18() -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    module = models.resnet18(weights=None).eval()
    x = np.random.default_rng(0).normal(size=(4, 3, 64, 64)).astype("float32")
    mod = compiler.from_torch(module, (torch.from_numpy(x),))
    plan = quantize.calibrate(mod, [x], quantize.QConfig(bias_correction="none"))
    for scales, exact in ((with_powers(plan), True), (plan, False)):
        graph = converted(module, DtypelabQuantizer(scales, mod), x)
        found = compare(graph, mod, scales, x, step_by_step=True)
        print(found)
        assert len(scales.weights) == 21
        assert found.most <= (0 if exact else 1)
        assert found.share > 0.999
    back = plan_of(graph, mod)
    assert (back.values, back.model) == (plan.values, plan.model)


# ---- what is refused -----------------------------------------------------------------------------
def small() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), np.ones(
        (2, 4), "float32"
    )


def annotated(module: Any, scheme: Any, *inputs: Any) -> None:
    DtypelabQuantizer(scheme).annotate(exported(module, *inputs))


def test_what_is_no_graph_is_refused() -> None:
    module, x = small()
    with pytest.raises(compiler.DtypelabError, match="GraphModule of an exported program"):
        DtypelabQuantizer().annotate(module)
    with pytest.raises(compiler.DtypelabError, match="there is nothing quantized in this"):
        plan_of(exported(module, x))
    with pytest.raises(compiler.DtypelabError, match="a Plan, its file, or a QConfig, not int"):
        DtypelabQuantizer(8)
    with pytest.raises(compiler.DtypelabError, match="no graph was annotated"):
        _ = DtypelabQuantizer().plan


def test_plans_of_other_networks_are_refused() -> None:
    module, x = small()
    _, plan = planned(module, x, np.tile(x, (5, 1)))
    extra = {**plan.values, "hiden": next(iter(plan.values.values()))}
    with pytest.raises(compiler.DtypelabError, match="values: unknown value 'hiden'"):
        annotated(module, replace(plan, values=extra), x)
    with pytest.raises(compiler.DtypelabError, match="made for another model: it has 3 operators"):
        annotated(nn.Linear(4, 3), plan, x)
    with pytest.raises(compiler.DtypelabError, match=r"node 'v1' is nn\.relu, and .* there tanh"):
        annotated(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), plan, x)


def test_what_torch_cannot_say_is_refused() -> None:
    module, x = small()
    _, plan = planned(module, x, np.tile(x, (5, 1)))
    for fields, said in (
        (
            {"weight_dtype": "float8_e4m3fn", "activation_dtype": "float8_e4m3fn"},
            "integers of both",
        ),
        ({"activation_dtype": "float32"}, "integers of both"),
        ({"weight_bits": 12}, "up to 8 bits"),
        ({"equalize": True}, "cannot rescale"),
        ({"rotate": True}, "cannot rescale"),
    ):
        with pytest.raises(compiler.UnsupportedError, match=said):
            annotated(module, quantize.QConfig(**fields), x)
    assert plan.values


def test_values_without_a_node_of_their_own_are_named() -> None:
    class Attention(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(q, k, v)

    given = [np.ones((1, 2, 3, 4), "float32")] * 3
    with pytest.raises(
        compiler.UnsupportedError, match=r"no nodes of their own for .*softmax.*skip"
    ):
        annotated(Attention(), quantize.QConfig(softmax="integer"), *given)


def test_a_graph_without_calibration_is_refused() -> None:
    module, x = small()
    with pytest.raises(compiler.DtypelabError, match="was not calibrated: call it"):
        converted(module, DtypelabQuantizer(), x)
