"""Sums that a way to accumulate reaches only in part: what one node of a model adds up by several
operators that are not one sum (see `compiler.transform.gather_sums`), so that a result of the one
is rounded before the other goes on with it."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.expr import Atom, Binding, Call, Function, IRModule, Var, nested
from compiler.op.opdef import OpDef

#: Operators whose result is a sum of products or terms, nothing else (as that of a softmax is not).
_SUMS = frozenset(
    {
        *("nn.conv2d", "nn.conv2d_transpose", "nn.dense", "nn.matmul", "einsum"),
        *("sum", "mean", "sum_products", "mean_products", "nn.avg_pool2d"),
        *("nn.global_avg_pool2d", "cumsum", "scatter_add"),
    }
)
#: What a sum goes through to another one and is still a part of it.
_THROUGH = frozenset(
    {
        *("multiply", "strided_slice", "nn.pad", "take", "reshape", "transpose", "expand_dims"),
        *("squeeze", "broadcast_to", "concatenate"),
    }
)


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
        name, own = call.op.name, frozenset(b.origins)
        formed = getattr(call.attrs, "accumulate", "sequential") != "sequential"
        is_sum = formed and name in _SUMS
        nodes = frozenset[str]().union(
            *(parts[a] & own for a in call.args if isinstance(a, Var) and a in parts)
        )
        factors = name == "einsum" and formed and len(call.args) > 2
        if (nodes and (is_sum or name in ("add", "subtract"))) or factors:
            yield from ((origin, b.var.name) for origin in sorted(own if factors else nodes))
        if is_sum:
            parts[b.var] = own
        elif nodes and name in _THROUGH:
            parts[b.var] = nodes


def _inner(b: Binding) -> Iterator[Function]:
    yield from nested(b.value)
    if isinstance(b.value, Call) and isinstance(b.value.op, Function):
        yield b.value.op
