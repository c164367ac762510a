"""What tells the model of a plan from others."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from compiler.ir.expr import Call, Constant, IRModule, Var
from compiler.op.opdef import OpDef, Quantized

_PLAIN = (bool, float, str)
_known: WeakKeyDictionary[IRModule, str] = WeakKeyDictionary()


def fingerprint_of(module: IRModule) -> str:
    """SHA-256 of a prepared module, in hexadecimal.

    It is that of the operators in order with what they read, of the attributes that are numbers or
    words, and of the weights and other attributes of weighted operators. Shapes are left out, and
    what follows from them: a plan holds for every batch size and image size of its model, also
    where calls are not there for some of them (see `may_vanish`). What was found once of a module,
    which does not change, is known.
    """
    if module not in _known:
        _known[module] = _fingerprint(module)
    return _known[module]


def has_fingerprint(module: IRModule, given: str) -> bool:
    """Whether this is the fingerprint of a prepared module, or the one that plans were given before
    calls that may vanish were left out."""
    return given in (fingerprint_of(module), _fingerprint(module, whole=True))


def may_vanish(op: str, call: Call | None = None) -> bool:
    """Whether an operator (or a certain call of it) is in a model with open sizes, but not in the
    same one with given sizes: what is assumed of sizes, and slices, which may take all there is."""
    if op == "strided_slice":
        return call is None or all(s == 1 for s in call.attrs.strides)
    return op == "assume"


def _fingerprint(module: IRModule, whole: bool = False) -> str:
    h = hashlib.sha256()
    f = module.main
    for p in f.params:
        h.update(f"input {p.name}\n".encode())
    seen: dict[Var, str] = {}  # the result of a call that may vanish -> name of its operand
    for b in f.bindings:
        if not isinstance(b.value, Call):
            continue
        op, attrs = b.value.op, b.value.attrs
        weighted = isinstance(op, OpDef) and op.quantized == Quantized.WEIGHTED
        read = [seen.get(a, a.name) for a in b.value.args if isinstance(a, Var)]
        if not whole and isinstance(op, OpDef) and may_vanish(op.name, b.value) and read:
            seen[b.var] = read[0]
            continue
        known = _values(attrs, (*_PLAIN, int, tuple) if weighted else _PLAIN)
        name = getattr(op, "name", "function")
        h.update(f"{b.var.name} {name} {' '.join(read)} {sorted(known.items())}\n".encode())
        for a in b.value.args:
            if weighted and isinstance(a, Constant):
                h.update(f"{a.data.dtype} {a.data.shape}\n".encode())
                h.update(np.ascontiguousarray(a.data).data)
    return h.hexdigest()


def _values(attrs: Any, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The attributes of some kinds; padding may follow from the size of images."""
    names = [f.name for f in fields(attrs) if f.name != "padding"] if is_dataclass(attrs) else []
    return {n: getattr(attrs, n) for n in names if isinstance(getattr(attrs, n), kinds)}
