"""Type inference: the type of a value from those of its operands, of functions and of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compiler.errors import TypeInferenceError
from compiler.ir.call_graph import callees_first
from compiler.ir.data import cases_type, constructed_type, settled
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Construct,
    Function,
    GlobalVar,
    If,
    IRModule,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
    nested,
    operands,
    tensor_type,
)
from compiler.ir.signature import applied, matched
from compiler.ir.substitution import substitute, with_nested
from compiler.ir.unification import Offence, open_types, unified
from compiler.symbolic import Var as Dim
from compiler.types.data import check_definitions, pattern_types, type_variables
from compiler.types.dtypes import BOOL
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type

Resolve = Callable[[GlobalVar], GlobalVar]
"""Gives a function of the module its type."""


def infer_value(value: Value) -> Type:
    """Type of a value whose operands have types.

    Raises:
        TypeInferenceError: the operands do not fit the operator or function.
    """
    if isinstance(value, Call):
        return _call(value)
    if isinstance(value, If):
        return _if(value)
    if isinstance(value, Loop):
        return _loop(value)
    if isinstance(value, Cases):
        return cases_type(value)
    if isinstance(value, Construct):
        return constructed_type(value)
    if isinstance(value, Function):
        return value.type
    if isinstance(value, Match):
        return matched(tensor_type(value.value), value.type)
    if isinstance(value, GlobalVar):
        return _signature(value)
    types: Sequence[Type] = [atom_type(a) for a in operands(value)]
    if isinstance(value, Tuple):
        return TupleType(tuple(types))
    if isinstance(value, TupleGetItem):
        (t,) = types
        if not isinstance(t, TupleType) or not 0 <= value.index < len(t.fields):
            raise TypeInferenceError(f"{t} has no field {value.index}")
        return t.fields[value.index]
    return types[0]


def _call(value: Call) -> Type:
    op, types = value.op, [atom_type(a) for a in value.args]
    if isinstance(op, Function):
        return op.type.result
    if isinstance(op, GlobalVar):
        return applied(_signature(op), types, f"@{op.name}")
    if isinstance(op, Var):
        f = atom_type(op)
        if not isinstance(f, FuncType):
            raise TypeInferenceError(f"%{op.name} is called, but is no function: it has type {f}")
        if list(f.params) != types:
            given = TupleType(tuple(types))
            raise TypeInferenceError(f"%{op.name} of type {f} cannot be called with {given}")
        return f.result
    return op.infer_type(value.attrs, types)


def _signature(g: GlobalVar) -> FuncType:
    if g.type is None:
        raise TypeInferenceError(f"the type of @{g.name} is not known yet: run InferType first")
    return g.type


def _is_flag(t: Type) -> bool:
    return t == TensorType((), BOOL)


def _if(value: If) -> Type:
    if not _is_flag(t := atom_type(value.condition)):
        raise TypeInferenceError(f"a condition must be {TensorType((), BOOL)}, not {t}")
    a, b = value.then.type, value.otherwise.type
    if a.params or b.params:
        raise TypeInferenceError("the branches of an if take no parameters")
    if a.result != b.result:
        raise TypeInferenceError(f"one branch gives {a.result}, the other {b.result}")
    return a.result


def _loop(value: Loop) -> Type:
    body = value.body
    state = [atom_type(p) for p in body.params]
    flag, *results = [atom_type(r) for r in body.results]
    again, stacked = results[: len(state)], results[len(state) :]
    if not _is_flag(atom_type(value.go)) or not _is_flag(flag):
        raise TypeInferenceError(f"what tells a loop to go on must be {TensorType((), BOOL)}")
    signature = FuncType(tuple(state), TupleType(()))
    applied(signature, [atom_type(a) for a in value.init], "the loop")
    applied(signature, again, "the next iteration")
    if stacked and not value.count:
        raise TypeInferenceError("a loop that stacks results needs a name for their number")
    stacks: list[Type] = []
    for t in stacked:
        if not isinstance(t, TensorType):
            raise TypeInferenceError(f"a loop stacks tensors, not {t}")
        stacks.append(TensorType((Dim(value.count), *t.shape), t.dtype))
    return TupleType((*state, *stacks))


class _ShownError(TypeInferenceError):
    """A type error whose message holds the program."""


def infer_function(
    f: Function,
    name: str = "main",
    resolve: Resolve | None = None,
    result: Type | None = None,
) -> Function:
    """`f` with every variable typed (the same object if nothing changed). `result`: the type of
    what it returns, if that is known.

    Raises:
        TypeInferenceError: shows the printed program with the error at the offending binding.
    """
    try:
        if open_types(f):
            f = unified(f, result, resolve)
        return _infer(f, resolve)
    except Offence as e:
        from compiler.ir.printer import function_text

        shown = function_text(f, name, error_at=e.var, error=e.message)
        raise _ShownError(f"{e.message} (at %{e.var.name})\n{shown}") from None


def _infer(f: Function, resolve: Resolve | None, given: Sequence[Type] | None = None) -> Function:
    """See infer_function; `given`: types of the parameters, whatever they say."""
    mapping: dict[Var, Atom] = {}
    bindings: list[Binding] = []
    if given is not None:
        both = zip(f.params, given, strict=True)
        mapping = {p: Var(p.name, t) for p, t in both if p.type != t}
    for p in f.params:
        if p.type is None and p not in mapping:
            raise TypeInferenceError(f"parameter %{p.name} has no type")
    for b in f.bindings:
        value = substitute(b.value, mapping)
        try:
            value = _inside(value, resolve)
            t = infer_value(value)
        except _ShownError:  # in a function that is called here
            raise
        except TypeInferenceError as e:
            raise Offence(b.var, str(e)) from None
        if value is b.value and b.var.type == t:
            bindings.append(b)
            continue
        var = b.var if b.var.type == t else Var(b.var.name, t)
        if var is not b.var:
            mapping[b.var] = var
        bindings.append(replace(b, var=var, value=value))
    if not mapping and all(a is b for a, b in zip(bindings, f.bindings, strict=True)):
        return f
    results = [mapping.get(r, r) if isinstance(r, Var) else r for r in f.results]
    params = tuple(v if isinstance(v := mapping.get(p, p), Var) else p for p in f.params)
    return replace(f, params=params).with_body(bindings, results)


def _inside(value: Value, resolve: Resolve | None) -> Value:
    """`value` with types in the functions that it holds and names."""
    if isinstance(value, Call):
        op = value.op
        if isinstance(op, Function):
            op = _infer(op, resolve)
        elif isinstance(op, GlobalVar) and resolve is not None:
            op = resolve(op)
        return value if op is value.op else replace(value, op=op)
    if isinstance(value, GlobalVar):
        g = value if resolve is None else resolve(value)
        if g.type is not None and type_variables(g.type):
            raise TypeInferenceError(
                f"@{g.name} of type {g.type} is generic, and no value where nothing tells the "
                f"types that are meant: write a closure that calls it, fn ({_closure_text(g.type)}"
            )
        return g
    if isinstance(value, Construct):
        return settled(value)
    if isinstance(value, Cases):
        t = atom_type(value.value)
        each = zip(value.patterns, value.bodies, strict=True)
        return with_nested(value, [_infer(f, resolve, pattern_types(p, t)) for p, f in each])
    if isinstance(value, (If, Loop, Function)):
        return with_nested(value, [_infer(f, resolve) for f in nested(value)])
    return value


def _closure_text(t: FuncType) -> str:
    """How a closure goes on that calls a function of type `t`."""
    types = ", ".join(f"%x{k}: type of {p}" for k, p in enumerate(t.params))
    return f"{types}) {{ ... }}"


class _Module:
    """Infers the functions of a module, those that are called first."""

    def __init__(self, mod: IRModule, declared: Mapping[str, FuncType]):
        self.mod, self.declared = mod, declared
        self.done: dict[str, Function] = {}
        self.under_way: set[str] = set()
        self.promised: dict[str, set[FuncType]] = {}

    def function(self, name: str) -> Function:
        if name not in self.done:
            self.under_way.add(name)
            said = self.declared.get(name)
            result = None if said is None else said.result
            f = self.done[name] = infer_function(self.mod[name], name, self.resolve, result)
            self.under_way.remove(name)
            for t in self.promised.get(name, ()):
                if t != f.type:
                    raise TypeInferenceError(f"@{name} has type {f.type}, but is called as {t}")
            told = type_variables(*f.type.params)
            for v in type_variables(f.type.result):
                if v not in told:
                    raise TypeInferenceError(
                        f"@{name} of type {f.type}: no operand tells what {v} is in a call"
                    )
        return self.done[name]

    def resolve(self, g: GlobalVar) -> GlobalVar:
        if not isinstance(self.mod.functions.get(g.name), Function):
            raise TypeInferenceError(f"the module has no function @{g.name}")
        if g.name in self.under_way:
            if g.type is None:
                raise TypeInferenceError(f"@{g.name} calls itself: write the type of its result")
            self.promised.setdefault(g.name, set()).add(g.type)
            return g
        t = self.function(g.name).type
        return g if g.type == t else GlobalVar(g.name, t)

    def run(self) -> IRModule:
        order = (name for names in callees_first(self.mod) for name in names)
        return self.mod.with_functions({name: self.function(name) for name in order})


def infer_module(mod: IRModule, declared: Mapping[str, FuncType] | None = None) -> IRModule:
    """`mod` with every variable typed; functions are inferred before what calls them. `declared`:
    types that functions say that they have.

    Raises:
        TypeInferenceError: see infer_function.
    """
    check_definitions(mod.types)
    return _Module(mod, declared or {}).run()
