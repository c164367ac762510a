"""Bad input to the command line: one sentence on stderr, exit code 2, nothing left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import softposit
from onnx import TensorProto, helper, numpy_helper

import compiler
import datatypes
import quantize as quantizer
from experiments import zoo
from experiments.cli.main import run_command

MLP = str(zoo.FOLDER / "mnist_mlp.onnx")
Folder = Path
Arguments = list[str]


def images(folder: Folder, **arrays: np.ndarray) -> str:
    path = folder / "x.npz"
    np.savez(path, **(arrays or {"input": np.zeros((2, 1, 28, 28), np.float32)}))
    return str(path)


def written(folder: Folder, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def model(folder: Folder, *operators: str, dtype: int = TensorProto.FLOAT) -> str:
    """A chain of one-input operators over [2, 3]."""
    nodes = [
        helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}")
        for i, op in enumerate(operators)
    ]
    ends = [helper.make_tensor_value_info(name, dtype, [2, 3]) for name in ("v0", f"v{len(nodes)}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    path = folder / "chain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return str(path)


def run(folder: Folder, *arguments: str) -> Arguments:
    return ["run", *arguments, "--output", str(folder / "out.npz")]


def quantize(folder: Folder, *arguments: str) -> Arguments:
    out, plan = folder / "out.onnx", folder / "out.json"
    return ["quantize", *arguments, "-o", str(out), "--plan", str(plan)]


def sweep(folder: Folder, text: str) -> Arguments:
    return ["sweep", written(folder, "s.toml", text), "-o", str(folder / "out.csv")]


def calibration(*shape: int, value: float = 0.0, name: str = "input") -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32)}


def plan_of_another_model(folder: Folder) -> str:
    """Of the same network with other weights."""
    changed = onnx.load(MLP)
    tensor = next(t for t in changed.graph.initializer if len(t.dims) == 2)
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(values * np.float32(1.5), tensor.name))
    batch = np.zeros((2, 1, 28, 28), np.float32)
    plan = quantizer.calibrate(compiler.from_onnx(changed), [batch])
    return written(folder, "p.json", plan.to_json())


SPEC = 'models = ["mnist_mlp"]\nschemes = ["float32"]\n'

Case = tuple[str, Callable[[Folder], Arguments], str]
CASES: list[Case] = [
    ("no verb like it", lambda f: ["inspct", MLP], "No such command 'inspct'"),
    ("no argument", lambda f: ["run"], "Missing"),
    ("an option's value", lambda f: ["bench", MLP, "--threads", "none"], "--threads"),
    ("missing model", lambda f: ["inspect", str(f / "gone.onnx")], "no model file .*gone.onnx"),
    ("misspelt shipped model", lambda f: ["inspect", "mnist_mpl"], "did you mean 'mnist_mlp'"),
    ("missing input file", lambda f: run(f, MLP, "--input", str(f / "gone.npz")), "gone.npz"),
    ("text as model", lambda f: ["inspect", written(f, "t.onnx", "hello\n" * 20)], "t.onnx"),
    ("empty model", lambda f: ["inspect", written(f, "e.onnx", "")], "e.onnx"),
    (
        "truncated model",
        lambda f: ["inspect", written(f, "t.onnx", Path(MLP).read_bytes()[:5000])],
        "t.onnx",
    ),
    (
        "unsupported operators, all of them",
        lambda f: ["bench", model(f, "Relu", "MaxRoiPool", "StringNormalizer")],
        "MaxRoiPool.*StringNormalizer",
    ),
    ("a text file as inputs", lambda f: run(f, MLP, "--input", written(f, "x.npz", "a")), "x.npz"),
    (
        "wrong input name",
        lambda f: run(f, MLP, "--input", images(f, **calibration(2, 1, 28, 28, name="imput"))),
        "unknown input 'imput'; did you mean 'input'",
    ),
    (
        "wrong rank",
        lambda f: run(f, MLP, "--input", images(f, **calibration(2, 28, 28))),
        "'input'.* rank 4",
    ),
    (
        "wrong shape",
        lambda f: run(f, MLP, "--input", images(f, **calibration(2, 1, 28, 29))),
        "'input'.*28, 29",
    ),
    (
        "wrong dtype",
        lambda f: run(f, MLP, "--input", images(f, input=np.zeros((2, 1, 28, 28)))),
        "must be float32, not float64",
    ),
    (
        "no images",
        lambda f: [
            *("compare", MLP, "--input", images(f, **calibration(0, 1, 28, 28))),
            *("--dtype", "bfloat16"),
        ],
        "empty",
    ),
    (
        "unknown format",
        lambda f: run(f, MLP, "--input", images(f), "--dtype", "posit16_e1"),
        "'posit16_e1'.*'posit16_es1'",
    ),
    (
        "unknown lowering",
        lambda f: run(f, MLP, "--input", images(f), "--dtype", "bfloat16", "--lowering", "vectr"),
        "unknown datatype lowering 'vectr'",
    ),
    (
        "unknown accumulation",
        lambda f: run(f, MLP, "--input", images(f), "--dtype", "bfloat16", "--accumulate", "exat"),
        "'exat'",
    ),
    (
        "unknown target",
        lambda f: run(f, MLP, "--input", images(f), "--target", "lvm"),
        "unknown target 'lvm'",
    ),
    (
        "no folder for the results",
        lambda f: ["run", MLP, "--input", images(f), "--output", str(f / "gone" / "y.npz")],
        "there is no folder",
    ),
    (
        "calibration with NaN",
        lambda f: quantize(f, MLP, "--calib", images(f, **calibration(4, 1, 28, 28, value=np.nan))),
        "NaN",
    ),
    (
        "calibration that overflows inside",
        lambda f: quantize(f, MLP, "--calib", images(f, **calibration(4, 1, 28, 28, value=3e38))),
        r"the value %\w+ \(ONNX node '.*'\) is the first that holds NaN or infinity",
    ),
    (
        "a pattern of nodes that fits none",
        lambda f: quantize(f, MLP, "--calib", images(f), "--set", "skip=linearr"),
        "skip: unknown node 'linearr'; did you mean 'linear'",
    ),
    (
        "weights of one bit",
        lambda f: quantize(f, MLP, "--calib", images(f), "--set", "weight_bits=1"),
        "weight_bits must be an integer from 2 to",
    ),
    (
        "the plan of another model",
        lambda f: ["compare", MLP, "--input", images(f), "--plan", plan_of_another_model(f)],
        "the plan was made for another model",
    ),
    (
        "empty calibration",
        lambda f: quantize(f, MLP, "--calib", images(f, **calibration(0, 1, 28, 28))),
        "no calibration data",
    ),
    (
        "unknown calibrator",
        lambda f: quantize(f, MLP, "--calib", images(f), "--set", "calibrate=percentil"),
        "'percentil'.*percentile",
    ),
    (
        "unknown quantization setting",
        lambda f: quantize(f, MLP, "--calib", images(f), "--set", "percentil=99"),
        "'percentil'; did you mean 'percentile'",
    ),
    (
        "quantization setting without value",
        lambda f: quantize(f, MLP, "--calib", images(f), "--set", "percentile"),
        "is not KEY=VALUE",
    ),
    (
        "quantization setting of a wrong type",
        lambda f: quantize(f, MLP, "--calib", images(f), "--set", "percentile=high"),
        "percentile",
    ),
    (
        "a plan that is none",
        lambda f: ["compare", MLP, "--input", images(f), "--plan", written(f, "p.json", "[1")],
        "p.json",
    ),
    ("compare with what", lambda f: ["compare", MLP, "--input", images(f)], "--dtype or --plan"),
    ("bad shape", lambda f: ["bench", MLP, "--shape", "input=a,b"], "--shape 'input=a,b'"),
    ("unknown format shown", lambda f: ["dtype", "show", "posit"], "unknown format 'posit'"),
    ("specification missing", lambda f: ["sweep", str(f / "s.toml"), "-o", str(f / "o")], "s.toml"),
    ("specification not TOML", lambda f: sweep(f, "models = ["), "s.toml:1: not valid TOML"),
    ("specification's key", lambda f: sweep(f, SPEC + "sed = 3"), "s.toml:3: .*'sed'.*'seed'"),
    ("specification's type", lambda f: sweep(f, SPEC + 'seed = "3"'), "s.toml:3: seed must be"),
    (
        "specification's scheme",
        lambda f: sweep(f, SPEC.replace("float32", "float31")),
        "s.toml:2: unknown scheme or format 'float31'",
    ),
    (
        "specification's calibrator",
        lambda f: sweep(f, SPEC + 'calibrators = ["minmx"]'),
        "s.toml:3: .*'minmx'.*minmax",
    ),
    (
        "specification's lowering",
        lambda f: sweep(f, SPEC.replace('"float32"', '{scheme = "bfloat16", lowering = "vectr"}')),
        "s.toml:2: .*'vectr'",
    ),
    (
        "no folder for the sweep",
        lambda f: ["sweep", "quickstart", "-o", str(f / "gone" / "r.csv")],
        "there is no folder",
    ),
    (
        "results that are none",
        lambda f: ["sweep", "quickstart", "--resume", "-o", written(f, "r.csv", "a,b\n1,2\n")],
        "is not a dtypelab results file",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), [pytest.param(*c[1:], id=c[0]) for c in CASES])
def test_one_sentence_exit_2_and_nothing_left(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: Callable[[Folder], Arguments],
    message: str,
) -> None:
    line = arguments(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code = run_command(line)
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert captured.out == ""
    assert captured.err.startswith("dtypelab: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert re.search(message, captured.err), captured.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_datatype_without_a_needed_lowering(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A registered datatype can be encoded here, but nothing says how to take its exponential."""
    datatypes.load_library(softposit)
    datatypes.register("bareposit")
    lower = datatypes.create_lower_func({(32, 16): "convertFloatToP16"})
    datatypes.register_op(lower, "Cast", "llvm", "float", "bareposit")
    path = model(tmp_path, "Exp")
    file = images(tmp_path, v0=np.zeros((2, 3), np.float32))
    out = tmp_path / "y.npz"
    line = ["run", path, "--input", file, "--dtype", "custom[bareposit]16", "--output", str(out)]
    assert run_command(line) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    for part in ("n0", "exp of custom[bareposit]16 has no lowering", "register_op"):
        assert part in captured.err
    assert not out.exists()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that refuses root too")
def test_an_unwritable_folder_is_found_out_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.systems import pipeline

    def work(*_arguments: object, **_options: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr(pipeline, "prepare", work)
    monkeypatch.setattr(pipeline, "build", work)
    for line in (
        ["sweep", "quickstart", "-o", "/proc/r.csv"],
        ["run", MLP, "--input", images(tmp_path), "--output", "/proc/y.npz"],
        ["quantize", MLP, "--calib", images(tmp_path), "-o", "/proc/q.onnx"],
    ):
        assert run_command(line) == 2
        error = capsys.readouterr().err
        assert re.fullmatch(r"dtypelab: cannot write /proc/\S+: .* is not writable .*\n", error)


def test_an_internal_error_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.zoo import model_files

    def broken(_name: str) -> Path:
        raise ZeroDivisionError("1/0")

    monkeypatch.setattr(model_files, "model_file", broken)
    monkeypatch.delenv("DTYPELAB_DEBUG", raising=False)
    assert run_command(["inspect", MLP]) == 1
    error = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: 1/0" in error
    assert error.count("\n") == 1
    monkeypatch.setenv("DTYPELAB_DEBUG", "1")
    assert run_command(["inspect", MLP]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_command_itself(tmp_path: Path) -> None:
    """The same through a process: exit status, streams, no traceback."""
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli", "inspect", "gone.onnx"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dtypelab: there is no model file gone.onnx\n"


LONG = "a" * 5000
RECORDED = Path(__file__).parents[2] / "results" / "quickstart.csv"


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", LONG],
        ["inspect", f"{LONG}.onnx"],
        ["run", LONG, "--input", f"{LONG}.npz"],
        ["quantize", MLP, "--calib", LONG, "-o", "q.onnx"],
        ["sweep", LONG, "-o", "r.csv"],
        ["sweep", f"{LONG}.toml", "-o", "r.csv"],
        ["zoo", LONG],
        ["bench", LONG],
        ["--adapter", f"{LONG}.py", "zoo"],
        ["table", f"{LONG}.csv"],
        ["table", f"{LONG}.layers.csv"],
        ["report", f"{LONG}.csv", "-o", "r.html"],
        ["reproduce", f"{LONG}.csv", "--row", "1"],
        ["reproduce", str(RECORDED), "--row", "9" * 5000],
        ["bench", MLP, "--batch", "99999999999", "--runs", "1"],
    ],
    ids=lambda words: " ".join(w[:12] for w in words),
)  # fmt: skip
def test_names_and_numbers_that_are_too_long(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dtypelab: ")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "key", ["models", "dataset", "schemes", "metric", "adapters", "calibrator"]
)
def test_long_names_in_a_specification(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {"models": '["mnist_mlp"]', "schemes": '["float32"]', "n_eval": "2"}
    lines[key] = f'["{LONG}"]' if key in ("models", "schemes", "adapters") else f'"{LONG}"'
    text = "".join(f"{name} = {value}\n" for name, value in lines.items())
    path = written(tmp_path, "s.toml", text)
    assert run_command(["sweep", path, "-o", str(tmp_path / "r.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.toml"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    ["posit99999999999_es1", "posit32_es30", "posit8_es99999999", "posit2_es99999999",
     "float32_e30m1", "float1000000_e999998m1", "float1000000_e4m999995", "fixed9999999999_2",
     "fixed8_9999999999", "takum9999999999", "lns9999999999_2", "lns8_9999999999"],
)  # fmt: skip
def test_formats_too_large_to_look_at_are_refused_at_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["dtype", "show", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1
