"""Where the elements of arrays are.

`a.ctypes.data` takes microseconds, which is most of what a call of a small kernel takes. An array
of numpy is a `PyArrayObject` of its C interface, whose first field behind Python's own, `data`, is
that address (numpy's documentation, "Python types and C-structures"). Whether it is so is tried out
once.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from compiler.types.dtypes import Array

_FIELD = object.__basicsize__


def _slow(a: Array) -> int:
    return int(a.ctypes.data)


def _quick(a: Array) -> int:
    return _read(id(a) + _FIELD).value or 0


_read = ctypes.c_size_t.from_address


def _found() -> bool:
    """Whether the field is where it is expected."""
    if sys.implementation.name != "cpython":
        return False
    whole = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    tried: list[Array] = [whole, whole[1:, ::2], whole[0, 0, 1:2], np.asarray(1.5), np.empty(0)]
    return all(_quick(a) == _slow(a) for a in tried)


address = _quick if _found() else _slow
"""The address of the first element of an array."""
