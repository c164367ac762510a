"""Long texts in windows that a language model takes, every token judged exactly once."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.errors import InputError

#: The label of tokens that do not count, as torch's cross entropy has it.
IGNORED = -100


def token_windows(
    ids: ArrayLike, length: int, stride: int | None = None
) -> dict[str, NDArray[np.int64]]:
    """A text as the arrays of a data set: `input_ids` and `y`, both [n, length].

    Every token but the first of the text is the label of one place in one window. Windows begin
    `stride` tokens after each other; where they overlap, what an earlier one has judged is context
    (its label is IGNORED), so that a smaller stride judges tokens by more of what is before them
    and takes more windows (sliding windows, as in Press et al., Shortformer, 2021). The last window
    ends with the text.

    Args:
        ids: the tokens of the text [tokens], of integers.
        length: tokens of a window: at most as many positions as the model has.
        stride: 1 to `length`; `length`, windows that do not overlap, if it is not given.

    Raises:
        InputError: the text has no `length` + 1 tokens, or the sizes are none.
    """
    given: NDArray[Any] = np.asarray(ids)
    length, stride = _whole(length), _whole(length if stride is None else stride)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise InputError(f"tokens are a row of integers, not {given.dtype}{list(given.shape)}")
    if given.size and given.max() > np.iinfo(np.int64).max:
        raise InputError(f"the token {given.max()} is beyond int64")
    if not 1 <= stride <= length:
        raise InputError(f"a stride is 1 to the length of a window, {length}, not {stride}")
    last = len(given) - 1 - length
    if last < 0:
        raise InputError(
            f"a text of {len(given)} tokens is shorter than a window of {length} and the token "
            f"after it: give a length of at most {max(0, len(given) - 1)}"
        )
    starts = [*range(0, last, stride), last]
    tokens = given.astype(np.int64)
    x = np.stack([tokens[s : s + length] for s in starts])
    y = np.stack([tokens[s + 1 : s + 1 + length] for s in starts])
    for k in range(1, len(starts)):
        y[k, : length - (starts[k] - starts[k - 1])] = IGNORED
    return {"input_ids": x, "y": y}


def _whole(size: Any) -> int:
    try:
        return operator.index(size)
    except TypeError:
        raise InputError(f"the sizes of windows are integers, not {size!r}") from None
