"""Training of some layers with quantization: the others stay as they are, what comes before is
computed once a view, and the integers are those of the realized graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_qat import FOUR, PACE, codes_alike, spec_of
from tiny_training import tiny_files

import compiler
import experiments
from compiler.errors import ConfigError
from compiler.ir.expr import IRModule
from experiments.training.feeding import Feeding
from experiments.training.initial import mirrored, moved
from experiments.training.loop import Pace, beginning, train_run
from experiments.training.programs import float32_scores, float32_shares, programs
from experiments.training.spec import load_training

LAST = FOUR | {"layers": ["scores"]}
DIGITS = {"weight_bits": 4, "activation_bits": 4, "n_calib": 50}


def unlabelled(folder: Path) -> dict[str, Any]:
    """A specification whose examples have no labels."""
    spec = tiny_files(folder)
    path = folder / "bare.npz"
    with np.load(spec["dataset"]) as arrays:
        np.savez(path, x=arrays["x"], x_test=arrays["x_test"])
    return spec_of(folder) | {"dataset": str(path), "targets": "model"}


def test_only_the_layers_that_are_named_change(tmp_path: Path) -> None:
    spec = load_training(spec_of(tmp_path, qat=[LAST]))
    first, after = beginning(spec.runs[0], spec.data, PACE)
    assert sorted(first.arrays) == sorted(after(first).arrays)
    weights = {n for n in first.arrays if not n.endswith((".m", ".v"))}
    trained = train_run(spec.runs[0], spec.data, PACE, None, lambda *_: None).state.arrays
    assert any("scores" in n for n in weights)
    assert not any("conv" in n or "norm" in n for n in weights)
    assert all((trained[n] != first.arrays[n]).any() for n in weights)


def test_integers_of_training_are_those_of_the_graph(tmp_path: Path) -> None:
    assert codes_alike(load_training(spec_of(tmp_path, qat=[LAST])), 8) >= 1


@pytest.mark.thorough
@pytest.mark.parametrize("front", [{}, {"skip": True}, {"weight_bits": 8, "activation_bits": 8}])
def test_integers_of_the_last_layers_of_a_network(front: dict[str, Any]) -> None:
    last = {"weight_bits": 4, "activation_bits": 4}
    module = compiler.from_onnx(experiments.zoo.model_path("mnist_dwsep"))
    convolutions = [b.origins[0] for b in module.main.bindings if "conv" in b.var.name]
    late = convolutions[-4:]
    overrides = dict.fromkeys(late, last)
    if front:
        overrides |= dict.fromkeys(convolutions[:-4], front)
    qat = {"n_calib": 50, "overrides": overrides, "layers": late}
    spec = {"models": ["mnist_dwsep"], "qat": [qat], "epochs": 1, "n_train": 128, "n_test": 250}
    assert codes_alike(load_training(spec), 50) >= 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "layers", [["scores"], ["norm"], ["scores", "norm"]], ids=lambda v: "+".join(v)
)
def test_both_parts_are_the_whole_network(tmp_path: Path, layers: list[str]) -> None:
    spec = load_training(spec_of(tmp_path, qat=[FOUR | {"layers": layers}]))
    made = programs(spec.runs[0], spec.data, 1)
    assert made.quantized is not None
    whole = made.quantized.network
    given = {p.name: p.value for p in whole.parameters}
    size = whole.inputs[0].type.shape[0]
    x = spec.data.x[:size]
    want = compiler.build(IRModule({"main": whole.function}))(x, **given)
    np.testing.assert_array_equal(made.scores(x, given), want)
    assert len(made.features(spec.data.x_test)[0]) == len(spec.data.x_test)


def test_an_epoch_has_one_view_of_the_examples(tmp_path: Path) -> None:
    more = {"shift": 1, "mirror": True, "views": 2, "targets": "model", "temperature": 3.0}
    spec = load_training(spec_of(tmp_path, qat=[LAST]) | more | {"epochs": 3})
    (run,) = spec.runs
    made = programs(run, spec.data, 1)
    feeding = Feeding(run, made, spec.data, 1)
    shares = float32_shares(run.path, run.model_sha256, 48, (1, 6, 6), 3.0, 1)
    for epoch in range(3):
        step = epoch * run.steps_an_epoch + 1
        view = epoch % 2
        x = mirrored(moved(spec.data.x, run.seed, view, 1), run.seed, view)
        chosen, given = feeding.batch(step), feeding.at(step)
        features = dict(zip(made.step.inputs, made.features(x), strict=True))
        for name, whole in features.items():
            np.testing.assert_array_equal(given[name], whole[chosen])
        np.testing.assert_allclose(given["targets"], shares(x)[chosen], rtol=1e-5)


@pytest.mark.thorough
def test_examples_without_labels_are_judged_by_what_float32_says(tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    spec = unlabelled(tmp_path) | {"qat": [LAST, FOUR | {"train": False}]}
    rows = experiments.train(spec, out)
    assert set(rows["metric_name"]) == {"agreement"}
    assert list(rows["status"]) == ["ok", "ok"]
    checked = load_training(spec)
    run = checked.runs[0]
    trained = train_run(run, checked.data, PACE, None, lambda *_: None)
    known = float32_scores(run.path, run.model_sha256, checked.data, 1)
    share = (trained.scores.argmax(axis=1) == known.argmax(axis=1)).mean()
    assert rows["metric"][0] == pytest.approx(share)


def test_it_is_judged_after_so_many_epochs_and_the_last(tmp_path: Path) -> None:
    spec = load_training(spec_of(tmp_path, qat=[LAST]) | {"epochs": 5, "judge_epochs": 2})
    pace = Pace(100, 100, 1, spec.judge_epochs)
    trained = train_run(spec.runs[0], spec.data, pace, None, lambda *_: None)
    assert [p.metric is not None for p in trained.state.curve] == [False, True, False, True, True]
    assert trained.state.curve[-1].metric == trained.metric


def test_every_other_image_is_mirrored() -> None:
    x = np.arange(64 * 12, dtype=np.float32).reshape(64, 1, 3, 4)
    found = mirrored(x, 0, 5)
    np.testing.assert_array_equal(found, mirrored(x, 0, 5))
    assert (found != mirrored(x, 1, 5)).any()
    same = (found == x).all(axis=(1, 2, 3))
    turned = (found == x[..., ::-1]).all(axis=(1, 2, 3))
    assert (same | turned).all()
    assert 16 < same.sum() < 48


@pytest.mark.thorough
def test_adam_moves_weights_by_a_share_of_their_channel(tmp_path: Path) -> None:
    rate, found = 0.001, {}
    for moves in ("alike", "by_channel"):
        more = {"qat": [FOUR | {"moves": moves}], "schedule": {"rate": rate}}
        spec = load_training(spec_of(tmp_path) | more)
        first, after = beginning(spec.runs[0], spec.data, PACE)
        second = after(first)
        names = [n for n in first.arrays if n.endswith((".weight", ".bias"))]
        assert len(names) == 4
        found[moves] = {n: np.abs(second.arrays[n] - first.arrays[n]) for n in names}
        steps = {n: a for n, a in first.arrays.items() if n.endswith(".weight_step")}
    assert len(steps) == 2
    for name, by in found["by_channel"].items():
        assert found["alike"][name].max() == pytest.approx(rate, rel=1e-2)
        own = name.rpartition(".")[0]
        (largest,) = (7 * a for n, a in steps.items() if n.startswith(own))
        each = by.reshape(len(largest), -1).max(axis=1)
        assert (each > 0).any()
        np.testing.assert_allclose(each[each > 0], rate * largest[each > 0], rtol=2e-2)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"qat": [FOUR | {"layers": ["scorez"]}]}, "'scorez' fits no layer with weights"),
        ({"qat": [FOUR | {"layers": "scores"}]}, "layers must be a list"),
        ({"qat": [FOUR | {"layers": ["scores"], "train": False}]}, "not with train = false"),
        ({"qat": [FOUR | {"moves": "far"}]}, 'moves must be "alike" or "by_channel"'),
        ({"qat": [FOUR], "views": 2, "shift": 1}, "views are for qat with layers"),
        ({"qat": [LAST], "views": 2}, "views differ by shift and mirror"),
        ({"qat": [FOUR], "temperature": 2.0}, 'temperature is for targets = "model"'),
        ({"qat": [FOUR], "temperature": 0.0}, "temperature must be from 0.01 to 1000"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_training(spec_of(tmp_path) | more)


def test_labels_are_missed_where_they_are_the_targets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no labels to train on"):
        load_training(unlabelled(tmp_path) | {"targets": "labels"})
