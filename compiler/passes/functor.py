"""ExprVisitor and ExprMutator: walks over programs, with a method for each kind of value.

Values are in A-normal form: operands are variables and constants. A mutator that puts one value
around another binds the inner one with `emit`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Constant,
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
    names_in,
    nested,
    operands,
)
from compiler.ir.inference import infer_value
from compiler.ir.substitution import substitute, with_nested, with_operands
from compiler.types.names import unique

_METHODS: dict[type, str] = {
    Call: "visit_call",
    Tuple: "visit_tuple",
    TupleGetItem: "visit_tuple_getitem",
    Var: "visit_var",
    Constant: "visit_constant",
    GlobalVar: "visit_global_var",
    Match: "visit_match",
    Construct: "visit_construct",
    Cases: "visit_cases",
    If: "visit_if",
    Loop: "visit_loop",
    Function: "visit_function",
}


class ExprVisitor:
    """Visits every binding of a program, in order; override what you need.

    `visit_call(call)`, `visit_tuple`, `visit_tuple_getitem`, `visit_var`, `visit_constant`,
    `visit_global_var`, `visit_match`, `visit_construct`, `visit_if`, `visit_loop`, `visit_cases`
    and `visit_function` get the value of a binding; those of values with functions in them go on
    inside.
    """

    def visit(self, program: IRModule | Function) -> None:
        """Visit the functions of a module, or one."""
        if isinstance(program, Function):
            self.visit_function(program)
            return
        for f in program.functions.values():
            if isinstance(f, Function):
                self.visit_function(f)

    def visit_binding(self, b: Binding) -> None:
        """Visit one binding."""
        getattr(self, _METHODS[type(b.value)])(b.value)

    def visit_function(self, f: Function) -> None:
        """Visit the bindings of a function: one of the module, a closure, a branch or a body."""
        for b in f.bindings:
            self.visit_binding(b)

    def visit_call(self, call: Call) -> None:
        """Visit a call; of a fused function, what is in it."""
        if isinstance(call.op, Function):
            self.visit_function(call.op)

    def visit_if(self, value: If) -> None:
        """Visit both branches."""
        self._inside(value)

    def visit_loop(self, value: Loop) -> None:
        """Visit the body."""
        self._inside(value)

    def visit_cases(self, value: Cases) -> None:
        """Visit the bodies."""
        self._inside(value)

    def _inside(self, value: Value) -> None:
        for f in nested(value):
            self.visit_function(f)

    def visit_tuple(self, value: Tuple) -> None:
        """Visit a tuple."""

    def visit_tuple_getitem(self, value: TupleGetItem) -> None:
        """Visit a field of a tuple."""

    def visit_var(self, value: Var) -> None:
        """Visit another name for a variable."""

    def visit_constant(self, value: Constant) -> None:
        """Visit a constant."""

    def visit_global_var(self, value: GlobalVar) -> None:
        """Visit a function of the module as a value."""

    def visit_match(self, value: Match) -> None:
        """Visit a value of a known shape."""

    def visit_construct(self, value: Construct) -> None:
        """Visit what a constructor makes."""


class ExprMutator:
    """Rewrites a program binding by binding; override what you need.

    The methods are those of `ExprVisitor`. They get a value whose operands have been rewritten, and
    return the value, or atom, that takes its place; `emit` binds values before it. Constants among
    operands and results are visited too, once a function; what takes the place of one is bound
    where it is first read.
    """

    def __init__(self) -> None:
        self._bindings: list[Binding] = []
        self._names: set[str] = set()
        self._origins: tuple[str, ...] = ()
        self._constants: dict[Constant, Atom] = {}

    def visit(self, program: Any) -> Any:
        """The module, or function, rewritten; types are inferred again."""
        if isinstance(program, Function):
            return self.visit_function(program)
        for name, f in program.functions.items():
            if isinstance(f, Function) and (new := self.visit_function(f)) is not f:
                program = program.with_function(name, new)
        from compiler.passes.infer_type import InferType

        return InferType()(program)

    def emit(self, value: Value, name: str = "") -> Var:
        """Bind `value` to a variable before the binding that is being rewritten; it is known to
        come from the same imported nodes."""
        var = Var(unique(name or str(len(self._bindings)), self._names), infer_value(value))
        self._bindings.append(Binding(var, value, self._origins))
        return var

    def visit_function(self, f: Function) -> Function:
        """A function rewritten (the same object if nothing changed)."""
        outer = (self._bindings, self._names, self._origins, self._constants)
        self._bindings, self._names, self._constants = [], self._names | names_in(f), {}
        new: dict[Var, Atom] = {}
        for b in f.bindings:
            self._origins = b.origins
            given = self._with_constants(substitute(b.value, new))
            value = getattr(self, _METHODS[type(given)])(given)
            if value is b.value:
                self._bindings.append(b)
                continue
            if isinstance(value, Var | Constant) and not isinstance(given, Var | Constant):
                new[b.var] = value
                continue
            t = infer_value(value)
            var = b.var if t == b.var.type else Var(b.var.name, t)
            if var is not b.var:
                new[b.var] = var
            self._bindings.append(Binding(var, value, b.origins))
        results = tuple(
            new.get(r, r) if isinstance(r, Var) else self._constant(r) for r in f.results
        )
        made = tuple(self._bindings)
        self._bindings, self._names, self._origins, self._constants = outer
        if made == f.bindings and results == f.results:
            return f
        return f.with_body(made, results)

    def _with_constants(self, value: Value) -> Value:
        """`value` with what takes the place of the constants that it reads."""
        if isinstance(value, Constant) or not any(isinstance(a, Constant) for a in operands(value)):
            return value
        atoms = [self._constant(a) if isinstance(a, Constant) else a for a in operands(value)]
        return with_operands(value, atoms)

    def _constant(self, c: Constant) -> Atom:
        if c not in self._constants:
            new = self.visit_constant(c)
            self._constants[c] = new if isinstance(new, Var | Constant) else self.emit(new)
        return self._constants[c]

    def visit_call(self, call: Call) -> Value:
        """A call; a fused function in it is rewritten."""
        if not isinstance(call.op, Function):
            return call
        op = self.visit_function(call.op)
        return call if op is call.op else replace(call, op=op)

    def visit_if(self, value: If) -> Value:
        """Both branches rewritten."""
        return self._inside(value)

    def visit_loop(self, value: Loop) -> Value:
        """The body rewritten."""
        return self._inside(value)

    def visit_cases(self, value: Cases) -> Value:
        """The bodies rewritten."""
        return self._inside(value)

    def _inside(self, value: Value) -> Value:
        return with_nested(value, [self.visit_function(f) for f in nested(value)])

    def visit_tuple(self, value: Tuple) -> Value:
        """A tuple."""
        return value

    def visit_tuple_getitem(self, value: TupleGetItem) -> Value:
        """A field of a tuple."""
        return value

    def visit_var(self, value: Var) -> Value:
        """Another name for a variable."""
        return value

    def visit_constant(self, value: Constant) -> Value:
        """A constant: an operand, a result, or the value of a binding."""
        return value

    def visit_global_var(self, value: GlobalVar) -> Value:
        """A function of the module as a value."""
        return value

    def visit_match(self, value: Match) -> Value:
        """A value of a known shape."""
        return value

    def visit_construct(self, value: Construct) -> Value:
        """What a constructor makes."""
        return value
