"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.accumulate import (
    accumulation,
    check_mode,
    finished,
    require_steps,
    staged,
    sums,
)
from compiler.op.common import axis_of, require
from compiler.op.facts import Summation
from compiler.op.gradients import reductions as rules
from compiler.op.opdef import OpDef, register_op
from compiler.op.running_sums import running_sum
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, binary, const
from compiler.tensor.stmt import For, Stmt, Store
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class ScanAttrs:
    """Along `axis`, from its end if `reverse`; `exclusive`: without the element itself."""

    axis: int = 0
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True)
class CumsumAttrs(ScanAttrs):
    """Attributes of cumsum; `accumulate`: how each of its sums is formed
    (`compiler.op.accumulate`)."""

    accumulate: str = "sequential"


def _mode(a: ScanAttrs) -> str:
    return a.accumulate if isinstance(a, CumsumAttrs) else "sequential"


def _nest(loops: Sequence[Var], store: Store, shared: bool = False) -> Stmt:
    """A statement in loops, of which threads share the outermost if that is said."""
    node: Stmt = store
    for k, v in reversed(list(enumerate(loops))):
        node = For(v, [node], "parallel" if shared and k == 0 else "serial")
    return node


def _register(name: str, update: str, neutral: int, doc: str) -> None:
    def infer(a: ScanAttrs, types: Sequence[TensorType]) -> TensorType:
        (x,) = types
        axis_of(name, a.axis, x.rank)
        require(x.dtype.kind != "bool", f"{name} is not defined for bool; cast the operand first")
        check_mode(name, _mode(a), x.dtype)
        require_steps(name, _mode(a))
        return x

    def reference(ar: Arithmetic, a: ScanAttrs, x: Array) -> Array:
        s = accumulation(_mode(a), ar)
        step, start = (s.add, s.start()) if update == "Add" else (ar.mul, ar.const(neutral))
        terms = s.operand(x, ar.dtype) if update == "Add" else x
        out, n = np.empty_like(x), x.shape[a.axis]
        rows, results = np.moveaxis(terms, a.axis, 0), np.moveaxis(out, a.axis, 0)
        acc = np.broadcast_to(start, rows.shape[1:])
        for k in range(n)[::-1] if a.reverse else range(n):
            following = step(acc, rows[k])
            results[k] = s.result(acc if a.exclusive else following)
            acc = following
        return out

    def lower(b: PrimBuilder, a: ScanAttrs, x: Buffer) -> Buffer:
        """Each element is one step from the one before it, in the order of the reference."""
        axis = a.axis % len(x.shape)
        n = x.shape[axis]
        if (how := staged(_mode(a))) is not None:
            return running_sum(b, name, axis, x, how, a.reverse, a.exclusive)
        held = sums(_mode(a), x.dtype, n, products=False)
        out = b.buffer(name, x.shape, held.held)

        def place(i: Sequence[Var], step: IntLike) -> tuple[Index, ...]:
            at = n - 1 - step if a.reverse else Index.of(step)
            return (*map(Index.of, i[:axis]), at, *map(Index.of, i[axis:]))

        def term(i: Sequence[Var], step: IntLike) -> Expr:
            return held.factor(x[place(i, step)])

        def combined(before: Expr, x: Expr) -> Expr:
            return held.added(before, x) if update == "Add" else binary(update, before, x)

        def first(i: Sequence[Var]) -> tuple[tuple[Index, ...], Expr]:
            start = const(neutral, held.held)
            return place(i, 0), start if a.exclusive else combined(start, term(i, 0))

        def following(i: Sequence[Var], step: Var) -> tuple[tuple[Index, ...], Expr]:
            before = out[place(i, step)]
            return place(i, step + 1), combined(before, term(i, step + (not a.exclusive)))

        outer = [d for k, d in enumerate(x.shape) if k != axis]
        stage, more = b.fresh(f"{name}_first"), b.fresh(f"{name}_following")
        i = [Var(f"{stage}.i{k}", d) for k, d in enumerate(outer)]
        b.body.append(_nest(i, Store(stage, out, *first(i))))
        i = [Var(f"{more}.i{k}", d) for k, d in enumerate(outer)]
        step = Var(f"{more}.step", n - 1)
        loops = [*i[:axis], step, *i[axis:]]
        b.body.append(_nest(loops, Store(more, out, *following(i, step)), shared=axis > 0))
        return finished(b, held, f"{name}_round", out, None)

    attrs = CumsumAttrs if update == "Add" else ScanAttrs

    def terms(a: ScanAttrs, types: Sequence[TensorType]) -> IntLike:
        return types[0].shape[a.axis]

    adds = Summation() if update == "Add" else None
    counted = terms if update == "Add" else None
    rule = rules.running_sum if update == "Add" else rules.running_product
    register_op(
        OpDef(
            name, infer, reference, lower, attrs, terms=counted, summation=adds, gradient=rule,
            doc=doc,
        )
    )  # fmt: skip


_register("cumsum", "Add", 0, "sum of the elements up to each, along an axis")
_register("cumprod", "Mul", 1, "product of the elements up to each, along an axis")
