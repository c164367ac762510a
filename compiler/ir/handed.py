"""Regions that an engine computes from a form of its own: calls of a registered function whose
first operand holds what is to be computed, so that texts and files of programs are whole.

The operand is bytes: SHA-256 of what follows, the length of a label as 4 bytes, the label (which
names the nodes), and the engine's own form of the region.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from compiler.errors import ModelError
from compiler.ir.expr import Binding, Call, Constant, Function, IRModule, nested
from compiler.ir.function_calls import Callee, is_callee
from compiler.ir.regions import Region
from compiler.types.dtypes import UINT8, Array

ENGINES = ("onnxruntime",)
"""Engines that regions in their own form are for; their functions are called `ENGINE.NAME`."""
DIGEST = 32
_LENGTH = 4


def encoded(label: str, form: bytes) -> Array:
    """A region as the bytes that are the first operand."""
    text = label.encode()
    rest = len(text).to_bytes(_LENGTH, "little") + text + form
    return np.frombuffer(hashlib.sha256(rest).digest() + rest, np.uint8)


def decoded(region: Array) -> tuple[str, bytes]:
    """The label and the form of a region.

    Raises:
        ModelError: the bytes are not what `encoded` makes.
    """
    rest = region[DIGEST:].tobytes()
    if hashlib.sha256(rest).digest() != region[:DIGEST].tobytes():
        raise ModelError("a region of an engine is damaged: its bytes are not what was imported")
    end = _LENGTH + int.from_bytes(rest[:_LENGTH], "little")
    return rest[_LENGTH:end].decode(), rest[end:]


def engine_of(value: object) -> str:
    """The engine that a call hands its first operand to; empty if it is no such call."""
    if not is_callee(value) or not isinstance(value.attrs, Callee) or not value.args:
        return ""
    engine = value.attrs.func.partition(".")[0]
    first = value.args[0]
    is_region = isinstance(first, Constant) and first.dtype == UINT8 and first.data.ndim == 1
    return engine if engine in ENGINES and is_region else ""


def label_of(value: Call) -> str:
    """What a call hands to an engine, in words that fit into a comment; empty if damaged."""
    first = value.args[0]
    assert isinstance(first, Constant)
    try:
        return decoded(first.data)[0].replace("*/", "* /")
    except (ModelError, UnicodeDecodeError):
        return ""


def handed(mod: IRModule) -> tuple[Region, ...]:
    """What was handed to engines as a module was imported: for each region the variable that it
    fills, the engine, and the nodes of the model."""
    found = {}
    for f in mod.functions.values():
        for b in _bindings(f) if isinstance(f, Function) else ():
            if engine := engine_of(b.value):
                first = b.value.args[0] if isinstance(b.value, Call) else None
                assert isinstance(first, Constant)
                key = first.data[:DIGEST].tobytes()
                found[key] = Region(b.var.name, engine, b.origins)
    return tuple(found.values())


def _bindings(f: Function) -> Iterator[Binding]:
    for b in f.bindings:
        yield b
        for g in nested(b.value):
            yield from _bindings(g)
