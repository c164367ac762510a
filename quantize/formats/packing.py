"""Small integers as short text: how a plan, which is plain JSON, holds a choice for every weight.

The text is base64 of the zlib-compressed int8 values, or int16 or int32 if they do not fit. Most
values are 0 and the rest -1 or 1, so that a weight takes one or two bits.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import numpy as np

from compiler.errors import ConfigError
from compiler.types.dtypes import Array

_WIDTHS = {"<i1": 1 << 7, "<i2": 1 << 15, "<i4": 1 << 31}


def packed(values: Array) -> str:
    """Integers within int32, of any shape, as text; empty if all are 0."""
    if not values.any():
        return ""
    largest = np.abs(values.astype(np.int64)).max()
    small = values.astype(next(d for d, end in _WIDTHS.items() if largest < end))
    return base64.b64encode(zlib.compress(small.tobytes(), 9)).decode("ascii")


def unpacked(text: str, size: int) -> Array:
    """The `size` integers that `packed` wrote, as a vector of int8, int16 or int32.

    Raises:
        ConfigError: the text is damaged, or holds another number of integers.
    """
    if not text:
        return np.zeros(size, np.int8)
    try:
        # One byte more than wanted tells a text that holds too much from one that fits.
        data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), 4 * size + 1)
    except (binascii.Error, ValueError, zlib.error) as e:
        raise ConfigError(f"the rounding of weights is damaged ({e}): calibrate again") from None
    if len(data) not in (size, 2 * size, 4 * size):
        raise ConfigError(
            f"the rounding of weights is not that of {size} weights: calibrate again, or delete "
            "the entry to round to nearest"
        )
    return np.frombuffer(data, f"<i{len(data) // max(size, 1) or 1}")
