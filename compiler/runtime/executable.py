"""Executable: a compiled module, called like a function."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.boundary.assumptions import check_assumptions
from compiler.boundary.elements import Elements
from compiler.boundary.external import Linkage
from compiler.boundary.index_ranges import IndexRange, check_indices
from compiler.boundary.inputs import bind_inputs, check_sizes, named_inputs
from compiler.codegen.backend import backend_of
from compiler.errors import InputError, OutOfMemoryError, UnsupportedError
from compiler.ir.devices import Copied, Placement
from compiler.ir.regions import Decision, Region
from compiler.lowering.choose import DtypeLowering
from compiler.runtime.addresses import address
from compiler.runtime.disassembly import counts, instructions
from compiler.runtime.kernels import Kernel, aligned_copy
from compiler.runtime.program import Program
from compiler.symbolic import Index, Var
from compiler.symbolic.quasi import function_of
from compiler.target.accelerator import KIND
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, Type

KNOWN_SIZES = 64
"""Combinations of symbolic dimensions whose sizes an executable remembers."""
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)


Entry = Callable[[int, int, int, int, int], None]
"""Runs the steps of a program, given addresses: of the tables of pointers to inputs, outputs and
constants, of the workspace, and of the dimensions as int64."""

Sized = Callable[[Mapping[Var, int]], "GraphExecutable"]
"""Compiles a program for given symbolic dimensions alone."""


class Executable:
    """A compiled module. Call it with arrays, positionally or by input name; it may be called from
    several threads. Results are new arrays with the dtypes the model declares.

    Attributes:
        inputs, outputs: name -> type.
        target: what it was compiled for.
        threads: how many threads its kernels use.
        lowerings: how each custom datatype is computed, and why.
        elements: what the model declares of its inputs and outputs that numpy has no dtype for;
            calls take and give arrays of ml_dtypes there, `run` does not.
        indices: which inputs are positions; calls check them, `run` does not.
        regions: what engines compute of it.
        imported: what engines were handed of the model's file, as it was imported.
        decisions: what was measured of them, if costs decided.
        runners: what keeps their runners registered.
        placements: what devices compute of it.
        devices: what keeps that registered.
        copied: `count` and `bytes` of what it has copied between the host and devices; None: it is
            for a single target.
    """

    elements = Elements()
    indices: tuple[IndexRange, ...] = ()
    regions: tuple[Region, ...] = ()
    imported: tuple[Region, ...] = ()
    decisions: tuple[Decision, ...] = ()
    runners: object = None
    placements: tuple[Placement, ...] = ()
    devices: object = None
    copied: Copied | None = None

    def __init__(
        self,
        inputs: Sequence[tuple[str, TensorType]],
        outputs: Sequence[tuple[str, Type]],
        target: Target,
        threads: int,
        lowerings: tuple[DtypeLowering, ...] = (),
    ):
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self.target, self.threads, self.lowerings = target, threads, lowerings

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Returns:
            The output array, or a list of arrays if the model has several outputs.

        Raises:
            compiler.errors.InputError: an input is missing, unknown, or of the wrong rank, shape or
            dtype.
        """
        if self.elements.packs:
            args, kwargs = (self.elements.packed(named_inputs([*self.inputs], args, kwargs)),), {}
        arrays, dims = bind_inputs(list(self.inputs.items()), args, kwargs)
        self.elements.check(list(self.inputs), arrays)
        if self.indices:
            check_indices(self.indices, self.inputs, arrays, dims)
        outs = self.elements.given(self.run(arrays, dims))
        return outs[0] if len(outs) == 1 else outs

    def run(
        self, arrays: Sequence[Array], dims: Mapping[Var, int], held: Sequence[Array] = ()
    ) -> list[Any]:
        """Run on checked arrays, in parameter order, with the symbolic dimensions' values.

        `held`: the results of an earlier run that nobody needs any more. This run may write its own
        over them, which saves the time that the system takes for fresh memory.
        """
        raise NotImplementedError

    @property
    def emulated(self) -> str:
        """The emulator that it runs on, whose times say nothing of a real machine's; empty: its
        times are what they are."""
        return "simulator" if self.target.kind == KIND else ""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """What was compiled, in the order in which it is called or written."""
        raise NotImplementedError

    @property
    def dtype_lowering(self) -> str:
        """How custom datatypes are computed, e.g. `vector`, or `library, vector`; empty if there
        are none."""
        return ", ".join(sorted({c.lowering for c in self.lowerings}))

    @property
    def tuned(self) -> int:
        """How many kernels have their tiles from a tuning log."""
        return sum(k.tuned for k in self.kernels)

    def stats(self) -> str:
        """What it consists of, in a few lines for people."""
        raise NotImplementedError

    def as_text(self) -> str:
        """What runs, for people: instructions, and the scheduled loop nests of the kernels."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """The code of every kernel and of what calls them, in the language of the target's
        backend."""
        raise NotImplementedError

    def llvm_text(self) -> str:
        """`source` of targets whose code LLVM makes.

        Raises:
            UnsupportedError: its code is in another language.
        """
        language = backend_of(self.target).language
        if language != "llvm":
            raise UnsupportedError(f"the code is in {language}, not LLVM's: see `source`")
        return self.source

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to one file: see `compiler.saved.executables.save`."""
        from compiler.saved.executables import save

        save(self, path)

    def signature(self) -> str:
        """Inputs and outputs with their types."""
        ins = ", ".join(f"{n}: {t}" for n, t in self.inputs.items())
        return f"{ins} -> {', '.join(f'{n}: {t}' for n, t in self.outputs.items())}"

    def __repr__(self) -> str:
        how = f"target={str(self.target)!r}, threads={self.threads}"
        return f"{type(self).__name__}({self.signature()}, {how})"

    def _repr_html_(self) -> str:
        from compiler._html import preformatted

        return preformatted(f"{self!r}\n{self.stats()}")


class GraphExecutable(Executable):
    """A module without control flow: one native function calls its kernels.

    Attributes:
        program: what the builder made. Its entry point is at the address `entry`, or a function
            that takes the addresses of the tables instead.
        kept: what sessions of a decoder know of its caches (see `compiler.decoding`), which is
            saved with it; None of others.
    """

    kept: object = None

    def __init__(self, program: Program, entry: int | Entry, sized: Sized | None = None):
        super().__init__(
            program.inputs, program.outputs, program.target, program.threads, program.lowerings
        )
        self.program, self._sized = program, sized
        self._entry: Entry = _ENTRY(entry) if isinstance(entry, int) else entry
        self._linkage = Linkage(program.externals, program.dims)
        self._linked = _linked(program.constants, self._linkage.addresses)
        self._constants = _table(self._linked)
        self._local = threading.local()
        self._bytes = function_of(program.workspace, program.dims)
        self._known: dict[tuple[int, ...], tuple[list[tuple[int, ...]], int, Any]] = {}

    def run(
        self, arrays: Sequence[Array], dims: Mapping[Var, int], held: Sequence[Array] = ()
    ) -> list[Array]:
        """See Executable."""
        shapes, size, values = self._sizes(dims)
        if [a.shape for a in held] == shapes:
            outs = list(held)
        else:
            outs = self._outputs(shapes)
        if values is None:  # nothing to compute
            return outs
        if isinstance(values, GraphExecutable):
            return values.run(arrays, {}, held)
        if self.program.externals:
            self._linkage.require()
        try:
            work = self._workspace(size)
        except (MemoryError, ValueError) as error:  # numpy says the latter of sizes beyond all
            raise self._no_memory(dims, size) from error
        given, made = _table(arrays), _table(outs)  # alive until the call returns
        self._entry(
            ctypes.addressof(given),
            ctypes.addressof(made),
            ctypes.addressof(self._constants),
            address(work),
            ctypes.addressof(values),
        )
        if self.program.externals:
            self._local.workspace = work
            self._linkage.check()
        return outs

    def prepared(self) -> Callable[[Sequence[Array]], list[Array]] | None:
        """A quicker `run`, for one thread, of a program all of whose sizes are known: its tables
        are made once. None: there is none."""
        p = self.program
        if p.dims or p.externals:
            return None
        shapes, size, values = self._sizes({})
        if values is None or isinstance(values, GraphExecutable):
            return None
        kinds = [(s, t.dtype.storage) for s, (_, t) in zip(shapes, p.outputs, strict=True)]
        count = len(p.inputs)
        table = struct.Struct(f"{count + len(kinds)}P")
        held = ctypes.create_string_buffer(max(table.size, 8))
        work, fill, empty = self._workspace(size), table.pack_into, np.empty
        at = ctypes.addressof(held)
        made = at + count * ctypes.sizeof(ctypes.c_void_p)
        constants, d, e = ctypes.addressof(self._constants), address(work), ctypes.addressof(values)
        entry = functools.partial(self._entry, at, made, constants, d, e)

        def run(arrays: Sequence[Array], kept: Any = (work, values)) -> list[Array]:
            try:
                outs = [empty(shape, dtype) for shape, dtype in kinds]
            except MemoryError:
                return self.run(arrays, {})  # which says what there is no memory for
            fill(held, 0, *map(address, arrays), *map(address, outs))
            entry()
            return outs

        return run

    def stage_times(
        self, arrays: Sequence[Array], dims: Mapping[Var, int], runs: int
    ) -> list[list[float]] | None:
        """Milliseconds of every native stage, in order of execution, in each of so many runs, by a
        clock where it runs; None: stages are called, and timed, from here."""
        return None

    def _sizes(self, dims: Mapping[Var, int]) -> tuple[list[tuple[int, ...]], int, Any]:
        """(shapes of the outputs, bytes of workspace, what runs), remembered for a few dims:
        evaluating them takes microseconds.

        What runs is the native entry, with dims as int64s. Kernels are not made for sizes of 0:
        where there is one, nothing runs if all outputs are empty (None), else what is compiled for
        these sizes alone.

        Raises:
            InputError: the sizes are not what the program takes for granted; one is negative; or
                one is 0, but not every output is empty, and it cannot be compiled again.
        """
        p = self.program
        key = tuple(dims[v] for v in p.dims)
        if key not in self._known:
            check_assumptions(p.assumed, p.inputs, dims)
            none = check_sizes(p.sizes, dims) or min(key, default=1) < 1
            shapes = [
                tuple(d.value(dims) if isinstance(d, Index) else d for d in t.shape)
                for _, t in p.outputs
            ]
            values: Any = (ctypes.c_int64 * max(1, len(key)))(*key)
            if none:
                values = None
                if p.externals or not all(0 in s for s in shapes):
                    values = self._for_sizes(dims)
            if len(self._known) >= KNOWN_SIZES:
                self._known = {}
            size = 0 if none else self._bytes(*key)
            self._known[key] = (shapes, size, values)
        return self._known[key]

    def _for_sizes(self, dims: Mapping[Var, int]) -> GraphExecutable:
        given = ", ".join(f"{v} = {dims[v]}" for v in self.program.dims)
        if self._sized is None:
            raise InputError(
                f"{given} makes a tensor without elements, for which a program that was loaded "
                "from a file cannot be compiled again: give such sizes when it is built"
            )
        return self._sized(dims)

    def _outputs(self, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        outs: list[Array] = []
        for shape, (name, t) in zip(shapes, self.program.outputs, strict=True):
            try:
                outs.append(np.empty(shape, t.dtype.storage))
            except (MemoryError, ValueError) as error:
                raise OutOfMemoryError(f"no memory for output {name!r}: {error}") from error
        return outs

    def _no_memory(self, dims: Mapping[Var, int], size: int) -> OutOfMemoryError:
        """What to say where there is no room for intermediate values."""
        said = f"no memory for {size / 2**30:.3g} GiB of intermediate values"
        given = ", ".join(f"{v} = {dims[v]}" for v in self.program.dims)
        said += f" ({given})" if given else ""
        return OutOfMemoryError(said + self._largest(dims, size))

    def _largest(self, dims: Mapping[Var, int], size: int) -> str:
        """Of the largest intermediate value, who uses it first; empty: nobody."""
        first: dict[int, str] = {}
        for step in self.program.steps:
            for p in step.pointers:
                if p.base == "workspace" and step.stage is not None:
                    first.setdefault(int(p.offset.value(dims)), step.stage.symbol)
        ends = [*sorted(first)[1:], size]
        if not first:
            return ""
        places = zip(sorted(first), ends, strict=True)
        begin, end = max(places, key=lambda place: place[1] - place[0])
        return f"; the largest, {(end - begin) / 2**30:.3g} GiB, is that of {first[begin]}"

    def _workspace(self, size: int) -> Array:
        """This thread's workspace; it grows to the largest batch seen."""
        held: Array | None = getattr(self._local, "workspace", None)
        if held is None or held.nbytes < size:
            held = aligned_copy(np.zeros(max(size, 64), np.uint8))
        # An external function may call this executable: that run needs a workspace of its own.
        self._local.workspace = None if self.program.externals else held
        return held

    def share_workspace(self, other: GraphExecutable) -> None:
        """Use the workspaces of another program from now on, of which the two need one a thread as
        large as the larger needs. Neither may run while the other does in the same thread, as
        functions that one calls may do."""
        self._local = other._local

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """In the order in which they run."""
        return self.program.kernels

    def workspace_bytes(self, **dims: int) -> int:
        """Bytes of intermediate memory for given symbolic dimensions, e.g.
        `workspace_bytes(n=8)`."""
        return int(self.program.workspace.value({Var(k): v for k, v in dims.items()}))

    def as_text(self) -> str:
        """The instructions, and the scheduled loop nests in the order in which they run."""
        listed = [instructions(self.program)]
        return "\n\n".join(listed + [k.as_text() for k in self.program.kernels])

    def stats(self) -> str:
        """Numbers of kernels, instructions and constants, and the memory plan's size."""
        head = f"graph executable for {self.target}, {self.threads} thread(s)"
        return "\n  ".join([head, self.signature(), *counts(self.program)])

    @property
    def source(self) -> str:
        """See Executable."""
        p = self.program
        if not backend_of(p.target).separate:
            return p.entry.text
        return "\n\n".join([*dict.fromkeys(k.source for k in p.kernels), p.entry.text])


def _table(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(arrays)))(*map(address, arrays))


def _linked(constants: Sequence[Array], addresses: Mapping[int, Array]) -> list[Array]:
    """The constants, with the addresses of external functions in their places."""
    return [addresses.get(k, a) for k, a in enumerate(constants)]
