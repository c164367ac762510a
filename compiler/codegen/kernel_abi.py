"""What is needed to call a compiled kernel, kept beside its object code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from compiler.symbolic import Atom, Index, Quasi, Var
from compiler.tensor.packed_arrays import IndexMap


@dataclass(frozen=True)
class Launch:
    """The grid of threads that does a stage: how many blocks there are along x, y and z, how many
    threads a block has, and how many bytes of shared memory besides those that its code declares.
    """

    blocks: tuple[Index, Index, Index]
    threads: tuple[int, int, int]
    shared: int = 0


@dataclass(frozen=True)
class Stage:
    """One native function of a kernel.

    Called with a pointer per parameter, temporary and table, an int64 per symbolic dimension, and,
    unless `extent` is None, the range [begin, end) of the `extent` tasks it shall do. `work` counts
    its innermost iterations. `joins`: threads may begin it before the stage before it is finished.
    `launch`: the grid of threads by which targets that have such do it.
    """

    symbol: str
    extent: Index | None
    work: Index
    joins: bool = False
    launch: Launch | None = None


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
            replace(
                s,
                extent=s.extent and s.extent.subst(names),
                work=s.work.subst(names),
                launch=s.launch and _renamed(s.launch, names),
            )
            for s in self.stages
        ]
        return replace(self, stages=tuple(stages), temps=tuple(t.subst(names) for t in self.temps))

    def to_json(self) -> str:
        """One line of text."""
        stages = [
            [s.symbol, s.extent and _index(s.extent), _index(s.work), s.joins, _grid(s.launch)]
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
                Stage(s, n and index(n), index(w), j, _launch(grid, dims))
                for s, n, w, j, grid in given["stages"]
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


def _renamed(at: Launch, names: Mapping[Var, Var]) -> Launch:
    x, y, z = (n.subst(names) for n in at.blocks)
    return replace(at, blocks=(x, y, z))


def _grid(at: Launch | None) -> list[Any] | None:
    if at is None:
        return None
    return [[_index(n) for n in at.blocks], list(at.threads), at.shared]


def _launch(grid: list[Any] | None, dims: dict[int | str, Var]) -> Launch | None:
    if grid is None:
        return None
    (x, y, z), (tx, ty, tz), shared = grid
    blocks = (_index_of(x, dims), _index_of(y, dims), _index_of(z, dims))
    return Launch(blocks, (tx, ty, tz), shared)


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
