"""The accuracy table counts, chooses and compares as it says. Its full figures are a slow test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.transform.analysis import cost
from experiments.benchmarks import accuracy as networks
from experiments.benchmarks import accuracy_tasks as tasks
from experiments.benchmarks import calibration, peer
from experiments.benchmarks.__main__ import main
from experiments.benchmarks.accuracy import Entry, Figures
from experiments.benchmarks.accuracy_tasks import Task
from experiments.benchmarks.calibration import Times
from experiments.measure.scoring import greedy_text
from experiments.measure.statistics import PairedDifference


def digits(name: str = "mnist_dwsep", inputs: int = 40, batches: int = 2) -> Task:
    task = tasks.load(name, None, {})
    assert isinstance(task, Task)
    return task.shortened(inputs, batches)


# ---- counting ------------------------------------------------------------------------------------
def test_share_is_counted_on_the_realized_graph() -> None:
    """Every multiply-accumulate of a layer left in float is missing from it, and no other."""
    task = digits()
    module = task.module()
    assert cost(quantize.annotate(module).module).integer_share == 0
    plan = quantize.calibrate(module, task.calibration, quantize.QConfig(bias_correction="none"))
    assert cost(quantize.realize(module, plan)).integer_share == 1
    macs = {name: node.macs for name, node in plan.nodes.items() if name in plan.weights}
    left = list(macs)[2]
    config = quantize.QConfig(skip=(left,), bias_correction="none")
    share = cost(quantize.quantize(module, task.calibration, config)).integer_share
    assert share == pytest.approx(1 - macs[left] / sum(macs.values()))


def test_products_of_activations_count_too() -> None:
    b = FunctionBuilder()
    x, y = b.param("x", (2, 3, 4), "uint8"), b.param("y", (2, 4, 5), "int8")
    z = b.call("nn.matmul", x, y, out_dtype="int32")
    real = b.call("cast", x, dtype="float32")
    w = b.call("nn.dense", real, b.const(np.ones((5, 4), np.float32)))
    module = IRModule({"main": b.finish(z, w)})
    assert cost(module).integer_share == 0.5


def test_words_are_read_greedily() -> None:
    characters = ["", "a", "b", " "]
    steps = [[3, 1, 1, 0, 1, 2, 2, 3], [0] * 8, [2, 0, 2, 2, 0, 0, 1, 0]]
    scores = np.eye(4, dtype=np.float32)[steps]
    assert greedy_text(scores, characters).tolist() == ["aab", "", "bba"]


def test_any_accepted_answer_is_right_but_none_with_nan() -> None:
    task = replace(digits(inputs=3), accepted=np.array([[1, 2], [0, -1], [2, -1]]))
    scores = np.array([[0, 0, 1], [0, 1, 0], [np.nan, 0, 1]], np.float32)
    assert task.right(scores).tolist() == [True, False, False]
    assert task.agreement(scores[:2], scores[:2][::-1]) == 0


# ---- choosing ------------------------------------------------------------------------------------
@pytest.mark.thorough
def test_settings_are_chosen_without_the_final_data() -> None:
    task = digits()
    configs = {
        "coarse": quantize.QConfig(weight_bits=3, bias_correction="none"),
        "fine": quantize.QConfig(calibrate="minmax", bias_correction="none"),
    }
    blind = replace(task, inputs=np.full_like(task.inputs, np.nan), accepted=task.accepted * 0)
    best, realized = networks.choose(blind, task.module(), configs)
    assert best == "fine"
    assert set(realized) == set(configs)


def test_answers_come_before_error_where_the_task_says_so() -> None:
    reference = np.array([[0.0, 1.0], [1.0, 0.9]])
    near, agreeing = np.array([[0.0, 1.0], [0.94, 0.95]]), np.array([[0.0, 3.0], [1.0, 0.0]])
    task = digits()
    for by_answers in (False, True):
        judge = replace(task, by_answers=by_answers)
        first, second = (networks.merit(judge, x, reference) for x in (near, agreeing))
        assert (second > first) == by_answers


# ---- the table -----------------------------------------------------------------------------------
def entry(**changes: object) -> Entry:
    """One that just passes."""
    made = Entry(
        "efficientnet_lite0", "top-1", 376, 90.7, None, Figures("default", 90.5, 17.0),
        Figures("kl", 100 * (341 / 376), 20.0), 0.95, PairedDifference(0, 0, 0, 1, 0.01),
        {"minmax": Times(1, 2)},
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def passed(e: Entry) -> list[bool]:
    return [row.passed for row in e.rows()]


def test_every_figure_has_its_target() -> None:
    assert passed(entry()) == [True] * 6
    wrong: Mapping[str, object] = {
        "default": Figures("default", 90.44, 16.9),
        "best": Figures("kl", 90.6, 19.9),
        "share": 0.949,
        "seconds": {"minmax": Times(1, 1.99)},
    }
    found = [passed(entry(**{key: value})) for key, value in wrong.items()]
    assert found[0] == [False, False, True, True, True, True]
    assert found[1] == [True, True, False, False, True, True]
    assert found[2] == [True] * 4 + [False, True]
    assert found[3] == [True] * 5 + [False]
    assert "FAIL" in networks.text(entry(share=0.949))


def test_all_networks_have_targets_and_recorded_figures() -> None:
    assert set(networks.TARGETS) == set(networks.RECORDED) <= set(tasks.TASKS)


@pytest.mark.thorough
def test_quick_table_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "installed", lambda: False)
    monkeypatch.setenv("DTYPELAB_BENCH_DIR", str(tmp_path))
    models = ["--model", "mnist_dwsep", "--model", "mnist_vit", "--model", "pp_ocrv4_rec"]
    result = CliRunner().invoke(main, ["accuracy", *models, "--quick"])
    assert result.exit_code == 0, result.output
    assert "mnist_vit: not available" in result.output
    assert "put ocr_calib.npz" in result.output
    assert "mnist_dwsep, top-1 of 100: float32" in result.output
    assert "onnxruntime (recorded)" in result.output
    assert "1 networks, 0 FAIL" in result.output


def test_wrong_names_and_folders() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mnist_vit'"):
        tasks.load("mnist_vitt", None, {})
    with pytest.raises(ConfigError, match=r"no folder nowhere"):
        tasks.load("mnist_vit", Path("nowhere"), {})
    result = CliRunner().invoke(main, ["accuracy", "--model-file", "mnist_vit=nowhere.onnx"])
    assert result.exit_code == 2
    assert "nowhere.onnx" in result.output


@pytest.mark.thorough
def test_calibration_is_timed_beside_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    task = digits()
    found = calibration.times(task.module(), task.path, task.calibration, 1, ["minmax", "kl"])
    assert list(found) == ["minmax", "kl"]
    assert all(t.ours > 0 and t.theirs > 0 for t in found.values())


@pytest.mark.slow
def test_digit_networks_reach_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "installed", lambda: False)
    models = ["--model", "mnist_resnet8", "--model", "mnist_dwsep"]
    result = CliRunner().invoke(main, ["accuracy", *models])
    assert result.exit_code == 0, result.output
    assert "2 networks, 0 FAIL" in result.output


def test_onnxruntime_calibrates_on_as_many_batches_as_memory_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = digits("mnist_mlp").module()
    batches = [np.zeros((20, 1, 28, 28), np.float32)] * 5
    assert calibration.held(module, batches) == 5
    monkeypatch.setattr(calibration, "MEMORY_SHARE", 1e-12)
    assert calibration.held(module, batches) == 1
