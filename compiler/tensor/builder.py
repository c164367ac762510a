"""PrimBuilder: what an operator's `lower` function writes its loop nests with.

Every stage is a perfect nest over named loops that stores into one buffer. Intermediate buffers
become temporaries, unless a schedule inlines them or moves them into registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import Buffer, Expr
from compiler.tensor.stmt import For, PrimFunc, Stmt, Store
from compiler.types.dtypes import DType

Extent = IntLike | Callable[..., IntLike]


LEAST_SKIPPED = 7
"""Columns from which on taps in the padding are better skipped than multiplied: a row is a register
tile then."""


class PrimBuilder:
    """Collects the stages of one PrimFunc. `least_skipped`: columns of a result from which on taps
    in the padding are skipped, not read from a padded copy, where both give the same bits."""

    def __init__(self, name: str, least_skipped: int = LEAST_SKIPPED):
        self.name, self.least_skipped = name, least_skipped
        self.inputs: list[Buffer] = []
        self.temps: list[Buffer] = []
        self.body: list[Stmt] = []
        self._names: set[str] = set()

    def fresh(self, stem: str) -> str:
        """A name no buffer or stage of this function has yet."""
        name, k = stem, 1
        while name in self._names:
            name, k = f"{stem}{k}", k + 1
        self._names.add(name)
        return name

    def input(self, name: str, shape: Sequence[IntLike], dtype: DType) -> Buffer:
        """Declare an input buffer."""
        b = Buffer(self.fresh(name), tuple(map(Index.of, shape)), dtype)
        self.inputs.append(b)
        return b

    def buffer(self, name: str, shape: Sequence[IntLike], dtype: DType) -> Buffer:
        """Declare an intermediate (or output) buffer, to be filled by `stage`."""
        b = Buffer(self.fresh(name), tuple(map(Index.of, shape)), dtype)
        self.temps.append(b)
        return b

    def stage(
        self,
        buffer: Buffer,
        loops: Mapping[str, Extent],
        body: Callable[..., tuple[tuple[IntLike, ...], Expr]],
        reduce: Mapping[str, Extent] | None = None,
        update: str = "",
        init: Callable[..., Expr] | None = None,
        name: str = "",
    ) -> None:
        """Append `for loops, reduce: buffer[idx] (update)= value`.

        `body(*loop variables, *reduce variables)` returns (idx, value); `init(*loop variables)` is
        what the reduction starts from. Loop variables are named `stage.loop`. An extent may be a
        function of the loop variables outside it.
        """
        stage = self.fresh(name or buffer.name + "_s")
        variables: list[Var] = []
        for n, e in [*loops.items(), *(reduce or {}).items()]:
            extent = e(*variables) if callable(e) else e
            variables.append(Var(f"{stage}.{n}", extent))
        outer, inner = variables[: len(loops)], variables[len(loops) :]
        idx, value = body(*outer, *inner)
        start = init(*outer) if init else None
        node: Stmt = Store(stage, buffer, tuple(map(Index.of, idx)), value, update, start)
        for v in reversed(outer + inner):
            node = For(v, [node])
        self.body.append(node)

    def compute(
        self,
        name: str,
        shape: Sequence[IntLike],
        dtype: DType,
        fn: Callable[..., Expr],
    ) -> Buffer:
        """A new buffer with `buffer[i, j, ...] = fn(i, j, ...)`."""
        out = self.buffer(name, shape, dtype)
        loops = {f"i{k}": n for k, n in enumerate(shape)}
        self.stage(out, loops, lambda *i: (i, fn(*i)))
        return out

    def reduce(
        self,
        name: str,
        shape: Sequence[IntLike],
        dtype: DType,
        axes: Mapping[str, Extent],
        fn: Callable[..., Expr],
        init: Callable[..., Expr] | Expr,
        update: str = "Add",
    ) -> Buffer:
        """A new buffer with `buffer[i...] = init; for axes in order: buffer[i...] update= fn(i...,
        axes...)`.

        `axes` run in the order given (row-major), which pins the order of a sequential
        accumulation.
        """
        out = self.buffer(name, shape, dtype)
        loops = {f"i{k}": n for k, n in enumerate(shape)}
        rank = len(shape)
        start = (lambda *_: init) if isinstance(init, Expr) else init
        self.stage(
            out, loops, lambda *i: (i[:rank], fn(*i)), reduce=axes, update=update, init=start
        )
        return out

    def finish(self, outputs: Sequence[Buffer], attrs: Mapping[str, Any] | None = None) -> PrimFunc:
        """The PrimFunc whose parameters are the inputs, then `outputs`."""
        temps = [b for b in self.temps if b not in outputs]
        params = [*self.inputs, *outputs]
        dims: dict[Var, None] = {}
        for b in [*params, *temps]:
            for d in b.shape:
                dims.update(dict.fromkeys(sorted(d.vars(), key=str)))
        return PrimFunc(
            self.name, params, len(outputs), self.body, temps, list(dims), attrs=dict(attrs or {})
        )
