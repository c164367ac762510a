"""HoldInLanes: values of custom datatypes are kept decoded between the operators of a module.

Parameters and results keep their dtypes. A cast behind each parameter decodes it and one before
each result encodes it; constants are decoded here, once. All between are floats in memory, so that
layouts, tiles and threads are those of float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from compiler.dtypes import DType, VectorDType, custom
from compiler.errors import LoweringError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    operands,
    with_operands,
)
from compiler.ir.names import unique
from compiler.ir.types import TensorType
from compiler.op.opdef import get_op
from compiler.transform.infer_type import infer_value
from compiler.transform.passes import FunctionPass, PassContext


class HoldInLanes(FunctionPass):
    """Retypes every value whose dtype is a key of `lanes` to the dtype that it maps to."""

    name = "HoldInLanes"
    required = ("InferType",)

    def __init__(self, lanes: Mapping[DType, DType]):
        self.lanes = dict(lanes)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function on lanes (itself, if it has none of these dtypes)."""
        return _Lanes(f, self.lanes).run()


class _Lanes:
    def __init__(self, f: Function, lanes: Mapping[DType, DType]):
        self.f, self.lanes = f, lanes
        self.named = {str(k): str(v) for k, v in lanes.items()}
        self.new: dict[Var, Atom] = {}
        self.constants: dict[int, Constant] = {}
        self.bindings: list[Binding] = []
        self.names = {v.name for v in (*f.params, *(b.var for b in f.bindings))}

    def run(self) -> Function:
        f = self.f
        for p in f.params:
            held = self.held(p)
            self.new[p] = p if held is None else self.cast(p, held, ())
        for b in f.bindings:
            value = with_operands(b.value, map(self.atom, operands(b.value)))
            if isinstance(value, Call):
                value = replace(value, attrs=self.attrs(value.attrs))
            kept = value is b.value
            var = b.var if kept else Var(b.var.name, infer_value(value))
            self.bindings.append(replace(b, var=var, value=value))
            self.new[b.var] = var
        if not self.constants and all(a is b for a, b in self.new.items()):
            return f
        origins = {b.var: b.origins for b in f.bindings}
        return f.with_body(self.bindings, [self.result(r, origins) for r in f.results])

    def held(self, a: Atom) -> DType | None:
        return self.lanes.get(a.type.dtype) if isinstance(a.type, TensorType) else None

    def result(self, r: Atom, origins: Mapping[Var, tuple[str, ...]]) -> Atom:
        new = self.atom(r)
        if self.held(r) is None:
            return new
        assert isinstance(r.type, TensorType)
        made = origins.get(r, ()) if isinstance(r, Var) else ()
        return self.cast(new, r.type.dtype, made)

    def cast(self, a: Atom, dtype: DType, origins: tuple[str, ...]) -> Var:
        op = get_op("cast")
        value = Call(op, (a,), op.make_attrs(dtype=str(dtype)))
        stem = a.name if isinstance(a, Var) else "output"
        name = unique(f"{stem}_{'lanes' if dtype.lane else 'codes'}", self.names)
        var = Var(name, infer_value(value))
        self.bindings.append(Binding(var, value, origins))
        return var

    def atom(self, a: Atom) -> Atom:
        if isinstance(a, Var):
            return self.new[a]
        held = self.lanes.get(a.dtype)
        if held is None:
            return a
        if id(a) not in self.constants:
            kind = custom(a.dtype.name)
            if not isinstance(kind, VectorDType):
                raise LoweringError(f"{a.dtype} has no lanes")
            data = np.asarray(kind.lane_array(a.data, a.dtype), held.storage)
            self.constants[id(a)] = Constant(data.reshape(a.data.shape), held)
        return self.constants[id(a)]

    def attrs(self, attrs: Any) -> Any:
        """Attributes that name a dtype name the lanes instead."""
        if not is_dataclass(attrs) or isinstance(attrs, type):
            return attrs
        values = {f.name: getattr(attrs, f.name) for f in fields(attrs)}
        new = {
            k: self.named[v] for k, v in values.items() if isinstance(v, str) and v in self.named
        }
        return replace(attrs, **new) if new else attrs
