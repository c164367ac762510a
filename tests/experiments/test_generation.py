"""Generation: what is chosen, what is refused, and that it does not matter how a text is read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import written_decoders
from written_decoders import TINY, reference, table_file, tiny_file, weights_of

import compiler
import experiments
import quantize
from compiler.errors import ConfigError, DtypelabError, InputError, LoweringError, UnsupportedError
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.generation import decoders, generating
from experiments.generation.readers import FedBack, InPlace
from experiments.systems import number_systems, pipeline, schemes
from experiments.zoo import model_files

SUCCESSOR = np.roll(np.eye(7), 1, axis=1) * 5.0  # after i comes i + 1


# ---- with a past ---------------------------------------------------------------------------------
def logits(
    path: Path, module: object, ids: list[int], parts: list[int], in_place: bool = False
) -> np.ndarray:
    """Scores of all ids, read in parts of these sizes."""
    decoder = decoders.interface(path)
    reader = (
        InPlace(compiler.decoder(module), decoder, len(ids))
        if in_place
        else FedBack(compiler.build(module), decoder)
    )
    found, at = [], 0
    for size in parts:
        found.append(reader.read(ids[at : at + size]))
        at += size
    return np.concatenate(found)


def imported(path: Path) -> object:
    """The decoder for one sequence of any length."""
    return model_files.load_model(path, decoders.interface(path).shapes)


def test_a_sequence_longer_than_the_positions_is_refused_before_it_is_compiled(
    tmp_path: Path,
) -> None:
    path = tiny_file(tmp_path)
    assert decoders.positions(imported(path)) == 16
    with pytest.raises(ConfigError, match="10 ids and 8 more ids need 17 positions, but tiny"):
        experiments.generate(path, [1] * 10, 8)
    with pytest.raises(ConfigError, match=r"20 ids need 20 positions.*a shorter prompt"):
        experiments.generate(path, [1] * 20, 8, slide=True)


@pytest.mark.thorough
def test_bad_calls_of_a_decoder_are_one_sentence(tmp_path: Path) -> None:
    path = tiny_file(tmp_path)
    executable = compiler.build(imported(path))
    past = written_decoders.empty_past(TINY, 1)
    ids = np.zeros((1, 17), np.int64)
    with pytest.raises(InputError, match=r"position along an axis of length 16: give smaller"):
        executable({"input_ids": ids, **past})
    name = "past_key_values.1.value"
    wrong = past | {name: np.zeros((1, 2, 3, 4), np.float32)}
    with pytest.raises(InputError, match=f"input '{name}' is 3, but 0 by past = 0 in input"):
        executable({"input_ids": ids[:, :2], **wrong})
    fewer = {n: a for n, a in past.items() if n != name}
    with pytest.raises(InputError, match=f"missing input '{name}'; the model has"):
        executable({"input_ids": ids[:, :2], **fewer})


@pytest.mark.thorough
def test_greedy_ids_are_those_of_the_definition(tmp_path: Path) -> None:
    path, weights, ids = tiny_file(tmp_path), weights_of(TINY), [5, 250, 17]
    found = experiments.generate(path, ids, 8)
    for one in found.ids:
        assert one == reference(TINY, weights, np.array([ids]))[0, -1].argmax()
        ids = [*ids, one]


@pytest.mark.thorough
def test_chances_depend_on_the_seed_and_on_nothing_else(tmp_path: Path) -> None:
    path = tiny_file(tmp_path)
    one, two, three, other = (
        experiments.generate(path, [1, 2], 12, temperature=3.0, top_k=40, seed=seed, threads=n).ids
        for seed, n in ((4, 1), (4, 2), (4, 3), (5, 1))
    )
    assert one == two == three != other


@pytest.mark.thorough
def test_a_saved_decoder_writes_what_the_model_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kept = tiny_file(tmp_path), tmp_path / "tiny.exe"
    line = ["--ids", "5,250,17", "--tokens", "6", "--json"]
    for dtype in ("float32", "posit16_es1"):
        asked = ["generate", str(path), *line, "--dtype", dtype, "--save", str(kept)]
        assert run_command(asked) == 0
        want = json.loads(capsys.readouterr().out)
        assert run_command(["generate", str(kept), *line]) == 0
        assert json.loads(capsys.readouterr().out)["ids"] == want["ids"]
    with pytest.raises(ConfigError, match=r"compiled decoder.* are decided: leave out threads"):
        experiments.generate(kept, [1], threads=2)
    with pytest.raises(
        ConfigError, match=r"10 ids and 8 more ids need 17 positions, but tiny\.exe"
    ):
        experiments.generate(kept, [1] * 10, 8)
    found = experiments.generate(kept, [5, 9], 20, slide=True)
    assert found.ids == experiments.generate(
        path, [5, 9], 20, slide=True, dtype="posit16_es1"
    ).ids  # fmt: skip


def test_what_keeps_no_caches_cannot_be_saved(tmp_path: Path) -> None:
    path = table_file(tmp_path, SUCCESSOR)
    with pytest.raises(ConfigError, match="keeps no caches in place: there is nothing to save"):
        experiments.generate(path, [1], 2, save=tmp_path / "x.exe")


@pytest.mark.thorough
def test_it_slides_past_its_positions_and_says_what_it_read(tmp_path: Path) -> None:
    path, weights = tiny_file(tmp_path), weights_of(TINY)
    found = experiments.generate(path, [5, 9], 40, slide=True)
    assert len(found.ids) == 40
    ids, kept = [5, 9], [5, 9]
    for one in found.ids:
        if len(kept) == 17:
            kept = kept[-8:]
        assert one == reference(TINY, weights, np.array([kept]))[0, -1].argmax()
        ids, kept = [*ids, one], [*kept, one]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2", "posit16_es1"])
def test_logits_are_the_same_whole_and_step_by_step(tmp_path: Path, dtype: str) -> None:
    path, ids = tiny_file(tmp_path), [3, 299, 0, 3, 41, 7, 8, 100]
    module = pipeline.retype(imported(path), schemes.number_format(dtype, None, None))
    whole = logits(path, module, ids, [8])
    for parts in ([1] * 8, [5, 1, 2]):
        np.testing.assert_array_equal(logits(path, module, ids, parts), whole)
    np.testing.assert_array_equal(logits(path, module, ids, [3, 1, 1, 3], in_place=True), whole)


def batch_of(count: int, length: int) -> dict[str, np.ndarray]:
    """Inputs to calibrate a tiny decoder with."""
    ids = np.random.default_rng(0).integers(0, 300, (count, length))
    return {"input_ids": ids, **written_decoders.empty_past(TINY, count)}


@pytest.mark.thorough
def test_a_plan_gives_the_same_whole_and_step_by_step(tmp_path: Path) -> None:
    path, batch = tiny_file(tmp_path), batch_of(4, 12)
    plan = quantize.calibrate(compiler.from_onnx(path), [batch])
    assert plan.nodes["blocks_0_scores"].decision == "integer"
    assert plan.nodes["blocks_0_mixed"].decision == "integer"
    ids = batch["input_ids"][0, :9].tolist()
    module = quantize.realize(imported(path), plan)
    whole = logits(path, module, ids, [9])
    np.testing.assert_array_equal(logits(path, module, ids, [1] * 9), whole)
    np.testing.assert_array_equal(logits(path, module, ids, [4, 5], in_place=True), whole)


SMALL = {"width": 32, "hidden": 32, "heads": 2, "kv_heads": 1, "head_size": 16, "layers": 1}
INT8_KV = {"key_dtype": "int8", "value_dtype": "int8"}
SETTINGS: dict[str, tuple[dict[str, object], str]] = {
    "tokens": ({"activation_granularity": "token"}, "format"),
    "groups of 4 bits": (
        {"weight_bits": 4, "weight_granularity": "group", "weight_group_size": 16}, "format",
    ),
    "weights only": ({"activation_dtype": "float32"}, "float"),
    "keys and values of tokens": (
        {
            "activation_granularity": "token",
            "key_granularity": "token",
            "value_granularity": "token",
            **INT8_KV,
        },
        "format",
    ),
    "probabilities": ({"probability_dtype": "uint8", **INT8_KV}, "format"),
    "fp8 values": (
        {"value_dtype": "float8_e4m3fn", "probability_dtype": "float8_e4m3fn"}, "format",
    ),
    "posit8": ({"weight_dtype": "posit8_es0", "activation_dtype": "posit8_es0"}, "format"),
    "nvfp4": ({"weight_dtype": "nvfp4", "activation_dtype": "nvfp4"}, "float"),
    "blocks of values": ({"value_dtype": "mxfp8_e4m3"}, "float"),
}  # fmt: skip
"""Name -> fields of a configuration, and how the products with values are then computed: blocks
along the past have no fixed places, so these are left in float."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_gives_the_same_whole_and_step_by_step(tmp_path: Path, name: str) -> None:
    fields, values = SETTINGS[name]
    path, shape = tiny_file(tmp_path, **SMALL), replace(TINY, **SMALL)
    ids = np.random.default_rng(0).integers(0, 300, (4, 12))
    batch = {"input_ids": ids, **written_decoders.empty_past(shape, 4)}
    config = quantize.QConfig(**fields)
    plan = quantize.calibrate(compiler.from_onnx(path), [batch], config)
    assert plan.nodes["blocks_0_mixed"].decision == values
    module, read = quantize.realize(imported(path), plan), ids[0, :9].tolist()
    whole = logits(path, module, read, [9])
    assert np.isfinite(whole).all()
    for parts in ([1] * 9, [4, 5]):
        np.testing.assert_array_equal(logits(path, module, read, parts), whole)
    np.testing.assert_array_equal(logits(path, module, read, [4, 1, 4], in_place=True), whole)


@pytest.mark.thorough
def test_a_plan_for_known_sizes_is_refused(tmp_path: Path) -> None:
    path, batch = tiny_file(tmp_path), batch_of(2, 5)
    fixed = compiler.from_onnx(path, shapes={name: a.shape for name, a in batch.items()})
    plan = quantize.calibrate(fixed, [batch])
    with pytest.raises(ConfigError, match="made for another model: it lacks the node 'cosine'"):
        experiments.generate(path, [1], 2, plan=plan)


@pytest.mark.thorough
def test_a_format_without_underflow_reads_id_by_id(tmp_path: Path) -> None:
    path, ids = tiny_file(tmp_path), [3, 299, 0, 3, 41]
    module = pipeline.retype(imported(path), schemes.number_format("posit8_es0", None, None))
    decoder = decoders.interface(path)
    reader = FedBack(compiler.build(module), decoder, at_once=False)
    np.testing.assert_array_equal(reader.read(ids), logits(path, module, ids, [1] * 5))


def test_formats_that_mask() -> None:
    assert number_systems.masks("float32")
    assert number_systems.masks("bfloat16")
    assert number_systems.masks("float8_e5m2_sat")
    for name in ("posit8_es0", "posit16_es1", "takum8", "float8_e4m3fn", "fixed8_4"):
        assert not number_systems.masks(name)
    assert not number_systems.masks('{"blocks*" = "posit16_es1", "*" = "bfloat16"}')
    assert not number_systems.masks("custom[mine]8")


@pytest.mark.thorough
def test_plans_whose_softmax_does_not_mask_are_read_id_by_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the prompt is read by makes no difference then, as for whole networks in formats."""
    path, batch, found = tiny_file(tmp_path), batch_of(2, 9), []

    class Seen(InPlace):
        def __init__(self, compiled: object, *others: object):
            super().__init__(compiled, *others)
            found.append(self.at_once)

    monkeypatch.setattr(generating, "InPlace", Seen)
    for fields in (
        {"softmax_dtype": "posit8_es0"},
        {"softmax_dtype": "bfloat16"},
        {"overrides": {"blocks*": {"softmax_dtype": "takum8"}}, "key_dtype": "int8"},
    ):
        config = quantize.QConfig(activation_granularity="token", **fields)
        plan = quantize.calibrate(compiler.from_onnx(path), [batch], config)
        experiments.generate(path, [1, 2, 3], 1, plan=plan)
    assert found == [False, True, False]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [LoweringError, UnsupportedError])
def test_caches_that_cannot_grow_where_they_are_are_fed_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    path = tiny_file(tmp_path, layers=1)
    want = experiments.generate(path, [1, 2, 3], 4)

    def refused(*_: object) -> None:
        raise kind("it joins the positions of a cache with another axis")

    monkeypatch.setattr(compiler, "decoder", refused)
    found = experiments.generate(path, [1, 2, 3], 4)
    assert (found.ids, found.cache, want.cache) == (want.ids, "fed back", "in place")


# ---- what ships ----------------------------------------------------------------------------------
@pytest.mark.thorough
def test_the_shipped_model_writes_python(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["generate", "stdlib_lm", "--prompt", "import os\nimport ", "--tokens", "24", "--json"]
    assert run_command(line) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "import" in facts["text"]
    assert facts["prompt_ids"][0] == 256
    again = experiments.generate("stdlib_lm", "import os\nimport ", 24, threads=2)
    assert list(again.ids) == facts["ids"]
    with pytest.raises(DtypelabError, match=r"need 260 positions, but stdlib_lm\.onnx has 256"):
        experiments.generate("stdlib_lm", [1], 260)


@pytest.mark.slow
def test_ten_thousand_ids_take_no_more_memory() -> None:
    import resource

    experiments.generate("stdlib_lm", [256], 600, temperature=1.0, slide=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = experiments.generate("stdlib_lm", [256], 10_000, temperature=1.0, slide=True)
    assert len(found.ids) == 10_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB


@pytest.mark.thorough
def test_the_shipped_model_predicts_what_it_has_not_seen() -> None:
    data = datasets.load("stdlib_text").for_model(model_files.model_file("stdlib_lm"))
    path = model_files.model_file("stdlib_lm")
    part = data.x[np.arange(0, 256, 32)]
    shapes = part.sample.shapes(len(part))
    found = compiler.build(model_files.load_model(path, shapes))(part.call())[0]
    y = data.y[::32]
    shifted = found.astype(np.float64) - found.max(-1, keepdims=True)
    chances = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    loss = -np.log(np.take_along_axis(chances, y[..., None], -1)).mean()
    assert 2.3 < loss < 2.9
