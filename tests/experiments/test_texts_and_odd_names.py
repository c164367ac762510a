"""Commands on models that take texts, whose nodes have odd names, or of which a cell cannot be
imported."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from experiments.cli.main import run_command
from experiments.cli.places import Places
from experiments.running.estimates import estimates
from experiments.spec.specification import load_spec

sys.path.insert(0, str(Path(__file__).parents[1] / "frontend"))

from foreign_models import model, sequence, weights, words_classifier

pytest.importorskip("onnxruntime")
ENGINE = ["--engine", "onnxruntime"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ein Ordner")
    onnx.save(words_classifier(), made / "wörter.onnx")
    np.savez(made / "texts.npz", text=np.array(["w1", "W2", "nö", "w4"]))
    np.savez(made / "objects.npz", text=np.array(["w1", "W2"], object))
    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "w1"], ["a"], "a b/c"),
        make("Relu", ["a"], ["r"], "rö"),
        make("MatMul", ["r", "w2"], ["y"], "fc=2"),
    ]
    x, y = {"x": (T.FLOAT, ["n", 16])}, {"y": (T.FLOAT, None)}
    onnx.save(model(nodes, x, y, weights(w1=(16, 8), w2=(8, 4))), made / "odd.onnx")
    lengths = make("SequenceLength", ["s"], ["n"], "count")
    onnx.save(model([lengths], {"s": sequence()}, {"n": (T.INT64, [])}), made / "sequence.onnx")
    np.savez(made / "x.npz", x=np.ones((3, 16), np.float32))
    return made


def said(capsys: Capture, *words: object) -> str:
    assert run_command([str(w) for w in words]) == 0
    return capsys.readouterr().out


def refused(capsys: Capture, *words: object) -> str:
    assert run_command([str(w) for w in words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.thorough
def test_bench_makes_up_texts(folder: Path, capsys: Capture) -> None:
    words = ["bench", folder / "wörter.onnx", *ENGINE, "--runs", 2, "--warmup", 0, "--json"]
    facts = json.loads(said(capsys, *words, "--batch", 3))
    assert facts["shapes"] == {"text": [3]}
    assert facts["latency_ms"]["median"] > 0
    shaped = json.loads(said(capsys, *words, "--shape", "text=5", "--vs", "onnxruntime"))
    assert shaped["shapes"] == {"text": [5]}


def test_bench_makes_up_no_sequences(folder: Path, capsys: Capture) -> None:
    err = refused(capsys, "bench", folder / "sequence.onnx", *ENGINE)
    assert "'s' is of the type seq(tensor(float)), of which no random values are made" in err


def test_texts_as_objects_are_refused(folder: Path, capsys: Capture) -> None:
    words = ["run", folder / "wörter.onnx", *ENGINE, "--input"]
    assert "save texts as np.array(..., str)" in refused(capsys, *words, folder / "objects.npz")
    assert "by onnxruntime" in said(capsys, *words, folder / "texts.npz")


def test_export_says_what_cannot_be_taken_along(folder: Path) -> None:
    import compiler

    mod = compiler.from_onnx(folder / "wörter.onnx", engines=["onnxruntime"])
    said = "'onnxruntime' computes 'norm', 'encode' of this model, in this process, and cannot be"
    with pytest.raises(compiler.UnsupportedError, match=said):
        compiler.export(mod, "c", folder / "out")
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("text", "node", "device"),
    [
        ("fc=2=wasm32", "fc=2", "wasm32"),
        ("fc=2=llvm -mcpu=haswell", "fc=2", "llvm_mcpu_haswell"),
        ("rö=llvm", "rö", "llvm"),
        ("a b/c = host", "a b/c", "host"),
    ],
)
def test_names_of_nodes_may_have_any_character(text: str, node: str, device: str) -> None:
    assert Places.read([text]).where == {node: device}


@pytest.mark.thorough
def test_nodes_of_odd_names_are_placed(folder: Path, capsys: Capture) -> None:
    words = ["run", folder / "odd.onnx", "--input", folder / "x.npz"]
    for node, device in (("fc=2", "llvm -mcpu=haswell"), ("rö", "llvm"), ("a b/c", "c")):
        out = said(capsys, *words, "--place", f"{node}={device}")
        assert f": {node}" in out
        assert "copied: " in out


def test_devices_that_are_none(folder: Path, capsys: Capture) -> None:
    words = ["run", folder / "odd.onnx", "--input", folder / "x.npz", "--place"]
    assert "unknown target '2=wsm32'" in refused(capsys, *words, "fc=2=wsm32")
    for text in ("fc", "=llvm", "fc="):
        assert f"--place {text!r} is not NODE=DEVICE" in refused(capsys, *words, text)


def test_cells_that_cannot_be_imported_are_listed(folder: Path, capsys: Capture) -> None:
    spec = folder / "both.toml"
    spec.write_text(
        'models = ["wörter.onnx"]\ndataset = "texts.npz"\nschemes = ["float32", "bfloat16"]\n'
        'engines = ["ours", "onnxruntime"]\nn_eval = 4\nn_calib = 4\n[latency]\nruns = 0\n'
    )
    out = said(capsys, "sweep", spec, "--dry-run")
    assert out.count("error") == 2
    assert "wörter float32 and 1 more: input 'text' has element type STRING" in out
    cells = json.loads(said(capsys, "sweep", spec, "--dry-run", "--json"))["cells"]
    assert sum("error" in c for c in cells) == 2
    loaded = load_spec(spec)
    found = estimates(loaded.cells, loaded.workload.data)
    for e in found:
        assert bool(e.error) == (e.seconds == 0) == (e.cell.engine == "")
