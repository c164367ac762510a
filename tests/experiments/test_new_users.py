"""Networks as they come go through every verb by one command, with the names that they have."""

from __future__ import annotations

import json
from pathlib import Path

import new_user_models
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from new_user_models import JUDGED, MODELS, SHAPES
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.errors import InputError
from experiments.cli.common import load_feed, read_shape
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.measure import outputs
from experiments.results.store import read_rows

Capture = pytest.CaptureFixture[str]


def succeed(capsys: Capture, *arguments: str | Path) -> str:
    code = run_command([str(a) for a in arguments])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


def fail(capsys: Capture, *arguments: str | Path) -> str:
    code = run_command([str(a) for a in arguments])
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.err.count("\n") == 1
    return captured.err


def specification(folder: Path, name: str, text: str) -> tuple[Path, Path]:
    """A specification for one of the networks and its data, and where its results go."""
    new_user_models.write(name, folder)
    spec = folder / "spec.toml"
    spec.write_text(f'dataset = "{name}.npz"\n{text}')
    return spec, folder / "r.csv"


def expected(name: str, model: str) -> list[np.ndarray]:
    """The outputs for all examples, one by one."""
    module = compiler.from_onnx(model)
    _, data = MODELS[name](np.random.default_rng(1))
    given = {p.name: data[p.name] for p in module.main.params}
    rows = next(n for n, a in given.items() if len(a) == 6)
    if "bytes" in given:
        given["bytes"] = given["bytes"].astype(np.int32)
    calls = [compiler.evaluate(module, **{**given, rows: given[rows][k : k + 1]}) for k in range(6)]
    parts = [c if isinstance(c, list) else [c] for c in calls]
    return [
        np.concatenate([o if o.shape[:1] == (1,) else o[None] for o in out])
        for out in zip(*parts, strict=True)
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_run_and_inspect(capsys: Capture, tmp_path: Path, name: str) -> None:
    model, data = new_user_models.write(name, tmp_path)
    graph = onnx.load(model).graph
    text = succeed(capsys, "inspect", model)
    for value in graph.input:
        assert f"input       {value.name}: Tensor[" in text
    for value in graph.output:
        assert f"output      {value.name}: Tensor[" in text
    succeed(capsys, "run", model, "--input", data, "--output", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as saved:
        assert sorted(saved.files) == sorted(value.name for value in graph.output)
        for value, want in zip(graph.output, expected(name, model), strict=True):
            np.testing.assert_allclose(saved[value.name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_every_verb(capsys: Capture, tmp_path: Path, name: str) -> None:
    model, data = new_user_models.write(name, tmp_path)
    plan, quantized = tmp_path / "plan.json", tmp_path / "q.onnx"
    succeed(capsys, "quantize", model, "--calib", data, "-o", quantized, "--plan", plan)
    before, after = onnx.load(model).graph, onnx.load(quantized).graph
    for ends in ("input", "output"):
        names = [[v.name for v in getattr(g, ends)] for g in (before, after)]
        assert names[0] == names[1]
    succeed(capsys, "run", quantized, "--input", data)
    succeed(capsys, "plan", "show", plan)
    for how in (("--plan", plan), ("--dtype", "posit8_es0")):
        table = json.loads(succeed(capsys, "compare", model, "--input", data, *how, "--json"))
        assert [v.name for v in before.output][-1] in [row["value"] for row in table["layers"]]
    shape = ("--shape", SHAPES[name]) if name in SHAPES else ()
    timed = ("--runs", "2", "--warmup", "1", *shape)
    succeed(capsys, "bench", model, *timed)
    succeed(capsys, "bench", model, *timed, "--calib", data)
    succeed(capsys, "tune", model, *shape, "--budget", "0.1", "-o", tmp_path / "log.jsonl")
    spec, results = tmp_path / "spec.toml", tmp_path / "r.csv"
    spec.write_text(
        f'models = ["{name}.onnx"]\ndataset = "{name}.npz"\n'
        'schemes = ["float32", "int8_channel", "posit8_es0"]\nn_calib = 4\n'
        "layers = {images = 2}\nlatency = {warmup = 1, runs = 2, budget_s = 0.1}\n"
    )
    succeed(capsys, "sweep", spec, "--dry-run")
    succeed(capsys, "sweep", spec, "-o", results)
    rows = read_rows(results)
    assert list(rows["status"]) == ["ok"] * 3
    assert [json.loads(c).get("output") for c in rows["config"]] == [JUDGED.get(name)] * 3
    assert rows["sqnr_db"].iloc[1] > 10
    succeed(capsys, "table", results)
    succeed(capsys, "report", results, "-o", tmp_path / "r.html")
    succeed(capsys, "reproduce", results, "--row", "2")


@pytest.mark.thorough
def test_two_outputs_of_a_network_are_told_apart(capsys: Capture, tmp_path: Path) -> None:
    spec, results = specification(
        tmp_path,
        "pitch_tracker",
        'schemes = ["float32"]\nlatency = {runs = 0}\n'
        'metric = "cosine"\nmodels = [\n    { model = "pitch_tracker.onnx", output = "volume" },\n'
        '    { model = "pitch_tracker.onnx", output = "pitch/hz" },\n]\n',
    )
    shown = succeed(capsys, "sweep", spec, "-o", results)
    for name in ("volume", "pitch/hz"):
        assert f"output '{name}'" in shown
        assert f"float32 output={name}" in shown
    table = json.loads(succeed(capsys, "table", results, "--columns", "system,output", "--json"))
    assert [row["output"] for row in table["rows"]] == ["volume", "pitch/hz"]
    succeed(capsys, "table", results, "--compare", results)


def test_a_sweep_of_the_first_tier(capsys: Capture, tmp_path: Path) -> None:
    spec, results = specification(
        tmp_path,
        "voice_detector",
        'models = ["voice_detector.onnx"]\n'
        'schemes = ["int8_channel"]\nn_calib = 4\nlatency = {runs = 0}\n',
    )
    succeed(capsys, "sweep", spec, "-o", results)
    (row,) = read_rows(results).to_dict("records")
    assert (row["status"], json.loads(row["config"])["output"]) == ("ok", "output")


@pytest.mark.parametrize(
    ("metric", "output"), [("top1", "confidence"), ("cosine", "pitch/hz"), ("", "pitch/hz")]
)
def test_the_first_output_that_fits_is_judged(tmp_path: Path, metric: str, output: str) -> None:
    model, data = new_user_models.write("pitch_tracker", tmp_path)
    fed = datasets.load(data).for_model(Path(model))
    assert outputs.chosen(Path(model), fed, metric).name == output
    assert outputs.chosen(Path(model), fed, metric, "volume").name == "volume"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("confidance", "unknown output 'confidance'; did you mean 'confidence'?"),
        ("nothing", "unknown output 'nothing'; known: confidence, pitch/hz, volume"),
    ],
)
def test_an_output_that_is_none(capsys: Capture, tmp_path: Path, output: str, message: str) -> None:
    text = f'models = ["pitch_tracker.onnx"]\nschemes = ["float32"]\noutput = "{output}"\n'
    spec, _ = specification(tmp_path, "pitch_tracker", text)
    assert f"spec.toml:4: {message}" in fail(capsys, "sweep", spec, "--dry-run")


VOICE = {"input": np.zeros((6, 32), np.float32), "state": np.zeros((2, 1, 8), np.float32)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "has no array for input 'sr' of the model; it holds 'input', 'state'"),
        ({"sample_rate": np.array(1)}, "unknown input 'sample_rate'"),
        ({"sr": np.array(1.5)}, "input 'sr' must be int64, not float64: convert it"),
        ({"sr": np.zeros((1, 1), int)}, "input 'sr' must have rank 0, shape (), not (1, 1)"),
        ({"sr": np.zeros(5, int)}, "input 'sr' has 5 rows, but 'input' has 6"),
        ({"sr": np.array(1), "state": np.zeros((2, 1, 9), np.float32)}, "axis 2 must be 8, not 9"),
        ({"sr": np.array(1), "state": np.zeros((2, 1), np.float32)}, "'state' must have rank 3"),
        ({"sr": np.array(1), "input": np.zeros((6, 31), np.float32)}, "axis 1 must be 32, not 31"),
    ],
)  # fmt: skip
def test_data_that_does_not_fit(
    capsys: Capture, tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    model, data = new_user_models.write("voice_detector", tmp_path)
    np.savez(data, **{**VOICE, **change})
    for verb in (("run", model, "--input", data), ("quantize", model, "--calib", data, "-o", "q")):
        error = fail(capsys, *verb)
        assert message in error
        assert "voice_detector.npz" in error
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'models = ["voice_detector.onnx"]\ndataset = "voice_detector.npz"\nschemes = ["float32"]\n'
    )
    error = fail(capsys, "sweep", spec, "--dry-run")
    assert "spec.toml:2: data set 'voice_detector'" in error
    assert message in error


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("input0=1x8x10x3", "unknown input 'input0'; did you mean 'input:0'?"),
        ("input:0=8x10x3", "'input:0'] has 3 dimensions; the input has 4"),
        ("input:0:1x8", "--shape 'input:0:1x8' is not INPUT=1x3x224x224"),
        ("input:0=1x0x10x3", "is not INPUT=1x3x224x224"),
    ],
)
def test_shapes_that_are_none(capsys: Capture, tmp_path: Path, shape: str, message: str) -> None:
    model, data = new_user_models.write("nhwc_resnet", tmp_path)
    for verb in (
        ("inspect", model),
        ("run", model, "--input", data),
        ("quantize", model, "--calib", data, "-o", "q.onnx"),
        ("compare", model, "--input", data, "--dtype", "bfloat16"),
        ("bench", model),
        ("tune", model, "-o", "log.jsonl"),
    ):
        assert message in fail(capsys, *verb, "--shape", shape)


def test_a_name_in_shape_may_have_any_character(capsys: Capture, tmp_path: Path) -> None:
    model, _ = MODELS["byte_classifier"](np.random.default_rng(1))
    model.graph.input[0].name = model.graph.node[0].input[1] = "a=b:c x"
    onnx.save(model, tmp_path / "m.onnx")
    text = succeed(capsys, "inspect", tmp_path / "m.onnx", "--shape", "a=b:c x=2x20")
    assert "input       a=b:c x: Tensor[(2, 20), int32]" in text


@pytest.mark.thorough
def test_a_state_may_hold_the_whole_batch(capsys: Capture, tmp_path: Path) -> None:
    model, data = new_user_models.write("voice_detector", tmp_path)
    with np.load(data) as held:
        arrays = {n: held[n] for n in ("input", "sr")} | {"state": np.ones((2, 6, 8), np.float32)}
    np.savez(data, **arrays)
    succeed(capsys, "run", model, "--input", data, "--output", tmp_path / "y.npz")
    want = compiler.evaluate(compiler.from_onnx(model), arrays)
    with np.load(tmp_path / "y.npz") as saved:
        assert saved["stateN"].shape == (2, 6, 8)
        np.testing.assert_allclose(saved["output"], want[1], rtol=1e-5)
    succeed(capsys, "quantize", model, "--calib", data, "-o", tmp_path / "q.onnx")


def test_a_batch_that_the_model_fixes_is_kept(capsys: Capture, tmp_path: Path) -> None:
    """A reshape to [1, -1] would make one row of all of them."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, k]) for n, k in (("x", 4), ("y", 4))
    ]
    shape = numpy_helper.from_array(np.array([1, -1]), "shape")
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], [*ends[1:], *ends[1:]], [shape])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=x)
    succeed(capsys, "run", tmp_path / "m.onnx", "--input", tmp_path / "x.npz",
            "--output", tmp_path / "y.npz")  # fmt: skip
    with np.load(tmp_path / "y.npz") as saved:
        assert np.array_equal(saved["y"], x)
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'models = ["m.onnx"]\ndataset = "x.npz"\nschemes = ["float32"]\nlatency = {runs = 0}\n'
    )
    assert "ok" in succeed(capsys, "sweep", spec, "-o", tmp_path / "r.csv")


def test_no_inputs_are_too_few(capsys: Capture, tmp_path: Path) -> None:
    model, data = new_user_models.write("pitch_tracker", tmp_path)
    np.savez(data, audio=np.zeros((0, 1, 64), np.float32))
    assert "there is no calibration data" in fail(
        capsys, "quantize", model, "--calib", data, "-o", tmp_path / "q.onnx"
    )
    assert "the inputs are empty" in fail(
        capsys, "compare", model, "--input", data, "--dtype", "bfloat16"
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("state", [(2, 1, 8), (1, 2, 1, 8), (6, 2, 1, 8), (2, 6, 8)], ids=str)
def test_results_do_not_depend_on_how_a_state_is_given(
    capsys: Capture, tmp_path: Path, state: tuple[int, ...]
) -> None:
    model, data = new_user_models.write("voice_detector", tmp_path)
    with np.load(data) as held:
        arrays = {n: held[n] for n in ("input", "sr")}
    row = np.linspace(-1, 1, 8, dtype=np.float32)
    np.savez(data, **arrays, state=np.broadcast_to(row, state))
    succeed(capsys, "run", model, "--input", data, "--output", tmp_path / "y.npz")
    whole = {**arrays, "state": np.tile(row, (2, 6, 1))}
    want = compiler.evaluate(compiler.from_onnx(model), whole)[1]
    with np.load(tmp_path / "y.npz") as saved:
        np.testing.assert_allclose(saved["output"], want, rtol=1e-5)


@pytest.mark.parametrize("names", [("audio", "audio_calib"), ("audio_calib",), ("x", "x_calib")])
def test_calibration_inputs_have_names_of_their_own(
    capsys: Capture, tmp_path: Path, names: tuple[str, ...]
) -> None:
    model, data = new_user_models.write("pitch_tracker", tmp_path)
    small, large = (np.full((2, 1, 64), v, np.float32) for v in (1, 8))
    np.savez(data, **{name: large if name.endswith("_calib") else small for name in names})
    feed = load_feed(model, data, calibration=True)
    assert feed.arrays["audio"].max() == 8
    if len(names) > 1:
        assert load_feed(model, data).arrays["audio"].max() == 1
    else:
        with pytest.raises(InputError, match="has no array for input 'audio' of the model"):
            load_feed(model, data)


@settings(max_examples=30)
@given(st.text(max_size=9), st.lists(st.integers(1, 99), max_size=4), st.sampled_from("x,"))
def test_shapes_are_read_behind_the_last_sign(name: str, sizes: list[int], comma: str) -> None:
    assert read_shape(f"{name}={comma.join(map(str, sizes))}") == (name, tuple(sizes))


def test_notes_beside_the_inputs(capsys: Capture, tmp_path: Path) -> None:
    """A file may say more of its rows than a network with one input wants to know."""
    model, data = new_user_models.write("nhwc_resnet", tmp_path)
    with np.load(data) as held:
        x = held["input:0"]
    np.savez(data, x=x, y=np.arange(6), font=np.arange(6))
    assert load_feed(model, data).arrays["input:0"].shape == x.shape
    assert datasets.load(data).for_model(Path(model)).x.shape == x.shape
    made = datasets.Dataset.of("mine", {"x": x, "labels": np.arange(6)})
    with pytest.raises(InputError, match="'mine' has 'labels', but nhwc_resnet"):
        made.for_model(Path(model))
    error = fail(capsys, "run", new_user_models.write("voice_detector", tmp_path)[0], "--input",
                 "mnist1k")  # fmt: skip
    assert (
        "has one array, x, but voice_detector.onnx has the inputs 'input', 'state', 'sr'" in error
    )


def test_an_input_may_be_called_x(tmp_path: Path) -> None:
    model, data = MODELS["voice_detector"](np.random.default_rng(1))
    model.graph.input[0].name = model.graph.node[2].input[0] = "x"
    model.graph.node[2].output[0] = model.graph.node[3].input[0] = "scaled"
    onnx.save(model, tmp_path / "m.onnx")
    renamed = {k.replace("input", "x"): a for k, a in data.items()}
    made = datasets.Dataset.of("mine", renamed)
    fed = made.for_model(tmp_path / "m.onnx")
    assert (len(fed.x), len(fed.calibration)) == (6, 4)
    assert list(fed.x.kinds) == ["x", "state", "sr"]
    other = datasets.Dataset.of("mine", {**renamed, "sr": np.array(8000)})
    assert other.sha256 != made.sha256
