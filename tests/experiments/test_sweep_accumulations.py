"""Accumulation as an axis of sweeps, on the command line, and by layer."""

import json
from pathlib import Path

import numpy as np
import pytest

import compiler
import datatypes
import experiments
import quantize
from experiments import zoo
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.systems import number_systems, pipeline

MLP = zoo.FOLDER / "mnist_mlp.onnx"


@pytest.mark.thorough
def test_a_sweep_over_accumulators_gives_a_row_for_each(tmp_path: Path) -> None:
    modes = ["sequential", "int24_wrap", "certified", "int12_wrap", "float32"]
    mixed = {"linear*": ["posit8_es0", "fma"], "*": "bfloat16"}
    by_layer = {"linear*": "int12_saturate"}
    table = experiments.sweep(
        {
            "models": ["mnist_mlp"],
            "schemes": [
                "int8_channel",
                "posit8_es0",
                {"scheme": mixed},
                {"scheme": "int8_tensor", "accumulate": by_layer},
            ],
            "accumulations": modes,
            "n_eval": 60,
            "n_calib": 40,
            "latency": {"warmup": 0, "runs": 0},
        },
        tmp_path / "r.csv",
    )
    assert table["status"].tolist() == ["ok"] * len(table), table["error"].tolist()
    rows = list(zip(table["scheme"], table["accumulate"], strict=True))
    label = number_systems.mixture(table["scheme"][7])
    assert label == {"linear*": ("posit8_es0", "fma"), "*": "bfloat16"}
    assert rows[:7] == [
        *(("int8_channel", mode) for mode in modes[:4]),
        *(("posit8_es0", mode) for mode in ("sequential", "certified", "float32")),
    ]
    assert rows[-1] == ("int8_tensor", "linear*: int12_saturate")
    sqnr = dict(zip(rows, table["sqnr_db"], strict=True))
    assert sqnr["int8_channel", "int24_wrap"] == sqnr["int8_channel", "sequential"]
    assert sqnr["int8_channel", "certified"] == sqnr["int8_channel", "sequential"]
    assert sqnr["int8_channel", "int12_wrap"] < 0 < sqnr["int8_channel", "sequential"]


def test_formats_by_layer_take_an_accumulation_each() -> None:
    module = compiler.from_onnx(MLP)
    scheme = experiments.systems.schemes.parse(
        '{"linear*" = ["posit8_es0", "fma"], "*" = "bfloat16"}'
    )
    changed = pipeline.retype(module, scheme)
    want = datatypes.change_dtype(module, {"linear*": ("posit8_es0", "fma"), "*": "bfloat16"})
    assert changed.astext() == want.astext()
    assert 'accumulate="fma"' in changed.astext()


@pytest.mark.parametrize(
    "dtype", ['{"*" = []}', '{"*" = ["posit8_es0", "fma", "x"]}', '{"*" = 3}', '{"*" = ["a", 3]}']
)
def test_mixtures_that_name_no_format(dtype: str) -> None:
    with pytest.raises(compiler.errors.ConfigError, match="needs the name of a format"):
        number_systems.mixture(dtype)


def test_the_command_line_quantizes_with_accumulators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    command = ["quantize", "mnist_mlp", "--calib", "mnist1k", "-o", str(tmp_path / "q.onnx")]
    layers = 'accumulate={"linear" = "int12_wrap", "*" = "int18_saturate"}'
    assert run_command([*command, "--plan", str(plan), "--set", layers]) == 0
    nodes = json.loads(plan.read_text())["nodes"]
    assert nodes["linear"]["accumulate"] == "int12_wrap"
    assert {n.get("accumulate") for n in nodes.values()} == {"int12_wrap", "int18_saturate", None}
    compared = ["compare", "mnist_mlp", "--input", "mnist1k", "--plan", str(plan), "--images", "2"]
    capsys.readouterr()
    assert run_command([*compared, "--json"]) == 0
    worst = min(e["sqnr_db"] for e in json.loads(capsys.readouterr().out)["layers"])
    assert worst < 3  # 12 bits wrap
    assert run_command([*command, "--set", "accumulate=int16"]) == 2
    assert "int<N>_wrap or int<N>_saturate" in capsys.readouterr().err
    module = quantize.realize(compiler.from_onnx(MLP), quantize.Plan.from_json(plan))
    digits = datasets.load("mnist1k").x[:5]
    np.testing.assert_array_equal(compiler.build(module)(digits), compiler.evaluate(module, digits))


@pytest.mark.thorough
def test_a_sweep_takes_accumulators_of_any_description(tmp_path: Path) -> None:
    held = {"format": "float16", "chunk": 32, "outer": "float32"}
    text = '{format = "float16", chunk = 32, outer = "float32"}'
    table = experiments.sweep(
        {
            "models": ["mnist_mlp"],
            "schemes": [
                "float32",
                {"scheme": "float32", "accumulate": "float22_e8m13"},
                "float8_e4m3fn",
                {"scheme": "scaled", "weight_dtype": "float8_e4m3fn", "compute": "native",
                 "accumulate": "float16"},
            ],
            "accumulations": [held, "float16"],
            "n_eval": 20,
            "n_calib": 10,
            "latency": {"warmup": 0, "runs": 0},
        },
        tmp_path / "r.csv",
    )  # fmt: skip
    assert table["status"].tolist() == ["ok"] * len(table), table["error"].tolist()
    assert list(zip(table["dtype"], table["accumulate"].fillna(""), strict=True)) == [
        ("float32", ""),
        ("float32", "float22_e8m13"),
        ("float8_e4m3fn", text),
        ("float8_e4m3fn", "float16"),
        ("float8_e4m3fn", "float16"),
    ]
    assert table["config_hash"].nunique() == len(table)
    again = experiments.sweep(
        {
            "models": ["mnist_mlp"],
            "schemes": [{"scheme": "float8_e4m3fn", "accumulate": held}],
            "n_eval": 20,
            "n_calib": 10,
            "latency": {"warmup": 0, "runs": 0},
        },
        tmp_path / "again.csv",
    )
    assert again["config_hash"][0] == table["config_hash"][2]


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("h100_fp9", "unknown accumulation 'h100_fp9'"),
        ('{format = "float16", order = "tree3"}', "order is one of"),
        ('{format = "float32", align_bits = 6}', "keeps 6 bits is narrower than products"),
        ("float7_e3m3", "narrower than products"),
    ],
)
def test_the_command_line_names_what_is_no_accumulator(
    mode: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "mnist_mlp", "--input", "mnist1k", "--dtype", "float8_e4m3fn"]
    assert run_command([*command, "--accumulate", mode]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.strip().splitlines()) == 1


def test_the_command_line_runs_float32_with_sums_in_a_format(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", "mnist_mlp", "--input", "mnist1k", "--accumulate", "float16"]
    assert run_command(command) == 0
    assert "logits" in capsys.readouterr().out
