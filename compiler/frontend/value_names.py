"""Variable names of the values of a graph."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from compiler.types.names import identifier, unique


class ValueNames:
    """ONNX value name -> variable name; `taken` holds every name that no variable may get again."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.taken: set[str] = set()

    def name_interface(self, inputs: Iterable[str], graph: Any) -> None:
        """Name inputs and outputs before all else: these have the model's own names, whatever is in
        them. A value that an Identity makes an output has the output's name."""
        outputs = [o.name for o in graph.output]
        for name in [*inputs, *outputs]:
            self._names[name] = name
            self.taken.add(name)
        makers = {name: n for n in graph.node for name in n.output}
        for output in outputs:
            maker = makers.get(output)
            while maker is not None and maker.op_type == "Identity" and maker.input:
                source = maker.input[0]
                if source in self._names or source not in makers:
                    break
                self._names[source] = self._names[output]
                maker = makers[source]

    def without(self, hidden: Container[str]) -> ValueNames:
        """The same names, but for values that others of a subgraph hide."""
        inner = ValueNames()
        inner._names = {k: v for k, v in self._names.items() if k not in hidden}
        inner.taken = self.taken
        return inner

    def printable(self, name: str) -> str:
        """The variable name of an ONNX value name."""
        if name not in self._names:
            self._names[name] = self.intermediate(name)
        return self._names[name]

    def intermediate(self, stem: str) -> str:
        """A variable name that no ONNX value has."""
        return unique(identifier(stem) or "v", self.taken)
