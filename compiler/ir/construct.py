"""Puts expressions into A-normal form: every expression is bound once, where it is first needed."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from compiler.errors import VerifyError
from compiler.ir.expr import Atom, Binding, Function, Value, Var, operands
from compiler.ir.expression import Body, Expr, Operand, to_operands
from compiler.ir.substitution import substitute
from compiler.types.names import unique


def function(params: Sequence[Var], body: Any, attrs: Mapping[str, Any] | None = None) -> Function:
    """The function that computes `body`, an expression or several, from `params`.

    What branches and loops share with the rest of the function is bound outside of them. Variables
    that are no parameters are captured: such a function is a closure.

    Raises:
        VerifyError: two parameters, or other variables that it reads, have the same name.
    """
    results = to_operands(body)
    names = _Names([*params, *_free(results)])
    scope = _Scope(names, ChainMap(), ChainMap(), results)
    made = tuple(scope.atom(r) for r in results)
    return Function(tuple(params), tuple(scope.bindings), made, dict(attrs or {}))


class Statements:
    """A function that is written statement by statement: each value is computed where it is bound,
    whether or not it is needed later.

    Raises:
        VerifyError: two parameters have the same name.
    """

    def __init__(self, params: Sequence[Var]):
        self.params = tuple(params)
        self._scope = _Scope(_Names(self.params), ChainMap(), ChainMap(), ())

    def bind(self, value: Any, name: str = "") -> Atom:
        """The atom that `value` is from here on; an expression is bound to a variable called
        `name`, or like it, if that is taken."""
        (x,) = to_operands((value,))
        return self._scope.atom(x.named(name) if isinstance(x, Expr) and name else x)

    def function(self, results: Sequence[Atom]) -> Function:
        """The function of these results."""
        return Function(self.params, tuple(self._scope.bindings), tuple(results))


def expression_text(e: Expr) -> str:
    """The variables that an expression reads, and what it computes from them."""
    from compiler.ir.printer import value_text

    f = function((), e)
    head = [f"free_var {v!r}: {v.type}" for v in f.captures]
    *before, last = f.bindings
    lines = [f"{b.var!r} = {value_text(b.value)};" for b in before]
    return "\n".join([*head, *lines, value_text(last.value)])


class _Names:
    """Names of variables that are taken, and the numbers of those without one."""

    def __init__(self, given: Iterable[Var]):
        self.taken: set[str] = set()
        self.count = 0
        for v in dict.fromkeys(given):
            if v.name in self.taken:
                raise VerifyError(f"two variables are called %{v.name}: rename one of them")
            self.taken.add(v.name)

    def fresh(self, hint: str) -> str:
        if hint:
            return unique(hint, self.taken)
        self.count += 1
        return unique(str(self.count - 1), self.taken)


class _Scope:
    """The bindings of one function. `bound` and `variables` also hold those of enclosing ones."""

    def __init__(
        self,
        names: _Names,
        bound: ChainMap[Expr, Var],
        variables: ChainMap[Var, Atom],
        results: Sequence[Operand],
    ):
        self.names, self.bound, self.variables = names, bound, variables
        self.needed = set(_reached(results, {}))
        self.bindings: list[Binding] = []

    def atom(self, x: Operand) -> Atom:
        """Binds what `x` needs, and `x` itself."""
        if not isinstance(x, Expr):
            return self.variables.get(x, x) if isinstance(x, Var) else x
        stack = [x]
        while stack:
            e = stack[-1]
            missing = [] if e in self.bound else [n for n in self._before(e) if n not in self.bound]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if e not in self.bound:
                self._bind(e)
        return self.bound[x]

    def _before(self, e: Expr) -> Iterator[Expr]:
        """What has to be bound before `e`: what it needs, and what its bodies share with the rest
        of this function."""
        yield from (n for n in e.needs if isinstance(n, Expr))
        if e.bodies:
            inside = _reached([r for b in e.bodies for r in b.results], self.bound, deep=True)
            yield from (n for n in inside if n in self.needed)

    def _bind(self, e: Expr) -> None:
        functions = [self._function(b) for b in e.bodies]
        value = substitute(e.make([self.atom(n) for n in e.needs], functions), self.variables)
        self.bound[e] = Var(self.names.fresh(e.hint), e.type)
        self.bindings.append(Binding(self.bound[e], value))

    def _function(self, b: Body) -> Function:
        params = {p: Var(self.names.fresh(p.name), p.type) for p in b.params}
        variables: MutableMapping[Var, Atom] = dict(params)
        scope = _Scope(
            self.names,
            self.bound.new_child(),
            self.variables.new_child(variables),
            b.results,
        )
        results = tuple(scope.atom(r) for r in b.results)
        return Function(tuple(params.values()), tuple(scope.bindings), results)


def _reached(
    roots: Iterable[Operand], stop: Mapping[Expr, Any], deep: bool = False
) -> dict[Expr, None]:
    """The expressions that `roots` need, those in `stop` and beyond left out; with `deep`, also
    those that only their bodies need."""
    found: dict[Expr, None] = {}
    stack = [r for r in roots if isinstance(r, Expr)]
    while stack:
        e = stack.pop()
        if e in found or e in stop:
            continue
        found[e] = None
        stack += [n for n in e.needs if isinstance(n, Expr)]
        if deep:
            stack += [r for b in e.bodies for r in b.results if isinstance(r, Expr)]
    return found


def _free(results: Sequence[Operand]) -> list[Var]:
    """The variables that expressions read, parameters of their bodies left out."""
    reached = _reached(results, {}, deep=True)
    read: list[Operand] = [*results]
    inner: set[Var] = set()
    for e in reached:
        read += [*e.needs, *(r for b in e.bodies for r in b.results), *_captured(e)]
        inner.update(p for b in e.bodies for p in b.params)
    return [v for v in dict.fromkeys(read) if isinstance(v, Var) and v not in inner]


def _captured(e: Expr) -> tuple[Atom, ...]:
    """What a closure that `e` is captures."""
    if e.needs or e.bodies:
        return ()
    value: Value = e.make((), ())
    return operands(value)
