"""Some of a module's outputs: what only the others need is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.boundary.elements import ELEMENTS
from compiler.errors import InputError, unknown
from compiler.ir.expr import IRModule
from compiler.passes.live import live


def choose_outputs(mod: IRModule, names: Sequence[str]) -> IRModule:
    """The module with these outputs only, in this order (the module itself, without names).

    Its inputs stay, also those that nothing reads then.

    Args:
        mod: made from a model, whose outputs have names.
        names: as the model calls them.

    Raises:
        InputError: there is no output of that name, or one is named twice.
    """
    if not names:
        return mod
    known = list(mod.attrs.get("outputs", ()))
    for k, name in enumerate(names):
        if name not in known:
            raise InputError(unknown("output", name, known))
        if name in names[:k]:
            raise InputError(f"output {name!r} is named twice")
    places = [known.index(name) for name in names]
    results = [mod.main.results[k] for k in places]
    attrs = {**mod.attrs, "outputs": tuple(names)}
    if noted := mod.attrs.get(ELEMENTS):
        attrs[ELEMENTS] = {**noted, "outputs": [noted["outputs"][k] for k in places]}
    chosen = live(mod.main.with_body(mod.main.bindings, results))
    return replace(mod.with_function("main", chosen), attrs=attrs)
