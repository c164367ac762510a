"""The command line on the shipped networks: what each verb prints and writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import numpy as np
import onnx
import pytest
from cli_runs import Capture, as_json, succeed
from onnx import TensorProto, helper

from experiments import zoo
from experiments.cli import start
from experiments.cli.main import cli, run_command
from experiments.data import datasets
from experiments.results.store import COLUMNS, read_rows


def onnxruntime_outputs(model: str, x: np.ndarray) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = str(zoo.FOLDER / f"{model}.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"input": x})[0])


def commands(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    found = [path]
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += commands(command, *path, name)
        else:
            found.append((*path, name))
    return found


@pytest.mark.parametrize("path", commands(cli), ids=" ".join)
def test_help_has_an_example_that_parses(capsys: Capture, path: tuple[str, ...]) -> None:
    text = succeed(capsys, *path, "--help")
    # Help is wrapped; join the paragraph that the example is.
    example = " ".join(text.split("Example: ")[1].split("\n\n")[0].split()).split()
    assert example[: 1 + len(path)] == ["dtypelab", *path]
    context: click.Context | None = None
    command: click.Command = cli
    rest = example[1:]
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context)
        command = command.commands[rest.pop(0)]
    command.make_context(command.name, rest, parent=context)


def test_no_argument_prints_help(capsys: Capture) -> None:
    assert succeed(capsys).startswith("Usage: dtypelab")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", [n for n in zoo.model_names() if n.startswith("mnist")])
def test_run_agrees_with_onnxruntime(tmp_path: Path, capsys: Capture, model: str) -> None:
    x = datasets.load("mnist1k").x[:7]
    np.savez(tmp_path / "x.npz", input=x)
    out = tmp_path / "y.npz"
    facts = as_json(capsys, "run", model, "--input", str(tmp_path / "x.npz"), "--output", str(out))
    assert facts["outputs"]["logits"]["shape"] == [7, 10]
    with np.load(out) as saved:
        logits = saved["logits"]
    assert facts["outputs"]["logits"]["max"] == logits.max()
    np.testing.assert_allclose(logits, onnxruntime_outputs(model, x), rtol=0, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npz", "y.npz"]


def test_run_takes_an_anonymous_array_and_passes_over_labels(
    tmp_path: Path, capsys: Capture
) -> None:
    x = datasets.load("mnist1k").x[:2]
    np.savez(tmp_path / "x.npz", x=x, y=np.zeros(2, int))
    facts = as_json(capsys, "run", "mnist_mlp", "--input", str(tmp_path / "x.npz"))
    assert facts["outputs"]["logits"]["shape"] == [2, 10]


def test_run_says_of_outputs_without_elements_what_they_are(
    tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "y.npz"
    np.savez(tmp_path / "x.npz", x=datasets.load("mnist1k").x[:0])
    line = ["run", "mnist_mlp", "--input", str(tmp_path / "x.npz"), "--output", str(out)]
    assert "logits: float32[0, 10]  empty\n" in succeed(capsys, *line)
    facts = as_json(capsys, *line)["outputs"]["logits"]
    assert facts == {"dtype": "float32", "shape": [0, 10]}
    with np.load(out) as saved:
        assert saved["logits"].shape == (0, 10)


def test_run_in_a_format_rounds_the_results(tmp_path: Path, capsys: Capture) -> None:
    x = datasets.load("mnist1k").x[:4]
    np.savez(tmp_path / "x.npz", input=x)
    arguments = ["run", "mnist_mlp", "--input", str(tmp_path / "x.npz"), "--output"]
    saved = {}
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / f"{dtype}.npz"
        succeed(capsys, *arguments, str(out), "--dtype", dtype)
        with np.load(out) as archive:
            saved[dtype] = archive["logits"]
    assert saved["bfloat16"].dtype == np.float32
    # Every result is a bfloat16 value: the low half of its float32 bits is zero.
    assert not (saved["bfloat16"].view(np.uint32) & 0xFFFF).any()
    error = np.abs(saved["bfloat16"] - saved["float32"]).max()
    assert 0 < error < 1


def test_quantize_writes_a_model_that_onnxruntime_runs(tmp_path: Path, capsys: Capture) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    out, plan = tmp_path / "q.onnx", tmp_path / "q.json"
    facts = as_json(
        capsys,
        *("quantize", "mnist_mlp", "--calib", "mnist1k", "-o", str(out), "--plan", str(plan)),
        *("--set", "weight_granularity=channel", "--set", "percentile=99.9"),
    )
    assert facts["quantized"] >= 1
    assert isinstance(json.loads(plan.read_text()), dict)
    data = datasets.load("mnist1k")
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    logits = session.run(None, {"input": data.x})[0]
    reference = onnxruntime_outputs("mnist_mlp", data.x)
    assert np.mean(logits.argmax(1) == reference.argmax(1)) > 0.97
    assert not np.array_equal(logits, reference)
    layers = as_json(capsys, *("compare", "mnist_mlp", "--input", "mnist1k", "--plan", str(plan)))[
        "layers"
    ]
    assert 10 < layers[-1]["sqnr_db"] < 60


def test_quantize_writes_qonnx(tmp_path: Path, capsys: Capture) -> None:
    onnx = pytest.importorskip("onnx")
    out = tmp_path / "q.onnx"
    command = ["quantize", "mnist_mlp", "--calib", "mnist1k", "--dialect", "qonnx", "-o", str(out)]
    succeed(capsys, *command, "--set", "weight_dtype=float6_e3m2fn")
    nodes = onnx.load(out).graph.node
    assert {n.op_type for n in nodes if n.domain} == {"Quant", "FloatQuant"}
    out.unlink()
    assert run_command([*command, "--set", "weight_dtype=posit8_es1"]) == 2
    assert "posit8_es1 is no binary floating point" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_compare_shows_every_layer_of_a_format(capsys: Capture) -> None:
    arguments = ["compare", "mnist_mlp", "--input", "mnist1k", "--images", "2", "--dtype"]
    wide = as_json(capsys, *arguments, "posit16_es1")["layers"]
    narrow = as_json(capsys, *arguments, "posit8_es0")["layers"]
    operators = [layer["operator"] for layer in wide]
    assert operators.count("nn.dense") == 2
    assert "nn.relu" in operators
    for exact, rough in zip(wide, narrow, strict=True):
        assert exact["value"] == rough["value"]
        assert exact["sqnr_db"] > rough["sqnr_db"]
    assert "nn.dense" in succeed(capsys, *arguments, "posit8_es0")


def test_bench_measures_both_networks(capsys: Capture) -> None:
    facts = as_json(capsys, "bench", "mnist_mlp", "--dtype", "bfloat16", "--runs", "3")
    times, base = facts["latency_ms"], facts["latency_ms_float32"]
    assert 0 < times["min"] <= times["median"] <= times["p90"] <= times["p99"]
    assert facts["speedup_vs_float32"] == pytest.approx(base["median"] / times["median"])
    assert facts["provenance"]["cores"] >= 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", ["run --input mnist1k", "bench --runs 1"])
def test_run_and_bench_tell_the_lowering_and_why(capsys: Capture, verb: str) -> None:
    first, *options = verb.split()
    arguments = [first, "mnist_mlp", "--dtype", "posit8_es0", *options]
    facts = as_json(capsys, *arguments)
    assert facts["lowering"] == "vector"
    assert "float32 holds its 6 significant bits" in facts["lowering_reason"]
    asked = as_json(capsys, *arguments, "--lowering", "table")
    assert (asked["lowering"], asked["lowering_reason"]) == ("table", "the build asks for it")
    assert "custom[posit8_es0]8: vector, because float32" in succeed(capsys, *arguments)


def test_float32_has_no_lowering(capsys: Capture) -> None:
    facts = as_json(capsys, "run", "mnist_mlp", "--input", "mnist1k")
    assert (facts["lowering"], facts["lowering_reason"]) == ("", "")


def test_bench_against_onnxruntime(capsys: Capture) -> None:
    pytest.importorskip("onnxruntime")
    arguments = ["bench", "mnist_mlp", "--vs", "onnxruntime", "--runs", "3"]
    assert as_json(capsys, *arguments)["speedup_vs_onnxruntime"] > 0
    assert "onnxruntime" in succeed(capsys, *arguments)


def test_bench_says_the_batch_that_it_times(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "three.onnx"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [given], [out])
    onnx.save(helper.make_model(graph, ir_version=8), path)
    for batch in ([], ["--batch", "3"]):
        facts = as_json(capsys, "bench", str(path), "--runs", "1", "--warmup", "0", *batch)
        assert (facts["batch"], facts["shapes"]) == (3, {"x": [3, 4]})
    assert run_command(["bench", str(path), "--batch", "5"]) == 2
    assert "takes --batch 5: its first sizes are 3" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["onnxruntime"], ["openvino", "onnxruntime", "openvino"]])
def test_bench_measures_every_runtime_that_is_asked_for(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    """Each once, in the order in which they are named, fed by the names of the model's file."""
    from experiments.cli import bench

    path = tmp_path / "named.onnx"
    onnx.save(named_model("gpu_0/data:0"), path)
    fed: dict[str, set[str]] = {}

    def peer(name: str) -> Any:
        def session(file: Path, arrays: dict[str, Any], threads: int) -> Any:
            assert (file, threads) == (path, 1)
            return lambda: fed.setdefault(name, set()).update(arrays)

        return session

    monkeypatch.setattr(bench, "_PEERS", {name: peer(name) for name in bench.PEERS})
    asked = [word for name in given for word in ("--vs", name)]
    facts = as_json(capsys, "bench", str(path), "--runs", "1", "--warmup", "0", *asked)
    assert facts["vs"] == list(dict.fromkeys(given))
    assert fed == {name: {"gpu_0/data:0"} for name in given}
    assert {k for k in facts if k.startswith("speedup_vs")} == {f"speedup_vs_{n}" for n in given}
    text = succeed(capsys, "bench", str(path), "--runs", "1", "--warmup", "0", *asked)
    assert all(text.count(name) == 1 for name in given)


@pytest.mark.parametrize("name", ["input:0", "gpu_0/data_0"])
def test_bench_in_int8_knows_inputs_by_the_names_of_the_file(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("onnxruntime")
    from experiments.benchmarks import models

    monkeypatch.setattr(models, "folder", lambda: tmp_path)
    onnx.save(named_model(name), tmp_path / "named.onnx")
    options = ["--calib", "random", "--vs", "onnxruntime", "--runs", "1"]
    facts = as_json(capsys, "bench", str(tmp_path / "named.onnx"), *options)
    assert facts["speedup_vs_onnxruntime_u8s8"] > 0


def named_model(name: str) -> onnx.ModelProto:
    """A product of an input of this name, [n, 8], and weights [8, 4]."""
    kind = onnx.TensorProto.FLOAT
    weights = onnx.numpy_helper.from_array(np.ones((8, 4), np.float32), "w:0")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", [name, "w:0"], ["out/y:0"])],
        "named",
        [onnx.helper.make_tensor_value_info(name, kind, ["n", 8])],
        [onnx.helper.make_tensor_value_info("out/y:0", kind, ["n", 4])],
        [weights],
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def test_dtype_list_and_show(capsys: Capture) -> None:
    names = [facts["name"] for facts in as_json(capsys, "dtype", "list")["formats"]]
    assert {"posit8_es0", "posit16_es1", "bfloat16", "float8_e4m3fn"} <= set(names)
    shown = as_json(capsys, "dtype", "show", "posit8_es0", "--codes")
    assert (shown["nbits"], shown["maxpos"], shown["minpos"]) == (8, 64.0, 1 / 64)
    assert shown["codes"]["64"] == 1.0
    assert shown["codes"]["128"] is None  # NaR
    assert "posit8_es0" in succeed(capsys, "dtype", "list")
    assert succeed(capsys, "dtype", "show", "fixed8_4").startswith("name")
    assert shown["lowering"] in ("library", "table", "vector")
    assert shown["special"]["NaN becomes"] == "0x80"
    assert {row["exponent"]: row["values"] for row in shown["precision"]}[0] == 32
    stored = as_json(capsys, "dtype", "show", "float8_e8m0fnu")
    assert (stored["lowering"], stored["lowering_reason"]) == ("none", "it only stores values")


def test_sweep_writes_and_shows_its_rows(tmp_path: Path, capsys: Capture) -> None:
    spec, out = tmp_path / "s.toml", tmp_path / "r.csv"
    spec.write_text('models = ["mnist_mlp"]\nschemes = ["float32"]\n[latency]\nruns = 2\n')
    text = succeed(capsys, "sweep", str(spec), "-o", str(out))
    assert "97.80" in text
    assert f"1 rows in {out}" in text
    content = as_json(capsys, "sweep", str(spec), "-o", str(out), "--resume")
    assert content["failed"] == 0
    assert list(content["rows"][0]) == list(COLUMNS)
    assert read_rows(out)["metric"].tolist() == [0.978]


def test_imports_are_light() -> None:
    heavy = "pandas onnx llvmlite rich click softposit onnxruntime torch"
    script = (
        "import sys, compiler, quantize, datatypes, experiments\n"
        f"print(*[m for m in {heavy.split()!r} if m in sys.modules])"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.split() == []


def test_cache_is_shown_and_cleared(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compiler.codegen import cache

    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    cache.store("entry", bytes(1 << 20))
    (tmp_path / "mine.txt").write_text("keep")
    assert "1 entries, 1.0 MiB" in succeed(capsys, "cache")
    assert "1 entries removed" in succeed(capsys, "cache", "--clear")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    monkeypatch.setenv(cache.VARIABLE, "0")
    assert "off" in succeed(capsys, "cache")


MIXTURE = '{"linear" = "posit8_es2", "*" = "bfloat16"}'


@pytest.mark.thorough
def test_formats_by_layer_and_events(capsys: Capture) -> None:
    args = ["compare", "mnist_mlp", "--input", "mnist1k", "--images", "2", "--dtype", MIXTURE]
    layers = as_json(capsys, *args, "--events")["layers"]
    assert all(
        set(layer["events"]) == {"overflow", "underflow", "nan", "absorbed"} for layer in layers
    )
    assert sum(layer["events"]["absorbed"] for layer in layers) > 0
    assert "absorbed" in succeed(capsys, *args, "--events")
    assert all(layer["events"] is None for layer in as_json(capsys, *args)["layers"])


def test_ctrl_c_while_the_verbs_are_imported_is_a_sentence(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pressing:
        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> None:
            if name == "experiments.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "experiments.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Pressing, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "dtypelab: interrupted\n"


def test_a_file_that_ends_too_early_is_no_interruption(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as bytecode that a full disk cut off."""
    monkeypatch.setattr(zoo, "sources", Mock(side_effect=EOFError("marshal data too short")))
    assert run_command(["zoo"]) == 1
    assert "internal error: " in (said := capsys.readouterr().err)
    assert "marshal data too short" in said
