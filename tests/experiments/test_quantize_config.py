"""Configurations of quantization from TOML files and in sweeps: overrides, calibrators."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import experiments
from experiments.cli.main import run_command
from experiments.systems import schemes
from quantize import Plan, QConfig

CALIBRATORS = ["minmax", "moving_average", "percentile", "sigma", "kl", "mse", "power_of_two"]
CONFIG = """
calibrate = "minmax"
weight_bits = 6
bias_correction = "none"

[overrides.linear]
weight_bits = 4
[overrides."re*"]
activation_bits = 5
"""


def test_the_command_line_quantizes_as_a_toml_file_says_and_set_replaces_its_fields(
    tmp_path: Path,
) -> None:
    config, plan = tmp_path / "config.toml", tmp_path / "plan.json"
    config.write_text(CONFIG)
    command = ["quantize", "mnist_mlp", "--calib", "mnist1k", "-o", str(tmp_path / "q.onnx")]
    command += ["--plan", str(plan), "--config", str(config)]
    assert run_command(command) == 0
    made = Plan.from_json(plan)
    assert made.config == QConfig.from_toml(config)
    assert {name: w.bits for name, w in made.weights.items()} == {"linear": 4, "logits": 6}
    assert made.values["relu"].bits == 5
    assert run_command([*command, "--set", "weight_bits=7", "--set", "calibrate=kl"]) == 0
    again = Plan.from_json(plan)
    assert {name: w.bits for name, w in again.weights.items()} == {"linear": 4, "logits": 7}
    assert again.config.calibrate == "kl"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weight_bit = 4", "did you mean 'weight_bits'"),
        ("weight_bits = 1", "weight_bits must be an integer from 2 to"),
        ("weight_bits =", "is not TOML"),
        ("[overrides.linearr]\nweight_bits = 4", "did you mean 'linear'"),
        ("[overrides.linear]\nweight_bit = 4", "did you mean 'weight_bits'"),
        (None, "cannot read the configuration"),
    ],
)
def test_configuration_files_that_do_not_fit_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    config = tmp_path / "config.toml"
    if text is not None:
        config.write_text(text)
    command = ["quantize", "mnist_mlp", "--calib", "mnist1k", "-o", str(tmp_path / "q.onnx")]
    assert run_command([*command, "--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "q.onnx").exists()


def test_sweeps_take_overrides_and_cross_calibrators(tmp_path: Path) -> None:
    overrides = {"linear": {"weight_bits": 2}, "relu": {"activation_bits": 4}}
    table = experiments.sweep(
        {
            "models": ["mnist_mlp"],
            "schemes": [
                {"scheme": "int8", "bias_correction": "none"},
                {"scheme": "int8", "bias_correction": "none", "overrides": overrides},
            ],
            "calibrators": CALIBRATORS,
            "n_eval": 40,
            "n_calib": 40,
            "latency": {"warmup": 0, "runs": 0},
        },
        tmp_path / "r.csv",
    )
    assert table["status"].tolist() == ["ok"] * 14, table["error"].tolist()
    assert table["calibrator"].tolist() == CALIBRATORS * 2
    label = (
        "int8[bias_correction=none,"
        "overrides={linear: {weight_bits: 2}, relu: {activation_bits: 4}}]"
    )
    assert table["scheme"].tolist() == ["int8[bias_correction=none]"] * 7 + [label] * 7
    plain, coarse = table["sqnr_db"][:7].to_numpy(), table["sqnr_db"][7:].to_numpy()
    assert len(set(plain)) >= 4  # some leave nothing out of so few images
    assert plain.min() > 20
    assert (coarse < plain - 5).all()


def test_overrides_are_thawed_as_a_specification_gives_them() -> None:
    given = {"a*": {"skip": True, "weight_bits": 4}, "b": {"calibrate": "kl"}}
    scheme = schemes.parse("int8", {"overrides": given, "accumulate": {"a": "int16_wrap"}})
    options = {key: schemes.thaw(value) for key, value in scheme.options}
    assert options == {"overrides": given, "accumulate": {"a": "int16_wrap"}}
    assert json.loads(json.dumps(options)) == options
