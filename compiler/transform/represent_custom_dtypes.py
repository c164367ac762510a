"""RepresentCustomDtypes: values of custom datatypes are held in the form of their lowering between
the operators of a module.

Parameters and results keep their dtypes: a cast behind each parameter changes its form, and one
before each result changes it back (but for caches, which nobody else reads: they are held so). For
the vector lowering these decode and encode, constants are decoded here, once, and all between are
floats in memory, so that layouts, tiles and threads are those of float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from compiler.errors import LoweringError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
    names_in,
    operands,
    tensor_type,
)
from compiler.ir.function_calls import CALL_TIR, Callee, is_callee
from compiler.ir.inference import infer_value
from compiler.ir.substitution import with_operands
from compiler.op.append import CACHES
from compiler.op.mixed import CAST
from compiler.op.opdef import OpDef
from compiler.passes.manager import FunctionPass, PassContext
from compiler.tensor.custom_dtypes import VectorDType
from compiler.types.dtypes import Array, DType, custom
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType, TupleType, Type


def _is_operator(value: Value) -> bool:
    """Whether forms go through: not through control flow, and what functions take and give."""
    if isinstance(value, Call):
        if is_callee(value):
            return value.op is CALL_TIR  # a registered function takes and gives codes
        return isinstance(value.op, OpDef | Function)
    return isinstance(value, Tuple | TupleGetItem | Var | Constant)


class RepresentCustomDtypes(FunctionPass):
    """Retypes every value whose dtype is a key of `forms` to the dtype in the form it maps to."""

    name = "RepresentCustomDtypes"
    required = ("InferType",)

    def __init__(self, forms: Mapping[DType, DType]):
        self.forms = dict(forms)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function in these forms (itself, if it has none of these dtypes)."""
        return _Forms(f, self.forms).run() if self.forms else f


class _Forms:
    def __init__(self, f: Function, forms: Mapping[DType, DType]):
        self.f, self.forms = f, forms
        self.named = {str(k): str(v) for k, v in forms.items()}
        self.new: dict[Var, Atom] = {}
        self.constants: dict[int, Constant] = {}
        self.bindings: list[Binding] = []
        self.names = names_in(f)
        self.params: dict[Var, Var] = {}

    def run(self) -> Function:
        f = self.f
        caches = {name for name, *_ in f.attrs.get(CACHES, ())}
        for p in f.params:
            held = self.held(p)
            if held is not None and p.name in caches:  # nobody outside sees what they hold
                self.params[p] = self.new[p] = Var(p.name, tensor_type(p).with_dtype(held))
            else:
                self.new[p] = p if held is None else self.cast(p, held, ())
        for b in f.bindings:
            read = self.atom if _is_operator(b.value) else self.plain
            value = with_operands(b.value, [read(a) for a in operands(b.value)])
            if isinstance(value, Call) and _is_operator(b.value):
                value = replace(value, attrs=self.attrs(value.attrs))
            kept = value is b.value
            var = b.var if kept else Var(b.var.name, infer_value(value))
            self.bindings.append(replace(b, var=var, value=value))
            held = self.held(var)
            self.new[b.var] = var if held is None else self.cast(var, held, b.origins)
        if not self.constants and all(a is b for a, b in self.new.items()):
            return f
        origins = {b.var: b.origins for b in f.bindings}
        results = [
            self.plain(r, origins.get(r, ()) if isinstance(r, Var) else ()) for r in f.results
        ]
        params = tuple(self.params.get(p, p) for p in f.params)
        return replace(f.with_body(self.bindings, results), params=params)

    def held(self, a: Atom) -> DType | None:
        return self.forms.get(a.type.dtype) if isinstance(a.type, TensorType) else None

    def plain(self, a: Atom, origins: tuple[str, ...] = ()) -> Atom:
        """The value of `a` in its own type, which control flow and callers see."""
        return a if isinstance(a, Constant) else self.as_type(self.new[a], atom_type(a), origins)

    def as_type(self, a: Atom, t: Type, origins: tuple[str, ...]) -> Atom:
        if atom_type(a) == t:
            return a
        if isinstance(t, TensorType):
            return self.cast(a, t.dtype, origins)
        assert isinstance(t, TupleType)
        stem = a.name if isinstance(a, Var) else "output"
        fields = (self.bind(f"{stem}_{k}", TupleGetItem(a, k)) for k in range(len(t.fields)))
        plain = [self.as_type(x, y, ()) for x, y in zip(fields, t.fields, strict=True)]
        return self.bind(f"{stem}_codes", Tuple(tuple(plain)), origins)

    def cast(self, a: Atom, dtype: DType, origins: tuple[str, ...]) -> Var:
        op = CAST
        stem = a.name if isinstance(a, Var) else "output"
        value = Call(op, (a,), op.make_attrs(dtype=str(dtype)))
        return self.bind(f"{stem}_{dtype.form or 'codes'}", value, origins)

    def bind(self, name: str, value: Value, origins: tuple[str, ...] = ()) -> Var:
        var = Var(unique(name, self.names), infer_value(value))
        self.bindings.append(Binding(var, value, origins))
        return var

    def atom(self, a: Atom) -> Atom:
        if isinstance(a, Var):
            return self.new[a]
        held = self.forms.get(a.dtype)
        if held is None:
            return a
        if id(a) not in self.constants:
            self.constants[id(a)] = Constant(_decoded(a, held) if held.lane else a.data, held)
        return self.constants[id(a)]

    def attrs(self, attrs: Any) -> Any:
        """Attributes that name a dtype, or are a type, name its form instead."""
        if not is_dataclass(attrs) or isinstance(attrs, type):
            return attrs
        values = {f.name: getattr(attrs, f.name) for f in fields(attrs)}
        new = {
            k: self.named[v] for k, v in values.items() if isinstance(v, str) and v in self.named
        }
        if isinstance(attrs, Callee):
            return replace(attrs, out=self.type(attrs.out))
        return replace(attrs, **new) if new else attrs

    def type(self, t: Type) -> Type:
        if isinstance(t, TupleType):
            return TupleType(tuple(map(self.type, t.fields)))
        return t.with_dtype(self.forms.get(t.dtype, t.dtype)) if isinstance(t, TensorType) else t


def _decoded(a: Constant, held: DType) -> Array:
    kind = custom(a.dtype.name)
    if not isinstance(kind, VectorDType):
        raise LoweringError(f"{a.dtype} has no lanes")
    return np.asarray(kind.lane_array(a.data, a.dtype), held.storage).reshape(a.data.shape)
