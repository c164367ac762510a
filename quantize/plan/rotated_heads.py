"""Attention along whose heads no channel is larger than the others: queries, keys and values are
transformed by `nn.hadamard` when the network runs.

Ashkboos et al., QuaRot, 2024, section 4. Products of transformed queries with transformed keys are
what they were; averages of transformed values are transformed back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.errors import ConfigError, unknown
from compiler.ir.expr import Atom, Binding, Call, IRModule, Var, tensor_type
from compiler.ir.inference import infer_value
from compiler.ir.substitution import with_operands
from compiler.op.facts import Moves
from compiler.op.library import get_op
from compiler.op.opdef import OpDef
from compiler.passes.live import live
from quantize.plan.call_facts import contraction_of


def with_rotated_heads(
    module: IRModule, scores: Sequence[str], averages: Sequence[str]
) -> IRModule:
    """A prepared module with these products of queries with keys, and of probabilities with values,
    of transformed factors. Names stay; `<product>_hadamard` is an average before it is
    transformed back.

    Raises:
        ConfigError: the module has no such products.
    """
    wanted = (*scores, *averages)
    made = {b.var.name: b for b in module.main.bindings}
    for name in wanted:
        b = made.get(name)
        axes = contraction_of(b.value) if b is not None and isinstance(b.value, Call) else None
        if axes is None or axes.by_rows:
            raise ConfigError(
                f"the plan was made for another model: {unknown('product', name, made)}"
            )
    if not wanted:
        return module
    f = module.main
    heads = _Heads({b.var: b for b in f.bindings})
    for b in f.bindings:
        if b.var.name in scores:
            heads.scores(b)
        elif b.var.name in averages:
            heads.averages(b)
        else:
            heads.bindings.append(b)
    return module.with_function("main", live(f.with_body(heads.bindings, f.results)))


class _Heads:
    """Writes the bindings of products whose factors are transformed."""

    def __init__(self, made: Mapping[Var, Binding]):
        self.made = made
        self.bindings: list[Binding] = []

    def scores(self, b: Binding) -> None:
        """A product of transformed queries with transformed keys."""
        assert isinstance(b.value, Call)
        queries, keys = b.value.args
        moved = [self._bound(b, "nn.hadamard", queries, "queries")]
        by_rows = self._bound(b, "nn.hadamard", self._rows(b, keys), "keys")
        moved.append(self._swapped(b, by_rows, "keys_across"))
        self.bindings.append(Binding(b.var, with_operands(b.value, moved), b.origins))

    def averages(self, b: Binding) -> None:
        """A product with transformed values, transformed back."""
        assert isinstance(b.value, Call)
        probabilities, values = b.value.args
        turned = self._bound(b, "nn.hadamard", values, "values")
        value = with_operands(b.value, [probabilities, turned])
        product = Var(f"{b.var.name}_hadamard", infer_value(value))
        op = get_op("nn.hadamard")
        self.bindings.append(Binding(product, value, b.origins))
        self.bindings.append(Binding(b.var, Call(op, (product,), op.make_attrs()), b.origins))

    def _rows(self, b: Binding, keys: Atom) -> Atom:
        """Keys with their channels last."""
        source = self.made.get(keys) if isinstance(keys, Var) else None
        if source is not None and isinstance(source.value, Call):
            op, rank = source.value.op, tensor_type(keys).rank
            swap = (*range(rank - 2), rank - 1, rank - 2)
            moves = isinstance(op, OpDef) and op.moves == Moves.PERMUTE
            if moves and tuple(k % rank for k in source.value.attrs.axes or ()) == swap:
                return source.value.args[0]
        return self._swapped(b, keys, "keys_by_rows")

    def _swapped(self, b: Binding, a: Atom, what: str) -> Var:
        rank = tensor_type(a).rank
        return self._bound(b, "transpose", a, what, axes=(*range(rank - 2), rank - 1, rank - 2))

    def _bound(self, b: Binding, name: str, a: Atom, what: str, **attrs: object) -> Var:
        op = get_op(name)
        value = Call(op, (a,), op.make_attrs(**attrs))
        made = Var(f"{b.var.name}_{what}", infer_value(value))
        self.bindings.append(Binding(made, value, b.origins))
        return made
