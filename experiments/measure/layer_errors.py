"""Per-layer error: every intermediate value of a network against its float32 twin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import InputError

from .metrics import cosine, farthest, sqnr_db
from .traced import traced

if TYPE_CHECKING:
    from compiler.ir.expr import Binding, IRModule
    from datatypes.custom.events import Events


@dataclass(frozen=True)
class LayerError:
    """How far one value is from its float32 twin, over all its elements.

    `events` counts what its operations lost, if that was asked for.
    """

    value: str
    operator: str
    origins: tuple[str, ...]
    shape: tuple[int, ...]
    sqnr_db: float
    cosine: float
    max_abs_error: float
    events: Events | None = None


def layer_errors(
    reference: IRModule, variant: IRModule, inputs: Sequence[Any], events: bool = False
) -> list[LayerError]:
    """Run both modules on the same inputs (in order) as the interpreter does, compare values of
    the same name.

    With `events`, the overflows, underflows, NaNs and absorbed additions of `variant` are counted
    too; those of a cast belong to the value that follows.

    Values of custom formats are decoded first. Values that only one module has (casts at the
    boundary, integer internals) have no twin and are left out. Order: that of the variant.

    Raises:
        InputError: the inputs do not fit or are empty, or no value is common to both modules.
    """
    from compiler.interpret.graph import trace
    from datatypes.custom.events import counting

    arrays = [x for x in inputs if np.ndim(x)]
    # The past of a decoder may be empty, examples may not be none.
    if any(len(x) == 0 for x in arrays) or (arrays and not any(np.size(x) for x in arrays)):
        raise InputError("the inputs are empty: give at least one to compare on")
    known = _floats(trace(reference, *inputs))
    twins = {binding.var.name: (binding, value) for binding, value in known}
    errors = []
    with counting(variant) if events else nullcontext() as counts:
        # Events are counted where the interpreter computes.
        ran = trace(variant, *inputs) if events else traced(variant, inputs)
        for binding, value in _floats(ran):
            twin, expected = twins.get(binding.var.name, (binding, None))
            if expected is None or expected.shape != value.shape:
                continue
            errors.append(
                LayerError(
                    value=twin.var.name,
                    operator=_operator(twin),
                    origins=twin.origins,
                    shape=value.shape,
                    sqnr_db=sqnr_db(value, expected),
                    cosine=cosine(value, expected),
                    max_abs_error=farthest(value, expected),
                    events=counts.taken() if counts is not None else None,
                )
            )
    if not errors:
        raise InputError("the two programs have no floating-point value of the same name")
    return errors


def _floats(values: Iterable[tuple[Binding, Any]]) -> Iterator[tuple[Binding, Any]]:
    """Every binding that holds a non-empty real tensor, with its values as float64."""
    from compiler.types.dtypes import custom
    from compiler.types.tensor_types import TensorType

    for binding, value in values:
        kind = binding.var.type
        if not isinstance(kind, TensorType) or not np.size(value):
            continue
        if kind.dtype.is_custom:
            yield binding, custom(kind.dtype.name).decode(value, kind.dtype)
        elif kind.dtype.is_float:
            yield binding, np.asarray(value, dtype=np.float64)


def _operator(binding: Binding) -> str:
    return str(getattr(getattr(binding.value, "op", None), "name", type(binding.value).__name__))
