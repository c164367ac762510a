"""A compiled program as data: what a loader makes an executable of, here or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.boundary.assumptions import Assumption
from compiler.boundary.external import External
from compiler.codegen.backend import Code
from compiler.codegen.steps import Step
from compiler.errors import UnsupportedError
from compiler.lowering.choose import DtypeLowering
from compiler.runtime.kernels import Kernel
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class Program:
    """What the builder made of a module without control flow. It holds no address: it may be
    written to a file, or sent to another machine.

    Attributes:
        target, threads: what it was built for.
        inputs, outputs: names and types.
        kernels: with their object code, if the backend compiles each by itself.
        constants: the arrays that steps refer to by number.
        dims: symbolic dimensions, in the order in which the entry point is given them.
        workspace: bytes of intermediate memory.
        entry: the entry point; with all kernels, if the backend compiles them as one.
        code: object code of `entry`.
        steps: what the entry point does.
        externals: calls of registered functions.
        sizes: the symbolic dimensions of its tensors, which may not be zero.
        assumed: equalities of dimensions.
        lowerings: how each custom datatype is computed, and why.
        parts: where the entry point was left as text, that of all code, the entry point's last.
    """

    target: Target
    threads: int
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[tuple[str, TensorType], ...]
    kernels: tuple[Kernel, ...]
    constants: tuple[Array, ...]
    dims: tuple[Var, ...]
    workspace: Index
    entry: Code
    code: bytes
    steps: tuple[Step, ...]
    externals: tuple[External, ...] = ()
    sizes: tuple[Index, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    lowerings: tuple[DtypeLowering, ...] = ()
    parts: tuple[Code, ...] = ()

    @property
    def symbol(self) -> str:
        """The name of the entry point."""
        return self.entry.symbols[-1]

    def refuse_externals(self, what: str) -> None:
        """Raise UnsupportedError if it calls functions of this process, of which `what` says what
        cannot be done."""
        for e in self.externals:
            raise UnsupportedError(
                f"the registered function {e.name!r} is part of this process and {what}: replace "
                "its call by operators"
            )
