"""CombineParallelConv2D, CombineParallelDense, CombineParallelBatchMatmul: several products of the
same data become one, whose result is split.

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
from compiler.op.facts import Contraction
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, call, op_of, typed, union


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
    """Combines calls of an operator, of any that `combines` takes, on the same data.

    Args:
        min_num_branches: fewer are left apart.

    Raises:
        ConfigError: a number below 2.
    """

    opt_level = 4
    required = ("InferType",)

    def __init__(self, min_num_branches: int = 3):
        if min_num_branches < 2:
            raise ConfigError(f"{self.name} combines at least 2 branches, not {min_num_branches}")
        self.min_num_branches = min_num_branches

    def combines(self, of: Contraction) -> bool:
        """Whether these contractions are combined."""
        raise NotImplementedError(f"{self.name} does not say what it combines")

    def branch(self, call: Call, of: Contraction) -> Branch | None:
        """How such a call combines with others like it; None: not at all. Of layers, weights and
        biases are joined along the output channels."""
        a, (units, *rest) = call.attrs, tensor_type(call.args[1]).shape
        laid_out = getattr(a, "out_layout", "NCHW") != "NCHW"
        if getattr(a, "groups", 1) != 1 or laid_out or not isinstance(units, int):
            return None
        last = of.channels % tensor_type(call.args[0]).rank
        return Branch((tuple(rest), len(call.args)), (of.units, 0), last, units)

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
            op = op_of(v)
            if not isinstance(v, Call) or op is None or op.contraction is None:
                continue
            if not self.combines(op.contraction) or random_dtype(tensor_type(b.var).dtype):
                continue
            branch = self.branch(v, op.contraction)
            if branch is None:
                continue
            types = tuple(tensor_type(a).dtype for a in v.args)
            group = found.setdefault((v.args[0], op, v.attrs, types, branch.like), [])
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


class CombineParallelConv2D(CombineParallel):
    """Combines convolutions without groups that differ in weights, bias and channels only, as in
    Inception's blocks."""

    name = "CombineParallelConv2D"

    def combines(self, of: Contraction) -> bool:
        """Convolutions."""
        return of.by_rows and of.kernel > 0


class CombineParallelDense(CombineParallel):
    """Combines dense layers that differ in weights, bias and units only, as in attention's
    queries, keys and values."""

    name = "CombineParallelDense"

    def combines(self, of: Contraction) -> bool:
        """Layers without a kernel."""
        return of.by_rows and not of.kernel


class CombineParallelBatchMatmul(CombineParallel):
    """Combines (batched) matrix products whose first operand is the same and whose second ones
    differ in values and columns only."""

    name = "CombineParallelBatchMatmul"

    def combines(self, of: Contraction) -> bool:
        """Products of matrices."""
        return not of.by_rows

    def branch(self, call: Call, of: Contraction) -> Branch | None:
        """Second operands are joined along their columns."""
        data, second = (tensor_type(a) for a in call.args)
        *rest, columns = second.shape
        if second.rank < 2 or not isinstance(columns, int):
            return None
        last = max(data.rank, second.rank) - 1 if data.rank > 1 else second.rank - 2
        return Branch(tuple(rest), (of.units % second.rank,), last, columns)
