"""Values that are no tensors of numbers, as bytes: strings, sequences, optional values and maps.

A program holds a tensor of strings as uint8 with one axis more: UTF-8, filled up with 255, which no
UTF-8 has. Everything else is a vector of bytes: the length of a header as int64, the header (JSON:
what the value is made of), and the arrays' own bytes in order. Types are written as onnxruntime
writes them: `tensor(string)`, `seq(tensor(float))`, `optional(seq(tensor(int64)))`,
`map(int64,tensor(float))`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.errors import InputError
from compiler.types.dtypes import Array

STRING = "tensor(string)"
_FILL = 255
_NUMPY = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool",
    **{f"{u}int{n}": f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
"""Names of element types in the types' text -> numpy's."""


def is_packed(kind: str) -> bool:
    """Whether values of a type are held as bytes."""
    return kind == STRING or kind.startswith(("seq(", "optional(", "map("))


def pack(value: Any, kind: str, what: str) -> Array:
    """A value of a type as bytes; see the module.

    Args:
        value: array-like for tensors, of str for those of strings; a list for a sequence, a dict
            for a map, None for an optional value that is not there.
        kind: its type, as text.
        what: how errors name it.

    Raises:
        InputError: it is no such value.
    """
    if kind == STRING:
        return strings_packed(value, what)
    parts: list[bytes] = []
    header = json.dumps(_packed(value, kind, what, parts)).encode()
    return np.frombuffer(
        b"".join([len(header).to_bytes(8, "little"), header, *parts]), np.uint8
    ).copy()


def unpack(data: Array, kind: str) -> Any:
    """The value that `pack` made bytes of: arrays (of str objects, for strings), lists, dicts,
    None.

    Raises:
        InputError: the bytes are none that `pack` makes.
    """
    if kind == STRING:
        return strings_unpacked(data)
    whole = np.ascontiguousarray(data).tobytes()
    try:
        end = 8 + int.from_bytes(whole[:8], "little")
        at = end

        def take(size: int) -> bytes:
            nonlocal at
            at += size
            return whole[at - size : at]

        return _unpacked(json.loads(whole[8:end]), take)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise InputError(f"bytes that hold no value of the type {kind}") from None


def strings_packed(value: Any, what: str) -> Array:
    """An array of str as uint8 [*shape, bytes of the longest, at least 1].

    Raises:
        InputError: an element is no str.
    """
    # A list goes through objects: numpy's own strings lose NULs at their ends.
    a = value if isinstance(value, np.ndarray) else np.asarray(value, object)
    if a.dtype.kind not in "UTSO":
        raise InputError(f"{what} must be an array of str, not of {a.dtype}")
    encoded = []
    for x in a.reshape(-1).tolist():
        if isinstance(x, bytes):  # what numpy's S holds: text already encoded
            x = x.decode(errors="surrogateescape")
        if not isinstance(x, str):
            raise InputError(f"{what} must be an array of str, and holds a {type(x).__name__}")
        try:
            encoded.append(x.encode())
        except UnicodeEncodeError:
            raise InputError(f"{what} holds {x!r:.60}, which is no text in UTF-8") from None
    width = max([1, *map(len, encoded)])
    filled = b"".join(e.ljust(width, bytes([_FILL])) for e in encoded)
    return np.frombuffer(filled, np.uint8).reshape(*a.shape, width).copy()


def strings_unpacked(data: Array) -> Array:
    """The array of str objects that `strings_packed` made bytes of.

    Raises:
        InputError: it is no UTF-8.
    """
    shape, width = data.shape[:-1], data.shape[-1]
    whole = np.ascontiguousarray(data).tobytes()
    out = np.empty(int(np.prod(shape)), object)
    try:
        for k in range(out.size):
            row = whole[k * width : (k + 1) * width]
            out[k] = row.partition(bytes([_FILL]))[0].decode()
    except UnicodeDecodeError as e:
        raise InputError(f"bytes that are no strings: {e}") from None
    return out.reshape(shape)


def inner(kind: str) -> list[str]:
    """What a type is made of: the element's type of a sequence or optional, key's and value's of a
    map."""
    inside = kind[kind.index("(") + 1 : -1]
    return inside.split(",", 1) if kind.startswith("map(") else [inside]


def _packed(value: Any, kind: str, what: str, parts: list[bytes]) -> Any:
    """The header of a value; its arrays' bytes are appended to `parts`."""
    if kind.startswith("optional("):
        return {"none": 1} if value is None else _packed(value, inner(kind)[0], what, parts)
    if kind.startswith("seq("):
        if not isinstance(value, list | tuple):
            raise InputError(f"{what} must be a list ({kind}), not {type(value).__name__}")
        of = inner(kind)[0]
        each = (_packed(x, of, f"{what}, element {k},", parts) for k, x in enumerate(value))
        return {"list": list(each)}
    if kind.startswith("map("):
        if not isinstance(value, dict):
            raise InputError(f"{what} must be a dict ({kind}), not {type(value).__name__}")
        of = inner(kind)[1]
        if not of.startswith(("tensor(", "seq(", "map(")):
            of = f"tensor({of})"
        return {
            "map": [[k, _packed(x, of, f"{what} at {k!r}", parts)] for k, x in value.items()],
            "scalars": int(not inner(kind)[1].startswith(("tensor(", "seq(", "map("))),
        }
    if kind == STRING:
        a = strings_packed(value, what)
    else:
        a = np.asarray(value)
        wanted = np.dtype(_NUMPY.get(inner(kind)[0], "float32"))
        if inner(kind)[0] not in _NUMPY:
            raise InputError(f"{what} is of the type {kind}, which cannot be given")
        if a.dtype != wanted:
            if not isinstance(value, int | float | bool):  # Python's numbers have no width
                raise InputError(f"{what} must be {wanted}, not {a.dtype}")
            a = a.astype(wanted)
    parts.append(np.ascontiguousarray(a).tobytes())
    return {"dtype": "str" if kind == STRING else a.dtype.str, "shape": list(a.shape)}


def _unpacked(header: Any, take: Callable[[int], bytes]) -> Any:
    if "none" in header:
        return None
    if "list" in header:
        return [_unpacked(h, take) for h in header["list"]]
    if "map" in header:
        values = ((k, _unpacked(h, take)) for k, h in header["map"])
        return {k: x.item() if header["scalars"] else x for k, x in values}
    shape = [int(n) for n in header["shape"]]
    dtype = np.dtype("u1" if header["dtype"] == "str" else header["dtype"])
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError("no array of numbers")
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    a = np.frombuffer(take(size), dtype).reshape(shape).copy()
    return strings_unpacked(a) if header["dtype"] == "str" else a
