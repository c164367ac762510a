"""parse: reads back what the printer writes.

The grammar is the printer's: definitions of types, functions, one binding a line, types as comments
(they are inferred again), and the metadata section with constants, module attributes and origins.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from compiler.errors import DtypelabError, DtypelabWarning, ParseError
from compiler.ir.data_parser import DataParser
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
)
from compiler.ir.function_calls import CALL_TIR, CALLS, Callee
from compiler.ir.graph_form import nested_name
from compiler.ir.inference import infer_module
from compiler.ir.linking import linked
from compiler.ir.metadata_parser import read_metadata
from compiler.op.library import get_op
from compiler.op.opdef import OpDef
from compiler.target.intrinsics import named_intrinsics
from compiler.tensor.parser import take_primfuncs
from compiler.tensor.stmt import PrimFunc
from compiler.types.data import Pattern
from compiler.types.dtypes import DType
from compiler.types.exhaustive import CASES_BEFORE, unreached
from compiler.types.names import printed
from compiler.types.tensor_types import FuncType, Type
from compiler.types.tokens import Token

Scope = ChainMap[str, Var]
"""Variables by name, those of enclosing functions last."""


def parse(text: str, using: IRModule | None = None) -> IRModule:
    """The module that `mod.astext(show_meta_data=True)` printed, with types inferred again.

    Args:
        text: the program.
        using: a module whose types and functions the text may use without writing them
            (`compiler.prelude()`); those that it needs are in the module then.

    Raises:
        ParseError: names line and column.
        compiler.errors.TypeInferenceError: the program does not type-check.
    """
    try:
        return _parsed(text, using or IRModule({}))
    except RecursionError:
        raise ParseError("line 1, column 1: something in this program nests too deep") from None


def _parsed(text: str, using: IRModule) -> IRModule:
    program, _, metadata = text.partition("#[metadata]\n")
    constants, attrs, origins = read_metadata(metadata, program.count("\n") + 1)
    rest, programs = take_primfuncs(
        program, {k: c.data for k, c in constants.items()}, named_intrinsics()
    )
    parser = _Parser(rest, constants, origins, using)
    found: dict[str, tuple[int, Function | PrimFunc]] = {**programs}
    while not parser.done:
        if parser.sees("type"):
            parser.type_definition()  # known already
            continue
        at = parser.now.at
        name, f = parser.definition()
        found[name] = at, f
    if not found:
        raise ParseError("line 1, column 1: there is no function here")
    functions = {name: found[name][1] for name in sorted(found, key=lambda n: found[n][0])}
    mod = linked(IRModule(functions, attrs, parser.own_types), using)
    mod = infer_module(mod, parser.signatures)
    parser.warn_of_cases()
    return mod


@dataclass
class _Inside:
    """Where calls that are operands are bound: before the value called `root`, under numbers."""

    path: str
    root: str
    bindings: list[Binding]
    count: int = 0


class _Parser(DataParser):
    def __init__(
        self,
        text: str,
        constants: dict[int, Constant],
        origins: dict[str, list[str]],
        using: IRModule,
    ):
        super().__init__(text)
        self.constants, self.origins = constants, origins
        self.own_types = self.read_definitions(using.types)
        self.signatures = self._signatures()
        self.places: list[tuple[list[Pattern], list[int]]] = []

    def _signatures(self) -> dict[str, FuncType]:
        """Types of the functions whose heads say what they return."""
        out = {}
        for k, t in enumerate(self.tokens):
            if t.kind == "name" and t.text == "def":
                self.k = k + 1
                name = self.take(kind="global").text[1:]
                self.type_params()
                params, _, result = self.head()
                if result is not None:
                    out[name] = FuncType(tuple(p.type for p in params if p.type), result)
        self.k = 0
        self.inside = _Inside("", "", [])
        return out

    def definition(self) -> tuple[str, Function]:
        """`def @name[A, ...](...) -> type { ... }`; type variables may be left out."""
        self.take("def")
        name = self.take(kind="global").text[1:]
        self.type_params()
        return name, self.function(name, ChainMap())

    def head(self) -> tuple[list[Var], dict[str, Any], Type | None]:
        """Parameters, attributes, and the result type if it is there."""
        self.take("(")
        params: list[Var] = []
        attrs: dict[str, Any] = {}

        def parameter() -> None:
            if self.now.kind == "var":
                params.append(self.parameter())
            else:
                key = self.take(kind="name").text
                self.take("=")
                attrs[key] = self.attribute()

        self.listed(parameter, ")")
        return params, attrs, self.type() if self.accept("->") else None

    def parameter(self) -> Var:
        """`%name: type`."""
        name = self.take(kind="var").text[1:]
        self.take(":")
        return Var(name, self.type())

    def function(self, path: str, outer: Scope) -> Function:
        """Parameters, result type and body."""
        params, attrs, _ = self.head()
        f = self.body(params, path, outer)
        return replace(f, attrs=attrs)

    def body(self, params: Sequence[Var], path: str, outer: Scope) -> Function:
        """`{ bindings results }`."""
        self.take("{")
        scope: Scope = outer.new_child({p.name: p for p in params})
        bindings: list[Binding] = []
        while self.now.kind == "var" and self.sees("=", ahead=1):
            at, name = self.k, self.take().text[1:]
            self.take("=")
            here = f"{path}/{name}"
            around, self.inside = self.inside, _Inside(path, name, bindings)
            value = self.value(scope, here)
            self.inside = around
            self.take(";")
            if name in scope.maps[0]:
                self.k = at
                raise self.error(f"{scope[name]} is defined twice")
            scope[name] = Var(name)
            bindings.append(Binding(scope[name], value, tuple(self.origins.get(here, ()))))
        if self.accept("("):
            results = self.listed(lambda: self.atom(scope), ")")
        else:
            results = [self.atom(scope)]
        self.take("}")
        return Function(tuple(params), tuple(bindings), tuple(results))

    def value(self, scope: Scope, here: str) -> Value:
        """The right-hand side of a binding."""
        if self.accept("("):
            if self.accept("fn"):
                f = self.function(here, ChainMap())
                self.take(")")
                return Call(f, self.arguments(scope))
            return Tuple(tuple(self.listed(lambda: self.atom(scope), ")")))
        if self.accept("fn"):
            return self.function(f"{here}/0", scope)
        if self.accept("if"):
            return self.branches(scope, here)
        if self.accept("loop"):
            return self.loop(scope, here)
        if self.accept("match"):
            self.take("(")
            a = self.atom(scope)
            if self.accept(")"):
                return self.cases(a, scope, here)
            self.take(",")
            t = self.tensor_type()
            self.take(")")
            return Match(a, t)
        if self.now.kind == "global":
            name = self.take().text[1:]
            g = GlobalVar(name, self.signatures.get(name))
            return Call(g, self.arguments(scope)) if self.sees("(") else g
        if self.now.kind == "name" and not self.sees("True") and not self.sees("False"):
            return self.construct(scope) if self.now.text[0].isupper() else self.call(scope)
        at, a = self.k, self.atom(scope)
        if self.accept("."):
            field = self.take(kind="number")
            if not field.text.isdigit():
                self.k -= 1
                raise self.error(f"expected the number of a field, found {field.text!r}")
            return TupleGetItem(a, int(field.text))
        if self.sees("("):
            if not isinstance(a, Var):
                self.k = at
                raise self.error("a constant cannot be called")
            return Call(a, self.arguments(scope))
        return a

    def arguments(self, scope: Scope) -> tuple[Atom, ...]:
        """Atoms in parentheses."""
        self.take("(")
        return tuple(self.listed(lambda: self.atom(scope), ")"))

    def branches(self, scope: Scope, here: str) -> If:
        """`(condition) { ... } else { ... }`."""
        self.take("(")
        condition = self.atom(scope)
        self.take(")")
        then = self.body((), f"{here}/0", scope)
        self.take("else")
        return If(condition, then, self.body((), f"{here}/1", scope))

    def construct(self, scope: Scope) -> Construct:
        """`Constructor[types](atoms)`; types that the fields tell, and `()`, may be left out."""
        definition, name = self.definition_of()
        types = self.types_listed() if self.sees("[") else None
        fields = self.arguments(scope) if self.sees("(") else ()
        return Construct(definition, name, fields, types)

    def cases(self, value: Atom, scope: Scope, here: str) -> Cases:
        """`{ pattern => { ... }, ... }`."""
        self.take("{")
        patterns: list[Pattern] = []
        bodies: list[Function] = []
        places: list[int] = []
        self.places.append((patterns, places))

        def case() -> None:
            variables: dict[str, Var] = {}
            places.append(self.now.at)
            patterns.append(self.case_pattern(variables))
            self.take("=>")
            path = f"{here}/{len(bodies)}"
            bodies.append(self.body(tuple(variables.values()), path, scope))

        self.listed(case, "}")
        return Cases(value, tuple(patterns), tuple(bodies))

    def warn_of_cases(self) -> None:
        """Warn of cases that no value reaches, in a program whose types fit."""
        for patterns, places in self.places:
            for k in unreached(tuple(patterns)):
                message = f"no value reaches this case: {CASES_BEFORE}"
                warnings.warn(str(self.error_at(places[k], message)), DtypelabWarning, stacklevel=4)

    def loop(self, scope: Scope, here: str) -> Loop:
        """`count (go, %state: type = atom, ...) { ... }`; `count` may be left out."""
        count = "" if self.sees("(") else self.take(kind="name").text
        self.take("(")
        go = self.atom(scope)
        params: list[Var] = []
        init: list[Atom] = []

        def state() -> None:
            params.append(self.parameter())
            self.take("=")
            init.append(self.atom(scope))

        if self.accept(","):
            self.listed(state, ")")
        else:
            self.take(")")
        return Loop(go, tuple(init), self.body(params, f"{here}/0", scope), count)

    def call(self, scope: Scope) -> Call:
        """`op(atoms, attribute=value, ...)`."""
        at = self.k
        if self.now.text in CALLS:
            return self.callee(CALLS[self.take().text], scope)
        try:
            op = get_op(self.take(kind="name").text)
        except DtypelabError as e:
            self.k = at
            raise self.error(str(e)) from None
        self.take("(")
        args: list[Atom] = []
        attrs: dict[str, Any] = {}

        def argument() -> None:
            if self.now.kind == "name" and self.tokens[self.k + 1].text == "=":
                key = self.take().text
                self.take("=")
                attrs[key] = self.attribute()
            elif self.now.kind == "name" and self.sees("(", ahead=1):
                args.append(self.nested(scope))
            else:
                args.append(self.atom(scope))

        self.listed(argument, ")")
        try:
            return Call(op, tuple(args), op.make_attrs(**attrs))
        except DtypelabError as e:
            raise self.error(str(e)) from None

    def nested(self, scope: Scope) -> Var:
        """A call that is an operand of another one: it is bound to a name before that."""
        around, value = self.inside, self.call(scope)
        name = nested_name(around.root, around.count)
        var = Var(name)
        origins = self.origins.get(f"{around.path}/{name}", ())
        around.bindings.append(Binding(var, value, tuple(origins)))
        around.count += 1
        return var

    def callee(self, op: OpDef, scope: Scope) -> Call:
        """`(@program, (atoms), type)`, or with a registered function's name in quotes."""
        self.take("(")
        t = self.take(kind="global" if op is CALL_TIR else "string")
        func = t.text[1:] if op is CALL_TIR else json.loads(t.text)
        self.take(",")
        args = self.arguments(scope)
        self.take(",")
        out = self.type()
        self.take(")")
        return Call(op, args, Callee(func, out))

    def atom(self, scope: Scope) -> Atom:
        """A variable, a constant of the metadata section, or a scalar."""
        t = self.take()
        if t.kind == "var":
            # `%x.0` reads field 0 of %x: a name never ends in a dot and a number.
            name = t.text[1:]
            stem, dot, field = name.rpartition(".")
            quoted = self.text.startswith('%"', t.at)
            if name not in scope and not quoted and dot and field.isdigit() and stem in scope:
                self.tokens[self.k : self.k] = [
                    Token("op", ".", t.at),
                    Token("number", field, t.at),
                ]
                name = stem
            if name not in scope:
                self.k -= 1
                raise self.error(f"{printed(name)} is not defined")
            return scope[name]
        if t.kind == "meta":
            index = int(t.text.rsplit("[", 1)[1][:-1])
            if index not in self.constants:
                self.k -= 1
                raise self.error(f"{t.text} is not in the metadata; print with show_meta_data=True")
            return self.constants[index]
        if t.text in ("True", "False"):
            self.take("bool")
            return Constant.of(t.text == "True", "bool")
        found = re.fullmatch(r"(.*?)((?:float|int|uint)\d+)", t.text)
        if t.kind == "number" and found:
            try:
                dtype = DType.parse(found[2])
                return Constant.of((float if dtype.is_float else int)(found[1]), dtype)
            except (ValueError, OverflowError, DtypelabError):
                self.k -= 1
                raise self.error(f"{t.text} is no number of a dtype") from None
        self.k -= 1
        if t.kind == "global":
            raise self.error(f"{t.text} is a function: as a value it has a name, %f = {t.text};")
        raise self.error(f"expected a value, found {t.text!r}")
