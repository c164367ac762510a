"""Graph-level expressions in A-normal form: every operand is a variable or a constant.

A `Function` is a list of bindings `var = value` and a result. Nodes are immutable and compared by
identity; rewriting makes new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ir.overloads import Overloads
from compiler.types.data import Pattern, TypeDef
from compiler.types.dtypes import Array, DType
from compiler.types.names import printed
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type

if TYPE_CHECKING:
    from compiler.ir.expression import Expr
    from compiler.op.opdef import OpDef
    from compiler.tensor.stmt import PrimFunc


@dataclass(frozen=True, eq=False)
class Var(Overloads):
    """A named value. The type is None until it has been inferred."""

    name: str
    type: Type | None = None

    def __repr__(self) -> str:
        return printed(self.name)


@dataclass(frozen=True, eq=False)
class Constant(Overloads):
    """A tensor known at compile time; `data` holds storage integers when the dtype is custom.
    `name`: what the model calls it, if it has a name for it."""

    data: Array
    dtype: DType
    name: str = ""

    @staticmethod
    def of(value: Any, dtype: DType | str | None = None) -> Constant:
        """Constant from array-like data; without `dtype`, numpy's dtype of the data is kept."""
        d = DType.parse(dtype) if dtype is not None else None
        data = np.asarray(value) if d is None else np.asarray(value, dtype=d.storage)
        return Constant(data, d or DType.parse(data.dtype))

    @property
    def type(self) -> TensorType:
        """Type of the constant."""
        return TensorType(tuple(self.data.shape), self.dtype)


Atom = Var | Constant


@dataclass(frozen=True, eq=False)
class GlobalVar:
    """The module's function called `name`. Its type is inferred, except where the function calls
    itself, directly or through others: then it must be given."""

    name: str
    type: FuncType | None = None

    def __repr__(self) -> str:
        return f"@{self.name}"

    def __call__(self, *args: Any) -> Expr:
        """A call of the function."""
        from compiler.ir.expression import apply

        return apply(self, *args)


@dataclass(frozen=True, eq=False)
class Call:
    """An operator, a (fused) function, a function of the module, or a closure applied to atoms."""

    op: OpDef | Function | GlobalVar | Var
    args: tuple[Atom, ...]
    attrs: Any = None


@dataclass(frozen=True, eq=False)
class Tuple:
    """Several values as one."""

    fields: tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class TupleGetItem:
    """Field `index` of a tuple value."""

    value: Atom
    index: int


@dataclass(frozen=True, eq=False)
class If:
    """The value of one of two functions without parameters, which may read what is in scope."""

    condition: Atom
    then: Function
    otherwise: Function


@dataclass(frozen=True, eq=False)
class Loop:
    """Runs `body` as long as `go`, and then what `body` returns first, is true.

    The parameters of `body` are the state: first `init`, then what `body` returns next. What it
    returns beyond that is stacked along a new first axis, whose length, how often `body` ran, is
    the dimension called `count`. The value is a tuple: the last state and the stacks.
    """

    go: Atom
    init: tuple[Atom, ...]
    body: Function
    count: str = ""


@dataclass(frozen=True, eq=False)
class Match:
    """`value`, known to be of `type`: checked at run time, and dimensions that are new get the
    sizes that are found."""

    value: Atom
    type: TensorType


@dataclass(frozen=True, eq=False)
class Construct:
    """A value of the algebraic data type `definition`: what `constructor` makes of `fields`.

    Attributes:
        types: arguments of the type. None: inference finds them, from the fields and from what is
            done with the value.
    """

    definition: TypeDef
    constructor: str
    fields: tuple[Atom, ...] = ()
    types: tuple[Type, ...] | None = None


@dataclass(frozen=True, eq=False)
class Cases:
    """What the first of `bodies` gives whose pattern `value` has: functions of the variables of
    their patterns, which may read what is in scope. One pattern must fit, whatever the value."""

    value: Atom
    patterns: tuple[Pattern, ...]
    bodies: tuple[Function, ...]


@dataclass(frozen=True, eq=False)
class Binding:
    """`var = value`. `origins`: names of the imported nodes that this value comes from."""

    var: Var
    value: Value
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Function:
    """Parameters, bindings in execution order, and the result values.

    `attrs` marks what passes need to know, e.g. `{"primitive": True}` on a fused group.
    """

    params: tuple[Var, ...]
    bindings: tuple[Binding, ...]
    results: tuple[Atom, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def captures(self) -> tuple[Var, ...]:
        """The variables of enclosing functions that it reads, in order of their first use."""
        own = {*self.params, *(b.var for b in self.bindings)}
        read = [a for b in self.bindings for a in operands(b.value)]
        atoms = dict.fromkeys([*read, *self.results])
        return tuple(a for a in atoms if isinstance(a, Var) and a not in own)

    @property
    def type(self) -> FuncType:
        """Type of the function; needs inferred types."""
        results = [atom_type(r) for r in self.results]
        result = results[0] if len(results) == 1 else TupleType(tuple(results))
        return FuncType(tuple(atom_type(p) for p in self.params), result)

    def __call__(self, *args: Any) -> Expr:
        """A call of the function as a closure."""
        from compiler.ir.expression import apply

        return apply(self, *args)

    def __str__(self) -> str:
        from compiler.ir.printer import function_text

        return function_text(self)

    def with_body(self, bindings: Iterable[Binding], results: Iterable[Atom]) -> Function:
        """The same function with other bindings and results."""
        return replace(self, bindings=tuple(bindings), results=tuple(results))


Control = If | Loop | Cases | Function
"""Values that hold functions which read what is in scope."""
Value = Call | Tuple | TupleGetItem | Var | Constant | GlobalVar | Match | Construct | Control


@dataclass(frozen=True, eq=False)
class IRModule:
    """Named functions of both levels. `attrs` records facts of the model (`opset`, `producer`
    ...), `types` has the definitions of its algebraic data types."""

    functions: Mapping[str, Function | PrimFunc]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, TypeDef] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Function:
        from compiler.errors import DtypelabError, unknown

        f = self.functions.get(name)
        if f is not None and not isinstance(f, Function):
            raise DtypelabError(f"{name} is a tensor program: it is functions[{name!r}]")
        if f is None:
            raise DtypelabError(unknown("function", name, self.functions))
        return f

    @property
    def main(self) -> Function:
        """The entry function."""
        return self["main"]

    def with_function(self, name: str, f: Function | PrimFunc) -> IRModule:
        """The same module with one function replaced."""
        return self.with_functions({name: f})

    def with_functions(self, functions: Mapping[str, Function | PrimFunc]) -> IRModule:
        """The same module with functions replaced or added (the same object if nothing changes)."""
        if all(self.functions.get(name) is f for name, f in functions.items()):
            return self
        return replace(self, functions={**self.functions, **functions})

    def astext(
        self, show_meta_data: bool = False, annotate: Callable[[Binding], str] | None = None
    ) -> str:
        """Printed program; with `show_meta_data`, constants are written out in full, and `parse`
        reads it back. What `annotate` says of a binding becomes a comment behind it."""
        from compiler.ir.printer import module_text

        return module_text(self, show_meta_data, annotate)

    def __str__(self) -> str:
        return self.astext()

    def _repr_html_(self) -> str:
        from compiler._html import preformatted

        return preformatted(self.astext())


def atom_type(a: Atom) -> Type:
    """The inferred type of an atom.

    Raises:
        compiler.errors.TypeInferenceError: types have not been inferred yet.
    """
    if a.type is None:
        from compiler.errors import TypeInferenceError

        raise TypeInferenceError(f"the type of %{a.name} is not known yet: run InferType first")
    return a.type


def tensor_type(a: Atom) -> TensorType:
    """The inferred tensor type of an atom.

    Raises:
        compiler.errors.TypeInferenceError: not inferred yet, or not a tensor.
    """
    t = atom_type(a)
    if isinstance(t, TensorType):
        return t
    from compiler.errors import TypeInferenceError

    raise TypeInferenceError(f"{a!r} must be a tensor, not {t}")


def nested(value: Value) -> tuple[Function, ...]:
    """The functions in `value` that read what is in scope."""
    if isinstance(value, If):
        return (value.then, value.otherwise)
    if isinstance(value, Loop):
        return (value.body,)
    if isinstance(value, Cases):
        return value.bodies
    return (value,) if isinstance(value, Function) else ()


def operands(value: Value) -> tuple[Atom, ...]:
    """The atoms that `value` reads; of a value with functions, also those that these capture."""
    if isinstance(value, Call):
        return (value.op, *value.args) if isinstance(value.op, Var) else value.args
    if isinstance(value, Tuple | Construct):
        return value.fields
    if isinstance(value, (TupleGetItem, Match)):
        return (value.value,)
    if isinstance(value, (Var, Constant)):
        return (value,)
    return (*direct_operands(value), *captured_operands(value))


def direct_operands(value: Value) -> tuple[Atom, ...]:
    """The atoms that a value with functions reads itself."""
    if isinstance(value, If):
        return (value.condition,)
    if isinstance(value, Cases):
        return (value.value,)
    return (value.go, *value.init) if isinstance(value, Loop) else ()


def captured_operands(value: Value) -> tuple[Var, ...]:
    """The variables that the functions in `value` capture."""
    return tuple(dict.fromkeys(v for f in nested(value) for v in f.captures))


def names_in(f: Function) -> set[str]:
    """Names of the variables of `f` and of the functions in it: none that is new may be one."""
    out = {v.name for v in (*f.params, *f.captures, *(b.var for b in f.bindings))}
    return out.union(*(names_in(g) for b in f.bindings for g in nested(b.value)))


def uses(f: Function) -> dict[Var, list[Binding | None]]:
    """Variable -> the bindings that read it, once per operand; None stands for the function's
    result."""
    out: dict[Var, list[Binding | None]] = {}
    for b in f.bindings:
        for a in operands(b.value):
            if isinstance(a, Var):
                out.setdefault(a, []).append(b)
    for r in f.results:
        if isinstance(r, Var):
            out.setdefault(r, []).append(None)
    return out


def calls(f: Function, op: str | None = None) -> Iterator[tuple[Binding, Call]]:
    """The bindings of `f` that call an operator (named `op`, if given), with their calls."""
    for b in f.bindings:
        if isinstance(b.value, Call) and (op is None or getattr(b.value.op, "name", None) == op):
            yield b, b.value
