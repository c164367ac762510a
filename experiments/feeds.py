"""Arrays for a network with any number of inputs: what has a row for every example, what has none.

An array belongs to the input of its name. Of n examples

- the array of an input has n rows, and calls take some of them at a time ("rows"): along its first
  axis, or along the one to which the model gives the size of the batch: a state [2, batch, 128];
- or it has an axis more than the input: each of its n items is a whole input of the network, which
  then takes one example at a time ("each");
- or it goes whole into every call ("whole"): scalars such as a sample rate, and what has the size
  that the model fixes, such as a state of zeros, or a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InputError, unknown
from compiler.symbolic import Dim, Var

if TYPE_CHECKING:
    from compiler.types.tensor_types import TensorType

Array = NDArray[Any]
#: An array with a row for every example, or a `Feed`.
Examples: TypeAlias = Any
ROWS, EACH, WHOLE = "rows", "each", "whole"
#: In place of the axis of a result's rows: only running the model shows whether it has any.
UNKNOWN = -1


@dataclass(frozen=True)
class Sample:
    """What one example is: for every input, in order, its name, how it is fed, and the dimensions
    of a row, an item, or the whole. `axes`: that of the rows of those where it is not the first."""

    parts: tuple[tuple[str, str, tuple[int, ...]], ...]
    axes: tuple[tuple[str, int], ...] = ()

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
        return tuple((n, self.shape(n, batch)) for n, _, _ in self.parts)

    def shape(self, name: str, batch: int | str | None) -> tuple[int | str | None, ...]:
        """The shape of one of them in a call."""
        kind, dims = next((kind, dims) for n, kind, dims in self.parts if n == name)
        at = dict(self.axes).get(name, 0)
        return (*dims[:at], batch, *dims[at:]) if kind == ROWS else dims


@dataclass(frozen=True, eq=False)
class Feed:
    """n examples: `arrays` and `kinds` by input name, in the model's order; `axes` of the rows of
    those where it is not the first.

    It has a length, and slices or index arrays take some examples, as of an array.
    """

    arrays: Mapping[str, Array]
    kinds: Mapping[str, str]
    count: int
    axes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, chosen: slice | Array) -> Feed:
        count = len(np.arange(self.count)[chosen])
        arrays = {
            n: a if self.kinds[n] == WHOLE else a[_along(self.axis(n), chosen)]
            for n, a in self.arrays.items()
        }
        return replace(self, arrays=arrays, count=count)

    def axis(self, name: str) -> int:
        """Which axis of an input's array has the examples, if one has."""
        return self.axes.get(name, 0)

    @property
    def sample(self) -> Sample:
        """What one example is."""
        parts = []
        for n, a in self.arrays.items():
            at = self.axis(n)
            whole = self.kinds[n] == WHOLE
            parts.append((n, self.kinds[n], a.shape if whole else a.shape[:at] + a.shape[at + 1 :]))
        return Sample(tuple(parts), tuple(self.axes.items()))

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


def _along(axis: int, chosen: slice | Array) -> tuple[slice | Array, ...]:
    """The index that takes some of an axis."""
    return (*[slice(None)] * axis, chosen)


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


def batch_of(types: Mapping[str, TensorType]) -> Dim | None:
    """The symbol of a model's batch: the open first dimension of the first input that has one."""
    firsts = (t.shape[0] for t in types.values() if t.rank)
    return next((d for d in firsts if isinstance(d, Var)), None)


def inner_batches(types: Mapping[str, TensorType], alike: Collection[Dim] = ()) -> dict[str, int]:
    """Input -> the axis that has the batch's symbol (or one of those `alike`), of inputs whose
    first axis has a fixed size, such as a state [layers, batch, features]."""
    batch = batch_of(types)
    wanted = {batch, *alike} if batch is not None else set()
    found = {}
    for name, t in types.items():
        if t.rank and isinstance(t.shape[0], int):
            at = [axis for axis, d in enumerate(t.shape) if d in wanted]
            found.update({name: at[0]} if len(at) == 1 else {})
    return found


def feed_of(
    types: Mapping[str, TensorType],
    arrays: Mapping[str, Array],
    what: str,
    alike: Collection[Dim] = (),
) -> Feed:
    """The examples that arrays by input name are.

    Args:
        types: of the model's inputs, sizes of a batch open.
        arrays: exactly one for every input.
        what: holds them, for errors.
        alike: dimensions that are the batch's by another name.

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
    inner = inner_batches(types, alike)
    kinds = {name: _kind(name, t, given[name], what, name in inner) for name, t in types.items()}
    if not {ROWS, EACH} & set(kinds.values()):  # exactly what the model takes: all is one batch
        size = next((a.shape[0] for a in given.values() if a.ndim), 1)
        kinds |= {n: ROWS for n, a in given.items() if a.ndim and len(a) == size}
        return Feed(given, kinds, size)
    at = {n: axis for n, axis in inner.items() if kinds[n] == ROWS}
    lengths = {n: given[n].shape[at.get(n, 0)] for n, kind in kinds.items() if kind != WHOLE}
    first = next((n for n, size in lengths.items() if size > 1), next(iter(lengths)))
    for name, size in lengths.items():
        if size == lengths[first]:
            continue
        if size != 1 and not _apart(types, name, first, kinds):
            rows = f"{size} rows" + (f" (axis {at[name]})" if name in at else "")
            raise InputError(
                f"{what}: input {name!r} has {rows}, but {first!r} has {lengths[first]}"
            )
        if kinds[name] == EACH:
            given[name] = given[name][0]
        kinds[name] = WHOLE
    return Feed(given, kinds, lengths[first], {n: x for n, x in at.items() if kinds[n] == ROWS})


def _kind(name: str, t: TensorType, a: Array, what: str, inner: bool) -> str:
    if a.ndim == t.rank + 1:
        return EACH
    if a.ndim != t.rank:
        from compiler.types.tensor_types import shape_text

        raise InputError(
            f"{what}: input {name!r} must have rank {t.rank}, shape {shape_text(t.shape)}, not "
            f"{shape_text(a.shape)}"
        )
    return ROWS if inner or (t.rank and t.shape[0] != len(a)) else WHOLE


def _apart(
    types: Mapping[str, TensorType], name: str, first: str, kinds: Mapping[str, str]
) -> bool:
    """Whether the first dimension of an input is another symbol than the batch's."""
    if kinds[name] != ROWS or kinds[first] != ROWS:
        return False
    own, batch = types[name].shape[0], types[first].shape[0]
    return not isinstance(own, int) and not isinstance(batch, int) and own != batch


def run_in_calls(
    call: Callable[[Examples], Sequence[Array]],
    x: Examples,
    per: int,
    axes: Sequence[int | None] = (),
) -> list[Array]:
    """All results for all examples, `per` at a time, the last ones filled up.

    Results that have a row for every example are joined; those of several calls that have none are
    stacked, a call to an item. Of one call they are as they are.

    Args:
        axes: that of every result's rows, None if it has none (see `model_batches.result_axes`);
            what is UNKNOWN, or not said, has rows if its first size is that of the call.
    """
    if len(x) == per:
        return [np.asarray(r) for r in call(x)]
    stacked = isinstance(x, Feed) and x.stacked
    found: list[list[Array]] = []
    at: list[int | None] = []
    for start in range(0, len(x), per):
        part = x[start : start + per]
        results = [np.asarray(r) for r in call(filled(part, per))]
        known = axes or (UNKNOWN,) * len(results)
        at = [None if stacked else rows_at(r, k, per) for r, k in zip(results, known, strict=True)]
        items = zip(results, at, strict=True)
        found.append([r[None] if k is None else r[_along(k, slice(len(part)))] for r, k in items])
    joined = zip(zip(*found, strict=True), at, strict=True)
    return [np.concatenate(parts, axis=k or 0) for parts, k in joined]


def rows_at(result: Array, axis: int | None, per: int) -> int | None:
    """The axis of the rows of a call of `per` examples in a result, None if it has none."""
    if axis == UNKNOWN:
        return 0 if result.shape[:1] == (per,) else None
    return axis
