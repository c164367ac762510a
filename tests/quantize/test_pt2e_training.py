"""Fine-tuning in torch's own flow, rounded as plans round: what was trained becomes a plan that
computes its integers. Skipped where torch or torchao is not installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import compiler
import quantize

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
pytest.importorskip("torchao")

from torch_networks import converted, digits, exported, run, trained, with_powers  # noqa: E402
from torchao.quantization.pt2e import move_exported_model_to_eval  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e  # noqa: E402

from quantize.torch import (  # noqa: E402
    DtypelabQuantizer,
    compare,
    float_module,
    plan_of,
    with_integer_biases,
)
from quantize.torch.simulating import Rounded  # noqa: E402

POWERS = {"requantize": "shift", "weight_bits": 4, "activation_bits": 6}


def tuned(name: str, quantizer: DtypelabQuantizer, steps: int = 3) -> tuple[Any, list[float]]:
    """A prepared module after some steps on digits, in evaluation, and its losses."""
    module, (x, calibration) = trained(name), digits(8)
    labels = torch.from_numpy(run(module, calibration).argmax(axis=1))
    prepared = prepare_qat_pt2e(exported(module.train(), x), quantizer)
    optimizer = torch.optim.SGD(prepared.parameters(), lr=2e-3, momentum=0.9)
    losses = []
    for i in range(steps):
        rows = slice(8 * i, 8 * i + 8)
        optimizer.zero_grad()
        y = prepared(torch.from_numpy(calibration[rows]))
        loss = torch.nn.functional.cross_entropy(y, labels[rows])
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    move_exported_model_to_eval(prepared)
    return prepared, losses


@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet8", marks=pytest.mark.slow)])
def test_what_was_trained_realizes_to_the_same_integers(name: str) -> None:
    x, _ = digits(8)
    config = quantize.QConfig(**POWERS)
    prepared, _ = tuned(name, DtypelabQuantizer(config, qat=True))
    simulated = run(prepared, x)
    graph = with_integer_biases(convert_pt2e(prepared))
    mod, plan = float_module(graph), plan_of(graph, config=replace(config, requantize="float32"))
    assert not plan.skipped
    found = compare(graph, mod, plan, x)
    assert (found.share, found.most) == (1.0, 0), found
    ours = compiler.evaluate(quantize.realize(mod, plan), x)
    np.testing.assert_array_equal(run(graph, x), ours)
    assert (simulated.argmax(axis=1) == ours.argmax(axis=1)).mean() >= 0.85


def test_other_scales_are_one_code_apart_at_most() -> None:
    x, _ = digits(8)
    quantizer = DtypelabQuantizer(quantize.QConfig(weight_bits=4), qat=True)
    graph = with_integer_biases(convert_pt2e(tuned("mlp", quantizer)[0]))
    found = compare(graph, float_module(graph), plan_of(graph), x, step_by_step=True)
    print(found)
    assert found.most <= 1
    assert found.share > 0.999


def test_a_plan_keeps_its_scales_in_training() -> None:
    module, (x, calibration) = trained("mlp"), digits(8)
    mod = compiler.from_torch(module, (torch.from_numpy(x),))
    config = quantize.QConfig(weight_bits=4, smoothing=0, bias_correction="none")
    batches = [calibration[i : i + 8] for i in range(0, 40, 8)]
    plan = with_powers(quantize.calibrate(mod, batches, config))
    prepared, losses = tuned("mlp", DtypelabQuantizer(plan, qat=True), steps=10)
    assert np.mean(losses[5:]) < np.mean(losses[:5])
    back = plan_of(with_integer_biases(convert_pt2e(prepared)))
    names = {p.name for p in mod.main.params}
    assert sorted(v.scale for v in back.values.values()) == sorted(
        v.scale for v in plan.values.values()
    )
    assert all(back.values[k] == plan.values[k] for k in names)
    assert [w.scales for w in back.weights.values()] == [w.scales for w in plan.weights.values()]


def test_rounding_is_to_the_nearest_even_and_passes_gradients_between_the_ends() -> None:
    x = torch.tensor([-9.0, -2.5, -0.5, 0.5, 1.5, 2.4, 40.0], requires_grad=True)
    scale, zero = torch.tensor(1.0), torch.tensor(3.0)
    y = Rounded.apply(x, scale, zero, 0, 15, False)
    y.sum().backward()
    assert y.tolist() == [-3.0, -2.0, 0.0, 0.0, 2.0, 2.0, 12.0]
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_a_module_that_saw_nothing_is_refused() -> None:
    module, (x, _) = trained("mlp"), digits(8)
    prepared = prepare_qat_pt2e(exported(module, x), DtypelabQuantizer(qat=True))
    with pytest.raises(compiler.DtypelabError, match="call the module"):
        convert_pt2e(prepared)


def test_biases_that_are_integers_stay() -> None:
    module, (x, calibration) = trained("mlp"), digits(8)
    graph = converted(module, DtypelabQuantizer(), x, calibration[:8])
    np.testing.assert_array_equal(run(with_integer_biases(graph), x), run(graph, x))
