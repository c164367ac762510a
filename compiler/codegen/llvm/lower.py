"""Mechanical lowering of one loop nest to LLVM functions. Knows nothing of convolution or any
schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.codegen.grids import refuse_grid
from compiler.codegen.llvm.statements import Statements
from compiler.symbolic import Index
from compiler.target.registry import Target
from compiler.tensor.stmt import Buffer, PrimFunc


@dataclass(frozen=True)
class NativeStage:
    """One top-level statement of a PrimFunc as an LLVM function.

    Called with a pointer per param, temp and table, an int64 per dim, and, if it has parallel
    loops, the range [begin, end) of tasks to do (see `parallel_tasks`); `extent` is the number of
    tasks, None if the stage is sequential.
    """

    symbol: str
    text: str
    extent: Index | None


def lower_primfunc(
    f: PrimFunc, tables: list[Buffer], target: Target | None = None
) -> list[NativeStage]:
    """LLVM functions for the top-level statements of `f`, to be called in order.

    Args:
        f: scheduled and free of custom dtypes.
        tables: constant buffers that it reads, passed after its temporaries.
        target: whose instructions may be used; None: any.

    Raises:
        LoweringError: an expression or schedule that cannot be lowered, as a grid of threads.
    """
    refuse_grid(f, "llvm")
    out = []
    for k, s in enumerate(f.body):
        symbol = f"{f.name}_{k}"
        out.append(NativeStage(symbol, *Statements(f, tables, s, target).run(symbol)))
    return out


def module_text(texts: Sequence[str]) -> str:
    """LLVM text of several functions, with what they declare written once."""
    declared: dict[str, None] = {}
    bodies = []
    for text in texts:
        head, define, body = text.partition("define ")
        declared.update(dict.fromkeys(head.splitlines()))
        bodies.append(define + body)
    return "\n".join([*declared, *bodies])
