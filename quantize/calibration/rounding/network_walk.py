"""Running a network piece by piece: the values that are asked for, and no more than they need.

Layers are quantized one after the other, and each has to see what those before it give once they
are quantized. A walk keeps, for every batch, the values that later pieces will read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.expr import Binding, Function, IRModule, Var, operands, uses
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


class NetworkWalk:
    """The values of a network on some batches, computed in the order in which they are asked for.

    The network may change between one question and the next, as long as the bindings keep their
    names and what was computed already stays as it is.
    """

    def __init__(self, inputs: Sequence[Mapping[str, Array]], threads: int = 1):
        self.values: dict[str, list[Array]] = {}
        for name in inputs[0] if inputs else ():
            self.values[name] = [batch[name] for batch in inputs]
        self.inputs = list(inputs)
        self.done: set[str] = set()
        self.threads = threads

    def value(self, f: Function, name: str) -> list[Array]:
        """The value called `name`, batch by batch. It must not have been passed already."""
        if name not in self.values:
            self._compute(f, next(b.var for b in f.bindings if b.var.name == name))
            self._forget(f)
        return self.values[name]

    def _compute(self, f: Function, wanted: Var) -> None:
        import compiler

        piece = self._piece(f, wanted)
        inside = {b.var for b in piece}
        readers = uses(f)
        # What is not a tensor cannot be kept: pieces that need it compute it once more.
        results = [
            b.var
            for b in piece
            if isinstance(b.var.type, TensorType)
            and (b.var == wanted or any(r is None or r.var not in inside for r in readers[b.var]))
        ]
        read = [a for b in piece for a in operands(b.value) if isinstance(a, Var)]
        # The network's own inputs tell what symbolic dimensions are.
        params = tuple(dict.fromkeys([*(a for a in read if a not in inside), *f.params]))
        main = Function(params, tuple(piece), tuple(results))
        program = compiler.build(IRModule({"main": main}), threads=self.threads)
        given = [self.values.get(p.name) or [b[p.name] for b in self.inputs] for p in params]
        for batch in zip(*given, strict=True):
            out = program(*batch)
            for v, array in zip(results, out if isinstance(out, list) else [out], strict=True):
                self.values.setdefault(v.name, []).append(array)
        self.done |= {b.var.name for b in piece if isinstance(b.var.type, TensorType)}

    def _piece(self, f: Function, wanted: Var) -> list[Binding]:
        """The bindings that `wanted` still needs, in order."""
        needed = {wanted}
        out = []
        for b in reversed(f.bindings):
            if b.var in needed and b.var.name not in self.values:
                out.append(b)
                needed.update(a for a in operands(b.value) if isinstance(a, Var))
        return out[::-1]

    def _forget(self, f: Function) -> None:
        """Drop the values that no binding will read."""
        names = {b.var.name for b in f.bindings}
        readers = uses(f)
        passed = {b.var for b in f.bindings if b.var.name in self.done}
        for b in reversed(f.bindings):
            read = readers.get(b.var, [])
            if not isinstance(b.var.type, TensorType) and all(r and r.var in passed for r in read):
                passed.add(b.var)
        for v, read in readers.items():
            inner = v.name in names and v.name in self.values
            if inner and all(r is not None and r.var in passed for r in read):
                del self.values[v.name]
