"""Models, data sets and metrics by name: shipped, from installed packages, and a user's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import experiments
from compiler.errors import ConfigError
from experiments import zoo
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.zoo import light
from experiments.zoo.words import ORIENT_WIDTH, READ_WIDTH

has_pillow = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None, reason="needs dtypelab[zoo] (pillow)"
)
has_reader = pytest.mark.skipif(
    bool(zoo.DATASETS["words"].missing), reason="needs dtypelab[zoo] (rapidocr-onnxruntime)"
)

ADAPTER = """
import numpy as np
import experiments

def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1, 28, 28)).astype(np.float32)
    return {"x": x[:30], "y": x[:30, 0, :3].sum(axis=1)[:, :10], "x_calib": x[30:]}

def spread(outputs, labels):
    return np.abs(outputs - labels).max(axis=1)

spread.higher_is_better = False

def network():
    from experiments import zoo
    return zoo.FOLDER / "mnist_mlp.onnx"

experiments.register_metric("first", lambda outputs, labels: outputs[:, 0])
experiments.register_dataset("noise", data)
experiments.register_model("mine", network, dataset="noise")
"""


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(ADAPTER)
    return path


def spec_of(folder: Path, **content: Any) -> Path:
    lines = [f"{key} = {json.dumps(value)}" for key, value in content.items()]
    (folder / "spec.toml").write_text("\n".join([*lines, "[latency]", "runs = 0"]))
    return folder / "spec.toml"


@pytest.mark.thorough
def test_functions_of_an_adapter_are_model_data_and_metric(adapter: Path) -> None:
    spec = spec_of(
        adapter.parent,
        models=["mine.py:network"],
        dataset="mine.py:data",
        metric="mine.py:spread",
        schemes=["float32", "bfloat16", "int8_channel"],
        n_calib=10,
    )
    out = adapter.parent / "r.csv"
    rows = experiments.sweep(spec, out)
    assert rows["status"].tolist() == ["ok"] * 3, rows["error"].tolist()
    assert set(rows["metric_name"]) == {"spread"}
    assert set(rows["dataset"]) == {"data"}
    # Less is better: what is lost is what the figure grew by.
    assert (rows["metric_drop"] == -(rows["metric_fp32"] - rows["metric"])).all()
    assert rows["metric_drop_low"].le(rows["metric_drop"]).all()
    assert rows["metric_drop"].le(rows["metric_drop_high"]).all()
    assert rows["top1_agreement"].isna().all()
    for number in "123":
        assert experiments.reproduce(out, number, allow_code=True).matches
    # An adapter that says something else makes other cells.
    before = {cell.config_hash for cell in experiments.load_spec(spec).cells}
    adapter.write_text(ADAPTER.replace(".max(axis=1)", ".mean(axis=1)"))
    after = {cell.config_hash for cell in experiments.load_spec(spec).cells}
    assert not before & after


@pytest.mark.thorough
def test_what_an_imported_adapter_registers_has_a_name(adapter: Path) -> None:
    spec = spec_of(
        adapter.parent, adapters=["mine.py"], models=["mine"], schemes=["float32"], metric="first"
    )
    out = adapter.parent / "r.csv"
    (row,) = experiments.sweep(spec, out).to_dict("records")
    assert (row["model"], row["dataset"], row["metric_name"]) == ("mine", "noise", "first")
    assert experiments.reproduce(out, "1", allow_code=True).matches
    # Another process knows it too: the adapter is part of the row.
    assert json.loads(row["config"])["adapters"] == [str(adapter)]


@pytest.mark.thorough
def test_two_processes_run_adapters_as_one_does(adapter: Path) -> None:
    spec = spec_of(
        adapter.parent,
        adapters=["mine.py"],
        models=["mine"],
        schemes=["float32", "bfloat16", "float16"],
        metric="mine.py:spread",
    )
    one = experiments.sweep(spec, adapter.parent / "one.csv")
    two = experiments.sweep(spec, adapter.parent / "two.csv", jobs=2)
    assert one["metric"].tolist() == two["metric"].tolist()
    assert two["status"].tolist() == ["ok"] * 3, two["error"].tolist()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('dataset = "mine.py:nothing"', "has no function 'nothing'"),
        ('dataset = "gone.py:data"', "cannot read adapter .*gone.py"),
        ('adapters = ["broken.py"]', "adapter .*broken.py failed: ZeroDivisionError"),
        ('metric = "mine.py:nothing"', "has no function 'nothing'"),
        ('metric = "accuracy"', "unknown metric 'accuracy'"),
    ],
)
def test_mistakes_with_adapters_are_named_with_their_line(
    adapter: Path, line: str, message: str
) -> None:
    (adapter.parent / "broken.py").write_text("1 / 0")
    path = adapter.parent / "spec.toml"
    path.write_text(f'\n{line}\nmodels = ["mnist_mlp"]\nschemes = ["float32"]\n')
    with pytest.raises(ConfigError, match=message) as error:
        experiments.load_spec(path)
    assert str(error.value).startswith((f"{path}:2: ", f"{path}:3: "))


def test_a_network_without_labels_is_judged_by_float32(tmp_path: Path) -> None:
    x = datasets.load("mnist1k").x[:40]
    np.savez(tmp_path / "bare.npz", x=x)
    table = {"schemes": ["float32", "posit8_es0"], "latency": {"runs": 0}}
    spec = {"models": ["mnist_mlp"], "dataset": str(tmp_path / "bare.npz"), **table}
    rows = experiments.sweep({**spec, "metric": "top1"}, tmp_path / "r.csv")
    assert set(rows["metric_name"]) == {"top1~float32"}
    assert rows["metric"][0] == rows["metric_fp32"][1] == 1
    assert rows["metric"][1] == rows["top1_agreement"][1] < 1
    # Nothing says that its outputs are scores of classes, unless somebody does.
    unnamed = experiments.sweep(spec, tmp_path / "s.csv")
    assert set(unnamed["metric_name"]) == {"sqnr"}
    assert unnamed["top1_agreement"].equals(rows["top1_agreement"])


@pytest.mark.thorough
def test_a_sweep_of_several_data_sets_gives_each_network_its_own(tmp_path: Path) -> None:
    x = datasets.load("mnist1k").x
    np.savez(tmp_path / "few.npz", x=x[:20], y=np.zeros(20, int))
    other = {"model": "mnist_dwsep", "dataset": str(tmp_path / "few.npz"), "n_eval": 10}
    spec = {"models": ["mnist_mlp", other], "schemes": ["float32"], "latency": {"runs": 0}}
    rows = experiments.sweep(spec, tmp_path / "r.csv")
    assert rows["dataset"].tolist() == ["mnist1k", "few"]
    assert rows["n_eval"].tolist() == [1000, 10]
    assert rows["metric"][0] == 0.978
    assert rows["dataset_sha256"].tolist() == [
        datasets.load(name).sha256 for name in ("mnist1k", str(tmp_path / "few.npz"))
    ]


# ---- installed packages --------------------------------------------------------------------------
def test_what_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"rapidocr-onnxruntime, .*pip install 'dtypelab\[zoo\]'"):
        zoo.find("ppocr_rec")
    with pytest.raises(ConfigError, match=r"needs PIL: pip install 'dtypelab\[zoo\]'"):
        datasets._generated.__wrapped__("words_upright")
    assert zoo.find("no such network") is None


def test_names_of_the_zoo_cannot_be_taken() -> None:
    with pytest.raises(ConfigError, match="the zoo has a network 'mnist_mlp'"):
        experiments.register_model("mnist_mlp", "x.onnx")
    with pytest.raises(ConfigError, match="'words' ships with dtypelab"):
        experiments.register_dataset("words", dict)


def test_the_zoo_lists_where_everything_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["zoo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    models = {model["name"]: model for model in found["models"]}
    assert set(zoo.sources()) == set(models)
    assert models["mnist_mlp"]["origin"] == "shipped"
    assert models["mnist_mlp"]["available"]
    assert models["ppocr_rec"]["origin"] == "rapidocr-onnxruntime"
    assert models["light_resnet50"]["dataset"] == "pictures224"
    assert {data["name"] for data in found["datasets"]} >= {"mnist1k", "words", "pictures224"}
    assert run_command(["zoo"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*models, "mnist1k", "words_upright"))
    missing = [model["install"] for model in models.values() if not model["available"]]
    assert all(install in text for install in missing)


@pytest.mark.thorough
def test_light_networks_have_weights_and_fixed_batches(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    if zoo.light_source("squeezenet") is None:
        pytest.skip("this onnx package carries no light_squeezenet.onnx")
    spec = {
        "models": ["light_squeezenet"],
        "schemes": ["float32", "int8_channel", "bfloat16"],
        "n_eval": 2,
        "n_calib": 2,
        "latency": {"runs": 1, "warmup": 0},
    }
    rows = experiments.sweep(spec, tmp_path / "r.csv")
    assert rows["status"].tolist() == ["ok"] * 3, rows["error"].tolist()
    assert set(rows["metric_name"]) == {"top1~float32"}
    assert rows["sqnr_db"][1] > 10
    assert rows["speedup_vs_fp32"].notna().all()


def test_pictures_repeat_and_are_not_calibrated_with() -> None:
    a, b = light.pictures(), light.pictures()
    assert np.array_equal(a["x"][:3], b["x"][:3])
    assert not set(map(bytes, a["x"])) & set(map(bytes, a["x_calib"]))


@has_pillow
def test_rendered_words_have_their_shape_and_repeat() -> None:
    a = datasets.load("words_upright")
    assert a.x.shape[1:] == (3, 48, ORIENT_WIDTH)
    assert a.sha256 == datasets._generated.__wrapped__("words_upright").sha256
    assert np.bincount(a.y).tolist() == [len(a.x) // 2] * 2
    assert a.x.min() >= -1
    assert a.x.max() <= 1


@pytest.mark.thorough
@has_reader
def test_the_reader_reads_rendered_words(tmp_path: Path) -> None:
    data = datasets.load("words")
    assert data.x.shape[1:] == (3, 48, READ_WIDTH)
    models = [{"model": "ppocr_rec", "n_eval": 24}, {"model": "ppocr_cls", "n_eval": 100}]
    spec = {"models": models, "schemes": ["float32"], "latency": {"runs": 0}}
    rows = experiments.sweep(spec, tmp_path / "r.csv")
    assert rows["status"].tolist() == ["ok"] * 2, rows["error"].tolist()
    assert rows["metric_name"].tolist() == ["ctc_exact", "top1"]
    assert rows["metric"][0] > 0.9
    assert rows["metric"][1] > 0.9
