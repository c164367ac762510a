"""BindParams: parameters become constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.errors import InputError, unknown
from compiler.ir.expr import Atom, Binding, Constant, Function, IRModule, Var, tensor_type
from compiler.ir.substitution import substitute
from compiler.passes.manager import ModulePass, PassContext


def bind_params(f: Function, values: Mapping[str, Any]) -> Function:
    """`f` without the parameters that `values` names: it reads constants instead.

    Args:
        f: the function.
        values: arrays of the parameters' shapes and dtypes (storage integers for custom ones).

    Raises:
        InputError: there is no such parameter, or the array does not fit it.
    """
    params = {p.name: p for p in f.params}
    mapping: dict[Var, Atom] = {}
    for name, value in values.items():
        if name not in params:
            raise InputError(unknown("parameter", name, params))
        t, data = tensor_type(params[name]), np.asarray(value)
        if data.dtype != t.dtype.storage or data.shape != t.shape:
            raise InputError(
                f"parameter %{name} is {t}, and cannot be {data.dtype}{list(data.shape)}"
            )
        mapping[params[name]] = Constant(np.asarray(data, order="C"), t.dtype)
    if not mapping:
        return f
    return replace(
        f,
        params=tuple(p for p in f.params if p not in mapping),
        bindings=tuple(Binding(b.var, substitute(b.value, mapping), b.origins) for b in f.bindings),
        results=tuple(mapping.get(r, r) if isinstance(r, Var) else r for r in f.results),
    )


class BindParams(ModulePass):
    """Makes parameters of a function constants, so that what depends on nothing else can be folded.

    Args:
        params: name -> array.
        function: whose parameters.
    """

    name = "BindParams"

    def __init__(self, params: Mapping[str, Any], function: str = "main"):
        self.params, self.function = dict(params), function

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """See bind_params."""
        return mod.with_function(self.function, bind_params(mod[self.function], self.params))
