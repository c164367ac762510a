"""Regions of engines in a program: what compiles them, and calls of what that gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compiler.boundary.registered import Registered, guarded, naming
from compiler.engines.engine import Runner, usable_engine
from compiler.errors import UnsupportedError
from compiler.ir.call_graph import globals_of
from compiler.ir.expr import (
    Binding,
    Call,
    Function,
    GlobalVar,
    IRModule,
    atom_type,
    nested,
)
from compiler.ir.function_calls import call_dps_packed
from compiler.ir.inference import infer_module
from compiler.ir.regions import COMPOSITE, THREADS, Region, composite_of, regions
from compiler.ir.substitution import with_nested
from compiler.pattern.tables import pattern_table
from compiler.target.registry import Target
from compiler.transform.annotate_target import unfit_composite
from compiler.transform.partition_graph import without_composites
from compiler.types.tensor_types import TensorType


class Runners:
    """What runs the regions of an executable, registered for as long as this is alive.

    Attributes:
        names: region -> what its runner is registered as.
        made: region -> its runner.
        functions: region -> its function, as the engine was given it.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.made: dict[str, Runner] = {}
        self.functions: dict[str, Function] = {}
        self._registered = Registered()

    def add(self, region: Region, f: Function, runner: Runner) -> None:
        """Register the runner of a region, which was made of `f`."""
        said = f"engine {region.engine!r} failed at region @{region.name}"
        title = f"{region.engine}/{region.name}"
        run = guarded(said, runner)
        if run is not runner:  # not a C function, which is called as it is
            run = _where_something_is(run, len(f.results))
        self.names[region.name] = self._registered.add(title, run)
        self.made[region.name], self.functions[region.name] = runner, f


def _where_something_is(run: Runner, results: int) -> Runner:
    """A runner that is called only where one of its results has elements: of a batch of nothing
    there is nothing to compute, for which no engine needs to be made."""

    def called(*arrays: Any) -> None:
        if any(a.size for a in arrays[-results:]):
            run(*arrays)

    return called


def linked(mod: IRModule, target: Target, threads: int = 1) -> tuple[IRModule, Runners]:
    """A module whose regions are calls of registered functions, which run them, and what keeps
    these registered. Composites that are in no region become their operators; a module without
    either is given back as it is.

    Raises:
        ConfigError: there is no such engine.
        UnsupportedError: what an engine needs is not installed, an engine cannot compile a region,
            or the target is another machine.
        VerifyError: a region is no function of tensors, calls another function, or is used
            otherwise than called.
    """
    runners = Runners()
    mod = without_composites(mod)
    found = {r.name: r for r in regions(mod)}
    if not found:
        return mod, runners
    first = next(iter(found.values()))
    if target.elsewhere:
        raise UnsupportedError(
            f"engine {first.engine!r} computes region @{first.name} in this process, and target "
            f"{target.text!r} is another machine: build the module without engines"
        )
    mod = infer_module(mod)
    for region in found.values():
        f = mod[region.name]
        given = replace(f, attrs={**f.attrs, THREADS: threads})
        runners.add(region, given, compile_region(mod, region, given))
    rest = {
        name: _calls(f, runners.names) if isinstance(f, Function) else f
        for name, f in mod.functions.items()
        if name not in found
    }
    return infer_module(replace(mod, functions=rest)), runners


def compile_region(mod: IRModule, region: Region, f: Function) -> Runner:
    """What runs a region of a module with types, whose function is `f` as its engine is given it.

    Raises:
        ConfigError, UnsupportedError: as `linked`.
    """
    _check(mod, region)
    engine = usable_engine(region.engine)
    with naming(f"engine {region.engine!r}, region @{region.name}"):
        return engine.compile(f, region.name)


def _check(mod: IRModule, region: Region) -> None:
    f, where = mod[region.name], f"@{region.name}, which engine {region.engine!r} computes,"
    if called := sorted(globals_of(f)):
        raise UnsupportedError(f"{where} calls @{called[0]}: a region holds all that it computes")
    values = [(f"parameter {p!r}", atom_type(p)) for p in f.params]
    values += [("its result", atom_type(r)) for r in f.results]
    for what, t in values:
        if not isinstance(t, TensorType):
            raise UnsupportedError(f"{where} takes and gives tensors, and {what} is {t}")
    if region.name == "main":
        raise UnsupportedError("main cannot be a region: let main call a function that is one")
    table = {p.name: p for p in pattern_table(region.engine)}
    for b in f.bindings:
        if (c := composite_of(b.value)) is None:
            continue
        engine, _, name = str(c.attrs[COMPOSITE]).partition(".")
        said = f"engine {region.engine!r}, region @{region.name}: {b.var!r}"
        if engine != region.engine or name not in table:
            known = ", ".join(table) or "none"
            raise UnsupportedError(f"{said} is {engine}.{name}, not of its patterns: {known}")
        if (reason := unfit_composite(table[name], c)) is not None:
            raise UnsupportedError(f"{said} is no {name} any more: {reason}")


def _calls(f: Function, names: Mapping[str, str]) -> Function:
    """`f` with calls of regions, in it and the functions in it, as calls of what is registered."""
    bindings: list[Binding] = []
    for b in f.bindings:
        v = b.value
        if isinstance(v, GlobalVar) and v.name in names:
            raise UnsupportedError(
                f"%{b.var.name} holds @{v.name}, a region: it can be called only"
            )
        if isinstance(v, Call) and isinstance(v.op, GlobalVar) and v.op.name in names:
            v = call_dps_packed(names[v.op.name], v.args, atom_type(b.var))
        elif inside := nested(v):
            v = with_nested(v, [_calls(g, names) for g in inside])
        bindings.append(b if v is b.value else replace(b, value=v))
    return f.with_body(bindings, f.results)
