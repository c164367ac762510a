"""Texts are continued by decoders without a past: how ids are chosen, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_decoders import table_file

import experiments
from compiler.errors import ConfigError, InputError
from experiments.cli.main import run_command
from experiments.generation.sampling import Sampling

SUCCESSOR = np.roll(np.eye(7), 1, axis=1) * 5.0  # after i comes i + 1


# ---- choosing ------------------------------------------------------------------------------------
def test_the_greatest_score_is_taken_and_of_equal_ones_the_smallest_id() -> None:
    greedy = Sampling()
    assert greedy.choose(np.array([1.0, 3.0, 3.0, -np.inf]), greedy.chances()) == 1


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=9), st.integers(0, 99))
def test_one_of_the_best_k_is_taken(scores: list[float], seed: int) -> None:
    for k in (1, 2, len(scores) + 3):
        sampling = Sampling(0.7, k, seed)
        found = sampling.choose(np.array(scores), sampling.chances())
        assert sum(s > scores[found] for s in scores) < k
        assert found == sampling.choose(np.array(scores), sampling.chances())


def test_ids_come_as_often_as_their_scores_say() -> None:
    sampling = Sampling(2.0, None, 3)
    chances, scores = sampling.chances(), np.log([1.0, 4.0, 16.0])
    counts = np.bincount([sampling.choose(scores, chances) for _ in range(7000)], minlength=3)
    np.testing.assert_allclose(counts / 7000, [1 / 7, 2 / 7, 4 / 7], atol=0.02)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300])
def test_temperatures_at_the_ends_choose_without_a_warning(temperature: float) -> None:
    sampling, scores = Sampling(temperature), np.array([-np.inf, 2.0, 3.0, -4.0])
    found = {sampling.choose(scores, sampling.chances()) for _ in range(20)}
    assert found <= ({2} if temperature < 1 else {1, 2, 3})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_of_which_none_is_a_number_are_refused(temperature: float) -> None:
    sampling = Sampling(temperature)
    for scores in (np.full(3, -np.inf), np.zeros(0)):
        with pytest.raises(InputError, match="no id has a score above -infinity"):
            sampling.choose(scores, sampling.chances())


def test_infinite_scores_leave_no_choice_and_nan_is_refused() -> None:
    sampling = Sampling(1.0)
    assert sampling.choose(np.array([0.0, np.inf, 1.0]), sampling.chances()) == 1
    with pytest.raises(InputError, match="hold NaN"):
        sampling.choose(np.array([0.0, np.nan]), sampling.chances())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.5}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"seed": 1.5}, "seed must be an integer, not 1.5"),
        ({"top_k": "3"}, "top_k must be an integer, not '3'"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**fields)


# ---- without a past ------------------------------------------------------------------------------
def test_a_table_of_successors_counts(tmp_path: Path) -> None:
    path = table_file(tmp_path, SUCCESSOR)
    found = experiments.generate(path, [2], 6)
    assert found.ids == (3, 4, 5, 6, 0, 1)
    assert found.text == ""
    assert found.prompt_ids == (2,)
    assert found.tokens_per_s > 0


def test_the_verb_prints_ids_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(table_file(tmp_path, SUCCESSOR))
    assert run_command(["generate", path, "--ids", "5", "--tokens", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "[6, 0, 1]\n"
    assert "3 ids" in printed.err
    line = ["generate", path, "--ids", "1,4", "--tokens", "1", "--json"]
    assert run_command(line) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ids"] == [5]
    assert facts["prompt_ids"] == [1, 4]
    assert facts["tokens_per_s"] is None  # there is none after the first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "give either --prompt or --ids"),
        (["--ids", "1", "--prompt", "a"], "give either --prompt or --ids"),
        (["--ids", "1,x"], "is not ids such as"),
        (["--prompt", "a"], "no tokenizer is known for"),
        (["--ids", "9"], "input 'input_ids' holds 9"),
        (["--ids", "2,-1"], "-1 is no id: ids count from 0"),
        (["--ids", f"{2**63}"], "9223372036854775808 is no id"),
        (["--ids", "1", "--temperature", "-1"], "temperature must be 0 or more"),
        (["--ids", "1", "--slide"], "does not say how many positions it has"),
        (["--ids", "1", "--dtype", "posit8_es0", "--plan", "p.json"], "a number format or a plan"),
        (["--ids", "1", "--plan", "none.json"], "none.json"),
        (["--ids", "1", "--tokens", "0"], "--tokens"),
        (["--ids", "1", "--tokenizer", "none.json"], "cannot read the tokenizer"),
        (["--ids", "1", "--dtype", "posti8"], "posti8"),
        (["--ids", "1", "--dtype", "nvfp4"], "nvfp4 needs calibration: quantize the model first"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: list[str], message: str
) -> None:
    path = str(table_file(tmp_path, SUCCESSOR))
    assert run_command(["generate", path, *line]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_what_is_no_decoder_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no input 'input_ids'; its inputs are 'input'"):
        experiments.generate("mnist_mlp", [1])
    with pytest.raises(ConfigError, match="no output 'logits'; its outputs are 'scores'"):
        experiments.generate(table_file(tmp_path, SUCCESSOR, logits="scores"), [1])
    with pytest.raises(ConfigError, match=r"'logits' is a Tensor.*, not scores"):
        experiments.generate("stdlib_encoder", [1])
    with pytest.raises(ConfigError, match="the prompt is empty"):
        experiments.generate(table_file(tmp_path, SUCCESSOR), [])
    with pytest.raises(ConfigError, match=r"tokens must be an integer, not 2\.5"):
        experiments.generate(table_file(tmp_path, SUCCESSOR), [1], 2.5)
    with pytest.raises(InputError, match="neither text nor ids"):
        experiments.generate(table_file(tmp_path, SUCCESSOR), [1.5])
