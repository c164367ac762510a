"""Sums that a way to accumulate reaches only in part: what one node of a model adds up by several
operators that are not one sum (see `compiler.transform.gather_sums`), so that a result of the one
is rounded before the other goes on with it."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.expr import Atom, Binding, Call, Function, IRModule, Var, nested
from compiler.op.einsum import EINSUM
from compiler.op.elementwise import MULTIPLY
from compiler.op.facts import IntegerForm
from compiler.op.opdef import OpDef

_SUMS = (IntegerForm.SUM, IntegerForm.DIFFERENCE)
"""Operators that add two operands."""


def partial_sums(mod: IRModule) -> dict[str, tuple[str, ...]]:
    """Node of the imported model -> the values that add to a rounded part of the same node's sum,
    though its sums are not accumulated sequentially; also einsum of three factors and more, of
    which the first products are rounded.

    Raises:
        compiler.errors.TypeInferenceError: types have not been inferred.
    """
    found: dict[str, list[str]] = {}
    for f in mod.functions.values():
        if isinstance(f, Function):
            for origin, name in _found(f):
                found.setdefault(origin, []).append(name)
    return {origin: tuple(dict.fromkeys(names)) for origin, names in found.items()}


def _found(f: Function) -> Iterator[tuple[str, str]]:
    """Node and value of every sum that goes on with a part."""
    parts: dict[Atom, frozenset[str]] = {}
    for b in f.bindings:
        call = b.value
        for g in _inner(b):
            yield from _found(g)
        if not isinstance(call, Call) or not isinstance(call.op, OpDef):
            continue
        op, own = call.op, frozenset(b.origins)
        formed = getattr(call.attrs, "accumulate", "sequential") != "sequential"
        is_sum = formed and op.summation is not None and op.summation.holds(call.attrs)
        nodes = frozenset[str]().union(
            *(parts[a] & own for a in call.args if isinstance(a, Var) and a in parts)
        )
        factors = is_sum and op is EINSUM and len(call.args) > 2
        if (nodes and (is_sum or op.integer_form in _SUMS)) or factors:
            yield from ((origin, b.var.name) for origin in sorted(own if factors else nodes))
        if is_sum:
            parts[b.var] = own
        elif nodes and (op is MULTIPLY or op.moves is not None):  # still a part of a sum
            parts[b.var] = nodes


def _inner(b: Binding) -> Iterator[Function]:
    yield from nested(b.value)
    if isinstance(b.value, Call) and isinstance(b.value.op, Function):
        yield b.value.op
