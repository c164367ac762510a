"""The state of one import: values, and how nodes are converted. What they are converted to is in
`compiler.frontend.program`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import ModelError, UnsupportedError
from compiler.frontend import symbolic_ops
from compiler.frontend.element_types import NARROW, element_code, exotic_name
from compiler.frontend.folding import empty
from compiler.frontend.function_body import body_of, has_body
from compiler.frontend.limits import Budget
from compiler.frontend.model_file import attribute_value, constant
from compiler.frontend.named_values import NamedValues
from compiler.frontend.node import CONVERTERS, ByDefinition, Node, Results
from compiler.frontend.schema import check_node, operator_key
from compiler.frontend.signature import given_constants, input_types
from compiler.frontend.values import Imported, Symbolic
from compiler.ir.expr import Atom, Constant, Function, Var, tensor_type
from compiler.symbolic import Dim, Index, dim
from compiler.types.tensor_types import TensorType

if TYPE_CHECKING:
    import numpy.typing as npt

    from compiler.frontend.foreign.importing import Foreign

_MOVES = {
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Concat",
    "Split", "Gather", "Expand", "Tile", "Pad",
}  # fmt: skip
"""Operators that take narrow integers and give them on."""
_CONVERSIONS = {"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "Shape", "Size",
                "GatherBlockQuantized"}  # fmt: skip
"""Operators that take narrow integers."""


class GraphImport(NamedValues):
    """The state of one import; implements `compiler.frontend.node.Graph`."""

    def __init__(
        self,
        graph: Any,
        folder: Path | None,
        opset: int,
        budget: Budget,
        foreign: Foreign | None = None,
    ):
        super().__init__(budget)
        self.proto, self.folder, self.opset, self.foreign = graph, folder, opset, foreign
        self._narrow: dict[str, int] = {}
        self.at: Any = None  # the node of the graph that is being converted

    # ---- the import ------------------------------------------------------------------------------
    def run(
        self,
        shapes: Mapping[str, Sequence[int | str | None]],
        constants: Mapping[str, npt.ArrayLike],
    ) -> Function:
        """The function that the graph computes.

        Raises:
            ModelError: the graph is not valid, or what the caller gives does not fit it.
            UnsupportedError: a node, attribute or element type that we do not implement.
        """
        g = self.proto
        if g.sparse_initializer and not self.foreign:
            raise UnsupportedError("sparse initializers are not supported: store them densely")
        weights = {t.name for t in g.initializer}
        entries = [i for i in g.input if i.name not in weights]
        self._values.update(given_constants(entries, constants))
        entries = [i for i in entries if i.name not in constants]
        self.inputs = [i.name for i in entries]
        weights_read = g.initializer
        if self.foreign:
            entries, shapes = self.foreign.entries(entries, shapes)
            weights_read = self.foreign.weights(g)
        if len(set(self.inputs)) < len(self.inputs):
            raise ModelError("the model has two inputs of the same name; export it again")
        self.names.name_interface([e.name for e in entries], g)
        for t in weights_read:
            self._values[t.name] = self._weight(t)
        for name, t in input_types(entries, shapes).items():
            given = self.builder.param(self.printable(name), t.shape, t.dtype)
            known = t.size == 0 and all(isinstance(d, int) for d in t.shape)
            self._values[name] = empty(t) if known else given
            self.names.taken |= {str(v) for d in t.shape if isinstance(d, Index) for v in d.vars()}
        for e in entries:
            self.mark(e.name, e.type.tensor_type.elem_type)
        if self.foreign:
            self.foreign.convert(self, self._convert)
        else:
            for n in g.node:
                self.at = n
                self._convert(n)
        results: list[Atom] = []
        for o in g.output:
            if self.foreign and o.name in self.foreign.packed:
                results.append(self.foreign.packed[o.name])
                continue
            if o.name not in self._values and o.name not in self._missing:
                raise ModelError(f"output {o.name!r} is not computed by any node")
            results.append(self.atom(o.name))
        return self.builder.finish(*results)

    def _weight(self, t: Any) -> Constant:
        self.mark(t.name, t.data_type)
        made = constant(t, self.folder, f"weight {t.name!r}", self.budget)
        return replace(made, name=t.name)

    def _convert(self, proto: Any) -> None:
        self.budget.step()
        outputs = tuple(proto.output)
        if not any(outputs):
            return
        where = f"node {proto.name or outputs[0]!r} ({proto.op_type})"
        check_node(proto, self.opset, where)
        self._check_narrow(proto, where)
        key = operator_key(proto)
        if key not in CONVERTERS:
            self._convert_body(proto)
            return
        attrs = {
            a.name: attribute_value(a, where, self.folder, self.budget) for a in proto.attribute
        }
        node = Node(proto.op_type, proto.name, tuple(proto.input), outputs, attrs, self)
        sizes, back = self._sizes(node), self.rewind()

        def convert() -> Results:
            known = symbolic_ops.evaluate(node) if key == node.op else None
            return CONVERTERS[key](node) if known is None else known

        try:
            results = self.results_of(node, convert)
        except ByDefinition:
            back()
            self._convert_body(proto)
            return
        if len(sizes) == 2 and isinstance(results, Var):
            self.compared[results] = sizes[0], sizes[1]
        self.keep(node, results)

    def _sizes(self, node: Node) -> list[Dim]:
        """The sizes that an Equal compares, if each is a single one."""
        sides = [self._values.get(name) for name in node.inputs if node.op == "Equal"]
        data = [v.data for v in sides if isinstance(v, (Symbolic, Constant)) and v.data.size == 1]
        found: list[Any] = [x.astype(object).reshape(-1)[0] for x in data]
        return [dim(x) for x in found if isinstance(x, (int, Index))]

    def _check_narrow(self, proto: Any, where: str) -> None:
        """Narrow integers are moved and converted; nothing computes with them."""
        narrow = [i for i in proto.input if i in self._narrow]
        if proto.op_type in _MOVES:
            for o in proto.output if narrow else ():
                self.mark(o, self._narrow[narrow[0]])
        elif narrow and proto.op_type not in _CONVERSIONS:
            raise UnsupportedError(f"{where} is not supported with integers of 2 or 4 bits")
        for a in proto.attribute:
            if a.HasField("t"):
                self.mark(proto.output[0], a.t.data_type)

    def _convert_body(self, proto: Any) -> None:
        """Convert the nodes by which ONNX defines the operator."""
        types = [tensor_type(self.atom(i)) if i else None for i in proto.input]
        nodes, opset = body_of(proto, self.opset, types)
        outside, self.opset = self.opset, opset
        try:
            for n in nodes:
                if n.op_type not in CONVERTERS and not has_body(n.op_type, opset):
                    where = f"node {proto.name or proto.output[0]!r} ({proto.op_type})"
                    raise UnsupportedError(
                        f"{where}: {n.op_type}, which defines it, is not supported"
                    )
                self._convert(n)
        finally:
            self.opset = outside

    # ---- what regions use (see compiler.frontend.foreign) ----------------------------------------
    def taken_out(self, name: str) -> Var:
        """A value that converters must not see."""
        v = self._values.pop(name)
        assert isinstance(v, Var)
        return v

    def put_in(self, name: str, v: Imported) -> None:
        """Give a value its name.

        Raises:
            ModelError: there is one of that name.
        """
        if name in self._values:
            raise ModelError(f"the value {name!r} is defined twice")
        self._values[name] = v

    def require_values(self, names: Sequence[str]) -> None:
        """Raise UnsupportedError if what a node should have computed is not there."""
        for name in names:
            if name in self._missing:
                raise UnsupportedError(self._missing[name])

    def checkpoint(self) -> Callable[[Sequence[str]], None]:
        """What takes back the import of a node, whose values have these names."""
        back, known = self.rewind(), self.assuming.facts.rules
        indices, counts, compared = dict(self.indices), dict(self.counts), dict(self.compared)

        def undo(names: Sequence[str]) -> None:
            back()
            self.assuming.facts.rules = known
            self.indices, self.counts, self.compared = indices, counts, compared
            for name in names:
                self._values.pop(name, None)
                self._missing.pop(name, None)
                self._narrow.pop(name, None)

        return undo

    # ---- what nodes use (see Graph) --------------------------------------------------------------
    def element(self, name: str) -> int:
        """See Graph."""
        return self._narrow.get(name) or element_code(tensor_type(self.atom(name)).dtype)

    def declared(self, name: str) -> str:
        """Name of a value's element type if numpy does not have it, or its type if it is no tensor
        of numbers; else empty."""
        if self.foreign and name in self.foreign.packed_kinds:
            return self.foreign.packed_kinds[name]
        atom = self.atom(name)
        if not isinstance(atom.type, TensorType):
            return ""
        return exotic_name(self.element(name))

    def mark(self, name: str, code: int) -> None:
        """See Graph."""
        if code in NARROW:
            self._narrow[name] = code

    def inline(self, graph: Any, operands: Sequence[Imported]) -> list[Imported]:
        """See Graph. The names of the subgraph hold only in it; those around it are seen."""
        if graph.sparse_initializer:
            raise UnsupportedError("sparse initializers are not supported: store them densely")
        around = self._values, self.names, self._missing, self._narrow
        own = {v.name for v in [*graph.input, *graph.initializer]}
        own |= {o for n in graph.node for o in n.output}
        self._values = {k: v for k, v in self._values.items() if k not in own}
        self.names = self.names.without(own)
        self._missing = {k: v for k, v in self._missing.items() if k not in own}
        self._narrow = {k: v for k, v in self._narrow.items() if k not in own}
        try:
            for t in graph.initializer:
                self._values[t.name] = self._weight(t)
            if len(graph.input) != len(operands):
                raise ModelError(f"{len(operands)} operands for {len(graph.input)} inputs")
            for i, v in zip(graph.input, operands, strict=True):
                self._values[i.name] = v
            for n in graph.node:
                self._convert(n)
            if any(o.name in self._narrow for o in graph.output):
                raise UnsupportedError("a subgraph gives integers of 2 or 4 bits")
            return [self.value(o.name) for o in graph.output]
        finally:
            self._values, self.names, self._missing, self._narrow = around
