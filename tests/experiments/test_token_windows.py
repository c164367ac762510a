"""Long texts, judged window by window, in memory that does not grow with them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import two_input_decoders
from hypothesis import given, settings
from hypothesis import strategies as st

import experiments
from compiler.errors import InputError
from experiments.data.token_windows import IGNORED, token_windows
from experiments.measure import tokens
from experiments.running import batchwise, work


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_token_is_judged_once_with_what_is_before_it(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 9))
    stride = data.draw(st.integers(1, length))
    size = data.draw(st.integers(length + 1, 40))
    ids = np.arange(100, 100 + size, dtype=np.int32)  # a token is its place
    found = token_windows(ids, length, stride)
    x, y = found["input_ids"], found["y"]
    assert x.shape == y.shape
    assert x.shape[1] == length
    counted = y != IGNORED
    assert (y[counted] == x[counted] + 1).all()
    assert sorted(y[counted]) == list(ids[1:])
    # Behind the first window, a token has at least length - stride before it.
    places = np.nonzero(counted[1:])[1]
    assert not len(places) or places.min() >= length - stride


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.arange(4), 4), "a length of at most 3"),
        ((np.arange(9), 4, 5), "a stride is 1 to the length of a window, 4, not 5"),
        ((np.arange(9), 4, 0), "not 0"),
        ((np.zeros((2, 9), int), 4), "int64[2, 9]"),
        ((np.zeros(9), 4), "float64[9]"),
        ((np.arange(9), 1.5), "the sizes of windows are integers, not 1.5"),
        ((np.arange(9), 4, "2"), "integers, not '2'"),
        ((np.array([2**63, 1], np.uint64), 1), "the token 9223372036854775808 is beyond int64"),
    ],
)
def test_texts_that_do_not_fit(arguments: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        token_windows(*arguments)
    assert message in str(refused.value)


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of all windows are 16 and 64 MiB."""
    vocabulary, length = 2048, 32
    monkeypatch.setattr(two_input_decoders, "VOCABULARY", vocabulary)
    onnx.save(two_input_decoders.decoder(mask=False, hidden=False), tmp_path / "m.onnx")
    monkeypatch.setattr(batchwise, "KEPT_BYTES", 2**20)
    monkeypatch.setattr(work, "EVAL_ELEMENTS", 2**17)
    peaks, judge = [], tokens.token_sums

    def traced(*arguments: Any) -> Any:  # from the first batch on: compiling is slow when traced
        tracemalloc.start()
        return judge(*arguments)

    monkeypatch.setattr(tokens, "token_sums", traced)
    for windows in (64, 256):
        ids = np.random.default_rng(0).integers(0, vocabulary, windows * length + 1)
        np.savez(tmp_path / f"{windows}.npz", **token_windows(ids, length))
        spec = {"models": [str(tmp_path / "m.onnx")], "schemes": ["bfloat16"]}
        spec |= {"dataset": str(tmp_path / f"{windows}.npz"), "latency": {"runs": 0}}
        table = experiments.sweep(spec, tmp_path / f"{windows}.csv")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert table["status"].tolist() == ["ok"], table["error"].tolist()
        assert table["tokens"].tolist() == [windows * length]
    # 48 MiB of scores more; what a bootstrap over windows takes is bounded too.
    assert peaks[1] - peaks[0] < 12 * 2**20, peaks
    assert peaks[1] < 24 * 2**20, peaks
