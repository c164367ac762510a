"""What is needed to call a compiled kernel, kept beside its object code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from compiler.symbolic import Atom, Index, Quasi, Var
from compiler.tensor.packed_arrays import IndexMap


@dataclass(frozen=True)
class Stage:
    """One native function of a kernel.

    Called with a pointer per parameter, temporary and table, an int64 per symbolic dimension, and,
    unless `extent` is None, the range [begin, end) of the `extent` tasks it shall do. `work` counts
    its innermost iterations. `joins`: threads may begin it before the stage before it is finished.
    """

    symbol: str
    extent: Index | None
    work: Index
    joins: bool = False


@dataclass(frozen=True)
class KernelAbi:
    """How a compiled loop nest is called (application binary interface).

    Attributes:
        stages: its functions, called in order.
        packed: parameter number -> the order in which its constant array is laid out.
        temps: bytes of each temporary buffer.
    """

    stages: tuple[Stage, ...]
    packed: Mapping[int, IndexMap]
    temps: tuple[Index, ...]

    def with_dims(self, names: Mapping[Var, Var]) -> KernelAbi:
        """The same with other names of dimensions."""
        stages = [
            replace(s, extent=s.extent and s.extent.subst(names), work=s.work.subst(names))
            for s in self.stages
        ]
        return replace(self, stages=tuple(stages), temps=tuple(t.subst(names) for t in self.temps))

    def to_json(self) -> str:
        """One line of text."""
        stages = [
            [s.symbol, None if s.extent is None else _index(s.extent), _index(s.work), s.joins]
            for s in self.stages
        ]
        packed = [[k, *_order(order)] for k, order in self.packed.items()]
        temps = [_index(t) for t in self.temps]
        return json.dumps({"stages": stages, "packed": packed, "temps": temps})

    @staticmethod
    def from_json(text: str) -> KernelAbi:
        """The inverse of `to_json`; dimensions are told apart by their names."""
        given = json.loads(text)
        dims: dict[int | str, Var] = {}

        def index(x: Any) -> Index:
            return _index_of(x, dims)

        return KernelAbi(
            tuple(
                Stage(s, None if n is None else index(n), index(w), j)
                for s, n, w, j in given["stages"]
            ),
            {k: _order_of(shape, idx) for k, shape, idx in given["packed"]},
            tuple(index(t) for t in given["temps"]),
        )


def index_to_json(i: Index) -> list[Any]:
    """An index whose variables are known by their names."""
    return _index(i)


def index_from_json(given: list[Any]) -> Index:
    """The inverse of `index_to_json`."""
    return _index_of(given, {})


def order_text(order: IndexMap) -> str:
    """The same for orders that lay arrays out alike."""
    return json.dumps(_order(order))


# An index is [constant, [factor, atom] ...]; an atom is a name or number, or [operation, a, b].
def _index(i: Index, names: Mapping[Var, int] | None = None) -> list[Any]:
    return [i.const, *([factor, _atom(a, names)] for a, factor in i.terms.items())]


def _atom(a: Atom, names: Mapping[Var, int] | None) -> Any:
    if isinstance(a, Quasi):
        return [a.op, _index(a.a, names), _index(a.b, names)]
    return a.name if names is None else names[a]


def _index_of(x: list[Any], variables: dict[int | str, Var]) -> Index:
    const, *terms = x
    return Index({_atom_of(a, variables): factor for factor, a in terms}, const)


def _atom_of(x: Any, variables: dict[int | str, Var]) -> Atom:
    if isinstance(x, list):
        op, a, b = x
        return Quasi(op, _index_of(a, variables), _index_of(b, variables))
    if x not in variables:
        variables[x] = Var(x)
    return variables[x]


def _order(order: IndexMap) -> list[Any]:
    numbers = {v: k for k, v in enumerate(order.vars)}
    return [list(order.shape), [_index(i, numbers) for i in order.idx]]


def _order_of(shape: list[int], idx: list[Any]) -> IndexMap:
    variables: dict[int | str, Var] = {k: Var(f"v{k}", n) for k, n in enumerate(shape)}
    return IndexMap(
        tuple(variables[k] for k in range(len(shape))),
        tuple(_index_of(i, variables) for i in idx),
    )
