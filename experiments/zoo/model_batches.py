"""Models for batches of a size: which sizes they take, and which results have a row for every
example."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import DtypelabError, InputError
from experiments.feeds import ROWS, UNKNOWN, Feed, Sample
from experiments.zoo.model_files import Stamps, inputs_of, interface_of, load_model, stamps_of

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule

#: What the batch is called where it is left open.
_BATCH = "N"


def result_axes(path: Path, sample_shape: tuple[int, ...] | Sample) -> tuple[int | None, ...]:
    """The axis of every result that has a row for every example: None of a result that has none,
    such as a constant, UNKNOWN where its sizes are found while it runs, or the model is made for
    one size of the batch; empty if nothing is known of any."""
    if _declared_batch(path, sample_shape) is not None:
        return ()
    if _only_batch(path, sample_shape, stamps_of(path)) is not None:
        return ()
    return _result_axes(path, sample_shape, stamps_of(path))


@lru_cache(maxsize=64)
def _result_axes(
    path: Path, sample_shape: tuple[int, ...] | Sample, stamps: Stamps
) -> tuple[int | None, ...]:
    from compiler.ir.expr import atom_type
    from compiler.symbolic import Index
    from compiler.types.tensor_types import TensorType

    try:
        module = load_for_batch(path, sample_shape, _BATCH)
    except DtypelabError:  # not for any batch
        return ()
    inputs = {
        v.name for t in inputs_of(module).values() for d in t.shape for v in Index.of(d).vars()
    }
    found: list[int | None] = []
    for t in map(atom_type, module.main.results):
        assert isinstance(t, TensorType)
        names = [{v.name for v in Index.of(d).vars()} for d in t.shape]
        at = [axis for axis, d in enumerate(t.shape) if str(d) == _BATCH]
        if at:
            found.append(at[0])
        else:
            found.append(UNKNOWN if any(n - inputs for n in names) else None)
    return tuple(found)


def result_elements(
    path: Path, sample_shape: tuple[int, ...] | Sample, batch: int, output: str = ""
) -> int:
    """Elements that an output (the first, without a name) has for one example; sizes that are only
    known while the model runs count as 1."""
    from compiler.ir.expr import atom_type
    from compiler.types.tensor_types import TensorType

    module = load_for_batch(path, sample_shape, batch)
    names = list(module.attrs.get("outputs", ()))
    kind = atom_type(module.main.results[names.index(output) if output else 0])
    assert isinstance(kind, TensorType)
    sizes = [d for d in kind.shape if isinstance(d, int)]
    return max(1, math.prod(sizes) // batch)


def load_for_batch(
    path: Path, sample_shape: tuple[int, ...] | Sample, batch: int | str
) -> IRModule:
    """Import a model for a batch of examples; a string names a symbolic size. Of a model with a
    single input, [batch, *sample_shape], the shape of one is enough.

    Raises:
        DtypelabError: as `load_model`, or the model has several inputs, but there is one array.
    """
    if isinstance(sample_shape, Sample):
        return load_model(path, sample_shape.shapes(batch))
    names = list(interface_of(path).inputs)
    if len(names) != 1:
        raise InputError(
            f"{path.name} has the inputs {', '.join(map(repr, names))}: give data with an array "
            "for each of them, by these names"
        )
    return load_model(path, ((names[0], (batch, *sample_shape)),))


def _declared_batch(path: Path, sample_shape: tuple[int, ...] | Sample) -> int | None:
    """The number of examples that the model declares, None where it is open."""
    declared = interface_of(path).inputs
    rows = [(dims, 0) for dims in [*declared.values()][:1]]
    if isinstance(sample_shape, Sample):
        at = dict(sample_shape.axes)
        parts = [name for name, kind, _ in sample_shape.parts if kind == ROWS]
        rows = [(declared.get(name), at.get(name, 0)) for name in parts]
    return next((d[at] for d, at in rows if d and d[at] is not None), None)


def per_call(path: Path, feed: Feed) -> int | None:
    """The number of examples of a call, as the model declares it, or what it does to them or goes
    whole into every call wants it; None for any number."""
    if feed.sample.one_by_one:
        return 1
    declared = _declared_batch(path, feed.sample)
    if declared is not None:
        return declared
    if not feed.sample.ties:
        return _only_batch(path, feed.sample, stamps_of(path))
    if _takes(path, feed.sample, len(feed) + 1):
        return None
    return len(feed) if _takes(path, feed.sample, len(feed)) else 1


def fixed_batch(path: Path, sample_shape: tuple[int, ...] | Sample) -> int | None:
    """The number of examples of a call, if the model can be imported for no other one."""
    sample = sample_shape if isinstance(sample_shape, Sample) else Sample(())
    if sample.one_by_one:
        return 1
    first = _declared_batch(path, sample_shape)
    if first is None and sample.ties:
        first = 1  # what goes whole may be made for one
    elif first is None:
        return _only_batch(path, sample_shape, stamps_of(path))
    return None if first is None or _takes(path, sample_shape, first + 1) else first


@lru_cache(maxsize=64)
def _only_batch(path: Path, sample_shape: tuple[int, ...] | Sample, stamps: Stamps) -> int | None:
    """The number of examples that a model which declares none takes for granted all the same, for
    example by a reshape to sizes that it fixes; None where several fit."""
    from compiler.boundary.assumptions import assumptions, only_size

    try:
        return only_size(assumptions(load_for_batch(path, sample_shape, "N")), "N")
    except DtypelabError:  # running it will say why
        return None


def _takes(path: Path, sample_shape: tuple[int, ...] | Sample, batch: int) -> bool:
    """Whether a model can be imported for a batch, and has a row for every example then: a reshape
    to a size that it fixes may make other things of them."""
    from compiler.ir.expr import atom_type
    from compiler.types.tensor_types import TensorType

    try:
        results = map(atom_type, load_for_batch(path, sample_shape, batch).main.results)
    except DtypelabError:
        return False
    return any(isinstance(t, TensorType) and t.shape[:1] == (batch,) for t in results)


def size_of(path: Path, sample_shape: tuple[int, ...] | Sample) -> tuple[int, int]:
    """Multiply-accumulates of one input, and how many operators there are.

    Raises:
        DtypelabError: as `load_for_batch`.
    """
    return _size_of(path, sample_shape, stamps_of(path))


@lru_cache(maxsize=64)
def _size_of(path: Path, sample_shape: tuple[int, ...] | Sample, stamps: Stamps) -> tuple[int, int]:
    from compiler.transform.analysis import cost
    from compiler.transform.preparation import prepare as prepare_module

    batch = fixed_batch(path, sample_shape) or 1
    size = cost(prepare_module(load_for_batch(path, sample_shape, batch)))
    return size.macs // batch, sum(size.operators.values())
