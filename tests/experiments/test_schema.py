"""The JSON schemas that editors use say what the readers of the files say."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from json_schemas import misfits

import compiler
import experiments
import quantize
from compiler.errors import ConfigError
from experiments import zoo
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.spec.json_schema import spec_schema
from experiments.spec.shipped import FOLDER
from experiments.training.json_schema import training_schema
from experiments.training.spec import KEYS, load_training
from quantize.config.checks import CHOICES, FLAGS, RANGES
from quantize.config.json_schema import config_schema
from quantize.plan.json_schema import plan_schema

ROOT = Path(__file__).parents[2]
SMALL = {
    "models": ["mnist_mlp"],
    "schemes": ["float32", {"scheme": "int8", "weight_bits": 4}],
    "n_eval": 4,
    "latency": {"runs": 0},
}


def shown() -> list[str]:
    """The specifications and configurations that READMEs show."""
    texts = [p.read_text() for p in (ROOT / "README.md", *ROOT.glob("*/README.md"))]
    return [
        toml
        for text in texts
        for toml in re.findall(r"^```toml[^\n]*\n(.*?)^```", text, re.M | re.S)
    ]


def test_shipped_and_shown_files_fit() -> None:
    specs, configs = [p.read_text() for p in FOLDER.glob("*.toml")], []
    for text in shown():
        if "epochs" in (values := tomllib.loads(text)):
            assert load_training(values).runs
            assert not list(misfits(values, training_schema())), text
        else:
            (specs if "models" in values else configs).append(text)
    assert len(specs) >= 5
    assert len(configs) >= 2
    for text in specs:
        assert not list(misfits(tomllib.loads(text), spec_schema())), text
    for text in configs:
        assert not list(misfits(tomllib.loads(text), config_schema())), text


def test_specifications_of_recorded_rows_fit() -> None:
    rows = experiments.read_results(ROOT / "results" / "recorded.csv")
    configs = rows.drop_duplicates("scheme")["config"]
    assert len(configs) > 30
    schema = spec_schema()
    for text in configs:
        assert not list(misfits(json.loads(text), schema)), text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change",
    [
        {"modles": ["mnist_mlp"]},
        {"models": "mnist_mlp"},
        {"models": []},
        {"models": [1]},
        {"models": [{"dataset": "mnist1k"}]},
        {"models": [{"model": "mnist_mlp", "scheme": "int8"}]},
        {"models": ["mnist_mlp", "mnist_mlp"]},
        {"schemes": [{"scheme": "int8", "wieght_bits": 4}]},
        {"schemes": [{"scheme": "int8", "weight_bits": 1}]},
        {"schemes": [{"scheme": "int8", "weight_bits": "4"}]},
        {"schemes": [{"scheme": "int8", "calibrate": "best"}]},
        {"schemes": [{"scheme": "int8", "overrides": {"a": {"seed": 1}}}]},
        {"schemes": [{"scheme": "bfloat16", "lowering": 3}]},
        {"calibrators": ["best"]},
        {"accumulations": ["int99_wrap"]},
        {"threads": [0]},
        {"threads": [True]},
        {"seeds": [-1]},
        {"repeats": 0},
        {"seed": "0"},
        {"n_eval": 0},
        {"n_eval": 2.5},
        {"timeout_s": 0},
        {"memory_gib": "1"},
        {"latency": {"runs": -1}},
        {"latency": {"repeat": 1}},
        {"layers": {"images": 1, "event": True}},
        {"gap": {"inputs": -1}},
        {"gap": {"inputs": 1, "order": "forward"}},
        {"gap": True},
        {"energy": {"memory": -1}},
        {"adapters": "own.py"},
        {"exclude": [{"n_eval": 3}]},
        {"exclude": {"scheme": "int8"}},
        {"include": [{"dataset": "mnist1k"}]},
        {"include": [{"model": "mnist_mlp", "threads": 0}]},
        {"override": [{"scheme": "int8*", "n_eval": 0}]},
    ],
    ids=str,
)
def test_what_a_specification_may_not_say_does_not_fit(change: dict[str, Any]) -> None:
    broken = {**SMALL, **change}
    assert list(misfits(broken, spec_schema()))
    with pytest.raises(ConfigError):
        experiments.load_spec(broken)


def test_the_small_specification_is_broken_by_nothing_else() -> None:
    assert not list(misfits(SMALL, spec_schema()))
    assert len(experiments.load_spec(SMALL).cells) == 2


@pytest.mark.parametrize("name", ["training", "training_cnn", "training_vit"])
def test_recorded_trainings_fit(name: str) -> None:
    values = tomllib.loads((ROOT / "results" / f"{name}.toml").read_text())
    assert not list(misfits(values, training_schema()))


def test_every_key_of_a_training_is_explained() -> None:
    known = training_schema()["properties"]
    assert list(known) == [*KEYS]
    assert all(len(about["description"]) > 10 for about in known.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", [
    {"modles": ["mnist_mlp"]}, {"models": "mnist_mlp"}, {"models": []}, {"formats": [1]},
    {"formats": [{"backward": "bfloat16"}]}, {"formats": [{"forward": "bfloat16", "up": "x"}]},
    {"formats": [{"forward": "bfloat16", "rounding": "up"}]},
    {"formats": [{"forward": "bfloat16", "rounding": {"update": "up"}}]},
    {"seeds": [-1]}, {"rates": [0]}, {"epochs": 0}, {"batch": "64"}, {"initial": "zeros"},
    {"clip_norm": -1.0}, {"optimizer": {"name": "adamm"}}, {"optimizer": {"momentum": "0.9"}},
    {"schedule": {"name": "cosin"}}, {"schedule": {"milestones": 0.5}},
    {"qat": {"steps": "free"}}, {"qat": [True]}, {"qat": {"weight_bits": "4"}},
    {"loss_scale": {"dynamic": 1}}, {"adapters": "own.py"}, {"checkpoint_steps": 0},
], ids=str)  # fmt: skip
def test_what_a_training_may_not_say_does_not_fit(change: dict[str, Any]) -> None:
    broken = {"models": ["mnist_mlp"], **change}
    assert list(misfits(broken, training_schema()))
    with pytest.raises(ConfigError):
        load_training(broken)


def test_configurations_fit_as_far_as_their_fields_do_alone() -> None:
    schema = config_schema()
    assert not list(misfits(quantize.QConfig().to_dict(), schema))
    for name, (low, high) in RANGES.items():
        for value, fits in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
            given = {
                name: value,
                **({"float_macs": 0.1, "target_metric": "sqnr"} if name == "target" else {}),
            }
            assert bool(list(misfits(given, schema))) != fits
            if not fits:
                with pytest.raises(ConfigError):
                    quantize.QConfig(**given)
    for name in (*CHOICES, *FLAGS):
        assert list(misfits({name: "worst"}, schema))
        with pytest.raises(ConfigError):
            quantize.QConfig(**{name: "worst"})  # type: ignore[arg-type]


def test_every_field_of_a_configuration_is_explained() -> None:
    known = config_schema()["properties"]
    assert list(known) == [f.name for f in fields(quantize.QConfig)]
    assert all(len(about["description"]) > 10 for about in known.values())


def planned(**fields: Any) -> dict[str, Any]:
    digits = datasets.load("mnist1k")
    network = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    plan = quantize.calibrate(network, [digits.calibration[:8]], quantize.QConfig(**fields))
    made: dict[str, Any] = json.loads(plan.to_json())
    return made


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return planned(overrides={"logits": {"skip": True}})


def test_a_plan_fits(plan: dict[str, Any]) -> None:
    assert not list(misfits(plan, plan_schema()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fields",
    [
        {"weight_dtype": "float8_e4m3fn", "activation_dtype": "float8_e4m3fn"},
        {"weight_dtype": "mxfp4_e2m1", "activation_dtype": "mxfp8_e4m3"},
        {"activation_dtype": "float32", "weight_bits": 4, "weight_granularity": "group"},
        {"weight_range": "asymmetric", "weight_rounding": "gptq", "accumulate": "int20_saturate"},
        {"equalize": True, "float_macs": 0.5, "target": 0.9},
    ],
    ids=str,
)
def test_plans_of_every_kind_fit(fields: dict[str, Any]) -> None:
    assert not list(misfits(planned(**fields), plan_schema()))


def _first(plan: dict[str, Any], key: str) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(plan[key].values()))
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.update(version=1),
        lambda p: p.update(more=1),
        lambda p: p.pop("nodes"),
        lambda p: p["config"].update(calibrate="best"),
        lambda p: _first(p, "nodes").update(decision="perhaps"),
        lambda p: _first(p, "nodes").update(macs=-1),
        lambda p: _first(p, "nodes").pop("op"),
        lambda p: _first(p, "values").update(scale=0),
        lambda p: _first(p, "values").update(dtype="int4"),
        lambda p: _first(p, "values").update(zero_point="0"),
        lambda p: _first(p, "weights").update(scales=[]),
        lambda p: _first(p, "weights").update(bits=17),
        lambda p: _first(p, "weights").update(scale=1.0),
    ],
)
def test_what_a_plan_may_not_say_does_not_fit(
    plan: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    broken = copy.deepcopy(plan)
    change(broken)
    assert list(misfits(broken, plan_schema()))
    with pytest.raises(ConfigError):
        quantize.Plan.from_dict(broken)


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    made = {"spec": spec_schema, "config": config_schema, "plan": plan_schema}
    for what, schema in made.items():
        assert run_command(["schema", what]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(schema()))
