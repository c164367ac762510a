"""What of arrays by name has a row for every example, and what goes whole into every call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import InputError
from compiler.symbolic import Var
from compiler.types.tensor_types import TensorType
from experiments.feeds import (
    EACH,
    ROWS,
    UNKNOWN,
    WHOLE,
    Feed,
    elements_of,
    feed_of,
    filled,
    run_in_calls,
)

N, OTHER = Var("n"), Var("m")
TYPES = {
    "audio": TensorType.of((N, 4), "float32"),
    "state": TensorType.of((2, N, 3), "float32"),
    "rate": TensorType.of((), "int64"),
}


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("arrays", "kinds", "count"),
    [
        ((zeros(5, 4), zeros(2, 1, 3), np.array(1)), (ROWS, WHOLE, WHOLE), 5),
        ((zeros(5, 4), zeros(5, 2, 1, 3), np.arange(5)), (ROWS, EACH, EACH), 5),
        ((zeros(5, 4), zeros(1, 2, 1, 3), np.array([1])), (ROWS, WHOLE, WHOLE), 5),
        ((zeros(1, 4), zeros(2, 1, 3), np.array(1)), (ROWS, ROWS, WHOLE), 1),
        ((zeros(5, 4), zeros(2, 5, 3), np.array(1)), (ROWS, ROWS, WHOLE), 5),
        ((zeros(2, 4), zeros(2, 2, 3), np.array(1)), (ROWS, ROWS, WHOLE), 2),
        ((zeros(5, 1, 4), zeros(5, 2, 1, 3), np.array(1)), (EACH, EACH, WHOLE), 5),
    ],
)
def test_kinds(arrays: tuple[np.ndarray, ...], kinds: tuple[str, ...], count: int) -> None:
    feed = feed_of(TYPES, dict(zip(TYPES, arrays, strict=True)), "data")
    assert tuple(feed.kinds.values()) == kinds
    assert len(feed) == count
    for part in feed.batches(1):
        ranks = [a.ndim for a in part.call().values()]
        assert ranks == [2, 3, 0]


def test_a_model_of_fixed_sizes_takes_all_of_them_as_one_batch() -> None:
    types = {"a": TensorType.of((4, 3), "float32"), "b": TensorType.of((2, 3), "float32")}
    feed = feed_of(types, {"a": zeros(4, 3), "b": zeros(2, 3)}, "data")
    assert (feed.kinds, len(feed)) == ({"a": ROWS, "b": WHOLE}, 4)
    feed = feed_of(types, {"a": zeros(8, 3), "b": zeros(2, 3)}, "data")
    assert (feed.kinds, len(feed)) == ({"a": ROWS, "b": WHOLE}, 8)


def test_another_symbol_is_no_batch() -> None:
    types = {"a": TensorType.of((N, 3), "float32"), "b": TensorType.of((OTHER,), "float32")}
    feed = feed_of(types, {"a": zeros(4, 3), "b": zeros(7)}, "data")
    assert feed.kinds == {"a": ROWS, "b": WHOLE}
    types["b"] = TensorType.of((N,), "float32")
    with pytest.raises(InputError, match="input 'b' has 7 rows, but 'a' has 4"):
        feed_of(types, {"a": zeros(4, 3), "b": zeros(7)}, "data")


@given(st.integers(1, 7), st.integers(1, 4), st.booleans())
def test_results_do_not_depend_on_the_size_of_calls(count: int, per: int, each: bool) -> None:
    audio = np.arange(4.0 * count, dtype=np.float32).reshape(count, 4)
    state = np.full((2, 1, 3), 2, np.float32)
    arrays = {"audio": audio, "state": state, "rate": np.array(3)}
    if each:
        per, arrays["rate"] = 1, np.full(count, 3)
    feed = feed_of(TYPES, arrays, "data")

    def network(part: Feed) -> list[np.ndarray]:
        given = part.call()
        assert given["audio"].shape == (per, 4)
        return [given["audio"].sum(axis=1) * given["rate"] + given["state"].sum(axis=(0, 2))]

    (found,) = run_in_calls(network, feed, per)
    assert np.array_equal(found, audio.sum(axis=1) * 3 + 12)


def test_results_without_rows_are_stacked() -> None:
    feed = feed_of(TYPES, {"audio": zeros(3, 4), "state": zeros(2, 1, 3), "rate": np.array(1)}, "")
    rows, states = run_in_calls(lambda part: [zeros(1, 5), zeros(2, 1, 3)], feed, 1)
    assert (rows.shape, states.shape) == ((3, 5), (3, 2, 1, 3))
    (state,) = run_in_calls(lambda part: [zeros(2, 1, 3)], feed[:1], 1)
    assert state.shape == (2, 1, 3)


def test_the_last_examples_are_filled_up() -> None:
    x = np.arange(3)
    assert filled(x, 5).tolist() == [0, 1, 2, 2, 2]
    feed = feed_of({"x": TensorType.of((N,), "int64")}, {"x": x}, "data")
    assert filled(feed, 5).arrays["x"].tolist() == [0, 1, 2, 2, 2]
    assert elements_of(feed) == elements_of(x) == 1


@given(st.integers(1, 7), st.integers(1, 4))
def test_rows_are_along_the_axis_of_the_batch(count: int, per: int) -> None:
    generator = np.random.default_rng(count)
    audio, state = generator.random((count, 4)), generator.random((2, count, 3))
    feed = feed_of(TYPES, {"audio": audio, "state": state, "rate": np.array(3)}, "data")
    assert (feed.axis("state"), feed.sample.shape("state", "N")) == (1, (2, "N", 3))

    def network(part: Feed) -> list[np.ndarray]:
        given = part.call()
        assert given["state"].shape == (2, per, 3)
        return [given["audio"].sum(axis=1) + given["state"].sum(axis=(0, 2)), given["state"] + 1]

    rows, states = run_in_calls(network, feed, per, (0, 1))
    assert np.allclose(rows, audio.sum(axis=1) + state.sum(axis=(0, 2)))
    assert np.array_equal(states, state + 1)


def test_the_batch_behind_a_fixed_axis_must_be_that_of_the_others() -> None:
    arrays = {"audio": zeros(5, 4), "state": zeros(2, 3, 3), "rate": np.array(1)}
    with pytest.raises(InputError, match=r"'state' has 3 rows \(axis 1\), but 'audio' has 5"):
        feed_of(TYPES, arrays, "data")
    types = {**TYPES, "state": TensorType.of((2, OTHER, 3), "float32")}
    assert feed_of(types, arrays, "data").kinds["state"] == WHOLE
    arrays["state"] = zeros(2, 5, 3)
    assert feed_of(types, arrays, "data", {OTHER}).kinds["state"] == ROWS


def test_a_result_without_rows_is_stacked_whatever_its_size() -> None:
    feed = feed_of({"x": TensorType.of((N,), "int64")}, {"x": np.arange(4)}, "data")
    results = run_in_calls(lambda part: [np.ones(2), np.ones((2, 3))], feed, 2, (None, UNKNOWN))
    assert [r.shape for r in results] == [(2, 2), (4, 3)]
