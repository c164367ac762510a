"""`--engine onnxruntime` on the command line and in sweeps: what is imported so, and where that is
said."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
import onnx
import pandas as pd
import pytest
from foreign_models import inverse_of_scores, words_classifier

from experiments.cli.main import cli, run_command

pytest.importorskip("onnxruntime")
Capture = pytest.CaptureFixture[str]
ENGINE = ["--engine", "onnxruntime"]
SAID = "engines=['onnxruntime'] (--engine onnxruntime)"


BOTH = pytest.mark.parametrize(
    "name", [pytest.param("words", marks=pytest.mark.thorough), "inverse"]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and data for them."""
    out, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(5)
    onnx.save(words_classifier(), out / "words.onnx")
    onnx.save(inverse_of_scores(), out / "inverse.onnx")
    words = np.array([f"W{k}" for k in rng.integers(0, 50, 20)])
    np.savez(out / "words.npz", text=words[:12], text_calib=words[12:])
    x = rng.standard_normal((12, 4, 6)).astype(np.float32)
    np.savez(out / "inverse.npz", x=x[:6], x_calib=x[6:])
    return out


def said(capsys: Capture, *arguments: object) -> str:
    """What a command prints, which must succeed."""
    code, captured = run_command([str(a) for a in arguments]), capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def refused(capsys: Capture, *arguments: object) -> str:
    """The sentence that a command is refused with."""
    assert run_command([str(a) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_inspect_names_what_is_handed_over(folder: Path, capsys: Capture) -> None:
    out = said(capsys, "inspect", folder / "words.onnx", *ENGINE)
    assert "onnxruntime norm, encode\n" in out
    assert "MISSING" not in out
    facts = json.loads(said(capsys, "inspect", folder / "words.onnx", *ENGINE, "--json"))
    row = {"region": "ids", "engine": "onnxruntime", "nodes": ["norm", "encode"]}
    assert facts["engine_nodes"] == [row]
    assert facts["parameters"] == 50 * 16 + 16 * 8 + 8 * 4 + 1  # a 0 that a position is taken at
    assert SAID in refused(capsys, "inspect", folder / "words.onnx")


@BOTH
def test_models_run_are_compared_and_get_plans(name: str, folder: Path, capsys: Capture) -> None:
    model, data = folder / f"{name}.onnx", folder / f"{name}.npz"
    plan = folder / f"{name}.json"
    out = said(capsys, "run", model, "--input", data, *ENGINE)
    assert "by onnxruntime: " + {"words": "norm, encode", "inverse": "inverse"}[name] in out
    assert SAID in refused(capsys, "run", model, "--input", data)
    out = said(capsys, "compare", model, "--input", data, "--dtype", "bfloat16", *ENGINE)
    assert "nn.dense" in out
    quantized = folder / f"{name}.q.onnx"
    said(capsys, "quantize", model, "--calib", data, "--plan", plan, "-o", quantized, *ENGINE)
    assert "by onnxruntime" in said(capsys, "run", quantized, "--input", data, *ENGINE)
    assert json.loads(plan.read_text())["nodes"]
    said(capsys, "compare", model, "--input", data, "--plan", plan, *ENGINE)


def test_bench_times_with_regions(folder: Path, capsys: Capture) -> None:
    arguments = ["bench", folder / "inverse.onnx", "--runs", "2", "--warmup", "0", "--json"]
    facts = json.loads(said(capsys, *arguments, *ENGINE))
    assert [r["nodes"] for r in facts["engine_nodes"]] == [["inverse"]]


def test_every_verb_that_takes_a_model_can_be_told(folder: Path) -> None:
    """The sentence that a model is refused with names the option."""
    verbs = {
        name: {o for p in verb.params for o in p.opts}
        for name, verb in cli.commands.items()
        if any(isinstance(p, click.Argument) and p.name == "model" for p in verb.params)
    }
    assert len(verbs) > 8
    assert [name for name, options in verbs.items() if "--engine" not in options] == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["tune", "MODEL", "--trials", "1", "-o", "LOG"], marks=pytest.mark.thorough),
        ["costs", "MODEL"],
        pytest.param(
            [
                "gap",
                "MODEL",
                "--data",
                "DATA",
                "--n-eval",
                "6",
                "--n-calib",
                "6",
                "--metric",
                "sqnr",
            ],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ["search", "MODEL", "--data", "DATA", "--bound", "sqnr>=10", "--n-calib", "6"],
            marks=pytest.mark.thorough,
        ),
        ["cycles", "MODEL", "--calib", "DATA"],
    ],
    ids=lambda words: words[0],
)
def test_verbs_that_study_models_take_these(
    words: list[str], folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    files = {
        "MODEL": folder / "inverse.onnx",
        "DATA": folder / "inverse.npz",
        "LOG": tmp_path / "t",
    }
    arguments = [files.get(w, w) for w in words]
    said(capsys, *arguments, *ENGINE, "--json")
    assert SAID in refused(capsys, *arguments)


def test_programs_for_others_hold_no_nodes_of_onnxruntime(folder: Path, capsys: Capture) -> None:
    arguments = ["export", folder / "inverse.onnx", "-o", folder / "exported"]
    assert "computes 'inverse' of this model" in refused(capsys, *arguments, *ENGINE)
    assert not (folder / "exported").exists()


def test_options_do_not_outlive_their_command(folder: Path, capsys: Capture) -> None:
    said(capsys, "inspect", folder / "inverse.onnx", *ENGINE)
    assert SAID in refused(capsys, "inspect", folder / "inverse.onnx")


def test_other_engines_are_refused_where_nothing_runs(folder: Path, capsys: Capture) -> None:
    err = refused(capsys, "inspect", folder / "inverse.onnx", "--engine", "onnxrutime")
    assert "did you mean 'onnxruntime'" in err


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["words", "inverse"])
def test_rows_of_sweeps_say_what_went_where(name: str, folder: Path, capsys: Capture) -> None:
    spec, out = folder / f"{name}.toml", folder / f"{name}.csv"
    spec.write_text(
        f'models = ["{name}.onnx"]\ndataset = "{name}.npz"\n'
        'schemes = ["float32", "int8_tensor", "bfloat16"]\nengines = ["ours", "onnxruntime"]\n'
        "n_eval = 6\nn_calib = 6\n[latency]\nruns = 0\n"
    )
    said(capsys, "sweep", spec, "-o", out)
    rows = pd.read_csv(out, keep_default_na=False)
    ours, theirs = rows[rows.engine == ""], rows[rows.engine == "onnxruntime"]
    assert list(ours.status) == ["error"] * 3
    assert all(SAID in e for e in ours.error)
    assert list(theirs.status) == ["ok"] * 3
    nodes = {"words": ["norm", "encode"], "inverse": ["inverse"]}[name]
    assert [json.loads(t)[0]["nodes"] for t in theirs.engine_nodes] == [nodes] * 3
    assert (theirs.sqnr_db.astype(float) > 8).all()
