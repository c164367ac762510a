"""What an import knows of a model's values, by their names, and how nodes become values: what every
reader of models has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.errors import DtypelabError, ModelError, UnequalSizes, UnsupportedError, unknown
from compiler.frontend.limits import Budget
from compiler.frontend.node import Node, Results
from compiler.frontend.program import MOST_ASSUMED, Program
from compiler.frontend.run_time import renamed_sizes
from compiler.frontend.values import Imported, Symbolic, symbolic
from compiler.ir.expr import Atom, Constant, Var, operands
from compiler.symbolic import Index
from compiler.types.tensor_types import TensorType


def _first_line(e: Exception) -> str:
    return (str(e).splitlines() or [type(e).__name__])[0]


class NamedValues(Program):
    """The values of a model that is being read; with the program, part of what
    `compiler.frontend.node.Graph` asks for.

    Attributes:
        inputs: names of the model's inputs.
    """

    fixed_with = "shapes=..."
    """How callers fix symbolic dimensions."""

    def __init__(self, budget: Budget):
        super().__init__(budget)
        self.inputs: list[str] = []
        self._values: dict[str, Imported] = {}
        self._missing: dict[str, str] = {}

    # ---- nodes -----------------------------------------------------------------------------------
    def results_of(self, node: Node, convert: Callable[[], Results]) -> Results:
        """What `convert` makes of a node.

        Raises:
            ModelError: the node is not valid.
            UnsupportedError: it is something that we do not implement.
        """
        outside, self.where = self.where, node.where
        try:
            return self._converted(node, convert)
        except (ModelError, UnsupportedError) as e:
            if str(e).startswith("node "):  # in a subgraph: that node is the one to name
                raise
            raise type(e)(f"{node.where}: {e}") from None
        except DtypelabError as e:
            raise ModelError(f"{node.where}: {e}{self._hint(node)}") from None
        except (ValueError, IndexError, TypeError, ArithmeticError, MemoryError) as e:
            raise ModelError(f"{node.where} is not valid: {_first_line(e)}") from e
        finally:
            self.where = outside

    def keep(self, node: Node, results: Results) -> None:
        """Give a node's results the names of its outputs.

        Raises:
            ModelError: a value has that name.
        """
        values = [results] if isinstance(results, (Var, Constant, Symbolic)) else list(results)
        values = [
            renamed_sizes(node, v) if isinstance(v, Var) and isinstance(v.type, TensorType) else v
            for v in values
        ]
        for i, name in enumerate(node.outputs):
            if name and name in self._values:
                raise ModelError(f"{node.where}: the value {name!r} is defined twice")
            if i < len(values):
                self._values[name] = values[i]
            elif name:
                self._missing[name] = f"{node.where} is not supported with its output {i} in use"

    def _converted(self, node: Node, convert: Callable[[], Results]) -> Results:
        """What a node's outputs are. Where its operands' sizes must be equal and are not known to
        be, that is assumed."""
        back, count = self.rewind(), 0
        while True:
            try:
                return convert()
            except UnequalSizes as e:
                count += 1
                if count > MOST_ASSUMED:
                    raise
                back()
                self.assuming.learn(e)
                for name in filter(None, node.inputs):
                    v = self._values.get(name)
                    if isinstance(v, Symbolic):
                        self._values[name] = self._simplified(v)
                    elif isinstance(v, Var):
                        self._values[name] = self.renamed(v, e, node.origin)
                back = self.rewind()

    def _simplified(self, v: Symbolic) -> Symbolic | Constant:
        data = [self.assuming.facts.simplified(x) for x in v.data.reshape(-1)]
        flat: Any = np.empty(len(data), object)
        flat[:] = data
        return symbolic(flat.reshape(v.data.shape), v.dtype)

    def _hint(self, node: Node) -> str:
        """Advice for a node whose operands do not fit, in case symbolic dimensions are why."""
        values = [self._values.get(name) for name in node.inputs]
        types = [v.type for v in values if isinstance(v, (Var, Constant))]
        dims = [d for t in types if isinstance(t, TensorType) for d in t.shape]
        if not any(isinstance(d, Index) for d in dims):
            return ""
        names = dict.fromkeys(s for i in node.inputs if i for s in self.sources(i))
        if names and not all(self.is_given(d) for d in dims if isinstance(d, Index)):
            given = ", ".join(f"{name!r}: ..." for name in names)
            return f"; sizes that are found at run time can be given: constants={{{given}}}"
        return f"; if symbolic dimensions are the cause, fix them with {self.fixed_with}"

    # ---- what nodes use (see Graph) --------------------------------------------------------------
    def value(self, name: str) -> Imported:
        """See Graph."""
        if name in self._missing:
            raise UnsupportedError(self._missing[name])
        if name not in self._values:
            known = [v for v in self._values if v.isprintable()]
            raise ModelError(unknown("value", name, known) + " (nodes must be sorted)")
        return self._values[name]

    def atom(self, name: str) -> Atom:
        """See Graph."""
        v = self.value(name)
        # It stays symbolic for those who ask for its value: sizes that follow from it are known.
        return self.computed(v, self.printable(name)) if isinstance(v, Symbolic) else v

    def sources(self, name: str) -> list[str]:
        """See Graph."""
        start = self.value(name)
        makers = self._makers
        found, todo = set(), [start] if isinstance(start, Var) else []
        while todo:
            v = todo.pop()
            if v not in found:
                found.add(v)
                todo += (
                    [a for a in operands(makers[v]) if isinstance(a, Var)] if v in makers else []
                )
        return [n for n in self.inputs if self._values.get(n) in found]
