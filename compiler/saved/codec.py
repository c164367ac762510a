"""Plain data classes as JSON. What is not in the list of classes is neither written nor read."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from compiler.boundary.assumptions import Assumption
from compiler.boundary.external import External
from compiler.codegen.kernel_abi import Launch, Stage, index_from_json, index_to_json
from compiler.codegen.steps import Pointer, Step
from compiler.decoding.caches import Cache, Kept
from compiler.lowering.choose import DtypeLowering
from compiler.symbolic import Index, Var
from compiler.types.data import Constructor, TypeDef
from compiler.types.dtypes import DType
from compiler.types.tensor_types import DataType, FuncType, TensorType, TupleType, TypeVar
from compiler.vm import bytecode

_CLASSES: dict[str, type] = {
    c.__name__: c
    for c in (
        Assumption, Cache, Constructor, DataType, DType, DtypeLowering, External, FuncType, Kept,
        Launch, Pointer, Stage, Step, TensorType, TupleType, TypeDef, TypeVar, bytecode.VMFunction,
        *bytecode.INSTRUCTIONS,
    )
}  # fmt: skip


def encode(value: Any) -> Any:
    """`value` as what JSON has: an object of a class becomes `{class: [fields]}`.

    Raises:
        TypeError: it holds something that has no form here.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [encode(x) for x in value]
    if isinstance(value, Var):
        return {"Dim": value.name}
    if isinstance(value, Index):
        return {"Index": index_to_json(value)}
    name = type(value).__name__
    if not is_dataclass(value) or _CLASSES.get(name) is not type(value):
        raise TypeError(f"{name} cannot be saved")
    return {name: [encode(getattr(value, f.name)) for f in fields(value)]}


def decode(value: Any) -> Any:
    """The inverse of `encode`; lists become tuples.

    Raises:
        ValueError, TypeError: this is nothing that `encode` makes.
    """
    if isinstance(value, list):
        return tuple(map(decode, value))
    if not isinstance(value, dict):
        return value
    ((name, given),) = value.items()
    if name == "Dim":
        return Var(str(given))
    if name == "Index":
        return index_from_json(given)
    if name not in _CLASSES:
        raise ValueError(f"there is no class {name!r} here")
    return _CLASSES[name](*map(decode, given))
