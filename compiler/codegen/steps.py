"""What the entry point of a program does, step by step: data that every backend writes out."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.kernel_abi import Stage
from compiler.symbolic import Index, Var

ZERO = Index()


@dataclass(frozen=True)
class Pointer:
    """Where a tensor is: `base` is `input`, `output`, `constant` (with `index`) or `workspace`
    (with a byte `offset`)."""

    base: str
    index: int = 0
    offset: Index = ZERO


@dataclass(frozen=True)
class Step:
    """A native stage with its pointer arguments and symbolic dimensions; `work` estimates the
    scalar operations it does per call. Or, without a stage, a copy of `size` bytes between two
    pointers, or the call of the function whose address is stored at `function`, with a table of
    the pointers and one of all symbolic dimensions.

    `watch`: the int32 that becomes 1 if the stage rounds. `when`: the int32 without which the stage
    does not run. All are 0 at first. `nodes`: of the model, for readers of the code.
    """

    stage: Stage | None
    pointers: tuple[Pointer, ...]
    dims: tuple[Var, ...] = ()
    work: Index = ZERO
    size: Index = ZERO
    function: Pointer | None = None
    watch: Pointer | None = None
    when: Pointer | None = None
    nodes: str = ""
