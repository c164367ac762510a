"""Decoders with caches, as exporters write them: imported with every size open, against
onnxruntime, and against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import LAYERS, MOST, STYLES, Decoder, feeds
from onnx_models import assert_close, run_onnxruntime

import compiler
import datatypes
from compiler.errors import InputError
from compiler.transform import prepare
from compiler.types.dtypes import Array
from experiments.cli.main import run_command
from quantize.annotation.graph import Graph
from quantize.annotation.sites import sites

SIZES = [(2, 3, 4, 0), (1, 1, 7, 0), (1, 4, 0, 0), (2, 1, 5, 2)]
"""Batch, new tokens, cached ones, masked ones."""
MORE = [("script", 17), ("script", 21), ("script", 23), ("graph", 23)]
ALL = [*STYLES.items(), *(pytest.param(*case, marks=pytest.mark.thorough) for case in MORE)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("style", "opset"), ALL)
def test_it_is_what_onnxruntime_computes(style: str, opset: int) -> None:
    proto = Decoder(style, opset).model()
    mod = compiler.from_onnx(proto)
    for sizes in SIZES:
        several = sizes[0] > 1 and sizes[1] > 1 and sizes[2] > 0
        if style == "runtime" and (sizes[3] or several):
            continue  # no case of its operator's
        given = feeds(proto, *sizes)
        got = compiler.evaluate(mod, given)
        assert_close(got, run_onnxruntime(proto, given), 1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("style", STYLES)
def test_one_program_serves_every_length(style: str) -> None:
    proto = Decoder(style).model()
    mod = compiler.from_onnx(proto)
    exe = compiler.build(mod)
    for sizes in SIZES:
        if style == "runtime" and sizes[3]:
            continue
        given = feeds(proto, *sizes)
        assert_close(exe(**given), compiler.evaluate(mod, given), 1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("style", STYLES)
def test_every_style_computes_in_a_number_format(style: str) -> None:
    proto = Decoder(style).model()
    mod = datatypes.change_dtype(compiler.from_onnx(proto), "float32", "posit16_es1")
    exe, given = compiler.build(mod), feeds(proto, 1, 2, 5)
    for a, b in zip(exe(**given), compiler.evaluate(mod, given), strict=True):
        np.testing.assert_array_equal(a, b)


def test_all_styles_are_one_decoder() -> None:
    outputs = []
    for style in STYLES:
        proto = Decoder(style).model()
        outputs.append(compiler.evaluate(compiler.from_onnx(proto), feeds(proto, 1, 2, 5)))
    for other in outputs[1:]:
        assert_close(other, outputs[0], 1e-4)


@pytest.mark.parametrize("style", STYLES)
def test_norms_are_found_in_every_style(style: str) -> None:
    mod = prepare(compiler.from_onnx(Decoder(style).model()))
    names = [str(b.value.op) for b in mod.main.bindings if isinstance(b.value, compiler.Call)]
    assert names.count("nn.rms_norm") == 2 * LAYERS + 1
    assert names.count("nn.softmax") == LAYERS
    assert names.count("nn.matmul") == 2 * LAYERS


@pytest.mark.parametrize("style", STYLES)
def test_keys_and_values_are_found_in_every_style(style: str) -> None:
    mod = prepare(compiler.from_onnx(Decoder(style).model()))
    found = list(sites(Graph(mod.main)).values())
    assert found.count(("activation", "key")) == LAYERS
    assert found.count(("probability", "value")) == LAYERS
    assert found.count(("norm",)) == 2 * LAYERS + 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("style", STYLES)
def test_step_by_step_gives_what_a_whole_sequence_gives(style: str) -> None:
    """Prefill, and then one token after another with the cache that came out."""
    proto = Decoder(style).model()
    mod = compiler.from_onnx(proto)
    whole = feeds(proto, 1, 6, 0)
    logits = compiler.evaluate(mod, whole)[0]
    cache: dict[str, Array] = {k: v for k, v in whole.items() if k.startswith("past")}
    for at in range(6):
        given = {**cache, "input_ids": whole["input_ids"][:, at : at + 1],
                 "attention_mask": np.ones((1, at + 1), np.int64)}  # fmt: skip
        if "position_ids" in whole:
            given["position_ids"] = np.array([[at]])
        step, *present = compiler.evaluate(mod, given)
        np.testing.assert_allclose(step[0, 0], logits[0, at], rtol=1e-4, atol=1e-4)
        cache = dict(zip(cache, present, strict=True))


def wrong(given: dict[str, Array], **changed: Any) -> dict[str, Array]:
    return {**given, **{k: v for k, v in changed.items() if v is not None}}


def test_what_does_not_fit_is_one_sentence() -> None:
    proto = Decoder("script").model()
    mod = compiler.from_onnx(proto)
    given = feeds(proto, 1, 3, 4)
    key = "past_key_values.1.key"
    for bad, said in (
        (wrong(given, position_ids=np.full((1, 3), MOST)), f"'position_ids' holds {MOST}"),
        (wrong(given, **{key: given[key][:, :, :2]}), f"{key!r} is 2, but 4"),
        ({k: v for k, v in given.items() if k != key}, f"missing input {key!r}"),
        (wrong(given, attention_mask=np.ones((1, 9), np.int64)), "past_and_sequence.*9.*7"),
    ):
        with pytest.raises(InputError, match=said) as error:
            compiler.evaluate(mod, bad)
        assert "\n" not in str(error.value)


@pytest.mark.thorough
@pytest.mark.parametrize("style", ["graph", "script"])
def test_it_is_quantized_written_and_compared_with_a_mask_and_an_empty_past(
    style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes that tell numbers apart (isnan, less or equal, and) are written too."""
    proto = Decoder(style).model()
    given = feeds(proto, 3, 6, 0)
    model, data, plan, q = (str(tmp_path / n) for n in ("m.onnx", "d.npz", "p.json", "q.onnx"))
    onnx.save(proto, model)
    np.savez(data, **given)
    assert run_command(["quantize", model, "--calib", data, "-o", q, "--plan", plan]) == 0
    capsys.readouterr()
    written = onnx.load(q)
    want = run_onnxruntime(written, given)
    assert_close(compiler.evaluate(compiler.from_onnx(written), given), want, 0.05)
    line = ["compare", model, "--input", data, "--plan", plan, "--output", "logits", "--json"]
    assert run_command(line) == 0
    layers = {x["value"]: x for x in json.loads(capsys.readouterr().out)["layers"]}
    assert 5 < layers["logits"]["sqnr_db"] < 80
