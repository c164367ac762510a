"""Decoders that are called with what is new, and keep the rest in memory of their own."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.boundary.assumptions import assumptions
from compiler.boundary.elements import ELEMENTS, elements_of
from compiler.boundary.index_ranges import check_indices, index_ranges
from compiler.boundary.inputs import bind_inputs, input_called, named_inputs, symbolic_sizes
from compiler.build import compile_graph, needs_machine
from compiler.decoding.caches import Cache, Kept, growing
from compiler.decoding.rounded import holding_rounded, rounded_first
from compiler.decoding.turned import turned
from compiler.errors import InputError, OutOfMemoryError, UnsupportedError
from compiler.ir.expr import IRModule
from compiler.ir.outside import refuse_outside
from compiler.lowering.choose import choose_lowerings
from compiler.passes.pipeline import sequence
from compiler.runtime.executable import GraphExecutable
from compiler.stages import Job
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.packed_arrays import aligned_empty
from compiler.tensor.stmt import SLACK
from compiler.transform.preparation import prepare
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

MASK, POSITIONS = "attention_mask", "position_ids"
"""Inputs that exporters name so, which calls may leave out: nothing is masked, and the positions
are those that follow."""


def decoder(
    mod: IRModule,
    target: str | Target = "llvm",
    threads: int = 1,
    dtype_lowering: str | None = None,
) -> Decoder:
    """Compile a decoder for prefill and steps alike: a model whose outputs (`present...`) are
    inputs (`past...`) with new positions behind them.

    Args:
        mod: the model, in any number system; its inputs' numbers of past and of new positions are
            open. target, threads, dtype_lowering: see `compiler.build`.

    Raises:
        UnsupportedError: no output continues an input, or a cache is read otherwise; or there is
            control flow.
        LoweringError, InputError, ConfigError: as `compiler.build`.
    """
    if threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    refuse_outside(mod, "part of a decoder, which keeps its caches in place")
    ready = prepare(mod)
    if needs_machine(ready):
        raise UnsupportedError(
            "a model with control flow, or sizes found in numbers, keeps no caches in place: build "
            "it as it is"
        )
    chosen = Target.parse(target)
    chosen.require_cpu("decoders that keep their caches")
    job = Job(chosen, choose_lowerings(ready, dtype_lowering))
    if job.deterministic:
        ready = rounded_first(ready)
    found = turned(holding_rounded(growing(sequence("heads", "heads", told=job)(ready))))
    main = found.module.main
    # The number of positions so far is 0 at first; nothing but `append` and `shape_of` reads those.
    sizes = [s for s in symbolic_sizes(main) if s != found.past]
    assumed = assumptions(found.module)
    exe = compile_graph(found.module, chosen, threads, dtype_lowering, sizes, (), assumed)
    exe.elements = elements_of(_noted(found.module, found.caches))
    exe.indices = index_ranges(found.module)
    exe.kept = found.kept
    return Decoder(exe)


def _noted(mod: IRModule, caches: Sequence[Cache]) -> IRModule:
    """The module with notes on the element types of the outputs that are left."""
    noted = mod.attrs.get(ELEMENTS)
    if not noted:
        return mod
    gone = {c.position for c in caches}
    outputs = [t for k, t in enumerate(noted["outputs"]) if k not in gone]
    return IRModule(mod.functions, {**mod.attrs, ELEMENTS: {**noted, "outputs": outputs}})


class Decoder:
    """A compiled decoder. `session` begins a text, or several of one length.

    Attributes:
        executable: what was compiled. It takes the caches' memory as inputs.
        caches: which inputs are kept, and the outputs that would continue them.
    """

    def __init__(self, executable: GraphExecutable):
        assert isinstance(executable.kept, Kept)
        self.executable, self.kept = executable, executable.kept
        self.caches = self.kept.caches
        names = {c.name for c in self.caches}
        self.inputs = {n: t for n, t in executable.inputs.items() if n not in names}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to one file, which `compiler.load_decoder` reads on any machine whose CPU has
        what the target needs.

        Raises:
            ConfigError, LoweringError: as `Executable.save`.
        """
        self.executable.save(path)

    @property
    def outputs(self) -> dict[str, Any]:
        """Name -> type, of what a call gives."""
        return self.executable.outputs

    def session(self, capacity: int, batch: int = 1) -> Session:
        """An empty cache with room for `capacity` positions.

        Args:
            batch: how many texts run at once, if the model leaves that open.

        Raises:
            InputError: a number below 1, or a cache has a size that is open otherwise.
            OutOfMemoryError: there is no memory for the cache.
        """
        return Session(self, capacity, batch)

    def __repr__(self) -> str:
        names = ", ".join(c.name for c in self.caches)
        return f"Decoder({self.executable.signature()}; caches: {names})"


class Session:
    """One text (or a batch of them) on the way: calls give the positions that are new, and get the
    outputs for those; keys and values of all before stay where they are. Not for several threads at
    once; sessions of one decoder are independent.

    Attributes:
        length: positions so far. capacity: how many there is room for.
    """

    def __init__(self, of: Decoder, capacity: int, batch: int):
        capacity, batch = _count("capacity", capacity), _count("batch", batch)
        if capacity < 1 or batch < 1:
            raise InputError(
                f"a session has room for at least 1 position and 1 text, not {capacity} and {batch}"
            )
        self.decoder, self.capacity, self.batch, self.length = of, capacity, batch, 0
        self._memory: dict[str, Array] = {}
        self._sizes: dict[Var, int] = {}  # those that caches have besides their positions
        for c in of.caches:
            t = of.executable.inputs[c.name]
            shape = [capacity if k == c.axis else self._size(c, d) for k, d in enumerate(t.shape)]
            self._memory[c.name] = _memory(c, shape, t)

    def _size(self, c: Cache, d: Any) -> int:
        if isinstance(d, int):
            return d
        if not isinstance(d, Var) or self._sizes.get(d, self.batch) != self.batch:
            raise InputError(f"input {c.name!r} has an axis of {d}, of which a cache knows nothing")
        self._sizes[d] = self.batch
        if len(self._sizes) > 1:
            names = ", ".join(sorted(map(str, self._sizes)))
            raise InputError(f"caches have several open sizes, {names}: which is the batch?")
        return self.batch

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the model on new positions, behind those of all calls before.

        Takes the model's inputs but for caches; `attention_mask` [batch, length so far and new] and
        `position_ids` [batch, new] may be left out.

        Returns:
            The output, or a list of them; those that continue caches are left out.

        Raises:
            InputError: an input is missing, unknown or does not fit, or there is no room left.
        """
        given = self._completed(args, kwargs)
        found, exe = self.decoder.kept, self.decoder.executable
        arrays, dims = bind_inputs(list(self.decoder.inputs.items()), (given,), {})
        for d, size in self._sizes.items():
            if dims.get(d, size) != size:
                raise InputError(f"{d} is {dims[d]}, but this session was begun for {size}")
        dims |= self._sizes
        new = Index.of(found.new).value(dims)
        total = self.length + int(new)
        if dims.get(found.total, total) != total:
            raise InputError(
                f"inputs are for {dims[found.total]} positions in all, but there are {self.length} "
                f"and {new} new ones"
            )
        if total > self.capacity:
            raise InputError(
                f"{new} new positions do not fit: this session has room for {self.capacity}, and "
                f"{self.length} are taken"
            )
        dims |= {found.total: total, found.capacity: self.capacity}
        at = dict(zip(self.decoder.inputs, arrays, strict=True))
        every = [self._memory[n] if n in self._memory else at[n] for n in exe.inputs]
        exe.elements.check(list(exe.inputs), every)
        if exe.indices:
            check_indices(exe.indices, exe.inputs, every, dims)
        outs = exe.elements.given(exe.run(every, dims))
        self.length = total
        return outs[0] if len(outs) == 1 else outs

    def _completed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, by name, and what may be left out."""
        names = list(self.decoder.inputs)
        given = named_inputs(names, args, kwargs, (MASK, POSITIONS))
        dims: dict[Var, int] | None = None
        for name in names:
            if name not in given:
                if dims is None:
                    types = [(n, self.decoder.inputs[n]) for n in given]
                    _, dims = bind_inputs(types, (given,), {})
                given[name] = self._default(name, dims)
        return given

    def _default(self, name: str, dims: Mapping[Var, int]) -> Array:
        """An input that was left out."""
        found, t = self.decoder.kept, self.decoder.inputs[name]
        known = {**self._sizes, **dims}
        new = Index.of(found.new)
        if not new.vars() <= known.keys():
            raise InputError(f"missing input {name!r}, which tells how many positions are new")
        total = self.length + int(new.value(known))
        known[found.total] = total
        sizes = [Index.of(d) for d in t.shape]
        shape = [int(d.value(known)) if d.vars() <= known.keys() else total for d in sizes]
        if name == MASK:
            return np.ones(shape, t.dtype.storage)
        positions = np.arange(self.length, total, dtype=t.dtype.storage)
        return np.ascontiguousarray(np.broadcast_to(positions, shape))

    def cache(self, name: str) -> Array:
        """A copy of what a cache holds so far: numbers of `Cache.held` in the form in which they
        lie in memory (floats, of formats that are computed in float lanes).

        Raises:
            InputError: there is no cache of that name.
        """
        c = {c.name: c for c in self.decoder.caches}
        kept = c[input_called(name, list(c))]
        found = self._memory[kept.name].take(range(self.length), kept.axis)
        return found.transpose(np.argsort(kept.order)) if kept.order else found

    def rewind(self, length: int = 0) -> None:
        """Forget all positions from `length` on.

        Raises:
            InputError: there are not so many.
        """
        length = _count("a length", length)
        if not 0 <= length <= self.length:
            raise InputError(f"a session of {self.length} positions cannot go back to {length}")
        self.length = length


def _count(what: str, given: Any) -> int:
    """An integer that a caller gives.

    Raises:
        InputError: it is none.
    """
    try:
        return operator.index(given)
    except TypeError:
        raise InputError(f"{what} must be an integer, not {given!r}") from None


def _memory(c: Cache, shape: Sequence[int], t: TensorType) -> Array:
    """A cache's memory, with bytes behind it that kernels may read."""
    count = int(np.prod(shape))
    try:
        raw = aligned_empty((count * t.dtype.nbytes + SLACK,), np.dtype(np.uint8))
    except (MemoryError, ValueError) as error:
        raise OutOfMemoryError(f"no memory for cache {c.name!r}: {error}") from error
    raw[...] = 0
    return raw[: count * t.dtype.nbytes].view(t.dtype.storage).reshape(shape)
