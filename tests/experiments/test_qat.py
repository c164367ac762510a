"""Training with quantization: its integers are those of the graph that is realized afterwards, what
it leaves can be used, and what it gains is said example by example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from tiny_training import tiny_files

import compiler
import experiments
import quantize
from compiler.errors import ConfigError
from compiler.ir.expr import IRModule
from experiments.cli.main import run_command
from experiments.layers.answers import Answers, answers_path, gains, read_answers
from experiments.training.checkpoints import Checkpoint
from experiments.training.initial import moved
from experiments.training.loop import Pace, beginning, train_run
from experiments.training.outcome import Outcome
from experiments.training.programs import programs
from experiments.training.qat import planned, quantized
from experiments.training.spec import TrainSpec, load_training
from experiments.training.training import models_path
from experiments.zoo.model_files import input_names
from quantize import Plan

FOUR = {"weight_bits": 4, "activation_bits": 4, "weight_calibrate": "mse", "n_calib": 24}
PACE = Pace(100, 10, 1)


def spec_of(folder: Path, **more: Any) -> dict[str, Any]:
    base = tiny_files(folder) | {"optimizer": {"name": "adam"}, "schedule": {"rate": 0.005}}
    return base | {"qat": [FOUR]} | more


def codes_alike(spec: TrainSpec, count: int) -> int:
    """Train the first run, and compare every integer of training's program on test examples with
    those of the realized graph, by the reference and compiled; how many values were compared."""
    run = spec.runs[0]
    trained = train_run(run, spec.data, PACE, None, lambda *_: None)
    made = programs(run, spec.data, 1)
    assert made.quantized is not None
    assert run.qat is not None
    x = spec.data.x_test[:count]
    sized = compiler.from_onnx(run.path, shapes={input_names(run.path)[0]: x.shape})
    network = quantized(sized, planned(run.path, run.model_sha256, run.qat, spec.data), run.qat)
    graph, plan = network.trained(trained.state.arrays)
    f = network.network.function
    held = {v.name: v for v in network.codes.values()}
    whole = IRModule({"main": f.with_body(f.bindings, (*f.results, *held.values()))})
    given = {p.name: trained.state.arrays[p.name] for p in network.network.parameters}
    scores, *codes = compiler.build(whole)(x, **given)
    realized = quantize.realize(graph, plan)
    np.testing.assert_array_equal(scores, compiler.build(realized)(x))
    np.testing.assert_array_equal(scores, trained.scores[:count])
    nodes = quantize.trace_plan(graph, plan, x)
    compared = 0
    for name, code in zip(network.codes, codes, strict=True):
        if name in nodes and nodes[name].kind == "integer":
            np.testing.assert_array_equal(code.astype(np.float64), nodes[name].values)
            compared += 1
    return compared


@pytest.mark.thorough
@pytest.mark.parametrize("steps", ["learned", pytest.param("fixed", marks=pytest.mark.thorough)])
def test_integers_of_training_are_those_of_the_graph(tmp_path: Path, steps: str) -> None:
    spec = load_training(spec_of(tmp_path, qat=[FOUR | {"steps": steps}]))
    assert codes_alike(spec, 8) >= 1


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_resnet8", "mnist_dwsep"])
def test_integers_of_digits(name: str, bits: int) -> None:
    qat = {"weight_bits": bits, "activation_bits": bits, "n_calib": 50}
    spec = {"models": [name], "qat": [qat], "epochs": 1, "n_train": 192, "n_test": 250, "batch": 64}
    assert codes_alike(load_training(spec), 50) >= 1


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [4, 8])
def test_integers_of_a_vision_transformer(bits: int) -> None:
    path = Path(__file__).parents[2].parent / "shared" / "data" / "mnist_vit.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    qat = {"weight_bits": bits, "activation_bits": bits, "n_calib": 50, "layer_norm": "integer"}
    spec = {"models": [str(path)], "qat": [qat | {"softmax": "integer"}]}
    spec |= {"epochs": 1, "n_train": 64, "n_test": 250, "batch": 32}
    assert codes_alike(load_training(spec), 8) >= 10


@pytest.mark.thorough
def test_rows_answers_and_models(tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    qat = [FOUR, {"scheme": "nvfp4", "train": False, "n_calib": 24}]
    spec = spec_of(tmp_path, qat=qat, seeds=[0, 1], targets="model")
    rows = experiments.train(spec, out)
    assert list(rows["status"]) == ["ok"] * 3
    assert [s.split()[0] for s in rows["system"]] == ["qat", "qat", "post-training"]
    assert list(rows["steps"]) == [12, 12, 0]
    assert set(rows["initial"]) == {"model"}
    answers = read_answers(answers_path(out))
    for row in rows.to_dict("records"):
        a = answers[str(row["config_hash"])]
        assert a.right.mean() == pytest.approx(row["metric"])
        assert len(a.kl) == 30
        assert (a.kl > -1e-6).all()
    found = gains(rows, answers)
    assert [(g.measure, g.seeds) for g in found] == [("top1", 2), ("kl", 2)]
    left = Outcome(models_path(out), str(rows["config_hash"].iloc[0]))
    plan, net = Plan.from_json(left.plan), compiler.from_onnx(left.weights)
    x = load_training(spec).data.x_test
    scores = compiler.build(quantize.realize(net, plan))(x)
    a = answers[str(rows["config_hash"].iloc[0])]
    labels = load_training(spec).data.y_test
    np.testing.assert_array_equal(scores.argmax(axis=1) == labels, a.right)
    again = compiler.build(compiler.from_onnx(left.quantized))(x)
    assert scores.argmax(axis=1).tolist() == again.argmax(axis=1).tolist()
    assert len(list(models_path(out).iterdir())) == 6
    assert experiments.train(spec, out, resume=True).equals(rows)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_dwsep"])
def test_onnxruntime_gives_what_training_gave(tmp_path: Path, name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    out = tmp_path / "x.csv"
    qat = {"weight_bits": 4, "activation_bits": 4, "n_calib": 50}
    spec = {"models": [name], "qat": [qat], "epochs": 1, "n_train": 192, "n_test": 250}
    (row,) = experiments.train(spec, out).to_dict("records")
    left = Outcome(models_path(out), str(row["config_hash"]))
    session = ort.InferenceSession(left.quantized, providers=["CPUExecutionProvider"])
    x = load_training(spec).data.x_test[:250]
    (scores,) = session.run(None, {session.get_inputs()[0].name: x})
    right = scores.argmax(axis=1) == load_training(spec).data.y_test[:250]
    assert (right == read_answers(answers_path(out))[left.config_hash].right).mean() >= 0.99


@pytest.mark.thorough
def test_it_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    spec = load_training(spec_of(tmp_path))
    (run,) = spec.runs
    whole = train_run(run, spec.data, PACE, None, lambda *_: None)

    class Stopped(Exception):
        pass

    def tell(what: str, done: int, total: int) -> None:
        if done == 5:
            raise Stopped

    kept = Checkpoint(tmp_path / "kept.npz", run.config_hash)
    with pytest.raises(Stopped):
        train_run(run, spec.data, Pace(1, 10, 1), kept, tell)
    assert train_run(run, spec.data, PACE, kept, lambda *_: None).weights_sha256 == (
        whole.weights_sha256
    )


@pytest.mark.thorough
def test_adam_moves_steps_by_a_share_of_them(tmp_path: Path) -> None:
    rate = 0.005
    spec = load_training(spec_of(tmp_path))
    first, after = beginning(spec.runs[0], spec.data, PACE)
    second = after(first)
    steps = [n for n in first.arrays if n.endswith("step")]
    shares = [np.ravel(second.arrays[n] / first.arrays[n] - 1) for n in steps]
    assert len(steps) == 4
    assert all(np.abs(s).max() <= 1.001 * rate for s in shares)
    assert all(np.abs(s).max() >= 0.9 * rate for s in shares)


def test_images_are_moved_by_seed_and_step() -> None:
    x = np.arange(3 * 36, dtype=np.float32).reshape(3, 1, 6, 6)
    found = moved(x, 0, 5, 2)
    np.testing.assert_array_equal(found, moved(x, 0, 5, 2))
    assert (found != moved(x, 1, 5, 2)).any()
    assert (found != moved(x, 0, 6, 2)).any()
    places = [(i, j) for i in range(5) for j in range(5)]
    for image, given in zip(found[:, 0], x[:, 0], strict=True):
        wide = np.pad(given, 2, mode="edge")
        assert any((wide[i : i + 6, j : j + 6] == image).all() for i, j in places)
    np.testing.assert_array_equal(moved(x, 0, 5, 0), x)


def test_gains_are_of_the_best_by_each_measure() -> None:
    import pandas as pd

    rng = np.random.default_rng(0)
    right = rng.random((4, 50)) < [[0.9], [0.9], [0.5], [0.7]]
    kl = rng.random((4, 50)) * [[0.1], [0.1], [0.5], [0.9]]
    systems = ["qat a", "qat a", "post-training b", "post-training c"]
    rows = pd.DataFrame(
        {"model": "m", "system": systems, "status": "ok", "config_hash": list("wxyz")}
    )
    answers = {h: Answers(r, k) for h, r, k in zip("wxyz", right, kl, strict=True)}
    top1, divergence = gains(rows, answers)
    assert (top1.best, divergence.best) == ("post-training c", "post-training b")
    more = right[:2].mean(axis=0) - right[3]
    half = 2.0096 * more.std(ddof=1) / 50**0.5
    assert (top1.low, top1.high) == pytest.approx((more.mean() - half, more.mean() + half), 1e-3)
    assert divergence.gain == pytest.approx((kl[2] - kl[:2].mean(axis=0)).mean())


def test_hashes_of_other_trainings_are_what_they_were(tmp_path: Path) -> None:
    plain = load_training(tiny_files(tmp_path)).runs[0].content()
    assert not {"qat", "targets"} & set(plain)
    json.dumps(load_training(spec_of(tmp_path)).runs[0].content())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"qat": [FOUR | {"scheme": "nvfp4"}]}, "is of integers, not of 'nvfp4'"),
        ({"qat": [{"scheme": "posit8_es1"}]}, "is of integers, not of 'posit8_es1'"),
        ({"qat": [{"weight_bitz": 4}]}, "weight_bitz"),
        ({"qat": [FOUR | {"steps": "moved"}]}, 'steps must be "learned" or "fixed"'),
        ({"qat": [FOUR | {"n_calib": 99}]}, "n_calib is 99, but there are 48"),
        ({"qat": [4]}, "qat holds tables"),
        ({"initial": "random"}, 'initial = "model"'),
        ({"formats": ["bfloat16"]}, "the forward pass is of integers and float32"),
        ({"shift": 6}, "shift moves images"),
        ({"targets": "guesses"}, 'targets must be "labels" or "model"'),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_training(spec_of(tmp_path) | more)


def test_the_command_shows_what_is_gained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "t.toml", tmp_path / "x.csv"
    path.write_text(tomli_w.dumps(spec_of(tmp_path, qat=[FOUR, FOUR | {"train": False}], shift=1)))
    assert run_command(["train", str(path), "-o", str(out)]) == 0
    assert "millinats from float32" in capsys.readouterr().out
    refused = FOUR | {"activation_bits": 16}
    path.write_text(tomli_w.dumps(spec_of(tmp_path, qat=[refused])))
    assert run_command(["train", str(path), "-o", str(tmp_path / "y.csv")]) == 1
    assert "2 to 8 bits" in capsys.readouterr().err
