"""Functions of one value: elementwise operators whose result depends on one value alone, element by
element, so that between two grids of 8 bits they are a table of 256 entries.

Single operators (sigmoid) and whole subgraphs (x * sigmoid(x), gelu as erf, products and sums) are
found alike, by what they read.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np

from compiler.errors import ConfigError
from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Binding, Call, Constant, IRModule, Var, atom_type, operands
from compiler.op.library import get_op
from compiler.op.opdef import Fusion, OpDef
from compiler.types.dtypes import FLOAT32, Array, DType
from compiler.types.tensor_types import TensorType
from quantize.annotation.graph import Graph
from quantize.plan.call_facts import clips
from quantize.plan.params import ValueParams

CODES = np.arange(256, dtype=np.uint8)


def unary_functions(graph: Graph, barred: Container[str]) -> dict[Var, Var]:
    """Result -> the value that it is a function of, for all float32 results that are one.

    The value is the furthest back; but a relu or clip next to it is left to its producer, which
    clips at no cost.

    Args:
        barred: names of results that functions neither contain nor are.
    """
    behind: dict[Var, list[Var]] = {}  # nearest first, the result itself included
    found: dict[Var, Var] = {}
    for b in graph.f.bindings:
        if b.var.name in barred or not _elementwise(b):
            continue
        data = [a for a in operands(b.value) if isinstance(a, Var)]
        sources = [behind.get(a, [a]) for a in data]
        common = [v for v in sources[0] if all(v in s for s in sources[1:])]
        if not common:
            continue
        behind[b.var] = [b.var, *common]
        usable = [v for v in common if _is_float32(v)]
        if not usable or not _is_float32(b.var):
            continue
        k = len(usable) - 1
        while k and _clips(graph, usable[k - 1], usable[k]):
            k -= 1  # what clips the root is folded into what makes it
        root = usable[k]
        if not _clips(graph, b.var, root):
            found[b.var] = root
    return found


def _elementwise(b: Binding) -> bool:
    """Whether `b` combines values of its own shape, and constants of one element."""
    v, out = b.value, atom_type(b.var)
    if not isinstance(v, Call) or not isinstance(v.op, OpDef) or not isinstance(out, TensorType):
        return False
    op = v.op
    whole = op.view or op.callee or op.effect or op.rounds or op.tables or hasattr(v.attrs, "axis")
    if op.fusion is not Fusion.ELEMENTWISE or whole or op.name.startswith("qnn."):
        return False
    types = [a.type for a in v.args if isinstance(a, Var)]
    alike = all(isinstance(t, TensorType) and t.shape == out.shape for t in types)
    return bool(types) and alike and all(a.data.size == 1 for a in constants_of(v))


def constants_of(call: Call) -> list[Constant]:
    """The constant operands of a call."""
    return [a for a in call.args if isinstance(a, Constant)]


def _is_float32(v: Var) -> bool:
    return isinstance(v.type, TensorType) and v.type.dtype == FLOAT32


def _clips(graph: Graph, v: Var, root: Var) -> bool:
    """Whether `v` is a relu or clip of `root`."""
    b = graph.at.get(v)
    call = b.value if b is not None else None
    return isinstance(call, Call) and bool(clips(call)) and call.args == (root,)


def members(graph: Graph, end: Var, root: Var) -> list[Binding]:
    """The bindings between `root` and `end`, which is the last of them, in order.

    Raises:
        ConfigError: `end` is no function of `root`.
    """
    needed: dict[Var, Binding] = {}
    ahead = [end]
    while ahead:
        v = ahead.pop()
        b = graph.at.get(v)
        if b is None or not _elementwise(b):
            raise ConfigError(
                f"the plan says that {end.name!r} is a function of {root.name!r}, but it depends "
                f"on {v.name!r}: calibrate again"
            )
        needed[v] = b
        more = [a for a in operands(b.value) if isinstance(a, Var) and a is not root]
        ahead += [a for a in more if a not in needed]
    return [b for b in graph.f.bindings if b.var in needed]


def table(graph: Graph, end: Var, root: Var, data: ValueParams, out: ValueParams) -> Array:
    """The integers on the grid `out` of every integer on the grid `data`: 256, in the order of the
    latter's bits read as unsigned. Computed in float32 by the operators' references."""
    b = FunctionBuilder()
    q = b.param("q", (256,), data.dtype)
    scale = Constant.of(np.float32(data.scale), FLOAT32)
    real = b.call("qnn.dequantize", q, scale, zero_point=data.zero_point)
    at: dict[Atom, Atom] = {root: real}
    for m in members(graph, end, root):
        assert isinstance(m.value, Call)
        args = tuple(at[a] if isinstance(a, Var) else _scalar(a) for a in m.value.args)
        at[m.var] = b.bind(replace(m.value, args=args), m.var.name)
    grid = get_op("qnn.quantize")
    attrs = grid.make_attrs(
        zero_point=out.zero_point, out_dtype=out.dtype, qmin=out.qmin, qmax=out.qmax
    )
    scale = Constant.of(np.float32(out.scale), FLOAT32)
    result = b.bind(Call(grid, (at[end], scale), attrs), "entries")
    codes = CODES.view(DType.parse(data.dtype).storage)
    with np.errstate(all="ignore"):
        return np.asarray(evaluate(IRModule({"main": b.finish(result)}), codes))


def _scalar(c: Constant) -> Constant:
    return Constant(c.data.reshape(()), c.dtype)


def inside(graph: Graph, functions: Mapping[Var, Var]) -> dict[Var, set[Var]]:
    """Result of a function -> the results of the functions that it contains."""
    return {
        end: {b.var for b in members(graph, end, root)} - {end} for end, root in functions.items()
    }
