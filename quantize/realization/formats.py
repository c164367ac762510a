"""A node of a plan whose operands are in a format becomes calls over float32 and formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from compiler.errors import ConfigError
from compiler.ir.expr import Atom, Binding, Call, Constant, Var, tensor_type
from compiler.passes import rewrite
from compiler.types.dtypes import FLOAT32, Array, custom
from quantize.annotation.format_nodes import OTHERS, factors_reason
from quantize.formats.blocks import FLOAT, block_format
from quantize.formats.chosen import weight_array
from quantize.formats.element import element, unsigned_bits
from quantize.formats.operand_format import OperandFormat, rounding_call
from quantize.plan.call_facts import (
    Form,
    contraction,
    contraction_of,
    form,
    is_lookup,
    operands,
)
from quantize.realization.integer_products import IntegerProducts
from quantize.realization.kept_codes import from_codes

if TYPE_CHECKING:
    from quantize.plan.plan import Plan
    from quantize.realization.apply import PlanRewriter


class FormatNodes:
    """Rewrites the nodes of `plan` that are in formats; values are rounded once for each format."""

    def __init__(self, rewriter: PlanRewriter, plan: Plan):
        self.rewriter, self.plan = rewriter, plan
        self.rounded: dict[tuple[Atom, OperandFormat], Atom] = {}
        self.codes: dict[tuple[Atom, OperandFormat], Atom] = {}
        self.integers = IntegerProducts(rewriter)

    def node(self, b: Binding, call: Call) -> Var:
        """The node over rounded operands; the value keeps its name."""
        r, given = self.rewriter, zip(operands(call), self.plan.formats[b.var.name], strict=True)
        # Plans may count axes from the last one.
        formats = [replace(f, axis=f.axis % max(1, tensor_type(a).rank)) for a, f in given]
        if contraction_of(call) is None:
            (f,) = formats
            own = self._looked_up(call, f) if is_lookup(call) else self._computed(b, call, f)
            return r.named(b.var, own, b.origins)
        if self.plan.native(b.var.name):
            return self._native(b, call, formats)
        shifted = replace(call, args=(*operands(call), *self._biases(b.var.name, call)))
        if r.keeps_integers and (value := self.integers.product(b, shifted, formats)) is not None:
            return r.named(b.var, value, b.origins)
        first, second = (
            self._stored(r.real(a), f, k == 1 and contraction(call).by_rows)
            for k, (a, f) in enumerate(zip(operands(call), formats, strict=True))
        )
        value = replace(shifted, args=(first, second, *shifted.args[2:]))
        return r.named(b.var, value, b.origins)

    def _looked_up(self, call: Call, f: OperandFormat) -> Call:
        """Rows of a table that is in a format."""
        table, positions = call.args
        return replace(call, args=(self._stored(table, f), self.rewriter.real(positions)))

    def _computed(self, b: Binding, call: Call, f: OperandFormat) -> Call:
        """An operator on numbers of a format, operation by operation."""
        r, dtype = self.rewriter, str(element(f.format).dtype)

        def held(a: Atom) -> Atom:
            name = a.name if isinstance(a, Var) else b.var.name
            return r.b.bind(rewrite.call("cast", a, dtype=dtype), f"{name}_{f.format}")

        args = tuple(held(r.real(a)) for a in call.args)
        value = r.b.bind(replace(call, args=args), f"{b.var.name}_{f.format}", b.origins)
        return rewrite.call("cast", value, dtype=str(FLOAT32))

    def _native(self, b: Binding, call: Call, formats: Sequence[OperandFormat]) -> Var:
        """Products and sums in the format, scaled back; then the bias."""
        r, name = self.rewriter, b.var.name
        codes = [self._codes(r.real(a), f) for a, f in zip(operands(call), formats, strict=True)]
        attrs = replace(call.attrs, accumulate=self.plan.nodes[name].accumulate)
        dtype = element(formats[0].format).dtype
        sums = r.b.bind(Call(call.op, tuple(codes), attrs), f"{name}_{dtype.name}", b.origins)
        real = r.b.bind(rewrite.call("cast", sums, dtype=str(FLOAT32)), f"{name}_sums", b.origins)
        scale = Constant(result_scale(call, formats), FLOAT32)
        value = rewrite.call("multiply", real, scale)
        for bias in self._biases(name, call):
            scaled = r.b.bind(value, f"{name}_scaled", b.origins)
            value = rewrite.call("nn.bias_add", scaled, bias, axis=contraction(call).channels)
        return r.named(b.var, value, b.origins)

    def _biases(self, name: str, call: Call) -> Sequence[Atom]:
        """The bias of a node, if it has one, with the plan's shift added."""
        shift = self.plan.shifts.get(name)
        if shift is None:
            return call.args[2:]
        known = [a.data for a in call.args[2:] if isinstance(a, Constant)]
        return [Constant.of(np.asarray(sum(known, np.asarray(shift, np.float32))), FLOAT32)]

    def _codes(self, a: Atom, f: OperandFormat) -> Atom:
        """A real operand as numbers of its format, scaled and saturated."""
        e, key = element(f.format), (a, f)
        if key not in self.codes and isinstance(a, Constant):
            scales = np.asarray(f.scales, np.float32)
            ratio = a.data / scales.reshape(-1, *[1] * (a.data.ndim - 1))
            clipped = np.clip(ratio, np.float32(e.low), np.float32(e.high))
            codes = custom(e.dtype.name).encode(clipped, e.dtype)
            self.codes[key] = Constant(np.asarray(codes, e.dtype.storage), e.dtype)
        elif key not in self.codes:
            bind, name = self.rewriter.b.bind, a.name if isinstance(a, Var) else "operand"
            x = bind(rewrite.call("divide", a, Constant.of(f.scales[0], FLOAT32)), f"{name}_scaled")
            x = bind(rewrite.call("clip", x, a_min=e.low, a_max=e.high), f"{name}_clipped")
            self.codes[key] = bind(
                rewrite.call("cast", x, dtype=str(e.dtype)), f"{name}_{f.format}"
            )
        return self.codes[key]

    def _stored(self, a: Atom, f: OperandFormat, weight: bool = False) -> Atom:
        """A real operand rounded to its format; weights of rows may be made from their codes."""
        if f.format == FLOAT:
            return a
        if (a, f) not in self.rounded:
            if isinstance(a, Constant):
                made = None
                if weight and self.rewriter.keeps_codes:
                    made = from_codes(self.rewriter.b, a.data, f, f.format)
                self.rounded[a, f] = made or Constant(weight_array(a.data, f), FLOAT32)
            else:
                name = f"{a.name}_{f.format}" if isinstance(a, Var) else f.format
                value = self._tokens(a, f) if f.token else rounding_call(a, f)
                self.rounded[a, f] = self.rewriter.b.bind(value, name)
        return self.rounded[a, f]

    def _tokens(self, a: Atom, f: OperandFormat) -> Call:
        """The call that rounds the tokens of a value to numbers with scales of their own."""
        if unsigned_bits(f.format):
            q, scales, zeros = self.integers.of_tokens(a, f)
            return rewrite.call("qnn.dequantize_rows", q, scales, zeros)
        e = element(f.format)
        return rewrite.call(
            "qnn.simulated_cast", a, self.integers.row_scales(a, f), dtype=str(e.dtype), low=e.low,
            high=e.high, axis=f.axis,
        )  # fmt: skip


def result_scale(call: Call, formats: Sequence[OperandFormat]) -> Array:
    """float32 units of sums of products of scaled factors, in a shape that broadcasts."""
    scales = np.multiply.outer(*(np.asarray(f.scales, np.float64) for f in formats)).reshape(-1)
    if len(scales) == 1:
        return np.asarray(scales[0], np.float32)
    return scales.reshape(-1, *[1] * contraction(call).kernel).astype(np.float32)


def check_node(name: str, call: Call, plan: Plan) -> None:
    """Raise ConfigError unless `plan` tells how to compute a node on numbers of formats."""
    formats = plan.formats.get(name, ())
    if contraction_of(call) is None:
        _check_own(name, call, formats)
        return
    if reason := factors_reason(call):
        raise ConfigError(f"node {name!r} ({call.op}) cannot be in a number format: {reason}")
    if len(formats) != 2:
        raise ConfigError(f"the plan needs two formats for the operands of node {name!r}")
    if plan.native(name):
        _check_native(name, formats)
    shift, axes = plan.shifts.get(name), contraction(call)
    if shift is not None and not (
        axes.by_rows and tensor_type(call.args[1]).shape[0] == len(shift)
    ):
        raise ConfigError(f"node {name!r} has no {len(shift)} biases that could be shifted")
    for k, (a, f) in enumerate(zip(operands(call), formats, strict=True)):
        _check_scales(f"operand {k} of node {name!r}", a, f)


def _check_own(name: str, call: Call, formats: Sequence[OperandFormat]) -> None:
    """Check the format of a node that is no product."""
    if not is_lookup(call) and form(call) not in (Form.SOFTMAX, Form.LAYER_NORM):
        raise ConfigError(f"node {name!r} ({call.op}) cannot be in a number format: {OTHERS}")
    if len(formats) != 1:
        raise ConfigError(f"the plan needs one format for node {name!r} ({call.op})")
    (f,) = formats
    if is_lookup(call):
        _check_scales(f"the table of node {name!r}", call.args[0], f)
    elif f != OperandFormat(f.format) or f.blocks is not None or f.integers or f.format == FLOAT:
        raise ConfigError(f"node {name!r} is computed in a scalar number format, without scales")


def _check_native(name: str, formats: Sequence[OperandFormat]) -> None:
    first, second = (f.format for f in formats)
    scalar = first != FLOAT and block_format(first) is None
    if (
        first != second
        or not scalar
        or any(f.group or f.axis or f.axes or f.token for f in formats)
    ):
        raise ConfigError(
            f"node {name!r} is computed in its format: both operands need the same scalar format, "
            "and scales that factor out of sums"
        )
    if any(f.chosen for f in formats):
        raise ConfigError(
            f"node {name!r} is computed in its format, which rounds to the nearest: leave out "
            "rounding and scale_steps"
        )


def _check_scales(what: str, a: Atom, f: OperandFormat) -> None:
    shape, n, block = tensor_type(a).shape, len(f.scales), f.blocks
    rank = len(shape)
    if not all(-rank <= k < rank for k in (f.axis, *f.axes)):
        raise ConfigError(f"{what} has no axis {f.axes or f.axis}")
    weight, unsigned = isinstance(a, Constant), unsigned_bits(f.format)
    if f.chosen and not weight:
        raise ConfigError(f"{what} is no weight: leave out its rounding and scale_steps")
    if f.flat and not weight:
        raise ConfigError(f"{what} is no weight and has no flat blocks: leave out its flat")
    if f.group and block is None and not weight:
        raise ConfigError(f"{what} is no weight and has no groups: leave out its group")
    if unsigned and weight:
        raise ConfigError(f"{what} is a weight, which {f.format} is not for: use an int<N>")
    if f.token and (weight or rank < 2):
        raise ConfigError(f"{what} has no tokens: leave out its token")
    if block is not None and not isinstance(shape[f.axis], int):
        raise ConfigError(f"{what}: blocks need a known size of axis {f.axis}")
    wanted: int | None = 1
    if f.group and block is None:
        assert isinstance(a, Constant)
        wanted = a.data.shape[0] * -(-a.data[0].size // f.group)
    elif n > 1 and f.format != FLOAT and block is None and not f.token:
        if unsigned:
            raise ConfigError(f"{what} has a zero point, and so one scale, not {n}")
        sizes = [shape[k] for k in f.axes or (f.axis,)]
        wanted = math.prod(s if isinstance(s, int) else 0 for s in sizes) or 1
    if n != wanted:
        raise ConfigError(f"{what} needs {wanted} scales, but the plan gives it {n}")
