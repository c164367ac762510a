"""Modules with control flow, compiled for the virtual machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from compiler.boundary.assumptions import Assumption, assumptions, check_assumptions
from compiler.boundary.data import (
    arrays_in,
    bind_values,
    held_by,
    rebuilt,
    tensor_params,
)
from compiler.boundary.index_ranges import check_indices
from compiler.boundary.inputs import symbolic_sizes
from compiler.ir.expr import Function, IRModule, Var, atom_type
from compiler.passes.pipeline import run
from compiler.runtime.executable import Executable, GraphExecutable
from compiler.runtime.kernels import Kernel
from compiler.symbolic import Var as Dim
from compiler.target.registry import Target
from compiler.types.data import TypeDef
from compiler.types.dtypes import Array
from compiler.types.tensor_types import Type
from compiler.vm.dims import needed
from compiler.vm.image import Image
from compiler.vm.lower import Compile, lower
from compiler.vm.machine import Machine

CompileGraph = Callable[..., GraphExecutable]
"""`compiler.build.compile_graph`, which lies above."""


def build_machine(
    compile_graph: CompileGraph,
    mod: IRModule,
    target: Target,
    threads: int,
    dtype_lowering: str | None,
    assumed: Iterable[Assumption] = (),
) -> VMExecutable:
    """Compile `main` of a prepared module, and what it calls, with `compile_graph` for the regions
    without control flow. `assumed`: what `main` takes for granted.

    Raises:
        LoweringError: an operator or a custom datatype has no lowering; names it.
    """
    programs = {name: f for name, f in mod.functions.items() if not isinstance(f, Function)}

    def compile_region(f: Function) -> GraphExecutable:
        region = IRModule({"main": f, **programs})
        sizes, own = symbolic_sizes(f), assumptions(f)
        return compile_graph(region, target, threads, dtype_lowering, sizes, needed(f), own)

    image, f = run((mod, compile_region), "bytecode"), mod.main
    names = list(mod.attrs.get("outputs", ()))
    if len(names) != len(f.results):
        names = [r.name if isinstance(r, Var) else f"output{k}" for k, r in enumerate(f.results)]
    inputs = [(p.name, atom_type(p)) for p in f.params]
    outputs = list(zip(names, map(atom_type, f.results), strict=True))
    return VMExecutable(image, inputs, outputs, target, threads, tuple(assumed), mod.types)


def bytecode(given: tuple[IRModule, Compile]) -> Image:
    """The bytecode of a module, with what compiles its regions."""
    return lower(*given)


class VMExecutable(Executable):
    """A module with control flow: bytecode around compiled regions.

    Attributes:
        image: functions, regions and constants.
        assumed: what `main` takes for granted.
        params: name -> type of all inputs; `inputs` has those that are tensors. Calls take and give
            `Datum` for those of algebraic data types.
        types: definitions of these.
    """

    def __init__(
        self,
        image: Image,
        params: Sequence[tuple[str, Type]],
        outputs: Sequence[tuple[str, Type]],
        target: Target,
        threads: int,
        assumed: tuple[Assumption, ...] = (),
        types: Mapping[str, TypeDef] | None = None,
    ):
        lowerings = dict.fromkeys(c for r in image.regions for c in r.lowerings)
        super().__init__(tensor_params(params), outputs, target, threads, tuple(lowerings))
        self.image, self.assumed = image, assumed
        self.params, self.types = dict(params), dict(types or {})
        self._local = threading.local()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """See Executable.

        Raises:
            InputError: as there; a value is of no such type; or an input is a function.
        """
        if len(self.params) == len(self.inputs):
            return super().__call__(*args, **kwargs)
        values, dims = bind_values(list(self.params.items()), args, kwargs, self.types)
        both = zip(self.params, values, strict=True)
        arrays = [v for name, v in both if name in self.inputs]
        self.elements.check(list(self.inputs), arrays)
        check_indices(self.indices, self.inputs, arrays, dims)
        outs = self.elements.given(self.run(values, dims))
        return outs[0] if len(outs) == 1 else outs

    def signature(self) -> str:
        """See Executable."""
        ins = ", ".join(f"{n}: {t}" for n, t in self.params.items())
        return f"{ins} -> {', '.join(f'{n}: {t}' for n, t in self.outputs.items())}"

    def run(
        self, arrays: Sequence[Array], dims: Mapping[Dim, int], held: Sequence[Array] = ()
    ) -> list[Any]:
        """See Executable; `held` is left alone.

        Raises:
            InputError: sizes are not what the program takes for granted, or those found at run time
                contradict each other; a recursion is too deep.
        """
        check_assumptions(self.assumed, list(self.inputs.items()), dims)
        machine: Machine | None = getattr(self._local, "machine", None)
        if machine is None:
            machine = self._local.machine = Machine(self.image)
        results = machine.run(arrays, dims)
        given = [a for value in arrays for a in arrays_in(value)]
        seen = {id(a) for a in (*given, *self.image.constants)}
        return [_own(r, seen) for r in results]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Of all regions, in their order."""
        return tuple(k for r in self.image.regions for k in r.kernels)

    def stats(self) -> str:
        """Numbers of functions, instructions, regions, kernels and constants."""
        image, code = self.image, sum(len(f.code) for f in self.image.functions)
        size = sum(a.nbytes for a in image.constants)
        return "\n".join(
            [
                f"virtual machine for {self.target}, {self.threads} thread(s)",
                f"  {self.signature()}",
                f"  functions: {len(image.functions)} with {code} instructions",
                f"  regions: {len(image.regions)} with {len(self.kernels)} kernels",
                f"  constants: {len(image.constants)} with {size} bytes, those of regions apart",
            ]
        )

    def as_text(self) -> str:
        """The bytecode, and the instructions and loop nests of every region."""
        image = self.image
        parts = [f"f{k} {f}" for k, f in enumerate(image.functions)]
        parts += [f"constant{k} {a.dtype}{list(a.shape)}" for k, a in enumerate(image.constants)]
        parts += [f"region{k} {r.signature()}\n{r.as_text()}" for k, r in enumerate(image.regions)]
        return "\n\n".join(parts)

    @property
    def source(self) -> str:
        """Of every region."""
        return "\n\n".join(r.source for r in self.image.regions)


def _own(value: Any, seen: set[int]) -> Any:
    """A result whose arrays are no others: not inputs, constants, or those of another result."""
    arrays = [id(x) for x in arrays_in(value) if hasattr(x, "copy")]
    if len({*arrays}) == len(arrays) and seen.isdisjoint(arrays):
        seen.update(arrays)
        return value

    def leaf(x: Any, _: None) -> Any:
        if hasattr(x, "copy") and id(x) in seen:
            x = x.copy()
        seen.add(id(x))
        return x

    return rebuilt(value, None, held_by, leaf)
