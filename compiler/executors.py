"""create_executor: the three ways to run a module under one interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from compiler.boundary.elements import ELEMENTS
from compiler.boundary.index_ranges import INDICES
from compiler.build import compiled
from compiler.errors import InputError, unknown
from compiler.interpret.graph import evaluate
from compiler.ir.expr import Function, IRModule
from compiler.target.registry import Target

KINDS = ("interpret", "debug", "graph", "vm")


class Executor:
    """Runs functions of a module in one way. Made by `create_executor`."""

    def __init__(self, kind: str, mod: IRModule, target: Target, threads: int):
        self.kind, self.mod, self.target, self.threads = kind, mod, target, threads

    def evaluate(self, function: Function | str = "main") -> Callable[..., Any]:
        """A callable that runs a function of the module, or one that may call those: inputs are
        positional or by name. Compiled ones are `Executable`s.

        Raises:
            UnsupportedError: the graph executor was asked to run control flow.
            LoweringError: an operator or a custom datatype has no lowering; names it.
        """
        f = self.mod[function] if isinstance(function, str) else function
        mod = self.mod.with_function("main", f)
        if f is not self.mod.functions.get("main"):  # what the model declares is of its own main
            kept = {k: v for k, v in mod.attrs.items() if k not in (ELEMENTS, INDICES)}
            mod = replace(mod, attrs=kept)
        if self.kind in ("interpret", "debug"):
            return partial(evaluate, mod)
        return compiled(mod, self.target, self.threads, machine=self.kind == "vm")


def create_executor(
    kind: str, mod: IRModule | None = None, target: str | Target = "llvm", threads: int = 1
) -> Executor:
    """An executor of a module.

    Args:
        kind: "interpret" (or "debug"): numpy, operator after operator; "graph": compiled to one
            native function; "vm": compiled, with branches, loops, recursion and closures.
        mod: the module; without one, `evaluate` is given functions that call no others.
        target, threads: as for `compiler.build`.

    Raises:
        InputError: there is no such kind, or a bad number of threads.
        UnsupportedError: unknown target.
    """
    if kind not in KINDS:
        raise InputError(unknown("executor", kind, KINDS))
    if threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    return Executor(kind, IRModule({}) if mod is None else mod, Target.parse(target), threads)
