"""One exact sum of products, or another exact sum, while it is replaced by sums of float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import Any

import numpy as np

from compiler.arithmetic.stochastic import random_dtype
from compiler.errors import LoweringError
from compiler.ir.expr import Atom, Binding, Call, Constant, Var, tensor_type
from compiler.ir.inference import infer_value
from compiler.op.accumulate import EXACT_BITS, exact_bits, most_terms
from compiler.op.facts import Summation
from compiler.op.library import get_op
from compiler.op.mixed import CAST
from compiler.op.opdef import OpDef
from compiler.passes.rewrite import Rewriter, op_of
from compiler.symbolic import Dim
from compiler.types.dtypes import FLOAT64, Array, DType, custom, span


@dataclass(frozen=True)
class Parts:
    """Numbers as sums of parts: values[k] is a multiple of 2**grids[k]; the leading one first."""

    values: tuple[Atom, ...]
    grids: tuple[int, ...]


@dataclass(frozen=True)
class ExactSum:
    """One operator whose sums have at most `terms` terms of `dtype`, of `products` or not."""

    r: Rewriter
    b: Binding
    dtype: DType
    terms: int
    products: bool
    widened: dict[Atom, Atom] = field(default_factory=dict)

    @staticmethod
    def of(r: Rewriter, b: Binding) -> ExactSum | None:
        """The sum that a binding is; None where it is none, or need not be replaced."""
        v, op = b.value, op_of(b.value)
        if op is None or op.summation is None or not isinstance(v, Call):
            return None
        if v.attrs.accumulate != "exact" or not op.summation.holds(v.attrs):
            return None
        types = [tensor_type(a) for a in v.args]
        assert op.terms is not None
        dtype, terms = types[0].dtype, op.terms(v.attrs, types)
        products = op.summation.products and len(v.args) > 1
        if op.summation.itself and exact_bits(dtype, terms, products) <= EXACT_BITS:
            return None  # the operator itself adds up float64
        return ExactSum(r, b, dtype, most_terms(terms), products)

    @property
    def value(self) -> Call:
        """The call of the operator."""
        assert isinstance(self.b.value, Call)
        return self.b.value

    @property
    def op(self) -> OpDef:
        """The operator."""
        assert isinstance(self.value.op, OpDef)
        return self.value.op

    @property
    def summation(self) -> Summation:
        """How the operator adds up."""
        assert self.op.summation is not None
        return self.op.summation

    @property
    def operands(self) -> tuple[Atom, ...]:
        """What is made parts of: both factors, or all that has terms."""
        args = self.value.args
        return tuple(args[k] for k in self.summation.operands if k < len(args))

    @property
    def shapes(self) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        """Of the first operand and of the result."""
        return tensor_type(self.value.args[0]).shape, tensor_type(self.b.var).shape

    def range_of(self, a: Atom) -> tuple[int, int]:
        """The grid of an operand and a power of two above its magnitude; constants have less."""
        grid = span(self.dtype)
        assert grid is not None
        if not isinstance(a, Constant):
            return grid
        values = self.decoded(a)
        known = values[np.isfinite(values) & (values != 0)]
        if not known.size:
            return 0, 1
        # Within the grid of a bias, and above its magnitude, if the other operand is.
        return min(0, last_bit(known)), max(0, int(np.frexp(known)[1].max()))

    # ---- parts -----------------------------------------------------------------------------------
    def parts(self, a: Atom, low: int, n: int, width: int) -> Parts:
        """`a`, multiples of 2**low, in n parts of `width` bits."""
        grids = tuple(low + width * k for k in reversed(range(n)))
        return Parts(self.on_grids(self.wide(a), grids), grids)

    def on_grids(self, a: Atom, grids: tuple[int, ...]) -> tuple[Atom, ...]:
        """The parts of a float64; the last one is what is left."""
        if len(grids) == 1:
            return (a,)
        return tuple(self.call("part", a, grids=grids, index=k) for k in range(len(grids)))

    # ---- operators -------------------------------------------------------------------------------
    def apply(self, args: Sequence[Atom]) -> Atom:
        """The operator itself on float64; of a mean, what is divided."""
        v, held = self.value, self.summation
        if held.division is not None:
            sums = held.division.sums(v.attrs, *self.shapes)
            ones = [Constant(np.ones(sums.ones), FLOAT64)] if sums.ones else []
            return self.call(sums.op, *args, *ones, **sums.attrs)
        if 1 in held.operands or len(held.operands) == 1:  # what follows is a bias
            return self.emit(Call(v.op, tuple(args), self._plain(v.attrs)))
        given = dict(zip(held.operands, args, strict=True))
        every = tuple(given.get(k, a) for k, a in enumerate(v.args))
        return self.emit(Call(v.op, every, self._plain(v.attrs)))

    @staticmethod
    def _plain(attrs: Any) -> Any:
        """Attributes of sums of float64."""
        changes = {"accumulate": "sequential", "out_dtype": ""}
        has = {f.name for f in fields(attrs)}
        return replace(attrs, **{k: x for k, x in changes.items() if k in has})

    def wide(self, a: Atom) -> Atom:
        """`a` in float64."""
        if isinstance(a, Constant):
            return Constant(self.decoded(a), FLOAT64)
        if a not in self.widened:
            self.widened[a] = self.call(CAST, a, dtype="float64")
        return self.widened[a]

    def decoded(self, a: Constant) -> Array:
        """Values of a constant, float64."""
        values = custom(self.dtype.name).decode(a.data, self.dtype)
        return np.asarray(values, np.float64).reshape(a.data.shape)

    def has_infinity(self) -> bool:
        """Whether the datatype has infinite values: sums of them are infinite or not numbers."""
        if self.dtype.bits > 16:
            codes = custom(self.dtype.name).encode(np.array([np.inf]), self.dtype)
        else:
            codes = np.arange(1 << self.dtype.bits).astype(self.dtype.storage)
        return bool(np.isinf(custom(self.dtype.name).decode(codes, self.dtype)).any())

    @staticmethod
    def scalar(value: float) -> Constant:
        """One float64."""
        return Constant(np.asarray(value, np.float64), FLOAT64)

    @staticmethod
    def named(op: str | OpDef, *args: Atom, **attrs: Any) -> Call:
        """A call that is not bound yet."""
        definition = get_op(op) if isinstance(op, str) else op
        return Call(definition, args, definition.make_attrs(**attrs))

    def call(self, op: str | OpDef, *args: Atom, **attrs: Any) -> Atom:
        """The result of an operator, in a new binding."""
        return self.emit(self.named(op, *args, **attrs))

    def emit(self, value: Call) -> Atom:
        """The variable of a new binding; constants are computed at once."""
        if all(isinstance(a, Constant) for a in value.args):
            return self._constant(value)
        name = self.r.fresh(f"{self.b.var.name}_exact")
        return self.r.emit(Binding(Var(name, infer_value(value)), value, self.b.origins))

    def _constant(self, value: Call) -> Constant:
        from compiler.interpret.graph import call_reference

        out = Var("constant", infer_value(value))
        arrays = [a.data for a in value.args if isinstance(a, Constant)]
        data = call_reference(value, arrays, out, {})
        return Constant(np.asarray(data, order="C"), tensor_type(out).dtype)


def check_numbered(what: str, dtype: DType, terms: int) -> None:
    """Refuse to take an operator apart whose roundings are numbered as those of one.

    Raises:
        LoweringError: the datatype rounds stochastically.
    """
    if random_dtype(dtype) is not None:
        raise LoweringError(
            f"exact {what} of {terms} terms of {dtype}, which rounds stochastically, "
            f"need more than {EXACT_BITS} bits; accumulate in float64"
        )


def width_of(bits: int, n: int) -> int:
    """Distance of the grids of n parts; each is at most half of it, to either side, also the
    leading one."""
    return bits if n == 1 else ceil((bits + 1) / n)


def last_bit(known: Array) -> int:
    """The least exponent that any bit of finite non-zero values has."""
    fractions, exponents = np.frexp(known)
    integers = np.abs(fractions * 2.0**53).astype(np.int64)
    trailing = np.log2((integers & -integers).astype(np.float64)).astype(np.int64)
    return int((exponents - 53 + trailing).min())
