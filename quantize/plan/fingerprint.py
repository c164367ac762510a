"""What tells the model of a plan from others."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from compiler.ir.expr import Call, Constant, Function, IRModule, Var
from compiler.op.assume import ASSUME
from compiler.op.opdef import OpDef
from compiler.op.shapes import SHAPE_OF
from compiler.op.slice import STRIDED_SLICE
from quantize.plan.call_facts import Form, form

_PLAIN = (bool, float, str)
_OF_SIZES = ("padding", "partial")
"""Attributes that may follow from the size of images."""
_known: WeakKeyDictionary[IRModule, str] = WeakKeyDictionary()


def fingerprint_of(module: IRModule) -> str:
    """SHA-256 of a prepared module, in hexadecimal.

    It is that of the operators in order with what they read, of the attributes that are numbers or
    words, and of the weights and other attributes of weighted operators. Shapes are left out, and
    what follows from them: a plan holds for every batch size and image size of its model, also
    where calls are not there for some of them (see `may_vanish`), or are constants when sizes are
    given (see `of_sizes`). What was found once of a module, which does not change, is known.
    """
    if module not in _known:
        _known[module] = _fingerprint(module)
    return _known[module]


def has_fingerprint(module: IRModule, given: str) -> bool:
    """Whether this is the fingerprint of a prepared module, or one that plans were given before
    calls that may vanish were left out, or those that are constants when sizes are given."""
    if given == fingerprint_of(module):
        return True
    # One after the other: each reads all weights.
    sized = bool(of_sizes(module.main)) and given == _fingerprint(module, sizes=True)
    return sized or given == _fingerprint(module, whole=True, sizes=True)


def of_sizes(f: Function) -> set[Var]:
    """What is computed without any value of the inputs, from their sizes at most: constants where
    these are given, such as the positions of a detector's anchors."""
    found: set[Var] = set()
    for b in f.bindings:
        if isinstance(b.value, Call) and isinstance(b.value.op, OpDef):
            reads = [a for a in b.value.args if isinstance(a, Var)]
            if b.value.op is SHAPE_OF or all(a in found for a in reads):
                found.add(b.var)
    return found


def may_vanish(op: str, call: Call | None = None) -> bool:
    """Whether an operator (or a certain call of it) is in a model with open sizes, but not in the
    same one with given sizes: what is assumed of sizes, and slices, which may take all there is."""
    if op == STRIDED_SLICE.name:
        return call is None or all(s == 1 for s in call.attrs.strides)
    return op == ASSUME.name


def _fingerprint(module: IRModule, whole: bool = False, sizes: bool = False) -> str:
    """`whole`: with calls that may vanish; `sizes`: with those of what follows from sizes."""
    h = hashlib.sha256()
    f = module.main
    for p in f.params:
        h.update(f"input {p.name}\n".encode())
    seen: dict[Var, str] = {}  # the result of a call that may vanish -> name of its operand
    known_sizes = set() if sizes else of_sizes(f)
    named_sizes = {v.name for v in known_sizes}
    for b in f.bindings:
        if not isinstance(b.value, Call) or b.var in known_sizes:
            continue
        op, attrs = b.value.op, b.value.attrs
        weighted = form(b.value) == Form.WEIGHTED
        read = [seen.get(a, a.name) for a in b.value.args if isinstance(a, Var)]
        read = [name for name in read if name not in named_sizes]
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
    """The attributes of some kinds, without those that may follow from the size of images."""
    all_names = [f.name for f in fields(attrs)] if is_dataclass(attrs) else []
    names = [n for n in all_names if n not in _OF_SIZES]
    return {n: getattr(attrs, n) for n in names if isinstance(getattr(attrs, n), kinds)}
