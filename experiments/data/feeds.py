"""Arrays for a network with any number of inputs: what has a row for every example, what has none.

An array belongs to the input of its name. Of n examples

- the array of an input has n rows, and calls take some of them at a time ("rows");
- or it has an axis more than the input: each of its n items is a whole input of the network, which
  then takes one example at a time ("each");
- or it goes whole into every call ("whole"): scalars such as a sample rate, and what has the size
  that the model fixes, such as a state of zeros, or a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InputError, unknown

if TYPE_CHECKING:
    from compiler.types.tensor_types import TensorType

Array = NDArray[Any]
#: An array with a row for every example, or a `Feed`.
Examples: TypeAlias = Any
ROWS, EACH, WHOLE = "rows", "each", "whole"


@dataclass(frozen=True)
class Sample:
    """What one example is: for every input, in order, its name, how it is fed, and the dimensions
    of a row, an item, or the whole."""

    parts: tuple[tuple[str, str, tuple[int, ...]], ...]

    @property
    def one_by_one(self) -> bool:
        """Whether a call takes one example."""
        return any(kind == EACH for _, kind, _ in self.parts)

    @property
    def ties(self) -> bool:
        """Whether something goes whole that might have the size of a batch inside."""
        return any(kind == WHOLE and dims for _, kind, dims in self.parts)

    def shapes(self, batch: int | str) -> tuple[tuple[str, tuple[int | str | None, ...]], ...]:
        """The shapes of a call's inputs, as `model_files.load_model` takes them."""
        return tuple((n, (batch, *dims) if k == ROWS else dims) for n, k, dims in self.parts)


@dataclass(frozen=True, eq=False)
class Feed:
    """n examples: `arrays` and `kinds` by input name, in the model's order.

    It has a length, and slices or index arrays take some examples, as of an array.
    """

    arrays: Mapping[str, Array]
    kinds: Mapping[str, str]
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, chosen: slice | Array) -> Feed:
        count = len(np.arange(self.count)[chosen])
        arrays = {n: a if self.kinds[n] == WHOLE else a[chosen] for n, a in self.arrays.items()}
        return Feed(arrays, self.kinds, count)

    @property
    def sample(self) -> Sample:
        """What one example is."""
        return Sample(
            tuple(
                (n, self.kinds[n], a.shape if self.kinds[n] == WHOLE else a.shape[1:])
                for n, a in self.arrays.items()
            )
        )

    @property
    def elements(self) -> int:
        """Elements of one example."""
        sizes = (int(np.prod(dims)) for _, kind, dims in self.sample.parts if kind != WHOLE)
        return max(1, sum(sizes))

    @property
    def stacked(self) -> bool:
        """Whether calls take one example, and know of no rows: no result is a row then."""
        return ROWS not in self.kinds.values()

    def call(self) -> dict[str, Array]:
        """The inputs of one call with all examples; see `Sample.one_by_one`."""
        return {n: a[0] if self.kinds[n] == EACH else a for n, a in self.arrays.items()}

    def batches(self, size: int) -> Iterator[Feed]:
        """Consecutive examples, `size` at a time, the last ones possibly fewer."""
        for start in range(0, self.count, size):
            yield self[start : start + size]


def sample_of(x: Examples) -> tuple[int, ...] | Sample:
    """What one example of some is: of an array, its shape."""
    return x.sample if isinstance(x, Feed) else tuple(x.shape[1:])


def elements_of(x: Examples) -> int:
    """Elements of one example of some."""
    return x.elements if isinstance(x, Feed) else max(1, int(np.prod(x.shape[1:])))


def call_of(x: Examples) -> Array | dict[str, Array]:
    """What an executable is called with for all examples of some."""
    return x.call() if isinstance(x, Feed) else x


def filled(x: Examples, count: int) -> Examples:
    """`count` examples: the last one is repeated.

    Raises:
        InputError: there is none.
    """
    if not len(x):
        raise InputError("there are no inputs: give at least one")
    return x[np.minimum(np.arange(count), len(x) - 1)]


def feed_of(types: Mapping[str, TensorType], arrays: Mapping[str, Array], what: str) -> Feed:
    """The examples that arrays by input name are.

    Args:
        types: of the model's inputs, sizes of a batch open.
        arrays: exactly one for every input.
        what: holds them, for errors.

    Raises:
        InputError: an array is missing, is no input, or has another rank or number of rows.
    """
    for name in arrays:
        if name not in types:
            raise InputError(f"{what}: {unknown('input', name, types)}")
    missing = [name for name in types if name not in arrays]
    if missing:
        raise InputError(
            f"{what} has no array for input {', '.join(map(repr, missing))} of the model; it holds "
            f"{', '.join(map(repr, arrays)) or 'none'}"
        )
    given = {name: np.asarray(arrays[name]) for name in types}
    kinds = {name: _kind(name, t, given[name], what) for name, t in types.items()}
    if not {ROWS, EACH} & set(kinds.values()):  # exactly what the model takes: all is one batch
        size = next((a.shape[0] for a in given.values() if a.ndim), 1)
        kinds |= {n: ROWS for n, a in given.items() if a.ndim and len(a) == size}
        return Feed(given, kinds, size)
    lengths = {n: len(given[n]) for n, kind in kinds.items() if kind != WHOLE}
    first = next((n for n, size in lengths.items() if size > 1), next(iter(lengths)))
    for name, size in lengths.items():
        if size == lengths[first]:
            continue
        if size != 1 and not _apart(types, name, first, kinds):
            raise InputError(
                f"{what}: input {name!r} has {size} rows, but {first!r} has {lengths[first]}"
            )
        if kinds[name] == EACH:
            given[name] = given[name][0]
        kinds[name] = WHOLE
    return Feed(given, kinds, lengths[first])


def _kind(name: str, t: TensorType, a: Array, what: str) -> str:
    if a.ndim == t.rank + 1:
        return EACH
    if a.ndim != t.rank:
        from compiler.types.tensor_types import shape_text

        raise InputError(
            f"{what}: input {name!r} must have rank {t.rank}, shape {shape_text(t.shape)}, not "
            f"{shape_text(a.shape)}"
        )
    return WHOLE if t.rank == 0 or t.shape[0] == len(a) else ROWS


def _apart(
    types: Mapping[str, TensorType], name: str, first: str, kinds: Mapping[str, str]
) -> bool:
    """Whether the first dimension of an input is another symbol than the batch's."""
    if kinds[name] != ROWS or kinds[first] != ROWS:
        return False
    own, batch = types[name].shape[0], types[first].shape[0]
    return not isinstance(own, int) and own != batch


def run_in_calls(call: Callable[[Examples], Sequence[Array]], x: Examples, per: int) -> list[Array]:
    """All results for all examples, `per` at a time, the last ones filled up.

    Results that have a row for every example are joined; those of several calls that have none are
    stacked, a call to an item. Of one call they are as they are.
    """
    if len(x) == per:
        return [np.asarray(r) for r in call(x)]
    stacked = isinstance(x, Feed) and x.stacked
    found: list[list[Array]] = []
    for start in range(0, len(x), per):
        part = x[start : start + per]
        results = [np.asarray(r) for r in call(filled(part, per))]
        rows = [r.shape[:1] == (per,) and not stacked for r in results]
        items = zip(results, rows, strict=True)
        found.append([r[: len(part)] if own else r[None] for r, own in items])
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]
