"""verify: what every pass may rely on, and must leave behind."""

from __future__ import annotations

from compiler.callees import callee
from compiler.errors import DtypelabError, VerifyError
from compiler.ir.expr import Call, Constant, Function, IRModule, Var, operands
from compiler.op.calls import CALL_TIR


def verify(mod: IRModule, typed: bool = True) -> None:
    """Check a module's invariants.

    Every variable is defined once and before it is used; parameters and (with `typed`) bindings
    have the type that inference gives them; operators get the attributes they declare; constants
    hold the storage dtype of their type.

    Raises:
        VerifyError: names the function and the binding.
    """
    for name, f in mod.functions.items():
        if isinstance(f, Function):
            _function(f, f"@{name}", typed)
            if typed:
                _tensor_calls(mod, f, f"@{name}")


def _tensor_calls(mod: IRModule, f: Function, where: str) -> None:
    """Operands and results of calls fit the tensor programs that they call."""
    for b in f.bindings:
        if isinstance(b.value, Call) and b.value.op is CALL_TIR:
            try:
                callee(mod, b.value)
            except DtypelabError as e:
                raise VerifyError(f"{where}: %{b.var.name}: {e}") from None


def _function(f: Function, where: str, typed: bool) -> None:
    from compiler.transform.infer_type import infer_value

    defined: set[Var] = set()
    names: set[str] = set()

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
    for b in f.bindings:
        place = f"{where}: %{b.var.name}"
        for a in operands(b.value):
            check(a, place)
        if isinstance(b.value, Call):
            op = b.value.op
            if isinstance(op, Function):
                if len(op.params) != len(b.value.args):
                    raise VerifyError(
                        f"{place}: the fused function takes {len(op.params)} operands"
                    )
                _function(op, place, typed)
            elif not isinstance(b.value.attrs, op.attrs):
                raise VerifyError(f"{place}: {op.name} needs {op.attrs.__name__} attributes")
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
