"""The encoder that ships: its graph, its pieces of text, and what it gets right."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from experiments import zoo
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.zoo.language import corpus, pieces, ship, tokenizer

PATH = zoo.FOLDER / "stdlib_encoder.onnx"


def test_the_data_are_pieces_with_their_masks() -> None:
    data = datasets.load("stdlib_pieces").for_model(PATH)
    ids, mask = (data.x.arrays[name] for name in ("input_ids", "attention_mask"))
    assert ids.shape == mask.shape == (2000, 64)
    assert not ids[mask == 0].any()
    assert (np.diff(mask, axis=1) <= 0).all()  # what is there comes first
    assert set(data.y) == set(range(len(pieces.PACKAGES)))
    assert len(data.calibration) == 256
    assert zoo.sources()["stdlib_encoder"].dataset == "stdlib_pieces"


def test_pieces_of_one_part_share_no_stretch_with_another() -> None:
    text = b"".join(b"line %d\n" % i for i in range(3000))
    tokens = tokenizer.read(zoo.FOLDER / "stdlib_text.tokenizer.json")
    parts = pieces.stretches([corpus.Module("json/made.py", text)], tokens)
    seen = [{ids.tobytes() for _, ids in part} for part in parts.values()]
    assert all(seen)
    assert sum(map(len, seen)) == len(set.union(*seen))


@pytest.mark.thorough
def test_the_encoder_agrees_with_onnxruntime_and_ignores_what_is_masked() -> None:
    ort = pytest.importorskip("onnxruntime")
    data = datasets.load("stdlib_pieces").for_model(PATH)
    feed = data.x[np.arange(3)].call()
    executable = compiler.build(compiler.from_onnx(PATH))
    found = executable(feed)
    session = ort.InferenceSession(PATH.read_bytes(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found, session.run(None, feed)[0], rtol=0, atol=1e-4)
    filled = np.where(feed["attention_mask"] == 1, feed["input_ids"], 77)
    np.testing.assert_array_equal(executable({**feed, "input_ids": filled}), found)


@pytest.mark.thorough
def test_it_tells_packages_apart_also_in_bfloat16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "s.toml"
    spec.write_text(
        'models = ["stdlib_encoder"]\nschemes = ["float32", "bfloat16", "int8_channel"]\n'
        "n_eval = 400\nn_calib = 64\n[latency]\nruns = 0\n"
    )
    out = tmp_path / "r.csv"
    assert run_command(["sweep", str(spec), "-o", str(out)]) == 0
    capsys.readouterr()
    columns = ["--columns", "scheme,status,metric_fp32,metric_drop", "--json"]
    assert run_command(["table", str(out), *columns]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert all(0.70 < row["metric_fp32"] < 0.83 for row in rows)
    assert all(abs(row["metric_drop"]) < 0.03 for row in rows)


@pytest.mark.thorough
def test_the_pieces_are_rebuilt_from_the_interpreter_they_are_of() -> None:
    facts = json.loads((zoo.FOLDER / "stdlib_text.modules.json").read_text())
    listed = {p: d for part in facts["modules"].values() for p, d in part.items()}
    if {m.path: m.digest for m in corpus.modules()} != listed:
        pytest.skip(f"{facts['text']} is not this interpreter's")
    shipped = datasets.read_npz(zoo.FOLDER / "stdlib_pieces.npz")
    tokens = tokenizer.read(zoo.FOLDER / "stdlib_text.tokenizer.json")
    for name, array in ship.piece_arrays(tokens).items():
        np.testing.assert_array_equal(shipped[name], array)


def logged(folder: Path) -> list[dict[str, Any]]:
    """What a training run has noted."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.thorough
def test_training_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from experiments.zoo.language.training import Recipe, train

    def loss_of(network: object, random: np.random.Generator) -> object:
        x = torch.from_numpy(random.normal(size=(8, 3)).astype(np.float32))
        if next(calls) == stop:
            raise KeyboardInterrupt
        return ((network(x)[:, 0] - x.sum(1)) ** 2).mean()

    def trained(folder: Path) -> np.ndarray:
        torch.manual_seed(0)
        network = torch.nn.Linear(3, 1)
        recipe = Recipe(steps=40, batch=8, rate=0.01, rise=5, fall=10)
        train(network, loss_of, recipe, folder, lambda _: {}, every_s=0.0)
        return network.weight.detach().numpy()

    calls, stop = itertools.count(), -1
    whole = trained(tmp_path / "whole")
    calls, stop = itertools.count(), 20
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped")
    stop = -1
    np.testing.assert_array_equal(trained(tmp_path / "stopped"), whole)
    log = logged(tmp_path / "stopped")
    assert any(0 < entry.get("resumed", 0) < 40 for entry in log)
    (tmp_path / "early" / "cooldown").parent.mkdir()
    (tmp_path / "early" / "cooldown").write_text("4")
    trained(tmp_path / "early")
    log = logged(tmp_path / "early")
    assert log[-1]["step"] == log[-1]["steps"] == 5
