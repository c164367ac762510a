"""FuseAttention: the kernels of attention become one.

A product of two computed tensors (scores), what is done with its rows (scales, masks, softmax,
quantize), and the product of these with a third (values): each of these kernels reads all that the
one before it has written, the scores of all heads. As one kernel they go by tiles of rows (see
`compiler.scheduling.row_tiles`), whose scores stay in the cache. Every operation stays what it was,
and in its order: so do all results, in every number format.
"""

from __future__ import annotations

from compiler.errors import LoweringError
from compiler.ir.expr import Atom, Binding, Call, Function, IRModule, Var, tensor_type
from compiler.ir.substitution import substitute
from compiler.lowering.legalize import legalize
from compiler.op.facts import Moves
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, op_of, union
from compiler.pattern.rules import Refusal, refusals_of
from compiler.tensor.shared_rows import shared_rows
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType

MOST_BETWEEN = 4
"""Kernels between the two products."""


class FuseAttention(FunctionPass):
    """One kernel for scores, what is done with their rows, and their product with values."""

    name = "FuseAttention"
    opt_level = 1
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function, whose operators are grouped, with fewer groups."""
        return _Walk(f).run()

    def explain(self, mod: IRModule) -> list[Refusal]:
        """Why products of what kernels compute stay kernels of their own."""
        return refusals_of(mod, _Walk)


class _Walk:
    def __init__(self, f: Function):
        self.f, self.r = f, Rewriter(f)
        self.refusals: list[Refusal] = []

    def run(self) -> Function:
        """The function with attention fused."""
        for b in self.f.bindings:
            made = self._with_attention(b) if _moves_rows(b) else None
            if _is_product(b):
                chain = self._chain(b)
                made = self._fused([*chain, b]) if isinstance(chain, list) else chain
            if isinstance(made, str):
                self.refusals.append(Refusal(FuseAttention.name, b.var.name, made))
            if isinstance(made, Binding):
                self.r.emit(made)
            else:
                self.r.keep(b)
        return self.r.finish()

    def _with_attention(self, moves: Binding) -> Binding | str | None:
        """One kernel of attention and the transposition of its result; None: it is of another."""
        (a,) = _group(moves)[1]
        made = self.r.producer(a)
        if made is None or not isinstance(a, Var) or not self.r.used_once(a):
            return None
        return self._fused([made, moves]) if _is_attention(made) else None

    def _chain(self, product: Binding) -> list[Binding] | str:
        """The kernels from the scores to what `product` multiplies; or why that is not all."""
        group, args = _group(product)
        first = group.bindings[0].value
        assert isinstance(first, Call)
        data = dict(zip(group.params, args, strict=True))[_param(first.args[0])]
        return self._up(data, MOST_BETWEEN)

    def _up(self, a: Atom, most: int) -> list[Binding] | str:
        b = self.r.producer(a)
        if b is None or not isinstance(a, Var):
            return "what it multiplies is no result of a kernel"
        if not _is_kernel(b):
            op = op_of(b.value)
            what = f"another shape ({op.name})" if op and op.view else "no result of a kernel"
            return f"%{a.name} is {what}"
        if not self.r.used_once(a):
            return f"%{a.name} is read by something else, too"
        if _is_attention(b):
            return f"%{a.name} is a result of attention"
        if _is_product(b):
            return [b]
        reason = f"%{a.name} is computed from no product of two computed tensors"
        _, args = _group(b)
        for x in args if most else ():
            if isinstance(x, Var) and _shape(x) == _shape(a):
                found = self._up(x, most - 1)
                if isinstance(found, list):
                    return [*found, b]
                reason = found
        return reason

    def _fused(self, chain: list[Binding]) -> Binding | str:
        """One kernel of several, of which each but the last is read by the next; or why not."""
        args = dict.fromkeys(a for b in chain for a in _group(b)[1] if isinstance(a, Var))
        given = [m for a in args if (m := self.r.producer(a)) and m not in chain]
        moved = [m for m in given if _moves_rows(m) and self.r.used_once(m.var)]
        made = _joined([*moved, *chain])
        try:
            rows = shared_rows(legalize(_group(made)[0]).func)
        except LoweringError as e:
            return str(e)
        return rows if isinstance(rows, str) else made


def _shape(a: Var) -> object:
    return a.type.shape if isinstance(a.type, TensorType) else None


def _is_kernel(b: Binding) -> bool:
    op = b.value.op if isinstance(b.value, Call) else None
    return isinstance(op, Function) and bool(op.attrs.get("primitive"))


def _group(b: Binding) -> tuple[Function, tuple[Atom, ...]]:
    """The function of a kernel, and what it is called with."""
    assert isinstance(b.value, Call)
    assert isinstance(b.value.op, Function)
    return b.value.op, b.value.args


def _param(a: Atom) -> Var:
    assert isinstance(a, Var)
    return a


def _is_product(b: Binding) -> bool:
    """Whether a kernel begins with a product of two tensors that are computed elsewhere."""
    return _is_kernel(b) and _multiplies(_group(b)[0].bindings[0])


def _is_attention(b: Binding) -> bool:
    """Whether a kernel has several products already."""
    return _is_kernel(b) and sum(map(_multiplies, _group(b)[0].bindings)) > 1


def _moves_rows(b: Binding) -> bool:
    """Whether a kernel does nothing but change the order of axes, and not of the last."""
    if not _is_kernel(b) or len(_group(b)[0].bindings) > 1:
        return False
    (member,) = _group(b)[0].bindings
    op = op_of(member.value)
    if op is None or op.moves is not Moves.PERMUTE:
        return False
    assert isinstance(member.value, Call)
    rank = tensor_type(b.var).rank
    order = getattr(member.value.attrs, "axes", ()) or tuple(reversed(range(rank)))
    return bool(order[-1] % rank == rank - 1)


def _multiplies(member: Binding) -> bool:
    op = op_of(member.value)
    if op is None or op.contraction is None or op.contraction.by_rows:
        return False
    assert isinstance(member.value, Call)
    args = member.value.args
    return len(args) == 2 and all(isinstance(a, Var) for a in args)


def _joined(chain: list[Binding]) -> Binding:
    """The kernel of all that kernels do, one after another; its members keep their names, which
    random bits depend on."""
    names = {m.var.name for b in chain for m in _group(b)[0].bindings}
    params: dict[Var, Var] = {}
    inside: dict[Var, Atom] = {}
    members: list[Binding] = []
    for b in chain:
        group, args = _group(b)
        put: dict[Var, Atom] = {}
        for p, a in zip(group.params, args, strict=True):
            if isinstance(a, Var) and a not in inside and a not in params:
                params[a] = Var(unique(a.name, names), a.type)
            put[p] = (inside.get(a) or params[a]) if isinstance(a, Var) else a
        members += [Binding(m.var, substitute(m.value, put), m.origins) for m in group.bindings]
        inside[b.var] = group.results[0]
    last = chain[-1].var
    fused = Function(tuple(params.values()), tuple(members), (inside[last],), {"primitive": True})
    return Binding(last, Call(fused, tuple(params), None), union(*(b.origins for b in chain)))
