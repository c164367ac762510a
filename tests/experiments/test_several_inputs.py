"""Every verb on a network with two inputs of integers and two outputs, of any names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import two_input_decoders
import written_decoders

import compiler
import experiments
import quantize
from compiler.errors import InputError
from compiler.transform.choose_outputs import choose_outputs
from experiments.cli.main import run_command

Capture = pytest.CaptureFixture[str]
NAMES = ("input_ids", "attention_mask")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("decoder")
    two_input_decoders.written(found)
    return found


def _given() -> dict[str, Any]:
    arrays = two_input_decoders.data()
    return {name: arrays[name] for name in NAMES}


def _arguments(line: str, folder: Path) -> list[str]:
    files = {"MODEL": "m.onnx", "DATA": "d.npz", "PLAN": "p.json", "SPEC": "s.toml"}
    files |= {"RESULTS": "r.csv", "OUT": "out"}
    return [
        str(folder / files[word.partition(".")[0]]) + "".join(word.partition(".")[1:])
        if word.partition(".")[0] in files
        else word
        for word in line.split()
    ]


#: In this order: what one makes, others take.
VERBS = (
    "inspect MODEL --shape input_ids=2x6",
    "inspect MODEL --outputs hidden.0 --json",
    "run MODEL --input DATA --output OUT.npz",
    "run MODEL --input DATA --dtype bfloat16 --outputs hidden.0",
    "quantize MODEL --calib DATA --plan PLAN -o OUT.onnx",
    "plan show PLAN",
    "compare MODEL --input DATA --dtype bfloat16 --output hidden.0",
    "compare MODEL --input DATA --plan PLAN --outputs logits --csv OUT.csv",
    "bench MODEL --shape input_ids=2x6 --runs 1 --warmup 0 --outputs hidden.0",
    "bench MODEL --shape input_ids=2x6 --runs 1 --warmup 0 --calib DATA --json",
    "sweep SPEC -o RESULTS",
    "table RESULTS --columns scheme,metric,tokens,kl_float32",
    "table RESULTS --paired float32",
    "reproduce RESULTS --row 2",
    "report RESULTS -o OUT.html",
)


@pytest.mark.thorough
def test_every_verb_takes_them(folder: Path, capsys: Capture) -> None:
    (folder / "s.toml").write_text(
        'models = ["m.onnx"]\ndataset = "d.npz"\nschemes = ["float32", "int8"]\nn_calib = 10\n'
        "latency = {runs = 0}\n"
    )
    for line in VERBS:
        assert run_command(_arguments(line, folder)) == 0, (line, capsys.readouterr().err)
    page = (folder / "out.html").read_text()
    assert "Token by token" in page
    assert sorted(np.load(folder / "out.npz")) == ["hidden.0", "logits"]
    assert "hidden.0" in (folder / "out.csv").read_text()


def test_an_output_is_computed_alone(folder: Path, capsys: Capture) -> None:
    out = str(folder / "one.npz")
    line = ["run", str(folder / "m.onnx"), "--input", str(folder / "d.npz"), "--outputs"]
    assert run_command([*line, "hidden.0", "--output", out, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["outputs"]) == ["hidden.0"]
    module = compiler.from_onnx(folder / "m.onnx")
    want = compiler.evaluate(module, **_given())[1]
    np.testing.assert_allclose(np.load(out)["hidden.0"], want, atol=1e-5)


def test_what_only_other_outputs_need_is_left_out(folder: Path) -> None:
    module = compiler.from_onnx(folder / "m.onnx")
    one = choose_outputs(module, ["hidden.0"])
    assert one.attrs["outputs"] == ("hidden.0",)
    assert [p.name for p in one.main.params] == list(NAMES)
    left = {b.var.name for b in module.main.bindings} - {b.var.name for b in one.main.bindings}
    assert left == {"logits"}
    assert choose_outputs(module, []) is module
    turned = choose_outputs(module, ["hidden.0", "logits"])
    for each in (compiler.evaluate(turned, **_given()), compiler.build(turned)(**_given())):
        assert [a.shape[-1] for a in each] == [
            two_input_decoders.WIDTH,
            two_input_decoders.VOCABULARY,
        ]
    assert list(compiler.build(turned).outputs) == ["hidden.0", "logits"]


def test_compare_shows_what_an_output_needs(folder: Path, capsys: Capture) -> None:
    line = ["compare", str(folder / "m.onnx"), "--input", str(folder / "d.npz"), "--images", "2"]
    found = []
    for more in ([], ["--output", "hidden.0"]):
        assert run_command([*line, "--dtype", "bfloat16", "--json", *more]) == 0
        layers = json.loads(capsys.readouterr().out)["layers"]
        found.append({layer["value"]: layer for layer in layers})
    assert found[0].keys() - found[1].keys() == {"logits"}
    assert found[1].items() <= found[0].items()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run MODEL --input DATA --outputs hidden", "unknown output 'hidden'"),
        ("run MODEL --input DATA --outputs logits --outputs logits", "is named twice"),
        ("compare MODEL --input DATA --dtype bfloat16 --output y", "unknown output 'y'"),
        ("inspect MODEL --outputs logitz", "did you mean 'logits'"),
        ("bench MODEL --shape input_ids=2x6 --outputs y", "unknown output 'y'"),
        ("bench MODEL --outputs logits --vs onnxruntime", "leave --outputs out"),
        ("tune MODEL --shape input_ids=2x6 --outputs y -o OUT.jsonl", "unknown output 'y'"),
        ("inspect MODEL --shape input_idz=2x6", "did you mean 'input_ids'"),
        ("bench MODEL --batch 2", "fix its shape with --shape input_ids="),
    ],
)
def test_names_that_are_none_are_refused(
    folder: Path, capsys: Capture, line: str, message: str
) -> None:
    assert run_command(_arguments(line, folder)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "verb", "message"),
    [
        ({"attention_mask": None}, "run", "no array for input 'attention_mask'"),
        (dict.fromkeys(NAMES), "run", "no array for input 'input_ids', 'attention_mask'"),
        ({"attention_mask": np.ones((5, 6), int)}, "run", "5 rows, but 'input_ids' has 12"),
        ({"attention_mask": np.ones((12, 4), int)}, "run", "'attention_mask'"),
        ({"input_ids": np.full((12, 6), 99)}, "run", "input 'input_ids' holds 99"),
        ({"attention_mask_calib": None}, "quantize", "has no array attention_mask_calib"),
        ({"attention_mask_calib": np.ones((3, 6), int)}, "quantize", "has 3 rows"),
        ({"tokens": np.ones(3)}, "run", "unknown input 'tokens'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, capsys: Capture, change: dict[str, Any], verb: str, message: str
) -> None:
    arrays = {k: a for k, a in (two_input_decoders.data() | change).items() if a is not None}
    np.savez(tmp_path / "d.npz", **arrays)
    option = ["--input"] if verb == "run" else ["--plan", str(tmp_path / "p.json"), "--calib"]
    line = [verb, str(folder / "m.onnx"), *option, str(tmp_path / "d.npz")]
    assert run_command(line) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "p.json").exists()


def test_sweeps_name_what_is_missing(folder: Path, tmp_path: Path) -> None:
    arrays = two_input_decoders.data()
    del arrays["attention_mask"], arrays["attention_mask_calib"]
    np.savez(tmp_path / "d.npz", **arrays)
    spec = {"models": [str(folder / "m.onnx")], "dataset": str(tmp_path / "d.npz")}
    with pytest.raises(compiler.DtypelabError, match="no array for input 'attention_mask'"):
        experiments.sweep({**spec, "schemes": ["float32"]}, tmp_path / "r.csv")
    spec |= {"dataset": str(folder / "d.npz"), "output": "hidden"}
    with pytest.raises(compiler.DtypelabError, match=r"did you mean 'hidden\.0'"):
        experiments.sweep({**spec, "schemes": ["float32"]}, tmp_path / "r.csv")


@pytest.mark.thorough
def test_calibration_takes_tuples_and_dicts(folder: Path) -> None:
    """In the order of the inputs, or by their names; one batch or several."""
    module = compiler.from_onnx(folder / "m.onnx")
    given = _given()
    ids, mask = (given[n] for n in NAMES)
    halves = [slice(0, 6), slice(6, 12)]
    want = quantize.calibrate(module, [{n: a[h] for n, a in given.items()} for h in halves])
    for batches in (
        [(ids[h], mask[h]) for h in halves],
        [[ids[h], mask[h]] for h in halves],
        ((ids[h], mask[h]) for h in halves),
    ):
        assert quantize.calibrate(module, batches) == want
    whole = quantize.calibrate(module, [given])
    assert quantize.calibrate(module, given) == quantize.calibrate(module, (ids, mask)) == whole


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([np.zeros((2, 6), int)], "give calibration data as name -> array dicts, or as tuples"),
        ([(np.zeros((2, 6), int),)], "missing input 'attention_mask'"),
        ([{"attention_mask": np.zeros((2, 6), int)}], "missing input 'input_ids'"),
        ({}, "missing input 'input_ids', 'attention_mask'"),
        ((np.zeros((2, 6), int),) * 3, "3 inputs given, but the model has 2"),
        ((np.zeros((2, 6), int), np.ones((3, 6), int)), "attention_mask' is 3, but 2"),
        ([{"input_ids": np.zeros((2, 6), int), "mask": 0}], "unknown input 'mask'"),
    ],
)
def test_calibration_data_that_does_not_fit(folder: Path, batches: Any, message: str) -> None:
    module = compiler.from_onnx(folder / "m.onnx")
    with pytest.raises(InputError) as refused:
        quantize.calibrate(module, batches)
    assert message in str(refused.value)


@pytest.mark.thorough
def test_inputs_of_any_name(tmp_path: Path, capsys: Capture) -> None:
    model = two_input_decoders.decoder()
    model.graph.input[1].name = "past.0/mask:0"
    model.graph.node[6].input[0] = "past.0/mask:0"
    onnx.save(model, tmp_path / "m.onnx")
    arrays = two_input_decoders.data()
    arrays["past.0/mask:0"] = arrays.pop("attention_mask")
    arrays["past.0/mask:0_calib"] = arrays.pop("attention_mask_calib")
    np.savez(tmp_path / "d.npz", **arrays)
    spec = {"models": [str(tmp_path / "m.onnx")], "dataset": str(tmp_path / "d.npz")}
    spec |= {"schemes": ["int8"], "n_calib": 10, "latency": {"runs": 0}}
    table = experiments.sweep(spec, tmp_path / "r.csv")
    assert table["status"][0] == "ok", table["error"][0]
    assert table["tokens"][0] == 12 * 5  # nothing says that it is a mask of tokens
    line = ["run", str(tmp_path / "m.onnx"), "--input", str(tmp_path / "d.npz")]
    assert run_command(line) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    "open_sizes", [pytest.param(True, marks=pytest.mark.thorough), False], ids=["plan", "format"]
)
def test_layers_of_a_decoder_whose_past_is_empty(
    tmp_path: Path, capsys: Capture, open_sizes: bool
) -> None:
    """By a format, and by a plan that was made with all sizes open: nodes that only a past of some
    length needs have parameters too."""
    model = str(written_decoders.tiny_file(tmp_path))
    past = written_decoders.empty_past(written_decoders.TINY, 4)
    ids = np.random.default_rng(0).integers(0, written_decoders.TINY.vocabulary, (4, 5))
    np.savez(tmp_path / "d.npz", **{"input_ids": ids, **past})
    file, plan = str(tmp_path / "d.npz"), str(tmp_path / "p.json")
    by = ["--dtype", "bfloat16"]
    if open_sizes:
        assert run_command(["quantize", model, "--calib", file, "--plan", plan]) == 0
        by = ["--plan", plan]
    capsys.readouterr()
    line = ["compare", model, "--input", file, "--images", "2", *by, "--output", "logits"]
    assert run_command([*line, "--json"]) == 0
    layers = {x["value"]: x for x in json.loads(capsys.readouterr().out)["layers"]}
    assert 5 < layers["logits"]["sqnr_db"] < 80
    assert layers["logits"]["shape"] == [2, 5, written_decoders.TINY.vocabulary]
