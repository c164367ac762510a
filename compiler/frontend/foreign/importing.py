"""An import that hands to onnxruntime what we refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.boundary.packed import STRING, is_packed
from compiler.errors import UnsupportedError
from compiler.frontend.foreign.border import Border, Unit
from compiler.frontend.foreign.handing import hand_over, label_of_unit
from compiler.frontend.foreign.kinds import is_foreign, kind_text
from compiler.ir.expr import Var
from compiler.symbolic import Index
from compiler.symbolic import Var as Dimension
from compiler.symbolic.facts import Rule

if TYPE_CHECKING:
    from compiler.frontend.graph_import import GraphImport

_UINT8 = 2
_BROADCASTING = {
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Expand",
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min",
    "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
}  # fmt: skip
"""Operators that repeat operands of size 1, but for products of matrices: these are ours."""
Shapes = Mapping[str, Sequence[int | str | None]]


def plain_entries(
    entries: Sequence[Any], shapes: Shapes
) -> tuple[list[Any], Shapes, dict[str, str]]:
    """The inputs of a graph (ValueInfoProtos) as tensors of numbers, the shapes asked for, and the
    types, as text, of inputs that are bytes inside.

    Raises:
        UnsupportedError: an input can be given in no form.
    """
    import onnx

    out, wanted, kinds = [], dict(shapes), {}
    for e in entries:
        if not is_foreign(e.type):
            out.append(e)
            continue
        kind = kind_text(e.type)
        if not is_packed(kind):
            raise UnsupportedError(f"input {e.name!r} is of the type {kind}")
        made = onnx.ValueInfoProto(name=e.name)
        t = made.type.tensor_type
        if kind == STRING:
            t.CopyFrom(e.type.tensor_type)
            given = wanted.get(e.name)
            if given is not None and not (t.HasField("shape") and len(given) > len(t.shape.dim)):
                wanted[e.name] = (*given, None)
        t.elem_type = _UINT8
        if kind != STRING or t.HasField("shape"):
            t.shape.dim.add().dim_param = f"{e.name}_bytes"
        kinds[e.name] = kind
        out.append(made)
    return out, wanted, kinds


class Foreign:
    """What an import knows of values that are no tensors of numbers, and of regions.

    Args:
        model: the ModelProto, without local functions.
        kinds: value name -> TypeProto; see `kinds_of`.
        refused: whether a node's operator is one that we have no converter for.

    Attributes:
        packed: name -> the variable that holds a value which is no tensor of numbers.
        packed_kinds: name -> its type, as text.
        packed_weights: name -> the weights that only onnxruntime reads, as the file has them.
        found: dimensions that runs of regions find.
    """

    def __init__(self, model: Any, kinds: Mapping[str, Any], refused: Callable[[Any], bool]):
        self.model, self.kinds = model, kinds
        self.outputs = [o.name for o in model.graph.output]
        self.packed: dict[str, Var] = {}
        self.packed_kinds: dict[str, str] = {}
        self.packed_weights: dict[str, Any] = {}
        self.found: set[Dimension] = set()
        self._border = Border(model.graph, kinds, refused)
        self._reads: Counter[str] = Counter()

    def entries(self, entries: Sequence[Any], shapes: Shapes) -> tuple[list[Any], Shapes]:
        """As `plain_entries`, whose types are kept."""
        out, wanted, kinds = plain_entries(entries, shapes)
        self.packed_kinds |= kinds
        return out, wanted

    def weights(self, graph: Any) -> list[Any]:
        """The weights that programs can hold; the others are kept for regions."""
        foreign = self._border.foreign
        self.packed_weights = {t.name: t for t in graph.initializer if t.name in foreign}
        self.packed_weights |= {t.values.name: t for t in graph.sparse_initializer}
        return [t for t in graph.initializer if t.name not in foreign]

    def convert(self, g: GraphImport, convert: Callable[[Any], None]) -> None:
        """Import all nodes: by `convert`, or as regions.

        Raises:
            UnsupportedError: neither is possible.
            NotATensor: the graph must be divided otherwise.
        """
        for name in [n for n in self.packed_kinds if n not in self.packed]:
            self.packed[name] = g.taken_out(name)
        units = self._border.units()
        self._reads = Counter(name for u in units for name in u.reads)
        for unit in units:
            if unit.foreign:
                hand_over(self, g, unit, self._used(unit))
                continue
            back, known = g.checkpoint(), len(g.assuming.facts.rules)
            try:
                convert(unit.nodes[0])
                g.require_values(self._used(unit))
                self._check_assumed(unit, g.assuming.facts.rules[known:])
            except UnsupportedError as ours:
                back(unit.writes)
                try:
                    hand_over(self, g, unit, self._used(unit))
                except UnsupportedError as theirs:
                    raise UnsupportedError(f"{ours}; {theirs}") from None

    def _check_assumed(self, unit: Unit, rules: Sequence[Rule]) -> None:
        """Raise UnsupportedError if sizes that onnxruntime finds were assumed to be equal to
        others where one of them may as well be 1."""
        for rule in rules if unit.nodes[0].op_type in _BROADCASTING else ():
            of = (rule.value + Index({rule.atom: 1})).vars() & self.found
            if of:
                raise UnsupportedError(
                    f"{label_of_unit(unit)} needs {rule.atom} = {rule.value}, which only "
                    f"onnxruntime finds"
                )

    def _used(self, unit: Unit) -> list[str]:
        """What a unit computes that others read."""
        return [o for o in unit.writes if self._reads[o] or o in self.outputs]
