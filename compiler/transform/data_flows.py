"""What is done with what flows back into data: functions of the module, made when asked for. Its
types are those of `flow_types`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compiler.ir.expr import (
    Atom,
    Call,
    Cases,
    Construct,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
    atom_type,
)
from compiler.ir.expression import call
from compiler.transform.flow_types import FlowTypes
from compiler.transform.gradient_step import Bindings, full
from compiler.types.data import Anything, Form, Named, Pattern, Several, TypeDef
from compiler.types.names import unique
from compiler.types.tensor_types import DataType, FuncType, TensorType, TupleType, Type

_ANY = Anything()
_NAMED = Named()


class DataFlows(FlowTypes):
    """What flows back into values of a module with some definitions.

    Attributes:
        functions: the functions that were made.
    """

    def __init__(self, types: Mapping[str, TypeDef], names: set[str]):
        super().__init__(types)
        self.names = names
        self.functions: dict[str, Function] = {}
        self._known: dict[tuple[str, Type], GlobalVar] = {}

    # ---- values ----------------------------------------------------------------------------------
    def none(self, t: Type, bindings: Bindings, name: str = "d_none") -> Atom:
        """Nothing, as what flows back into something of type `t` inside of data."""
        if isinstance(t, TupleType):
            parts = [self.none(x, bindings, name) for x in t.fields if self.any(x)]
            return parts[0] if len(parts) == 1 else bindings.bind(Tuple(tuple(parts)), name)
        held = self.held(t)
        assert isinstance(held, DataType)
        d = self.form(t)
        return bindings.bind(Construct(d, d.constructors[-1].name, (), held.args), name)

    def lazy(self, x: Atom, t: Type, bindings: Bindings, name: str = "d") -> Atom:
        """What flows back into a value of type `t`, as what flows into it inside of data."""
        if not isinstance(t, TensorType):
            return x
        return bindings.bind(Construct(self.leaf, self.leaf.name, (x,), (t,)), name)

    def strict(self, x: Atom, t: Type, bindings: Bindings, name: str = "d") -> Atom:
        """The other way: of a tensor, zeros where nothing flows."""
        if not isinstance(t, TensorType):
            return x
        d, leaf = Var(bindings.fresh("d"), t), self.leaf
        inside = Bindings(bindings.names)
        zero = inside.atom(full(0, t), "d_zero")
        some = Form(leaf, leaf.name, (_NAMED,))
        bodies = (Function((d,), (), (d,)), Function((), tuple(inside.done), (zero,)))
        return bindings.bind(Cases(x, (some, _ANY), bodies), name)

    def made(
        self, t: DataType, constructor: str, parts: Sequence[Atom], bindings: Bindings, name: str
    ) -> Atom:
        """What flows back into data that `constructor` made, of what flows into its fields that
        are not left out."""
        d, held = self.made_for(t), self.held(t)
        assert isinstance(held, DataType)
        word = self.constructor(t, constructor)
        return bindings.bind(Construct(d, word, tuple(parts), held.args), name)

    def fields(
        self, x: Atom, t: DataType, constructor: str, bindings: Bindings, name: str
    ) -> dict[int, Atom]:
        """What flows back into the fields of data that `constructor` made, by number: nothing, if
        nothing flows back into the data."""
        kinds = self.flowing_fields(t, constructor)
        if not kinds:
            return {}
        d = self.made_for(t)
        params = tuple(Var(bindings.fresh("d"), self.held(k)) for k in kinds.values())
        inside = Bindings(bindings.names)
        nothing = tuple(self.none(k, inside) for k in kinds.values())
        some = Form(d, self.constructor(t, constructor), (_NAMED,) * len(kinds))
        bodies = (Function(params, (), params), Function((), tuple(inside.done), nothing))
        both = bindings.bind(Cases(x, (some, _ANY), bodies), name)
        if len(kinds) == 1:
            return dict.fromkeys(kinds, both)
        return {k: bindings.bind(TupleGetItem(both, i), f"{name}_{k}") for i, k in enumerate(kinds)}

    def of_pattern(
        self,
        pattern: Pattern,
        t: Type,
        variables: Callable[[], Atom | None],
        bindings: Bindings,
    ) -> Atom | None:
        """What flows back into a value with a pattern, inside of data, of what flows into the
        variables of the pattern (from left to right; asked for once each). None: nothing."""
        if isinstance(pattern, Anything):
            return None
        if isinstance(pattern, Named):
            return variables()
        if isinstance(pattern, Several):
            assert isinstance(t, TupleType)
            kinds: Sequence[Type] = t.fields
        else:
            assert isinstance(t, DataType)
            kinds = self.definitions[t.name].fields(pattern.constructor, t.args)
        both = list(zip(pattern.fields, kinds, strict=True))
        found = [self.of_pattern(p, k, variables, bindings) for p, k in both]
        if all(x is None for x in found):
            return None
        parts = [
            self.none(k, bindings) if x is None else x
            for x, k in zip(found, kinds, strict=True)
            if self.any(k)
        ]
        if isinstance(t, DataType):
            assert isinstance(pattern, Form)
            return self.made(t, pattern.constructor, parts, bindings, "d_data")
        return parts[0] if len(parts) == 1 else bindings.bind(Tuple(tuple(parts)), "d_tuple")

    # ---- functions -------------------------------------------------------------------------------
    def total(self, x: Atom, y: Atom, t: Type, bindings: Bindings, name: str) -> Atom:
        """The sum of two things that flow back into something of type `t` inside of data."""
        held = self.held(t)
        f = self._function("total", t, (held, held), held, self._total)
        return bindings.bind(Call(f, (x, y)), name)

    def filled(self, value: Atom, x: Atom, t: Type, bindings: Bindings, name: str) -> Atom:
        """`value`, of type `t`, with what flows back into its tensors of floats in their place,
        zeros where nothing does."""
        f = self._function("filled", t, (t, self.held(t)), t, self._filled)
        return bindings.bind(Call(f, (value, x)), name)

    def _function(
        self,
        what: str,
        t: Type,
        params: tuple[Type, ...],
        result: Type,
        write: Callable[[Type, tuple[Var, ...], Bindings], Atom],
    ) -> GlobalVar:
        if (what, t) not in self._known:
            name = unique(f"{what}_gradient", self.names)
            self._known[what, t] = GlobalVar(name, FuncType(params, result))
            bindings = Bindings({"x", "y"})
            given = tuple(Var(n, p) for n, p in zip("xy", params, strict=True))
            made = write(t, given, bindings)
            self.functions[name] = Function(given, tuple(bindings.done), (made,))
        return self._known[what, t]

    def _total(self, t: Type, given: tuple[Var, ...], bindings: Bindings) -> Atom:
        x, y = given
        if isinstance(t, TupleType):
            kinds = [k for k in t.fields if self.any(k)]
            if len(kinds) == 1:
                return self.total(x, y, kinds[0], bindings, "d")
            parts = []
            for k, kind in enumerate(kinds):
                both = [bindings.bind(TupleGetItem(a, k), "part") for a in given]
                parts.append(self.total(both[0], both[1], kind, bindings, "d"))
            return bindings.bind(Tuple(tuple(parts)), "d")
        d = self.form(t)
        *forms, none = d.constructors
        held = atom_type(x)
        assert isinstance(held, DataType)
        nothing = Form(d, none.name)
        patterns: list[Pattern] = [Several((nothing, _NAMED)), Several((_NAMED, nothing))]
        bodies = [Function((v,), (), (v,)) for v in (Var("b", held), Var("a", held))]
        for c in forms:
            fields = (_NAMED,) * len(c.fields)
            patterns.append(Several((Form(d, c.name, fields), Form(d, c.name, fields))))
            inside = Bindings(set(bindings.names))
            left, right = (
                [Var(inside.fresh(stem), k) for k in d.fields(c.name, held.args)]
                for stem in ("a", "b")
            )
            sums = []
            for a, b, kind in zip(left, right, self.kinds(t, c.name), strict=True):
                if d is self.leaf:
                    sums.append(inside.atom(call("add", a, b), "sum"))
                else:
                    sums.append(self.total(a, b, kind, inside, "sum"))
            whole = inside.bind(Construct(d, c.name, tuple(sums), held.args), "d")
            bodies.append(Function((*left, *right), tuple(inside.done), (whole,)))
        if len(forms) > 1:  # never so: what flows back into a value has the form of the value
            first = Var("a", held)
            patterns.append(Several((_NAMED, _ANY)))
            bodies.append(Function((first,), (), (first,)))
        pair = bindings.bind(Tuple(given), "both")
        return bindings.bind(Cases(pair, tuple(patterns), tuple(bodies)), "d")

    def _filled(self, t: Type, given: tuple[Var, ...], bindings: Bindings) -> Atom:
        value, x = given
        if isinstance(t, TensorType):
            return self.strict(x, t, bindings)
        if isinstance(t, TupleType):
            flowing = [k for k, kind in enumerate(t.fields) if self.any(kind)]
            parts: list[Atom] = []
            for k, kind in enumerate(t.fields):
                part = bindings.bind(TupleGetItem(value, k), "part")
                if k in flowing:
                    i = flowing.index(k)
                    d = x if len(flowing) == 1 else bindings.bind(TupleGetItem(x, i), "d")
                    parts.append(self.filled(part, d, kind, bindings, "d"))
                else:
                    parts.append(part)
            return bindings.bind(Tuple(tuple(parts)), "d")
        assert isinstance(t, DataType)
        definition = self.definitions[t.name]
        patterns, bodies = list[Pattern](), list[Function]()
        for c in definition.constructors:
            inside = Bindings(set(bindings.names))
            kinds = definition.fields(c.name, t.args)
            params = tuple(Var(inside.fresh("v"), k) for k in kinds)
            flows = self.fields(x, t, c.name, inside, "d")
            made = tuple(
                self.filled(p, flows[k], kinds[k], inside, "d") if k in flows else p
                for k, p in enumerate(params)
            )
            whole = inside.bind(Construct(definition, c.name, made, t.args), "d")
            patterns.append(Form(definition, c.name, (_NAMED,) * len(kinds)))
            bodies.append(Function(params, tuple(inside.done), (whole,)))
        return bindings.bind(Cases(value, tuple(patterns), tuple(bodies)), "d")
