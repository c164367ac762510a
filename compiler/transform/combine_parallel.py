"""What the passes that combine parallel products share: several products of the same data become
one, whose result is split.

The terms of each sum, and their order, stay as they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np

from compiler.arithmetic.stochastic import random_dtype
from compiler.errors import ConfigError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    TupleGetItem,
    Var,
    tensor_type,
)
from compiler.op.concatenate import CONCATENATE, SPLIT
from compiler.op.opdef import OpDef
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, call, typed, union


@dataclass(frozen=True)
class Branch:
    """One of several products. `like`: what must be equal for products of the same data to be
    combined; `axes`: along which operands after the data are joined; `split`: the axis of the
    result along which they are taken apart, and `size` its length."""

    like: Hashable
    axes: tuple[int, ...]
    split: int
    size: int


class CombineParallel(FunctionPass):
    """Combines calls of `operator` on the same data.

    Args:
        min_num_branches: fewer are left apart.

    Raises:
        ConfigError: a number below 2.
    """

    opt_level = 4
    required = ("InferType",)
    operator: OpDef

    def __init__(self, min_num_branches: int = 3):
        if min_num_branches < 2:
            raise ConfigError(f"{self.name} combines at least 2 branches, not {min_num_branches}")
        self.min_num_branches = min_num_branches

    def branch(self, call: Call) -> Branch | None:
        """How a call of the operator combines with others like it; None: not at all."""
        raise NotImplementedError(f"{self.name} does not say what it combines")

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with its products combined."""
        groups = self._groups(f)
        if not groups:
            return f
        r = Rewriter(f)
        parts: dict[Var, tuple[Var, int]] = {}
        for b in f.bindings:
            if b.var in groups:
                parts |= _combined(r, groups[b.var])
            if b.var in parts:
                whole, k = parts[b.var]
                r.emit(Binding(b.var, TupleGetItem(whole, k), b.origins))
            else:
                r.keep(b)
        return r.finish()

    def _groups(self, f: Function) -> dict[Var, list[tuple[Binding, Branch]]]:
        """The first product of every group -> the group."""
        place = {b.var: k for k, b in enumerate(f.bindings)}
        found: dict[Hashable, list[tuple[Binding, Branch]]] = {}
        for b in f.bindings:
            v = b.value
            if not isinstance(v, Call) or v.op is not self.operator:
                continue
            branch = None if random_dtype(tensor_type(b.var).dtype) else self.branch(v)
            if branch is None:
                continue
            types = tuple(tensor_type(a).dtype for a in v.args)
            group = found.setdefault((v.args[0], v.attrs, types, branch.like), [])
            first = place[group[0][0].var] if group else place[b.var]
            if all(not isinstance(a, Var) or place.get(a, -1) < first for a in v.args):
                group.append((b, branch))
        return {g[0][0].var: g for g in found.values() if len(g) >= self.min_num_branches}


def _combined(r: Rewriter, group: Sequence[tuple[Binding, Branch]]) -> dict[Var, tuple[Var, int]]:
    """Emit one product for all; each variable -> (the tuple of parts, its place in it)."""
    first, branch = group[0]
    assert isinstance(first.value, Call)
    origins = union(*(b.origins for b, _ in group))
    operands = list(
        zip(*(b.value.args for b, _ in group if isinstance(b.value, Call)), strict=True)
    )
    stem = f"{first.var.name}_combined"

    def joined(atoms: tuple[Atom, ...], axis: int) -> Atom:
        arrays = [a.data for a in atoms if isinstance(a, Constant)]
        if len(arrays) == len(atoms):
            return Constant(np.concatenate(arrays, axis), tensor_type(atoms[0]).dtype)
        value = call(CONCATENATE, *atoms, axis=axis)
        return r.emit(typed(r.fresh(f"{stem}_operand"), value, origins))

    args = (first.value.args[0], *starmap(joined, zip(operands[1:], branch.axes, strict=False)))
    product = r.emit(typed(r.fresh(stem), Call(first.value.op, args, first.value.attrs), origins))
    sizes = tuple(x.size for _, x in group)
    parts = call(SPLIT, product, sizes=sizes, axis=branch.split)
    whole = r.emit(typed(r.fresh(f"{stem}_parts"), parts, origins))
    return {b.var: (whole, k) for k, (b, _) in enumerate(group)}
