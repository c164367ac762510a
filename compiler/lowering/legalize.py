"""Primitive functions of the graph level as loop nests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.stochastic import node_number
from compiler.errors import ConfigError, LoweringError
from compiler.ir.draws import drawn
from compiler.ir.expr import Atom, Call, Constant, Function, Var, tensor_type
from compiler.lowering.rounding_sites import place_roundings
from compiler.op.facts import IntegerForm
from compiler.op.opdef import OpDef
from compiler.passes.manager import PassContext
from compiler.passes.rewrite import op_of
from compiler.symbolic import Dim, Index, IntLike
from compiler.tensor.builder import LEAST_SKIPPED, PrimBuilder
from compiler.tensor.expr import Buffer, Expr, Gather, walk
from compiler.tensor.stmt import PrimFunc, stores
from compiler.types.dtypes import FLOAT32
from compiler.types.tensor_types import TensorType

FAR = "far_below"
"""Attribute of loop nests: they add a constant that makes exp of some sums subnormal."""
NEAREST, FARTHEST = 80.0, 150.0
"""How far below others a number is whose exp may be subnormal: exp(-87.3) is the least that is not,
exp(-103.3) the least that is."""
ROOM = "room"
"""Attribute of primitive functions: see legalize."""


@dataclass(frozen=True, eq=False)
class Legalized:
    """A loop nest, and the atom that each of its input parameters takes (constants included)."""

    func: PrimFunc
    inputs: tuple[Atom, ...]


def legalize(f: Function) -> Legalized:
    """The loop nest of a primitive function: each operator's own `lower`, stage after stage.

    Its attribute ROOM, if it has that, gives parameters that are the front of more memory than they
    need, as positions and the shape of that memory.

    Raises:
        LoweringError: an operator's lowering does not give what its type says, or reads what is the
            front of more memory as one flat array.
        UnsupportedError: an operator that does not number its roundings rounds stochastically.
        ConfigError: the option "padding.least_skipped" of the PassContext is no number.
    """
    names = "_".join(
        b.value.op.name.split(".")[-1]
        for b in f.bindings
        if isinstance(b.value, Call) and isinstance(b.value.op, OpDef)
    )
    builder = PrimBuilder(names[:60], _least_skipped())
    buffers: dict[Atom, Buffer] = {}
    atoms: list[Atom] = []

    def read(a: Atom) -> Buffer:
        if a not in buffers:
            t = tensor_type(a)
            stem = "c" if isinstance(a, Constant) else "x"
            buffers[a] = builder.input(f"{stem}{len(atoms)}", t.shape, t.dtype)
            buffers[a].finite = known_finite(a)
            atoms.append(a)
        return buffers[a]

    draw = drawn(f)
    number = None if draw is None else read(draw)[()]
    outputs: list[Buffer] = []
    operators: dict[str, str] = {}
    for b in f.bindings:
        assert isinstance(b.value, Call)
        assert isinstance(b.value.op, OpDef)
        op = b.value.op
        done = len(builder.body)
        operands = [read(a) for a in b.value.args]
        if op.contraction is not None and op.contraction.kernel:
            operands[1].finite = False if _infinite(b.value.args[1]) else operands[1].finite
        out = op.lower(builder, b.value.attrs, *operands)
        place_roundings(builder.body[done:], op, node_number(b.var.name), number)
        operators |= dict.fromkeys((s.stage for s in stores(builder.body[done:])), op.name)
        outputs = list(out) if isinstance(out, tuple) else [out]
        outputs = [_own(builder, o) for o in outputs]
        t = b.var.type
        types = [t] if isinstance(t, TensorType) else list(getattr(t, "fields", ()))
        for o, want in zip(outputs, types, strict=True):
            got = tuple(o.shape)
            if o.dtype != want.dtype or got != tuple(map(Index.of, want.shape)):
                raise LoweringError(f"{op.name} lowers to {o!r}, but its type is {want}")
        if len(outputs) == 1:
            buffers[b.var] = outputs[0]
    attrs = {"operators": operators} | ({FAR: True} if _far_below(f) else {})
    func = builder.finish(outputs, attrs)
    for k, shape in f.attrs.get(ROOM, ()):
        if (held := buffers.get(f.params[k])) is not None:
            _widen(held, shape, func)
    return Legalized(func, tuple(atoms))


def _widen(b: Buffer, shape: Sequence[Dim], func: PrimFunc) -> None:
    """Let an input be the front of a tensor of that shape: all indices stay, their places move."""
    for s in stores(func.body):
        for e in filter(None, (s.value, s.init)):
            if any(isinstance(n, Gather) and n.buffer is b for n in walk(e)):
                raise LoweringError(f"{func.name} reads a cache with room as one flat array")
    b.shape = tuple(map(Index.of, shape))
    more = [v for n in b.shape for v in sorted(n.vars(), key=str)]
    func.dims = list(dict.fromkeys([*func.dims, *more]))


def known_finite(a: Atom) -> bool | None:
    """Whether a constant held in lanes is without NaN and infinities; None of other operands."""
    if isinstance(a, Constant) and a.dtype.lane:
        return bool(np.isfinite(a.data).all())
    return None


def _far_below(f: Function) -> bool:
    """Whether what a softmax is of has a constant added that makes some of its numbers subnormal:
    their exp is, where others are near to 0."""
    calls = [b.value for b in f.bindings if isinstance(b.value, Call)]
    form_of = {c: op.integer_form for c in calls if (op := op_of(c)) is not None}
    if IntegerForm.SOFTMAX not in form_of.values():
        return False
    added = (
        a.data
        for c, form in form_of.items()
        if form is IntegerForm.SUM
        for a in c.args
        if isinstance(a, Constant) and a.dtype == FLOAT32
    )
    return any(bool(((c > -FARTHEST) & (c < -NEAREST)).any()) for c in added)


def _infinite(a: Atom) -> bool:
    """Whether an operand is a constant of a built-in float dtype with NaN or infinities, which the
    zeros that stand for padding must not meet."""
    if isinstance(a, Constant) and a.dtype.is_float and not a.dtype.is_custom:
        return not np.isfinite(a.data).all()
    return False


def _own(builder: PrimBuilder, b: Buffer) -> Buffer:
    """A buffer that is not an input (an operator that changes nothing copies)."""
    if b not in builder.inputs:
        return b

    def same(*i: IntLike) -> Expr:
        return b[i]

    return builder.compute("copy", b.shape, b.dtype, same)


__all__ = ["Legalized", "Var", "legalize"]


def _least_skipped() -> int:
    n = PassContext.current().config.get("padding.least_skipped", LEAST_SKIPPED)
    if not isinstance(n, int) or n < 0:
        raise ConfigError(f"padding.least_skipped must be a number of columns, not {n!r}")
    return n
