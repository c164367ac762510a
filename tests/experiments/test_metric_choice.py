"""Which metric judges a network by default, what is refused before anything runs, and what a row
says when a metric fails or has no value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import experiments
from compiler.errors import ConfigError
from experiments.data.datasets import Dataset
from experiments.measure import metric_choice, metrics, scoring
from experiments.measure.metric_choice import Judged
from experiments.spec.specification import load_spec

N = 12
INTEGERS, TEXTS = np.arange(N) % 3, np.array(["a"] * N, dtype=object)
ONES = np.eye(3)[INTEGERS]


def dataset(y: Any = None, **given: Any) -> Dataset:
    content: dict[str, Any] = {"x": np.zeros((N, 2), np.float32)}
    content |= {} if y is None else {"y": y}
    return Dataset.of("d", content | given)


CHOSEN: dict[str, tuple[tuple[int | None, ...] | None, Mapping[str, Any], str]] = {
    "classes": ((None, 3), {"y": INTEGERS}, "top1"),
    "classes of a picture": ((None, 3, 1, 1), {"y": INTEGERS}, "top1"),
    "classes in an open number": ((None, None), {"y": INTEGERS}, "top1"),
    "an output that nobody knows": (None, {"y": INTEGERS}, "top1"),
    "ones among zeros": ((None, 3), {"y": ONES}, "top1"),
    "labels beyond the classes": ((None, 2), {"y": INTEGERS}, "sqnr"),
    "negative labels": ((None, 3), {"y": INTEGERS - 1}, "sqnr"),
    "one number": ((None, 1), {"y": INTEGERS}, "rmse"),
    "regression": ((None, 3), {"y": ONES * 1.5}, "rmse"),
    "regression of one": ((None, 1), {"y": INTEGERS / 2}, "rmse"),
    "labels for something else": ((None, 3), {"y": INTEGERS / 2}, "sqnr"),
    "detections": ((None, 84, 8400), {"y": INTEGERS}, "sqnr"),
    "sequences": ((None, None, 9), {"y": INTEGERS}, "sqnr"),
    "a picture": ((None, 3, 4, 4), {"y": INTEGERS}, "sqnr"),
    "a scalar": ((), {"y": INTEGERS}, "sqnr"),
    "no labels": ((None, 3), {}, "sqnr"),
    "no labels, but a name": ((None, 3), {"metric": "top1"}, "top1"),
    "texts": ((None, 5, 4), {"y": TEXTS, "classes": ("", "a", "b", "c")}, "ctc_exact"),
    "texts without an alphabet": ((None, 5, 4), {"y": TEXTS}, "sqnr"),
    "texts of classes": ((None, 4), {"y": TEXTS, "classes": ("", "a")}, "sqnr"),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_the_default_metric_fits_the_output_and_the_labels(case: str) -> None:
    dims, content, expected = CHOSEN[case]
    judged, data = Judged("y", dims), dataset(**content)
    chosen = metric_choice.default(judged, data)
    assert chosen == expected
    metric_choice.check(chosen, judged, data)
    assert str(judged).startswith("output 'y'")


@given(
    st.lists(st.integers(1, 4), max_size=3),
    st.sampled_from([None, INTEGERS, INTEGERS - 1, ONES, ONES / 2, INTEGERS / 2, TEXTS]),
    st.booleans(),
)
def test_a_metric_that_fits_by_what_is_known_judges_what_comes_out(
    inner: list[int], labels: Any, worded: bool
) -> None:
    """Whatever is chosen, or named and not refused, gives a figure of such outputs."""
    data = dataset(labels, **({"classes": ("", *"abc")} if worded else {}))
    outputs = np.random.default_rng(0).normal(size=(N, *inner)).astype(np.float32)
    judged = Judged("y", (None, *inner))
    chosen = metric_choice.default(judged, data)
    fitting = [name for name in scoring.names() if not metric_choice.misfit(name, judged, data)]
    assert chosen in fitting
    for name in {"top1", "rmse", "r2", "cosine", "ctc_exact", "ctc_cer", "sqnr"} & {*fitting}:
        metric = scoring.find(name, data.classes)
        labelled = data.labelled and not metric.beside_float32
        figure = metric(outputs, data.y if labelled else outputs)
        assert isinstance(figure, float)


def test_a_named_metric_that_does_not_fit_is_refused_with_those_that_do() -> None:
    judged = Judged("boxes", (None, 84, 8400))
    with pytest.raises(ConfigError, match=r"top1 needs scores \[n, classes\], not output 'boxes'"):
        metric_choice.check("top1", judged, dataset(INTEGERS))
    with pytest.raises(ConfigError, match='"sqnr" fits every output'):
        metric_choice.check("rmse", judged, dataset(INTEGERS))
    with pytest.raises(ConfigError, match="top1 needs integer labels"):
        metric_choice.check("top1", Judged("y", None), dataset(INTEGERS / 2))
    with pytest.raises(ConfigError, match="unknown metric 'rmsd'; did you mean 'rmse'"):
        metric_choice.check("rmsd", judged, dataset())


# ---- sweeps --------------------------------------------------------------------------------------
def network(folder: Path, shape: list[int | str], operator: str = "Tanh") -> str:
    """A file with a product of x [n, 6] and weights in this shape, the input's count first."""
    inner = [d if isinstance(d, int) else 1 for d in shape[1:]]
    weights = np.random.default_rng(1).normal(size=(6, math.prod(inner))).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Reshape", ["p", "s"], ["r"]),
        helper.make_node(operator, ["r"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.array([-1, *inner], np.int64), "s"),
        ],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(
        helper.make_model(graph, opset_imports=[opset], ir_version=8), folder / "network.onnx"
    )
    return str(folder / "network.onnx")


def spec(folder: Path, shape: list[int | str], operator: str = "Tanh", **more: Any) -> Any:
    x = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
    labels = more.pop("y", INTEGERS)
    given = {} if labels is None else {"y": labels}
    np.savez(folder / "d.npz", x=x, **given)
    return {
        "models": [network(folder, shape, operator)],
        "dataset": str(folder / "d.npz"),
        "schemes": ["float32", "bfloat16"],
        "latency": {"runs": 0},
    } | more


SHAPES: dict[str, list[int | str]] = {
    "detections": ["n", 7, 4],
    "open": ["n", "boxes", 4],
    "of classes that are too few": ["n", 2],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_outputs_that_are_no_classes_are_judged_by_their_noise(
    tmp_path: Path, shape: list[int | str]
) -> None:
    rows = experiments.sweep(spec(tmp_path, shape), tmp_path / "r.csv")
    assert rows["status"].tolist() == ["ok", "ok"]
    assert set(rows["metric_name"]) == {"sqnr"}
    assert rows["metric"].tolist() == pytest.approx(rows["sqnr_db"].tolist())
    assert math.isinf(rows["metric"][0])
    assert 10 < rows["metric"][1] < 60
    # Of noise nothing is lost to float32, which has none.
    assert rows["metric_drop"].isna().all()
    assert rows["p_value"].isna().all()


def test_top1_by_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spec: metric.*top1 needs scores|top1 needs scores"):
        experiments.sweep(spec(tmp_path, ["n", 7, 4], metric="top1"), tmp_path / "r.csv")
    assert not (tmp_path / "r.csv").exists()


def test_without_labels_a_name_is_needed_to_count_answers(tmp_path: Path) -> None:
    plain = load_spec(spec(tmp_path, ["n", 3], y=None)).cells[1]
    named = load_spec(spec(tmp_path, ["n", 3], y=None, metric="top1")).cells[1]
    assert (plain.metric, named.metric) == ("sqnr", "top1")
    # Each is what its own specification says, whatever fits in later versions.
    for cell in (plain, named):
        assert cell.specification()["metric"] == cell.metric
        assert load_spec(cell.specification()).cells[0].config_hash == cell.config_hash
    rows = experiments.sweep(spec(tmp_path, ["n", 3], y=None), tmp_path / "r.csv")
    assert rows["top1_agreement"].between(0, 1).all()


MINE = """
import numpy as np
def score(outputs, labels):
    {body}
"""
FAILING = {
    "raises": "raise KeyError('no box')",
    "gives one number": "return 0.5",
    "gives texts": "return ['a'] * len(outputs)",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("body", FAILING.values(), ids=FAILING)
def test_a_metric_that_fails_leaves_all_other_figures(tmp_path: Path, body: str) -> None:
    (tmp_path / "mine.py").write_text(MINE.format(body=body))
    metric = f"{tmp_path / 'mine.py'}:score"
    layers = {"images": 1}
    rows = experiments.sweep(
        spec(tmp_path, ["n", 3], metric=metric, layers=layers), tmp_path / "r.csv"
    )
    assert rows["status"].tolist() == ["error", "error"]
    assert rows["error"].str.match("metric .?score").all()
    assert rows["metric"].isna().all()
    assert rows["sqnr_db"].notna().all()
    assert (rows["size_bytes"] > 0).all()
    assert rows["cosine"][1] > 0.99
    assert (tmp_path / "r.layers.csv").exists()


UNDEFINED = {
    "NaN outputs": ("Log", "cosine", r"\d+ of 12 inputs have a NaN or an infinity"),
    "equal labels": ("Tanh", "r2", "metric is NaN: all labels are the same"),
    "a user's NaN": ("Tanh", "mine", "score has no value for 1 of 12 inputs"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", UNDEFINED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the logarithm's own
def test_a_metric_without_a_value_says_why(tmp_path: Path, case: str) -> None:
    operator, metric, why = UNDEFINED[case]
    if metric == "mine":
        (tmp_path / "mine.py").write_text(
            MINE.format(body="return np.where(np.arange(len(outputs)) == 3, np.nan, 1.0)")
        )
        metric = f"{tmp_path / 'mine.py'}:score"
    labels = np.full((N, 3), 0.1)
    rows = experiments.sweep(
        spec(tmp_path, ["n", 3], operator, y=labels, metric=metric), tmp_path / "r.csv"
    )
    assert set(rows["status"]) == {"ok"}
    assert rows["metric"].isna().all()
    assert rows["notes"].str.contains(why).all(), rows["notes"].tolist()


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(-60, 60), st.integers(1, 9))
def test_the_metric_is_the_column(seed: int, exponent: float, width: int) -> None:
    """sqnr of all inputs is `metrics.sqnr_db`, also of numbers whose squares overflow."""
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=(5, width)) * 10.0**exponent * 10.0**exponent
    outputs = reference + rng.normal(size=(5, width)) * np.abs(reference).max() / 50
    metric = scoring.find("sqnr")
    assert metric(outputs, reference) == pytest.approx(metrics.sqnr_db(outputs, reference))
    assert metric(reference, reference) == math.inf
    outputs[rng.integers(5), rng.integers(width)] = rng.choice([np.nan, np.inf])
    assert math.isnan(metric(outputs, reference))
