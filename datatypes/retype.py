"""change_dtype: a module in another number format."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from compiler.dtypes import Array, DType, custom
from compiler.errors import DtypelabError, TypeInferenceError, UnsupportedError, unknown
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Value,
    Var,
    operands,
    with_operands,
)
from compiler.ir.names import unique
from compiler.ir.types import TensorType
from datatypes.formats import Format, define, get

ACCUMULATIONS = ("sequential",)


def change_dtype(
    mod: IRModule,
    src: str | DType,
    dst: str | DType | Format,
    boundary: bool = True,
    accumulate: str = "sequential",
) -> IRModule:
    """The module with every tensor of dtype `src` in `dst` instead, constants included.

    The module is prepared first (`compiler.transform.preparation`): batch normalization is folded
    into weights in the original dtype, then weights are encoded, rounding once. Values keep their
    names and origins; integer tensors stay as they are.

    Args:
        mod: a module that has not been fused.
        src: dtype to replace, usually `float32`.
        dst: `custom[NAME]BITS`, or a format or its name.
        boundary: keep the dtypes of inputs and outputs, converting them with casts. Without it they
            are of `dst` too, as storage integers.
        accumulate: how sums are formed. `sequential`: every product and every sum is rounded.

    Raises:
        DtypelabError: no such dtype or format.
        UnsupportedError: an unknown accumulation.
        TypeInferenceError: an operator of the model is not defined for custom dtypes; names it.
        LoweringError: the datatype cannot encode the constants.
    """
    if accumulate not in ACCUMULATIONS:
        raise UnsupportedError(unknown("accumulation", accumulate, ACCUMULATIONS))
    from compiler.transform.preparation import prepare

    source, target = DType.parse(src), _target(dst)
    if source == target:
        raise DtypelabError(f"the module would stay as it is: both dtypes are {source}")
    prepared = prepare(mod)
    retyped = {
        name: _Retype(source, target, boundary).run(f) if isinstance(f, Function) else f
        for name, f in prepared.functions.items()
    }
    names = [r.name if isinstance(r, Var) else f"output{k}" for k, r in enumerate(mod.main.results)]
    return replace(prepared, functions=retyped, attrs={"outputs": tuple(names), **prepared.attrs})


def _target(dst: str | DType | Format) -> DType:
    """The custom dtype that `dst` names."""
    if isinstance(dst, Format):
        define(dst)
    elif isinstance(dst, DType) or dst.startswith("custom["):
        return DType.parse(dst)
    fmt = get(dst)
    return DType.parse(f"custom[{fmt.name}]{fmt.nbits}")


class _Retype:
    """Rewrites one function."""

    def __init__(self, source: DType, target: DType, boundary: bool):
        self.source, self.target, self.boundary = source, target, boundary
        self.new: dict[Var, Atom] = {}
        self.constants: dict[int, Constant] = {}
        self.bindings: list[Binding] = []
        self.names: set[str] = set()

    def run(self, f: Function) -> Function:
        self.names = {v.name for v in (*f.params, *(b.var for b in f.bindings))}
        params = tuple(map(self.param, f.params))
        for b in f.bindings:
            value = self.value(b)
            var = Var(b.var.name, _infer(b, value))
            self.bindings.append(Binding(var, value, b.origins))
            self.new[b.var] = var
        origins = {b.var: b.origins for b in f.bindings}
        results = [self.result(r, origins) for r in f.results]
        return replace(f, params=params, bindings=tuple(self.bindings), results=tuple(results))

    def is_source(self, a: Atom) -> bool:
        return isinstance(a.type, TensorType) and a.type.dtype == self.source

    def param(self, p: Var) -> Var:
        if not self.is_source(p):
            self.new[p] = p
        elif self.boundary:
            self.new[p] = self.cast(p, self.target, f"{p.name}_{self.target.name}", ())
        else:
            assert isinstance(p.type, TensorType)
            changed = Var(p.name, p.type.with_dtype(self.target))
            self.new[p] = changed
            return changed
        return p

    def result(self, r: Atom, origins: dict[Var, tuple[str, ...]]) -> Atom:
        new = self.atom(r)
        if not self.boundary or not self.is_source(r):
            return new
        stem, made = (r.name, origins.get(r, ())) if isinstance(r, Var) else ("output", ())
        return self.cast(new, self.source, f"{stem}_{self.source}", made)

    def cast(self, a: Atom, dtype: DType, stem: str, origins: tuple[str, ...]) -> Var:
        from compiler.op.opdef import get_op
        from compiler.transform.infer_type import infer_value

        name = unique(stem, self.names)
        op = get_op("cast")
        value = Call(op, (a,), op.make_attrs(dtype=str(dtype)))
        var = Var(name, infer_value(value))
        self.bindings.append(Binding(var, value, origins))
        return var

    def atom(self, a: Atom) -> Atom:
        if isinstance(a, Var):
            return self.new[a]
        if a.dtype != self.source:
            return a
        if id(a) not in self.constants:
            self.constants[id(a)] = Constant(self.encoded(a.data), self.target)
        return self.constants[id(a)]

    def encoded(self, data: Array) -> Array:
        if self.source.is_custom:
            data = custom(self.source.name).decode(data, self.source)
        codes = custom(self.target.name).encode(data, self.target)
        return np.asarray(codes, self.target.storage)

    def value(self, b: Binding) -> Value:
        value = with_operands(b.value, map(self.atom, operands(b.value)))
        if not isinstance(value, Call):
            return value
        if isinstance(value.op, Function):
            raise UnsupportedError(
                f"%{b.var.name} is a fused function; change the dtype before optimizing the module"
            )
        return replace(value, attrs=self.attrs(value.attrs))

    def attrs(self, attrs: Any) -> Any:
        """Attributes that name the source dtype name the target instead."""
        if not is_dataclass(attrs) or isinstance(attrs, type):
            return attrs
        named = [f.name for f in fields(attrs) if getattr(attrs, f.name) == str(self.source)]
        return replace(attrs, **dict.fromkeys(named, str(self.target)))


def _infer(b: Binding, value: Value) -> Any:
    """Type of the retyped value of a binding."""
    from compiler.transform.infer_type import infer_value

    try:
        return infer_value(value)
    except TypeInferenceError as error:
        where = f"node {', '.join(b.origins)}" if b.origins else f"%{b.var.name}"
        raise TypeInferenceError(f"{where}: {error}") from None
