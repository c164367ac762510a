"""Products of two factors that are integers, each with scales of its own: on integer kernels, where
the scales are factors of whole sums, or of the sums over groups of weights.

With q the integers, z their zero points and s their scales (x of the data, w of the weights or the
second factor), and int32 sums, everything else in float32, one rounding an operation:

    y = float32(sum over k of (qx - zx) * qw) * sw * sx          from the left
    y = (sum over groups, see compiler.op.qnn.grouped) * sx      weights with scales of groups

and then the bias. An open number of products, as over a decoder's past, is taken to be one that
int32 holds. All other pairs (scales that differ along the sum, convolutions, sums that int32
may not hold, zero points of tokens in products of two activations) are decoded to float32 and
multiplied there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant, Var, tensor_type
from compiler.passes import rewrite
from compiler.types.dtypes import FLOAT32, INT8, INT32
from quantize.formats.chosen import weight_array
from quantize.formats.element import element, unsigned_bits
from quantize.formats.operand_format import (
    OperandFormat,
    row_scales_call,
    zeros_call,
)
from quantize.plan.call_facts import block_axis, contraction
from quantize.plan.integer_sums import MOST_PRODUCTS, on_integers
from quantize.realization.open_sums import bounded

if TYPE_CHECKING:
    from quantize.realization.apply import PlanRewriter


class IntegerProducts:
    """Writes such products; values become integers once for each format."""

    def __init__(self, rewriter: PlanRewriter):
        self.rewriter = rewriter
        self.made: dict[tuple[Atom, OperandFormat, str], Atom] = {}
        #: What holds integers of a format, and what holds their scales.
        self.held: dict[Atom, OperandFormat] = {}
        self.scales: dict[Atom, OperandFormat] = {}
        self.zeros: dict[Atom, OperandFormat] = {}

    def product(self, b: Binding, call: Call, formats: Sequence[OperandFormat]) -> Call | None:
        """The last call of a product on integers; None if it is none."""
        if not on_integers(call, formats):
            return None
        r, (first, second), name = self.rewriter, formats, b.var.name

        def bind(value: Call, what: str) -> Var:
            return r.b.bind(value, f"{name}_{what}", b.origins)

        data = r.real(call.args[0])
        q, scale, zero = self._integers(data, first)
        if contraction(call).by_rows:
            value = self._by_rows(bind, call, second, q, zero)
        else:
            q = bounded(bind, b, block_axis(call, 0), q, MOST_PRODUCTS)
            self.held[q] = first
            other, factor, shift = self._integers(r.real(call.args[1]), second)
            zeros = {"input_zero_point": zero, "weight_zero_point": shift}
            attrs = {**vars(call.attrs), **zeros, "out_dtype": "int32"}
            sums = bind(rewrite.call(str(call.op), q, other, **attrs), "sums")
            real = bind(rewrite.call("cast", sums, dtype="float32"), "units")
            value = rewrite.call("multiply", real, factor)
        value = rewrite.call("multiply", bind(value, "scaled"), scale)
        for bias in call.args[2:]:
            axis = contraction(call).channels
            value = rewrite.call("nn.bias_add", bind(value, "real"), bias, axis=axis)
        return value

    def _by_rows(self, bind: Any, call: Call, f: OperandFormat, q: Atom, zero: Atom | int) -> Call:
        """Integers times integer weights, scaled by the scales of these."""
        weight = call.args[1]
        assert isinstance(weight, Constant)
        spread = f.scale_array(weight.data.shape)
        each = spread[:, None] if spread.ndim == 1 else spread
        codes = np.rint(weight_array(weight.data, f) / each).astype(np.int8)
        kept = Constant(codes, INT8)
        self.held[kept] = f
        row_zero = zero if not isinstance(zero, int) else None
        fixed = zero if isinstance(zero, int) else 0
        if f.group:
            given = np.asarray(f.scales, np.float32).reshape(len(codes), -1)
            scales = Constant.of(given, FLOAT32)
            self.scales[scales] = f
            more = () if row_zero is None else (row_zero,)
            return rewrite.call(
                "qnn.grouped_dense", q, kept, scales, *more, group=f.group, input_zero_point=fixed
            )
        attrs = {**vars(call.attrs), "out_dtype": "int32", "input_zero_point": fixed}
        sums = bind(rewrite.call(str(call.op), q, kept, **attrs), "sums")
        if row_zero is not None:
            totals = Constant(codes.sum(axis=1, dtype=np.int32), INT32)
            sums = bind(
                rewrite.call("subtract", sums, bind(rewrite.call("multiply", row_zero, totals),
                "zeros")), "centred",
            )  # fmt: skip
        real = bind(rewrite.call("cast", sums, dtype="float32"), "units")
        values = np.asarray(f.scales, np.float32)
        scales = Constant.of(values if len(values) > 1 else values[0], FLOAT32)
        self.scales[scales] = f
        return rewrite.call("multiply", real, scales)

    # ---- integers of values ----------------------------------------------------------------------
    def _integers(self, a: Atom, f: OperandFormat) -> tuple[Atom, Atom, Any]:
        """The integers of a value, their scales, and their zero points: one number, or those of
        tokens."""
        bits = unsigned_bits(f.format)
        if f.token and bits:
            return self.of_tokens(a, f)
        if f.token:
            scales = self.row_scales(a, f)
        else:
            shape = tensor_type(a).shape
            known = tuple(n if isinstance(n, int) else 1 for n in shape)
            values = f.scale_array(known)
            if values.ndim == 1:
                values = values.reshape([-1 if k == f.along else 1 for k in range(len(known))])
            scales = Constant.of(values, FLOAT32)
        if (a, f, "q") not in self.made:
            most = (1 << bits) - 1 if bits else int(element(f.format).high)
            value = rewrite.call(
                "qnn.quantize", a, scales, zero_point=f.zero_point,
                out_dtype="uint8" if bits else "int8", qmin=0 if bits else -most, qmax=most,
            )  # fmt: skip
            self.made[a, f, "q"] = self._bound(a, f, "q", value)
            self.held[self.made[a, f, "q"]] = f
        return self.made[a, f, "q"], scales, f.zero_point

    def of_tokens(self, a: Atom, f: OperandFormat) -> tuple[Atom, Atom, Atom]:
        """Unsigned integers of tokens, their scales and zero points."""
        scales, levels = self.row_scales(a, f), (1 << unsigned_bits(f.format)) - 1
        if (a, f, "zeros") not in self.made:
            zeros = self._bound(a, f, "zeros", zeros_call(a, scales, f))
            self.zeros[zeros] = f
            q = rewrite.call("qnn.quantize_rows", a, scales, zeros, axis=f.axis, levels=levels)
            self.made[a, f, "zeros"], self.made[a, f, "q"] = zeros, self._bound(a, f, "q", q)
            self.held[self.made[a, f, "q"]] = f
        return self.made[a, f, "q"], scales, self.made[a, f, "zeros"]

    def row_scales(self, a: Atom, f: OperandFormat) -> Atom:
        """The scales of tokens."""
        if (a, f, "scales") not in self.made:
            made = self._bound(a, f, "scales", row_scales_call(a, f))
            self.made[a, f, "scales"], self.scales[made] = made, f
        return self.made[a, f, "scales"]

    def _bound(self, a: Atom, f: OperandFormat, what: str, value: Call) -> Var:
        name = a.name if isinstance(a, Var) else "operand"
        return self.rewriter.b.bind(value, f"{name}_{f.format}_{what}")
