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
from compiler.op.accumulate import EXACT_BITS, exact_bits
from compiler.op.common import known_shape
from compiler.op.nn.pool import AvgPool2dAttrs
from compiler.op.opdef import get_op
from compiler.passes.rewrite import Rewriter, op_name
from compiler.symbolic import Index
from compiler.types.dtypes import FLOAT64, Array, DType, custom, span

PRODUCTS = ("nn.conv2d", "nn.dense", "nn.matmul", "sum_products", "mean_products")
SCATTERS = ("scatter_elements", "scatter_nd")
SUMS = ("sum", "mean", "nn.avg_pool2d", "nn.global_avg_pool2d", "cumsum", *SCATTERS)


@dataclass(frozen=True)
class Parts:
    """Numbers as sums of parts: values[k] is a multiple of 2**grids[k]; the leading one first."""

    values: tuple[Atom, ...]
    grids: tuple[int, ...]


@dataclass(frozen=True)
class ExactSum:
    """One operator whose sums have `terms` terms of `dtype`, of `products` or not."""

    r: Rewriter
    b: Binding
    dtype: DType
    terms: int
    products: bool
    widened: dict[Atom, Atom] = field(default_factory=dict)

    @staticmethod
    def of(r: Rewriter, b: Binding) -> ExactSum | None:
        """The sum that a binding is; None where it is none, or need not be replaced."""
        v, name = b.value, op_name(b.value)
        if name not in (*PRODUCTS, *SUMS, "einsum") or not isinstance(v, Call):
            return None
        if v.attrs.accumulate != "exact" or (name in SCATTERS and v.attrs.reduction != "add"):
            return None
        types = [tensor_type(a) for a in v.args]
        definition = get_op(name)
        assert definition.terms is not None
        dtype, terms = types[0].dtype, definition.terms(v.attrs, types)
        products = name in PRODUCTS or (name == "einsum" and len(v.args) > 1)
        if exact_bits(dtype, terms, products) <= EXACT_BITS and name not in PRODUCTS:
            return None  # the operator itself adds up float64
        return ExactSum(r, b, dtype, Index.of(terms).const, products)

    @property
    def value(self) -> Call:
        """The call of the operator."""
        assert isinstance(self.b.value, Call)
        return self.b.value

    @property
    def operands(self) -> tuple[Atom, ...]:
        """What is made parts of: both factors, or all that has terms."""
        args = self.value.args
        if op_name(self.value) in SCATTERS:
            return args[0], args[2]
        return args[: 2 if self.products else 1]

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
        """The operator itself on float64."""
        v, name = self.value, op_name(self.value)
        if name == "nn.avg_pool2d":
            return self.under_windows(args[0], v.attrs)
        if name == "nn.global_avg_pool2d":
            axes = tuple(range(2, tensor_type(args[0]).rank))
            return self.call("sum", args[0], axis=axes, keepdims=True)
        if name in ("mean", "mean_products"):
            op = name.replace("mean", "sum")
            return self.call(op, *args, axis=v.attrs.axis, keepdims=v.attrs.keepdims)
        if name in SCATTERS:
            args = (args[0], v.args[1], args[1])
        changes = {"accumulate": "sequential", "out_dtype": ""}
        has = {f.name for f in fields(v.attrs)}
        attrs = replace(v.attrs, **{k: x for k, x in changes.items() if k in has})
        return self.emit(Call(v.op, tuple(args), attrs))

    def under_windows(self, x: Atom, a: AvgPool2dAttrs) -> Atom:
        """Sums under sliding windows: a convolution of each channel with ones."""
        channels, *sizes = sizes_of(x)
        outputs = sizes_of(self.b.var)[1:]
        # The last window may reach beyond the padding, or not as far.
        after = [
            max(0, (n - 1) * s + (k - 1) * d + 1 - size - before)
            for n, s, k, d, size, before in zip(
                outputs, a.strides, a.pool_size, a.dilation, sizes, a.padding[:2], strict=True
            )
        ]
        ones = Constant(np.ones((channels, 1, *a.pool_size)), FLOAT64)
        padding = (*a.padding[:2], *after)
        return self.call(
            "nn.conv2d", x, ones, strides=a.strides, padding=padding, dilation=a.dilation,
            groups=channels,
        )  # fmt: skip

    def wide(self, a: Atom) -> Atom:
        """`a` in float64."""
        if isinstance(a, Constant):
            return Constant(self.decoded(a), FLOAT64)
        if a not in self.widened:
            self.widened[a] = self.call("cast", a, dtype="float64")
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
    def named(op: str, *args: Atom, **attrs: Any) -> Call:
        """A call that is not bound yet."""
        definition = get_op(op)
        return Call(definition, args, definition.make_attrs(**attrs))

    def call(self, op: str, *args: Atom, **attrs: Any) -> Atom:
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


def sizes_of(a: Atom) -> tuple[int, ...]:
    """Channels, height and width, which must be known."""
    return known_shape(tensor_type(a).shape[1:4])


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
