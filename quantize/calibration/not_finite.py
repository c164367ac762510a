"""Which node of a network makes values that are not finite."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.errors import InputError
from compiler.ir.expr import Binding, Function, IRModule, Var, operands
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType
from quantize.calibration.running import Runner


def not_finite(module: IRModule, name: str, inputs: Mapping[str, Array], batch: int) -> InputError:
    """The error to raise where a value holds NaN or infinity.

    It names the first node that does, in program order, among those that the value depends on.

    Args:
        module: the module that was run.
        name: the value: an input, or the result of a binding.
        inputs: the batch that gave rise to it; batch: its number.
    """
    start = f"calibration batch {batch}:"
    if name in inputs:
        return InputError(f"{start} input {name!r} holds NaN or infinity; clean the data")
    found = _first(module, name, inputs)
    origins = f" (ONNX node {', '.join(map(repr, found.origins))})" if found.origins else ""
    return InputError(
        f"{start} the value %{found.var.name}{origins} is the first that holds NaN or infinity; "
        "clean the data, or mend the model there"
    )


def _first(module: IRModule, name: str, inputs: Mapping[str, Array]) -> Binding:
    """The first binding with such a value that `name` depends on; its own if none shows it."""
    needed = _needed(module.main, name)
    wanted = [b for b in needed if isinstance(b.var.type, TensorType)]
    values = Runner(module, [b.var for b in wanted], threads=1)(inputs)
    for b, value in zip(wanted, values, strict=True):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return b
    return needed[-1]


def _needed(f: Function, name: str) -> list[Binding]:
    """The bindings that the value called `name` depends on, with its own last."""
    wanted: set[Var] = set()
    found: list[Binding] = []
    for b in reversed(f.bindings):
        if b.var.name == name or b.var in wanted:
            found.append(b)
            wanted |= {a for a in operands(b.value) if isinstance(a, Var)}
    return found[::-1]
