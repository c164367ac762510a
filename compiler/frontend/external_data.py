"""Weights in files beside a model: small ones are read, large ones mapped into memory, so that an
import takes no longer, and no more memory, for models of many gigabytes.

Mapped weights are read from the file when they are needed; who changes it meanwhile changes the
model, and who cuts it short stops the process.
"""

from __future__ import annotations

import mmap
import stat
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import ModelError
from compiler.frontend.limits import Budget
from compiler.types.dtypes import Array

SMALLEST_MAPPED = 1 << 20
"""Bytes of the smallest weight that is mapped."""
LONGEST_NAME = 1000


def external_bytes(tensor: Any, folder: Path | None, what: str, size: int, budget: Budget) -> Array:
    """`size` bytes (uint8) from a file in `folder`, read or mapped; they are not written to.

    Raises:
        ModelError: it is no file inside `folder`, or holds fewer bytes.
    """
    info = {e.key: e.value for e in tensor.external_data}
    location = info.get("location", "")
    if len(location) > LONGEST_NAME:
        raise ModelError(f"{what} is stored in a file whose name has {len(location)} characters")
    if folder is None:
        raise ModelError(
            f"{what} is stored in the file {location!r}: give from_onnx the path of the model"
        )
    try:
        root = folder.resolve()
        path = (root / location).resolve()
        if not location or not path.is_relative_to(root):
            raise ModelError(
                f"{what} is stored in {location!r}, outside the model's folder, which is refused: "
                "move the file beside the model"
            )
        offset, length = int(info.get("offset", 0)), int(info.get("length", size))
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{what} is stored in {location!r}, which is not a file")
        if length != size or not 0 <= offset <= status.st_size - size:
            raise ModelError(
                f"{what}: {size} bytes of external data are needed, but the model names {length} "
                f"at {offset} of {location!r}, which has {status.st_size}"
            )
        if size < SMALLEST_MAPPED:
            return np.fromfile(path, np.uint8, size, offset=offset)
        if path not in budget.mapped or budget.mapped[path].size < offset + size:
            # A plain array: results of operations on a memmap would be some, too.
            budget.mapped[path] = np.asarray(np.memmap(path, np.uint8, "r"))
        return budget.mapped[path][offset : offset + size]
    except OSError as e:
        raise ModelError(f"{what} is stored in {location!r}: {e.strerror or e}") from None
    except (ValueError, RuntimeError) as e:  # no number, no path; a loop of links
        raise ModelError(f"{what}: wrong external data record ({e})") from None


def is_mapped(data: Array) -> bool:
    """Whether an array lies in a mapped file."""
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def unpacked(packed: Array, count: int, bits: int, signed: bool) -> Array:
    """`count` integers of 2 or 4 bits, the lowest bits of each byte first, a byte each."""
    per_byte = 8 // bits
    out = np.empty(packed.size * per_byte, np.uint8)
    for k in range(per_byte):
        np.right_shift(packed, k * bits, out=out[k::per_byte])
    out &= (1 << bits) - 1
    out = out[:count]
    if not signed:
        return out
    sign = np.uint8(1 << (bits - 1))
    return np.asarray(np.subtract(out ^ sign, sign, out=out).view(np.int8))
