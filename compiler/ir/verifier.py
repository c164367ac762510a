"""verify: what every pass may rely on, and must leave behind."""

from __future__ import annotations

from compiler.errors import DtypelabError, VerifyError
from compiler.ir.expr import (
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    GlobalVar,
    IRModule,
    Value,
    Var,
    nested,
    operands,
)
from compiler.ir.function_calls import CALL_TIR
from compiler.ir.inference import infer_value
from compiler.ir.tensor_programs import callee
from compiler.op.opdef import OpDef
from compiler.types.data import check_definitions, check_type, definitions_in, type_variables
from compiler.types.tensor_types import Type


def verify(mod: IRModule, typed: bool = True) -> None:
    """Check a module's invariants.

    Every variable is defined once and before it is used; parameters and (with `typed`) bindings
    have the type that inference gives them; operators get the attributes they declare; constants
    hold the storage dtype of their type. Types that are defined have values that end, and programs
    use no others.

    Raises:
        VerifyError: names the function and the binding.
    """
    try:
        check_definitions(mod.types)
    except DtypelabError as e:
        raise VerifyError(str(e)) from None
    for name, f in mod.functions.items():
        if isinstance(f, Function):
            if f.captures:
                raise VerifyError(f"@{name}: %{f.captures[0].name} is used before it is defined")
            _function(f, f"@{name}", typed, mod)


def _function(f: Function, where: str, typed: bool, mod: IRModule) -> None:
    """Check a function whose captured variables are defined."""
    defined: set[Var] = set(f.captures)
    names: set[str] = {v.name for v in defined}
    if len(names) < len(defined):
        raise VerifyError(f"{where}: captures two variables of one name")

    def define(v: Var) -> None:
        if v in defined:
            raise VerifyError(f"{where}: %{v.name} is defined twice")
        if v.name in names:
            raise VerifyError(f"{where}: two variables are called %{v.name}")
        defined.add(v)
        names.add(v.name)

    def check(a: Var | Constant, place: str) -> None:
        if isinstance(a, Var):
            if a not in defined:
                raise VerifyError(f"{place}: %{a.name} is used before it is defined")
        elif a.data.dtype != a.dtype.storage:
            raise VerifyError(f"{place}: a constant of {a.dtype} holds {a.data.dtype}")

    for p in f.params:
        define(p)
        if p.type is None:
            raise VerifyError(f"{where}: parameter %{p.name} has no type")
        _type(p.type, f"{where}: parameter %{p.name}", mod)
    for b in f.bindings:
        place = f"{where}: %{b.var.name}"
        for a in operands(b.value):
            check(a, place)
        for g in nested(b.value):
            _function(g, place, typed, mod)
        if isinstance(b.value, GlobalVar):
            _global(b.value, place, typed, mod)
        if isinstance(b.value, Call):
            _call(b.value, place, typed, mod)
        if isinstance(b.value, Construct | Cases):
            _data(b.value, place, mod)
        if not all(isinstance(o, str) for o in b.origins):
            raise VerifyError(f"{place}: origins must be names")
        if typed:
            try:
                t = infer_value(b.value)
            except DtypelabError as e:
                raise VerifyError(f"{place}: {e}") from None
            if b.var.type != t:
                raise VerifyError(f"{place}: has type {b.var.type}, but its value has {t}")
        define(b.var)
    if not f.results:
        raise VerifyError(f"{where}: returns nothing")
    for r in f.results:
        check(r, f"{where}: result")


def _call(call: Call, place: str, typed: bool, mod: IRModule) -> None:
    op = call.op
    if isinstance(op, GlobalVar):
        _global(op, place, typed, mod)
    elif isinstance(op, Function):
        if len(op.params) != len(call.args):
            raise VerifyError(f"{place}: the fused function takes {len(op.params)} operands")
        if op.captures:
            raise VerifyError(f"{place}: the fused function captures {op.captures[0]!r}")
        _function(op, place, typed, mod)
    elif isinstance(op, OpDef) and not isinstance(call.attrs, op.attrs):
        raise VerifyError(f"{place}: {op.name} needs {op.attrs.__name__} attributes")
    elif op is CALL_TIR and typed:
        try:
            callee(mod, call)
        except DtypelabError as e:
            raise VerifyError(f"{place}: {e}") from None


def _type(t: Type, place: str, mod: IRModule) -> None:
    try:
        check_type(t, mod.types, type_variables(t), place)
    except DtypelabError as e:
        raise VerifyError(str(e)) from None


def _data(value: Value, place: str, mod: IRModule) -> None:
    """Check that a value speaks of types as the module defines them."""
    if isinstance(value, Cases):
        used = [d for p in value.patterns for d in definitions_in(p)]
    else:
        assert isinstance(value, Construct)
        used = [value.definition]
        for t in value.types or ():
            _type(t, place, mod)
    for d in used:
        if mod.types.get(d.name) != d:
            raise VerifyError(f"{place}: the module has no definition {d}")


def _global(g: GlobalVar, place: str, typed: bool, mod: IRModule) -> None:
    f = mod.functions.get(g.name)
    if not isinstance(f, Function):
        raise VerifyError(f"{place}: the module has no function @{g.name}")
    if typed and g.type != f.type:
        raise VerifyError(f"{place}: @{g.name} is called as {g.type}, but has type {f.type}")
