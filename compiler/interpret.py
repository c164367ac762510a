"""The numpy interpreter: the oracle that every other way of running a module is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from compiler.callees import evaluate_call
from compiler.dtypes import Array, DType, node_number
from compiler.errors import InputError
from compiler.ir.expr import (
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    atom_type,
    tensor_type,
)
from compiler.ir.types import TensorType
from compiler.op.arithmetic import Places, arithmetic
from compiler.op.calls import is_callee
from compiler.runtime.inputs import bind_inputs
from compiler.symbolic import Index
from compiler.symbolic import Var as SymbolicVar

Env = dict[Var, Any]


def evaluate(mod: IRModule, *args: Any, **kwargs: Any) -> Any:
    """Run `main` in numpy. Inputs are positional or by name, of any batch size the types allow.

    Returns:
        The output array, or a list of arrays if there are several. Values of custom dtypes are
        their storage integers.

    Raises:
        InputError: an input is missing, unknown, or of the wrong rank, shape or dtype.
    """
    f = mod.main
    env = _environment(mod, args, kwargs)
    for b in f.bindings:
        env[b.var] = _value(b, env)
    outs = [_atom(r, env) for r in f.results]
    return outs[0] if len(outs) == 1 else outs


def trace(mod: IRModule, *args: Any, **kwargs: Any) -> Iterator[tuple[Binding, Any]]:
    """Like `evaluate`, yielding every binding with its value (an array, or a tuple of arrays)."""
    f = mod.main
    env = _environment(mod, args, kwargs)
    for b in f.bindings:
        env[b.var] = _value(b, env)
        yield b, env[b.var]


def _environment(mod: IRModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Env:
    f = mod.main
    arrays, dims = bind_inputs([(p.name, tensor_type(p)) for p in f.params], args, kwargs)
    return {**dict(zip(f.params, arrays, strict=True)), _DIMS: dims, _MODULE: mod}


_DIMS = Var("<dims>")
_MODULE = Var("<module>")


def _atom(a: Var | Constant, env: Env) -> Any:
    return env[a] if isinstance(a, Var) else a.data


def _value(b: Binding, env: Env) -> Any:
    v = b.value
    if isinstance(v, Tuple):
        return tuple(_atom(a, env) for a in v.fields)
    if isinstance(v, TupleGetItem):
        return _atom(v.value, env)[v.index]
    if not isinstance(v, Call):
        return _atom(v, env)
    args = [_atom(a, env) for a in v.args]
    if isinstance(v.op, Function):
        inner: Env = {k: env[k] for k in (_DIMS, _MODULE)}
        inner |= zip(v.op.params, args, strict=True)
        for x in v.op.bindings:
            inner[x.var] = _value(x, inner)
        outs = [_atom(r, inner) for r in v.op.results]
        return outs[0] if len(outs) == 1 else tuple(outs)
    if is_callee(v):
        return evaluate_call(env[_MODULE], v, args, env[_DIMS])
    return call_reference(v, args, b.var, env[_DIMS])


def call_reference(v: Call, args: list[Array], out: Var, dims: Mapping[SymbolicVar, int]) -> Any:
    """The reference of one operator call on arrays, checked against its inferred type."""
    assert not isinstance(v.op, Function)
    places = Places(node_number(out.name), None if v.op.numbered else v.op.name)
    ar = arithmetic(tensor_type(v.args[0]).dtype if v.args else DType("float", 32), places)
    result = v.op.reference(ar, resolve_attrs(v.attrs, dims), *args)
    t = atom_type(out)
    if isinstance(t, TensorType):
        _check(np.asarray(result), t, v, dims)
        return np.asarray(result)
    return tuple(np.asarray(r) for r in result)


def resolve_attrs(attrs: Any, dims: Mapping[SymbolicVar, int]) -> Any:
    """Attributes with their symbolic dimensions (alone or in tuples) replaced by numbers."""
    if not is_dataclass(attrs):
        return attrs
    changed = {}
    for f in fields(attrs):
        value = getattr(attrs, f.name)
        if isinstance(value, Index):
            changed[f.name] = value.value(dims)
        elif isinstance(value, tuple) and any(isinstance(x, Index) for x in value):
            changed[f.name] = tuple(x.value(dims) if isinstance(x, Index) else x for x in value)
    return replace(attrs, **changed) if changed and not isinstance(attrs, type) else attrs


def _check(a: Array, t: TensorType, v: Call, dims: Mapping[SymbolicVar, int]) -> None:
    want = tuple(d.value(dims) if isinstance(d, Index) else d for d in t.shape)
    if a.shape != want or a.dtype != t.dtype.storage:
        raise InputError(
            f"the reference of {v.op} gave {a.dtype}{list(a.shape)}, not {t.dtype}{list(want)}"
        )
