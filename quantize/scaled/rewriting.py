"""A node of a plan whose operands are in a format becomes calls over float32 and formats."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from compiler.dtypes import FLOAT32
from compiler.errors import ConfigError
from compiler.ir.expr import Atom, Binding, Call, Constant, Var, tensor_type
from quantize.scaled.blocks import block_format
from quantize.scaled.nodes import format_reason, operands
from quantize.scaled.params import FLOAT, OperandFormat, rounded_array, rounding_call

if TYPE_CHECKING:
    from quantize.apply import PlanRewriter
    from quantize.plan import Plan


class FormatNodes:
    """Rewrites the nodes of `plan` that are in formats; values are rounded once for each format."""

    def __init__(self, rewriter: PlanRewriter, plan: Plan):
        self.rewriter, self.plan = rewriter, plan
        self.rounded: dict[tuple[Atom, OperandFormat], Atom] = {}

    def node(self, b: Binding, call: Call) -> Var:
        """The node over rounded operands; the value keeps its name."""
        r, formats = self.rewriter, self.plan.formats[b.var.name]
        first, second = (
            self._stored(r.real(a), f) for a, f in zip(operands(call), formats, strict=True)
        )
        value = replace(call, args=(first, second, *call.args[2:]))
        return r.named(b.var, value, b.origins)

    def _stored(self, a: Atom, f: OperandFormat) -> Atom:
        """A real operand rounded to its format."""
        if f.format == FLOAT:
            return a
        if (a, f) not in self.rounded:
            if isinstance(a, Constant):
                self.rounded[a, f] = Constant(rounded_array(a.data, f), FLOAT32)
            else:
                name = f"{a.name}_{f.format}" if isinstance(a, Var) else f.format
                self.rounded[a, f] = self.rewriter.b.bind(rounding_call(a, f), name)
        return self.rounded[a, f]


def check_node(name: str, call: Call, plan: Plan) -> None:
    """Raise ConfigError unless `plan` tells how to compute a node on numbers of formats."""
    formats = plan.formats.get(name, ())
    if reason := format_reason(call, plan.config):
        raise ConfigError(f"node {name!r} ({call.op}) cannot be in a number format: {reason}")
    if len(formats) != 2:
        raise ConfigError(f"the plan needs two formats for the operands of node {name!r}")
    for k, (a, f) in enumerate(zip(operands(call), formats, strict=True)):
        _check_scales(f"operand {k} of node {name!r}", a, f)


def _check_scales(what: str, a: Atom, f: OperandFormat) -> None:
    rank, n = tensor_type(a).rank, len(f.scales)
    if not -rank <= f.axis < rank:
        raise ConfigError(f"{what} has no axis {f.axis}")
    wanted = 1
    if f.group and block_format(f.format) is None:
        if not isinstance(a, Constant):
            raise ConfigError(f"{what} is no weight and has no groups: leave out its group")
        wanted = a.data.shape[0] * -(-a.data[0].size // f.group)
    elif n > 1 and f.format != FLOAT and block_format(f.format) is None:
        along = tensor_type(a).shape[f.axis]
        wanted = along if isinstance(along, int) else 1
    if n != wanted:
        raise ConfigError(f"{what} needs {wanted} scales, but the plan gives it {n}")
