"""The language model that ships: its graph, its text, and the verbs that take it by name."""

import hashlib
import json
import platform
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_decoders import TINY, empty_past, reference, weights_of

import compiler
from compiler.errors import ConfigError
from experiments import zoo
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.zoo import model_files
from experiments.zoo.language import corpus, learning_merges, ship, tokenizer
from experiments.zoo.language.decoder_graph import decoder_model
from experiments.zoo.language.shape import Shape

TOKENS = zoo.FOLDER / "stdlib_text.tokenizer.json"


@cache
def shipped_tokens() -> tokenizer.Tokenizer:
    """Of the language model."""
    return tokenizer.read(TOKENS)


def onnxruntime_steps(model: bytes, shape: Shape, ids: np.ndarray, per: int) -> np.ndarray:
    """Logits of `per` ids a call, the present fed back as the past."""
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    past, logits = empty_past(shape, len(ids)), []
    for at in range(0, ids.shape[1], per):
        found = session.run(None, {"input_ids": ids[:, at : at + per], **past})
        results = dict(zip(names, found, strict=True))
        logits.append(results.pop("logits"))
        past = {n.replace("present", "past_key_values"): a for n, a in results.items()}
    return np.concatenate(logits, axis=1)


@pytest.mark.parametrize("per", [1, 3, 12])
def test_the_graph_is_the_network_whole_and_in_steps(per: int) -> None:
    weights, ids = weights_of(TINY), np.random.default_rng(1).integers(0, 300, (2, 12))
    model = decoder_model(TINY, weights).SerializeToString(deterministic=True)
    want = reference(TINY, weights, ids)
    found = onnxruntime_steps(model, TINY, ids, per)
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-4)


def test_the_same_weights_give_the_same_bytes() -> None:
    one, two = (
        decoder_model(TINY, weights_of(TINY)).SerializeToString(deterministic=True)
        for _ in range(2)
    )
    assert one == two


@pytest.mark.thorough
def test_the_compiled_model_agrees_with_onnxruntime_at_every_length_of_the_past() -> None:
    data = datasets.load("stdlib_text")
    ids = np.asarray(data.x.arrays["input_ids"])[:2, :12]
    path = model_files.model_file("stdlib_lm")
    executable = compiler.build(compiler.from_onnx(path))
    names = model_files.output_names(path)
    past, logits = empty_past(Shape(), 2), []
    for at in range(0, 12, 4):
        results = dict(zip(names, executable({"input_ids": ids[:, at : at + 4], **past}),
                           strict=True))  # fmt: skip
        logits.append(results.pop("logits"))
        past = {n.replace("present", "past_key_values"): a for n, a in results.items()}
    want = onnxruntime_steps(path.read_bytes(), Shape(), ids, 12)
    np.testing.assert_allclose(np.concatenate(logits, axis=1), want, rtol=0, atol=1e-4)


def test_what_ships_is_small() -> None:
    assert (zoo.FOLDER / "stdlib_lm.onnx").stat().st_size <= 4_000_000
    rest = [path.stat().st_size for path in zoo.FOLDER.glob("stdlib_text.*")]
    assert len(rest) == 4
    assert sum(rest) <= 1_000_000


def test_the_data_are_ids_their_next_ids_and_empty_pasts() -> None:
    data = datasets.load("stdlib_text").for_model(model_files.model_file("stdlib_lm"))
    x = data.x.arrays["input_ids"]
    assert x.shape == data.y.shape == (256, 256)
    np.testing.assert_array_equal(x[:, 1:], data.y[:, :-1])
    assert data.calibration.arrays["input_ids"].shape == (64, 256)
    assert len(data.x) == 256
    assert all(a.size == 0 for n, a in data.x.arrays.items() if n != "input_ids")
    assert zoo.sources()["stdlib_lm"].dataset == "stdlib_text"


def test_ids_are_text_of_the_modules_that_are_held_out() -> None:
    tokens = tokenizer.read(TOKENS)
    text = tokens.decode(datasets.load("stdlib_text").x.arrays["input_ids"].ravel())
    assert "def " in text
    assert text.count("self") > 500
    facts = json.loads((zoo.FOLDER / "stdlib_text.modules.json").read_text())
    paths = [set(part) for part in facts["modules"].values()]
    assert sum(map(len, paths)) == len(set.union(*paths)) > 400
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in (
        zoo.FOLDER / "stdlib_text.licence.txt"
    ).read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_data_are_rebuilt_from_the_interpreter_they_are_of() -> None:
    facts = json.loads((zoo.FOLDER / "stdlib_text.modules.json").read_text())
    modules = list(corpus.modules())
    listed = {p: d for part in facts["modules"].values() for p, d in part.items()}
    if {m.path: m.digest for m in modules} != listed:
        pytest.skip(f"{facts['text']} is not this interpreter's, {platform.python_version()}")
    texts = (m.text for m in modules if m.part == "train")
    tokens = learning_merges.learn(texts, Shape().vocabulary)
    assert tokens == tokenizer.read(TOKENS)
    shipped = datasets.read_npz(zoo.FOLDER / "stdlib_text.npz")
    rebuilt = ship.text_arrays(tokens, Shape())
    assert shipped.keys() == rebuilt.keys()
    for name, array in rebuilt.items():
        np.testing.assert_array_equal(shipped[name], array)


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=60))
def test_text_survives_its_ids(text: bytes) -> None:
    tokens = shipped_tokens()
    assert tokens.decode_bytes(tokens.encode(text)) == text


@given(st.text(max_size=40))
@settings(deadline=None, max_examples=50)
def test_characters_survive_their_ids(text: str) -> None:
    tokens = shipped_tokens()
    assert tokens.decode(tokens.encode(text)) == text


def test_merges_are_applied_in_the_order_they_were_learnt() -> None:
    tokens = learning_merges.learn([b"abab", b"abab\nabab abc"], 259)
    assert tokens.merges == ((97, 98), (257, 257))
    assert tokens.encode("abab abc") == [258, 32, 257, 99]
    assert tokens.size == 259
    assert tokens.pieces[258] == b"abab"


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"merges": 3}', '{"special": [], "pattern": "(", "merges": []}',
     '{"special": [], "pattern": ".", "merges": [[300, 2]]}'],
)  # fmt: skip
def test_a_file_that_is_no_tokenizer_is_said_to_be_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(ConfigError, match="is no tokenizer"):
        tokenizer.read(tmp_path / "t.json")
    with pytest.raises(ConfigError, match="cannot read the tokenizer"):
        tokenizer.read(tmp_path / "none.json")


def test_an_id_that_the_tokenizer_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="id 1024 is none of the tokenizer's 1024"):
        tokenizer.read(TOKENS).decode([1, 1024])


def test_a_module_stays_on_its_side() -> None:
    digest = hashlib.sha256(b"turtle.py").digest()[:8]
    assert int.from_bytes(digest, "big") % 1000 < corpus.HELD_OUT
    assert corpus.Module("turtle.py", b"").part == "held-out"


@pytest.mark.thorough
def test_verbs_take_the_model_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", "stdlib_lm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problem"] == ""
    data = datasets.read_npz(zoo.FOLDER / "stdlib_text.npz")
    few = {n: a[:2] for n, a in data.items()}
    np.savez(tmp_path / "few.npz", **few)
    file, plan = str(tmp_path / "few.npz"), str(tmp_path / "p.json")
    assert run_command(["quantize", "stdlib_lm", "--calib", file, "--plan", plan]) == 0
    compared = ["compare", "stdlib_lm", "--input", file, "--images", "1", "--dtype", "bfloat16"]
    assert run_command(compared) == 0
    assert run_command(["run", "stdlib_lm", "--input", file, "--json"]) == 0
    out = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert out["outputs"]["logits"]["shape"] == [2, 256, 1024]
