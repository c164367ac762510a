"""A network in pieces: its layers one by one, and what lies between them.

Every piece is compiled once, however many assignments are measured: a layer in every candidate,
what lies between layers in float32. Assignments differ in a few layers, and building a network
takes longer than running it on a few inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .exploring import Tell

if TYPE_CHECKING:
    from compiler.ir.expr import Binding, IRModule, Var
    from compiler.runtime.executable import Executable, GraphExecutable
    from compiler.symbolic import Var as Dim
    from quantize.plan.plan import Plan

Array = NDArray[Any]
Values = Mapping[str, Array]
"""Values inside the network, by name: those that are still to be read."""


@dataclass(frozen=True)
class Piece:
    """Some bindings, what they read, and what others read of them."""

    bindings: tuple[Binding, ...]
    reads: tuple[Var, ...]
    writes: tuple[Var, ...]
    kept: frozenset[str]
    """Names of the values that are read behind it."""


class Pieces:
    """A network, cut before and behind each of its layers.

    Args:
        module: prepared, with one result.
        nodes: names of the layers, in program order.
        batches: inputs by name.
        threads: that pieces run on.
    """

    def __init__(
        self, module: IRModule, nodes: Sequence[str], batches: Sequence[Values], threads: int
    ):
        self.module, self.nodes = module, tuple(nodes)
        self.batches, self.threads = batches, threads
        self.between, self.layers = _cut(module, self.nodes)
        self._first: GraphExecutable | None = None
        self._programs: dict[int, Executable] = {}
        self._layers: dict[tuple[int, int], tuple[Plan | None, Executable]] = {}

    def results(
        self, plans: Sequence[Plan | None], batches: Iterable[Values] | None = None
    ) -> list[Array]:
        """What the network gives with each layer as a plan of the whole network says (None: in
        float32), batch by batch; for other batches than its own, if given."""
        given = self.batches if batches is None else batches
        return [self._finished(self._start(b), b, 0, plans) for b in given]

    @cached_property
    def reference(self) -> list[Array]:
        """What it gives in float32, batch by batch."""
        return self.results([None] * len(self.nodes))

    def noises(self, plans: Sequence[Plan | None], tell: Tell) -> NDArray[np.float64]:
        """[layers, plans]: energy of the error of the results over that of the results, with one
        layer as a plan says and the others in float32; NaN if results are, and where a plan leaves
        the layer in float32. What comes before the layer is computed once for all plans."""
        from quantize.search.energies import energies

        layers = len(self.nodes)
        noises, signal = np.zeros((layers, len(plans))), 0.0
        for done, (batch, wanted) in enumerate(zip(self.batches, self.reference, strict=True)):
            values = self._start(batch)
            signal += energies(wanted, wanted)[0]
            for at in range(layers):
                tell("layers alone", done * layers + at, len(self.batches) * layers)
                exact = self._behind(values, batch, at, None)
                for k, plan in enumerate(plans):
                    if plan is None or self.nodes[at] not in plan.formats:
                        noises[at, k] = np.nan
                        continue
                    own = self._behind(values, batch, at, plan)
                    if not _same(own, exact):
                        found = self._finished(own, batch, at + 1, [None] * layers)
                        noises[at, k] += energies(found, wanted)[1]
                values = exact
        tell("layers alone", 1, 1)
        return noises / (signal or 1.0)

    def _start(self, batch: Values) -> Values:
        return self._between(dict(batch), batch, 0)

    def _behind(self, values: Values, batch: Values, at: int, plan: Plan | None) -> Values:
        """What is there behind a layer, and what follows it up to the next one."""
        if (at, id(plan)) not in self._layers:
            module = _alone(self.module, self.layers[at])
            if plan is not None:
                module = _in_format(module, self.nodes[at], plan)
            # The plan is kept, so that no other has its identity.
            self._layers[at, id(plan)] = plan, self._built(module)
        program = self._layers[at, id(plan)][1]
        return self._between(self._run(values, batch, self.layers[at], program), batch, at + 1)

    def _between(self, values: Values, batch: Values, at: int) -> Values:
        piece = self.between[at]
        if not piece.bindings:
            return values
        if at not in self._programs:
            self._programs[at] = self._built(_alone(self.module, piece))
        return self._run(values, batch, piece, self._programs[at])

    def _finished(
        self, values: Values, batch: Values, at: int, plans: Sequence[Plan | None]
    ) -> Array:
        for layer in range(at, len(self.nodes)):
            values = self._behind(values, batch, layer, plans[layer])
        return values[_result(self.module).name]

    def _run(self, values: Values, batch: Values, piece: Piece, program: Executable) -> Values:
        found = program.run([values[v.name] for v in piece.reads], self._sizes(batch))
        more = zip([v.name for v in piece.writes], found, strict=True)
        return {**{n: a for n, a in values.items() if n in piece.kept}, **dict(more)}

    def _built(self, module: IRModule) -> Executable:
        """A piece, in the memory of the others: hundreds of workspaces would be gigabytes."""
        import compiler
        from compiler.runtime.executable import GraphExecutable

        program = compiler.build(module, threads=self.threads)
        if isinstance(program, GraphExecutable) and not program.program.externals:
            self._first = self._first or program
            program.share_workspace(self._first)
        return program

    def _sizes(self, batch: Values) -> dict[Dim, int]:
        from compiler.boundary.inputs import bind_inputs
        from compiler.ir.expr import tensor_type

        params = [(p.name, tensor_type(p)) for p in self.module.main.params]
        return bind_inputs(params, (), batch)[1]


def can_be_cut(module: IRModule, nodes: Sequence[str]) -> bool:
    """Whether all that is read across cuts are tensors whose sizes follow from those of inputs."""
    from compiler.types.tensor_types import TensorType
    from compiler.vm.dims import dims_of

    known = set().union(*(dims_of(p.type) for p in module.main.params))
    between, layers = _cut(module, nodes)
    return all(
        isinstance(v.type, TensorType) and dims_of(v.type) <= known
        for piece in (*between, *layers)
        for v in (*piece.reads, *piece.writes)
    )


def _same(a: Values, b: Values) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


def _result(module: IRModule) -> Var:
    from compiler.ir.expr import Var

    result = module.main.results[0]
    assert isinstance(result, Var)
    return result


def _cut(module: IRModule, nodes: Sequence[str]) -> tuple[list[Piece], list[Piece]]:
    """What lies before, between and behind the layers; and the layers."""
    bindings, result = module.main.bindings, _result(module)
    places = {b.var.name: at for at, b in enumerate(bindings)}
    parts, start = [], 0
    for node in nodes:
        at = places[node]
        parts += [bindings[start:at], bindings[at : at + 1]]
        start = at + 1
    parts.append(bindings[start:])
    found: list[Piece] = []
    later: dict[Var, None] = {result: None}
    for part in reversed(parts):
        made = {b.var: None for b in part}
        read = {v: None for b in part for v in _variables(b) if v not in made}
        writes = tuple(v for v in made if v in later)
        kept = frozenset(v.name for v in later if v not in made)
        found.append(Piece(part, tuple(read), writes, kept))
        later = {v: None for v in [*read, *later] if v not in made}
    found.reverse()
    return found[0::2], found[1::2]


def _variables(b: Binding) -> list[Var]:
    from compiler.ir.expr import Var, operands

    return [a for a in operands(b.value) if isinstance(a, Var)]


def _alone(module: IRModule, piece: Piece) -> IRModule:
    """A piece as a network of its own."""
    from compiler.ir.expr import Function

    main = Function(piece.reads, piece.bindings, piece.writes)
    return replace(module.with_function("main", main), attrs={})


def _in_format(module: IRModule, node: str, plan: Plan) -> IRModule:
    """A layer alone as a plan of the whole network says."""
    import quantize
    from quantize.annotation.annotate import prepared
    from quantize.plan.fingerprint import fingerprint_of

    module = prepared(module)
    own = replace(
        plan,
        model=fingerprint_of(module),
        nodes={node: plan.nodes[node]},
        formats={node: plan.formats[node]},
        values={},
        weights={},
    )
    return quantize.realize(module, own)
