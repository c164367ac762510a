"""Which parts of a program engines compute: patterns, regions, functions of the module."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.engines.engine import usable_engine
from compiler.errors import InputError
from compiler.ir.expr import IRModule
from compiler.passes.manager import Sequential
from compiler.transform.annotate_target import AnnotateTarget
from compiler.transform.merge_compiler_regions import MergeCompilerRegions
from compiler.transform.partition_graph import PartitionGraph


def checked(engines: Sequence[str] | str) -> tuple[str, ...]:
    """The names of engines, all of which run here, each once.

    Raises:
        ConfigError: there is no such engine; names the nearest.
        UnsupportedError: what one needs is not installed; says what that is.
        InputError: one is named twice.
    """
    named = (engines,) if isinstance(engines, str) else tuple(engines)
    for e in named:
        if named.count(e) > 1:
            raise InputError(f"engine {e!r} is named twice: the order of engines is their priority")
        usable_engine(e)
    return named


def partitioned(mod: IRModule, engines: Sequence[str]) -> IRModule:
    """A prepared module in which the engines compute all that they can, the first that fits."""
    passes = [AnnotateTarget(engines), MergeCompilerRegions(), PartitionGraph()]
    return Sequential(passes, name="partition")(mod)
