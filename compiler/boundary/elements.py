"""Arrays of element types that numpy does not have: those of the package ml_dtypes.

A model may declare inputs and outputs as bfloat16, as floats of 8 or 4 bits, or as integers of 4 or
2 bits. Inside a program those are codes, or int8 and uint8; what goes in and what comes out are
arrays of ml_dtypes' types of the same names. The importer notes in `mod.attrs[ELEMENTS]` what a
model declares; modules made otherwise, with custom datatypes at their boundary, take codes and give
codes. Codes of the right width are taken everywhere.

What is no tensor of numbers (strings, sequences, optional values, which an engine computes with) is
bytes inside (`compiler.boundary.packed`), and goes in and comes out as arrays of str, as lists,
None, dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from compiler.boundary.packed import is_packed, pack, unpack
from compiler.errors import InputError
from compiler.ir.expr import IRModule, atom_type
from compiler.types.dtypes import INT8, UINT8, Array, DType, custom
from compiler.types.tensor_types import TensorType

ELEMENTS = "element_types"
"""Attribute of modules: {"inputs": [...], "outputs": [...]}, the name of an element type that numpy
does not have for each of them, or nothing."""

FORMATS = (
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float4_e2m1fn", "float8_e8m0fnu",
)  # fmt: skip
"""Floats that models declare and numpy does not have; custom datatypes of the same names."""

NARROW = {"int4": INT8, "int2": INT8, "uint4": UINT8, "uint2": UINT8}
"""Integers that are held in bytes."""


@dataclass(frozen=True)
class Elements:
    """The element types of a program's inputs and outputs that numpy does not have, in order; ""
    for others."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def packs(self) -> bool:
        """Whether an input is no tensor of numbers."""
        return any(map(is_packed, self.inputs))

    def packed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given for the inputs, by their names and in order, with bytes for what is no
        tensor of numbers, unless bytes are given.

        Raises:
            InputError: a value is none of the type that is declared.
        """
        both = zip(given.items(), self.inputs, strict=True)
        return {
            name: pack(x, kind, f"input {name!r}") if is_packed(kind) and not _is_bytes(x) else x
            for (name, x), kind in both
        }

    def check(self, names: Sequence[str], arrays: Sequence[Array]) -> None:
        """Raise InputError if integers held in bytes are none of the type that is declared."""
        for element, name, a in zip(self.inputs, names, arrays, strict=False):
            if element in NARROW and a.size:
                low, high = _bounds(element)
                outside = [x for x in (int(a.min()), int(a.max())) if not low <= x <= high]
                if outside:
                    raise InputError(f"input {name!r} must be {element}, which has no {outside[0]}")

    def given(self, outs: Sequence[Any]) -> list[Any]:
        """The results as arrays of the types that the model declares."""
        if not any(self.outputs):
            return list(outs)
        return [
            _as_declared(a, element) if element else a
            for a, element in zip(outs, self.outputs, strict=True)
        ]


def elements_of(mod: IRModule) -> Elements:
    """What `mod` declares of the inputs and outputs of `main`, where it still is true of them."""
    noted = mod.attrs.get(ELEMENTS)
    if not noted:
        return Elements()
    f = mod.main
    inputs, outputs = [p.type for p in f.params], [atom_type(r) for r in f.results]
    return elements_among(noted["inputs"], noted["outputs"], inputs, outputs)


def elements_among(
    inputs: Sequence[str], outputs: Sequence[str], given: Sequence[Any], results: Sequence[Any]
) -> Elements:
    """The element types noted of inputs and outputs, where these types hold them."""
    return Elements(_held(given, inputs), _held(results, outputs))


def stored(a: Array, dtype: DType) -> Array:
    """An array of a type of ml_dtypes as a program holds `dtype`, if it is of the same type, or one
    of ml_dtypes' integers; other arrays as they are.

    numpy writes arrays of ml_dtypes to files as bytes without a type (V2): they are taken too.
    """
    name = element_name(a.dtype)
    if name in NARROW:
        return a.astype(NARROW[name].storage)
    untyped = a.dtype == np.dtype((np.void, dtype.nbytes))
    if dtype.is_custom and not dtype.form and (name == dtype.name or untyped):
        return a.view(dtype.storage)
    return a


def element_name(dtype: np.dtype[Any]) -> str:
    """Name of a dtype of ml_dtypes; empty for any other."""
    return dtype.name if dtype.type.__module__ == "ml_dtypes" else ""


def numbers(a: Array) -> Array:
    """An array of a type of ml_dtypes as float32, or int8 or uint8, which hold all its values;
    other arrays as they are."""
    name = element_name(a.dtype)
    if not name:
        return a
    with np.errstate(invalid="ignore"):  # of some NaNs
        return a.astype(NARROW[name].storage if name in NARROW else np.float32)


def exact_codes(a: Array, dtype: DType) -> Array:
    """Codes of floats, as they come from a file, if each of them is a number of the custom `dtype`;
    other arrays as they are."""
    if not dtype.is_custom or a.dtype.kind != "f":
        return a
    kind = custom(dtype.name)
    codes = kind.encode(a, dtype)
    same = np.array_equal(kind.decode(codes, dtype), a.astype(np.float64), equal_nan=True)
    return codes if same else a


def _is_bytes(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.uint8


def _held(types: Sequence[Any], noted: Sequence[str]) -> tuple[str, ...]:
    if len(types) != len(noted):
        return ("",) * len(types)
    return tuple(
        element if isinstance(t, TensorType) and _holds(t.dtype, element) else ""
        for t, element in zip(types, noted, strict=True)
    )


def _holds(dtype: DType, element: str) -> bool:
    if is_packed(element):
        return dtype == UINT8
    return dtype == NARROW[element] if element in NARROW else dtype.name == element in FORMATS


def _as_declared(a: Array, element: str) -> Any:
    if is_packed(element):
        return unpack(a, element)
    dtype = _ml_dtype(element)
    return a.astype(dtype) if element in NARROW else a.view(dtype)


@cache
def _ml_dtype(element: str) -> np.dtype[Any]:
    import ml_dtypes

    scalar: type[np.generic] = getattr(ml_dtypes, element)
    return np.dtype(scalar)


@cache
def _bounds(element: str) -> tuple[int, int]:
    import ml_dtypes

    info = ml_dtypes.iinfo(getattr(ml_dtypes, element))
    return int(info.min), int(info.max)
