"""Every value of a network in a number format, soon: what the interpreter takes minutes for comes
from compiled code.

Long sums in a custom format are the reason: numpy rounds after every term of them. Compiled code
gives the same bits (it is tested against the interpreter, operator by operator). So it computes
these sums, the network whole and in one program, and the interpreter the rest, from what they gave.
Sums of float32 are the interpreter's, which is quick there: compiled ones may be formed in another
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from compiler.errors import UnsupportedError

if TYPE_CHECKING:
    from compiler.ir.expr import Binding, IRModule, Var

#: Terms of all sums of a network from which on compiling it is quicker than interpreting it.
WORTH_COMPILING = 30_000_000
#: Terms of all sums of a node that is worth being a result of the compiled network.
LONG = 1_000_000


def traced(module: IRModule, inputs: Sequence[Any]) -> Iterator[tuple[Binding, Any]]:
    """What `compiler.interpret.graph.trace` gives, bit for bit, of a module with fixed shapes.

    Raises:
        InputError: as `compiler.evaluate`.
    """
    from compiler.interpret.graph import trace_with
    from quantize.calibration.running import Runner

    counts = {b.var: terms(b) for b in module.main.bindings}
    wanted: list[Var] = [v for v, count in counts.items() if count >= LONG]
    known: dict[Var, Any] = {}
    if wanted and sum(counts.values()) >= WORTH_COMPILING:
        named = {p.name: x for p, x in zip(module.main.params, inputs, strict=False)}
        try:
            known = dict(zip(wanted, Runner(module, wanted, threads=1)(named), strict=True))
        except UnsupportedError:  # no lowering of something: the interpreter takes its time then
            known = {}
    return trace_with(module, known, *inputs)


def terms(b: Binding) -> int:
    """How many terms the sums of a node have together, if it forms them in a custom format; 0 of
    sizes that are not known."""
    from compiler.ir.expr import Call, tensor_type
    from compiler.op.opdef import OpDef
    from compiler.types.tensor_types import TensorType

    call, t = b.value, b.var.type
    if not (isinstance(call, Call) and isinstance(call.op, OpDef) and isinstance(t, TensorType)):
        return 0
    operands = [tensor_type(a) for a in call.args]
    if call.op.terms is None or not operands or not operands[0].dtype.is_custom:
        return 0
    each, size = call.op.terms(call.attrs, operands), t.size
    return each * size if isinstance(each, int) and isinstance(size, int) else 0
