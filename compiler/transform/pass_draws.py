"""PassDraws: kernels that round stochastically are given the draw of the function."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.draws import DRAW, drawn, may_round
from compiler.ir.expr import Binding, Call, Function, IRModule, Var, names_in
from compiler.passes.manager import FunctionPass, PassContext
from compiler.types.names import unique


class PassDraws(FunctionPass):
    """Adds the parameter of draws (`compiler.ir.draws`) to fused groups that round stochastically;
    other functions stay as they are."""

    name = "PassDraws"
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function, whose groups have that operand behind their own.

        Raises:
            InputError: the function names no parameter of draws.
        """
        draw = drawn(f)
        if draw is None:
            return f
        return f.with_body([_given(b, draw) for b in f.bindings], f.results)


def _given(b: Binding, draw: Var) -> Binding:
    """A call of a group with the draw, if it is one that needs it."""
    v = b.value
    if not isinstance(v, Call) or not isinstance(v.op, Function) or DRAW in v.op.attrs:
        return b
    if not any(map(may_round, v.op.bindings)):
        return b
    name = unique(draw.name, set(names_in(v.op)))
    group = replace(
        v.op, params=(*v.op.params, Var(name, draw.type)), attrs={**v.op.attrs, DRAW: name}
    )
    return replace(b, value=replace(v, op=group, args=(*v.args, draw)))
