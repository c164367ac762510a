"""EliminateCommonSubexpr: what is computed twice is computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from compiler.ir.draws import random_type
from compiler.ir.effects import effectful
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Construct,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    atom_type,
    operands,
)
from compiler.op.opdef import OpDef
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter


class ConstantKeys:
    """Keys of constants, equal where dtype, shape and every bit are. Arrays are read to their ends
    only when another one starts like them."""

    def __init__(self) -> None:
        self._keys: dict[Constant, Hashable] = {}
        self._first: dict[Hashable, Constant] = {}

    def key(self, c: Constant) -> Hashable:
        """The key of `c`."""
        if c not in self._keys:
            start = (c.dtype, c.data.shape, c.data.reshape(-1)[:64].tobytes())
            first = self._first.setdefault(start, c)
            same = first is not c and _digest(first) == _digest(c)
            self._keys[c] = (start, b"" if same or first is c else _digest(c))
        return self._keys[c]


def _digest(c: Constant) -> bytes:
    return hashlib.blake2b(c.data.tobytes(), digest_size=16).digest()


def _key(b: Binding, constants: ConstantKeys) -> Hashable | None:
    """Equal for values that are equal; None: there is none like it."""
    v = b.value
    if not isinstance(v, Call | Tuple | TupleGetItem | Construct) or effectful(v):
        return None
    if random_type(atom_type(b.var)):
        return None  # no two are the same

    def atom(a: Atom) -> Hashable:
        return a if isinstance(a, Var) else constants.key(a)

    what: Hashable = None
    if isinstance(v, Call):
        if not isinstance(v.op, OpDef):
            return None
        what = (v.op, v.attrs, repr(v.attrs))  # 0.0 equals -0.0, but does not read like it
    elif isinstance(v, TupleGetItem):
        what = v.index
    elif isinstance(v, Construct):
        what = v.constructor
    return (what, atom_type(b.var), *map(atom, operands(v)))


def eliminate_common(f: Function) -> Function:
    """`f` with equal values computed once (the same object if none are)."""
    r, constants = Rewriter(f), ConstantKeys()
    known: dict[Hashable, Var] = {}
    for b in map(r.read, f.bindings):
        key = _key(b, constants)
        if key is not None and key in known and r.alias(b, known[key]):
            continue
        r.keep(b)
        if key is not None:
            known.setdefault(key, b.var)
    return r.finish()


class EliminateCommonSubexpr(FunctionPass):
    """Merges calls of one operator with equal attributes on equal operands, equal tuples and equal
    data.

    Constants are equal if all their bits are. Calls with effects stay, and so does what rounds
    stochastically: two such values differ.
    """

    name = "EliminateCommonSubexpr"
    opt_level = 3
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """See eliminate_common."""
        return eliminate_common(f)
