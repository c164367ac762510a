"""Sweeps of language models: judged a batch at a time, sequence by sequence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import two_input_decoders

import compiler
import experiments
from compiler.errors import ConfigError
from experiments.layers.sequences import read_sequences, sequences_path
from experiments.measure import tokens
from experiments.results.row_names import system_names
from experiments.results.store import ResultsFile
from experiments.running import batchwise, work
from experiments.zoo import model_batches, model_files


def _spec(folder: Path, **more: Any) -> dict[str, Any]:
    model, data = str(folder / "m.onnx"), str(folder / "d.npz")
    return {
        "models": [model],
        "dataset": data,
        "schemes": ["float32", "int8", "bfloat16"],
        "n_calib": 10,
        "latency": {"runs": 0},
        **more,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("decoder")
    two_input_decoders.written(found)
    return found


@pytest.fixture(scope="module")
def swept(folder: Path) -> pd.DataFrame:
    return experiments.sweep(_spec(folder), folder / "r.csv")


@pytest.mark.thorough
def test_figures_are_those_of_all_outputs_at_once(folder: Path, swept: pd.DataFrame) -> None:
    assert swept["status"].tolist() == ["ok"] * 3, swept["error"].tolist()
    arrays = two_input_decoders.data()
    module = compiler.from_onnx(folder / "m.onnx")
    given = {n: arrays[n] for n in ("input_ids", "attention_mask")}
    logits, _ = compiler.evaluate(module, **given)
    sums = tokens.token_sums(logits, logits, arrays["y"], arrays["attention_mask"])
    want = math.exp(sums.loss.sum() / sums.tokens.sum())
    row = swept.iloc[0]
    assert row["metric_name"] == "perplexity"
    assert row["metric"] == pytest.approx(want, rel=1e-5)
    assert row["tokens"] == sums.tokens.sum() == 12 * 5 - 4
    assert (row["kl_float32"], row["top_token_agreement"], row["metric_drop"]) == (0, 1, 0)
    assert math.isinf(row["sqnr_db"])
    for _, other in swept.iloc[1:].iterrows():
        assert 0 < other["kl_float32"] < other["kl_float32_p99"]
        assert other["kl_float32_se"] > 0
        assert other["metric_fp32"] == row["metric"]
        assert other["metric_drop_low"] <= other["metric_drop"] <= other["metric_drop_high"]
        assert other["metric_drop"] == pytest.approx(other["metric"] - row["metric"])


@pytest.mark.thorough
def test_sequences_add_up_to_the_rows(folder: Path, swept: pd.DataFrame) -> None:
    lines = read_sequences(sequences_path(folder / "r.csv"))
    assert len(lines) == 3 * 12
    for _, row in swept.iterrows():
        own = lines[lines["config_hash"] == row["config_hash"]]
        assert own["sequence"].tolist() == list(range(12))
        total = own[["tokens", "loss", "loss_fp32", "kl_float32", "agreed"]].sum()
        assert total["tokens"] == row["tokens"]
        assert math.exp(total["loss"] / total["tokens"]) == pytest.approx(row["metric"])
        assert math.exp(total["loss_fp32"] / total["tokens"]) == pytest.approx(row["metric_fp32"])
        assert total["kl_float32"] / total["tokens"] == pytest.approx(row["kl_float32"])
        assert total["agreed"] / total["tokens"] == row["top_token_agreement"]


@pytest.mark.thorough
def test_what_is_in_memory_at_a_time_changes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: pd.DataFrame
) -> None:
    """Batches of a sequence or of some, float32's scores kept or computed again: no call has the
    scores of more tokens than it may."""
    monkeypatch.setattr(work, "EVAL_ELEMENTS", 5 * 6 * two_input_decoders.VOCABULARY)
    monkeypatch.setattr(batchwise, "KEPT_BYTES", 0)
    sizes = []
    judge = tokens.token_sums

    def watched(scores: Any, *others: Any) -> Any:
        sizes.append(len(scores))
        return judge(scores, *others)

    monkeypatch.setattr(tokens, "token_sums", watched)
    again = experiments.sweep(_spec(folder), tmp_path / "r.csv")
    assert sizes == [5, 5, 2] * 3
    for column in ("metric", "metric_se", "metric_fp32", "kl_float32", "kl_float32_p99"):
        np.testing.assert_allclose(again[column], swept[column], rtol=1e-4, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("metric", ["kl_float32", "top_token_agreement"])
def test_other_metrics_of_tokens(folder: Path, tmp_path: Path, metric: str) -> None:
    """Without labels too: all tokens that the mask leaves count."""
    arrays = two_input_decoders.data()
    del arrays["y"]
    np.savez(tmp_path / "d.npz", **arrays)
    spec = _spec(folder, dataset=str(tmp_path / "d.npz"), metric=metric, n_eval=7)
    table = experiments.sweep(spec, tmp_path / "r.csv")
    assert table["status"].tolist() == ["ok"] * 3, table["error"].tolist()
    assert table["metric_name"].tolist() == [metric] * 3
    assert table["metric"].tolist() == table[metric].tolist()
    assert table["tokens"].tolist() == [7 * 6 - 3 * 2] * 3
    assert (table["metric_drop"][1:] >= 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "perplexity needs labels y [n, tokens]"),
        ({"y": np.zeros((12, 4), np.int64)}, "one for every row of output 'logits' [n, 6, 16]"),
        ({"y": np.zeros(12, np.int64)}, "not int64[12]"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    arrays = {k: a for k, a in (two_input_decoders.data() | change).items() if a is not None}
    np.savez(tmp_path / "d.npz", **arrays)
    spec = _spec(folder, dataset=str(tmp_path / "d.npz"), metric="perplexity")
    with pytest.raises(ConfigError) as refused:
        experiments.sweep(spec, tmp_path / "r.csv")
    assert message in str(refused.value)
    assert not (tmp_path / "r.csv").exists()
    assert not sequences_path(tmp_path / "r.csv").exists()


def test_a_label_that_is_no_token_is_a_row_that_says_so(folder: Path, tmp_path: Path) -> None:
    arrays = two_input_decoders.data()
    arrays["y"][3, 2] = 99
    np.savez(tmp_path / "d.npz", **arrays)
    spec = _spec(folder, dataset=str(tmp_path / "d.npz"), metric="perplexity")
    table = experiments.sweep(spec, tmp_path / "r.csv")
    assert table["status"].tolist() == ["error"] * 3
    assert "the label 99 is none of a vocabulary of 16" in table["error"][1]
    assert table["sqnr_db"][1] > 10  # there all the same


def test_a_sweep_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    first = experiments.sweep(_spec(folder, schemes=["float32"]), out)
    whole = experiments.sweep(_spec(folder, schemes=["float32", "bfloat16"]), out, resume=True)
    lines = read_sequences(sequences_path(out))
    assert lines.groupby("config_hash").size().to_dict() == dict.fromkeys(whole["config_hash"], 12)
    assert set(lines["run_id"][:12]) == set(first["run_id"])


def test_own_metrics_reduce_as_they_like(folder: Path, tmp_path: Path) -> None:
    """One function gives sums of every input, another makes the figure of them."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\n"
        "def hits(outputs, labels):\n"
        "    counted = labels >= 0\n"
        "    right = (outputs.argmax(axis=2) == labels) & counted\n"
        "    return np.stack([right.sum(axis=1), counted.sum(axis=1)], axis=1)\n\n\n"
        "hits.value = lambda means: means[..., 0] / means[..., 1]\n"
    )
    spec = _spec(folder, metric=str(tmp_path / "mine.py") + ":hits", schemes=["float32"])
    row = experiments.sweep(spec, tmp_path / "r.csv").iloc[0]
    assert row["status"] == "ok", row["error"]
    assert 0 <= row["metric"] <= 1
    assert row["metric"] * 60 == pytest.approx(round(row["metric"] * 60))
    assert row["metric_se"] > 0


def test_sizes_of_outputs_are_known_before_they_run(folder: Path) -> None:
    path = folder / "m.onnx"
    sample = model_files.feed(path, {n: np.zeros((2, 6), np.int64) for n in (
        "input_ids", "attention_mask")}, "x").sample  # fmt: skip
    assert model_batches.result_elements(path, sample, 1) == 6 * two_input_decoders.VOCABULARY
    assert (
        model_batches.result_elements(path, sample, 4, "hidden.0") == 6 * two_input_decoders.WIDTH
    )


def test_figures_are_those_of_onnxruntime(folder: Path, swept: pd.DataFrame) -> None:
    """Computed from its scores by the definitions, one token at a time."""
    arrays = two_input_decoders.data()
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"))
    given = {n: arrays[n] for n in ("input_ids", "attention_mask")}
    logits = session.run(["logits"], given)[0].astype(np.float64)
    losses = [
        math.log(math.fsum(map(math.exp, logits[i, t]))) - logits[i, t, arrays["y"][i, t]]
        for i in range(12)
        for t in range(6)
        if arrays["attention_mask"][i, t] and arrays["y"][i, t] >= 0
    ]
    want = math.exp(math.fsum(losses) / len(losses))
    assert swept["metric_fp32"].tolist() == pytest.approx([want] * 3, rel=1e-5)


@pytest.mark.thorough
def test_a_difference_whose_sign_is_known_is_found(tmp_path: Path) -> None:
    """One channel of values is 50 times the others, and what reads it makes up for it: integers of
    4 bits with one scale for all channels have few for the others. A scale a channel is closer to
    float32, by an interval that does not hold 0."""
    model = two_input_decoders.decoder(mask=False, hidden=False)
    stored = {t.name: t for t in model.graph.initializer}
    values, head = (onnx.numpy_helper.to_array(stored[n]).copy() for n in ("wv", "head"))
    values[:, 3] *= 50
    head[3] /= 50
    for name, a in (("wv", values), ("head", head)):
        stored[name].CopyFrom(onnx.numpy_helper.from_array(a, name))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **two_input_decoders.data(mask=False, n=40))
    schemes = [
        {"scheme": "int8", "weight_bits": 4, "weight_granularity": granularity}
        for granularity in ("tensor", "channel")
    ]
    table = experiments.sweep(_spec(tmp_path, schemes=schemes), tmp_path / "r.csv")
    assert table["status"].tolist() == ["ok"] * 2, table["error"].tolist()
    one, each = system_names(table)
    found = experiments.paired_differences(tmp_path / "r.csv", one).set_index("system").loc[each]
    assert found["kl_high"] < 0, found
    assert found["kl_difference"] == pytest.approx(
        table["kl_float32"][1] - table["kl_float32"][0], rel=1e-9
    )


@pytest.mark.thorough
def test_a_sweep_that_is_stopped_between_files_loses_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: pd.DataFrame
) -> None:
    """Sequences are there before their row is: without the row, they are written again."""
    append, rows = ResultsFile.append, []

    def stopped(self: ResultsFile, row: Any) -> bool:
        rows.append(row["config_hash"])
        if len(rows) == 2:
            raise KeyboardInterrupt
        return append(self, row)

    out = tmp_path / "r.csv"
    monkeypatch.setattr(ResultsFile, "append", stopped)
    with pytest.raises(KeyboardInterrupt):
        experiments.sweep(_spec(folder), out)
    assert set(read_sequences(sequences_path(out))["config_hash"]) == set(rows)
    assert len(experiments.read_results(out)) == 1
    monkeypatch.undo()
    again = experiments.sweep(_spec(folder), out, resume=True)
    assert again["kl_float32"].tolist() == swept["kl_float32"].tolist()
    lines = read_sequences(sequences_path(out))
    assert lines.groupby("config_hash").size().to_dict() == dict.fromkeys(again["config_hash"], 12)
