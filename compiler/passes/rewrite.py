"""What the simplifying passes share: replacing bindings, with result names and origins kept."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    Value,
    Var,
    atom_type,
    names_in,
    uses,
)
from compiler.ir.inference import infer_value
from compiler.ir.substitution import substitute
from compiler.op.library import get_op
from compiler.op.opdef import OpDef
from compiler.passes.live import live
from compiler.types.names import unique


def union(*origins: Sequence[str]) -> tuple[str, ...]:
    """Origins of a merged binding: all of them, in order, once each."""
    return tuple(dict.fromkeys(o for group in origins for o in group))


def op_name(value: Value | None) -> str:
    """Name of the operator that `value` calls; empty for anything else."""
    return getattr(value.op, "name", "") if isinstance(value, Call) else ""


def op_of(value: Value | None) -> OpDef | None:
    """The operator that `value` calls, None for anything else: what facts are asked of."""
    op = value.op if isinstance(value, Call) else None
    return op if isinstance(op, OpDef) else None


class Rewriter:
    """Collects the bindings of a new function, in order. Results keep their variables."""

    def __init__(self, f: Function):
        self.f = f
        self.changed = False
        self._bindings: list[Binding] = []
        self._at: dict[Var, int] = {}
        self._replaced: dict[Var, Atom] = {}
        self._renamed: dict[Var, Var] = {}  # at the end: producers that take a result's name
        self._results = {r for r in f.results if isinstance(r, Var)}
        self._uses = {v: len(readers) for v, readers in uses(f).items()}
        self._names = names_in(f)

    def read(self, b: Binding) -> Binding:
        """The binding with its operands replaced so far."""
        value = substitute(b.value, self._replaced)
        return b if value is b.value else Binding(b.var, value, b.origins)

    def producer(self, a: Atom) -> Binding | None:
        """The collected binding that defines `a`."""
        return self._bindings[self._at[a]] if isinstance(a, Var) and a in self._at else None

    def used_once(self, v: Var) -> bool:
        """Whether `v` has one reader, which is a binding."""
        return self._uses.get(v, 0) == 1 and v not in self._results

    def keep(self, b: Binding) -> None:
        """Append a binding."""
        self._at[b.var] = len(self._bindings)
        self._bindings.append(b)

    def emit(self, b: Binding) -> Var:
        """Append a binding that is not in the original function in this form."""
        self.changed = True
        self.keep(b)
        return b.var

    def use_count(self, v: Var) -> int:
        """How often `v` is read, by bindings and as a result."""
        return self._uses.get(v, 0)

    def amend(self, b: Binding) -> None:
        """Let a collected binding compute another value, from what is defined before it."""
        self.changed = True
        self._bindings[self._at[b.var]] = b

    def fresh(self, stem: str) -> str:
        """A name nobody has yet."""
        return unique(stem, self._names)

    def alias(self, b: Binding, atom: Atom) -> bool:
        """Drop `b`, whose value is `atom`, adding its origins to the producer of `atom`.

        A result gives its name to the producer instead. False (and `b` is to be kept) where that
        cannot be: the result is a parameter, a constant or another result.
        """
        made = self.producer(atom)
        if b.var in self._results:
            if made is None or made.var in self._results:
                return False
            self._results.add(made.var)
            self._renamed[made.var] = b.var
        if made is not None:
            origins = union(made.origins, b.origins)
            self._bindings[self._at[made.var]] = Binding(made.var, made.value, origins)
        self._replaced[b.var] = atom
        if isinstance(atom, Var):
            # readers of b.var now read atom, which b itself no longer does
            self._uses[atom] = self._uses.get(atom, 0) + self._uses.get(b.var, 0) - 1
        self.changed = True
        return True

    def constant(self, b: Binding, value: Constant) -> bool:
        """Drop `b`, whose value is `value`; False (and `b` is to be kept) if it is a result."""
        if b.var in self._results:
            return False
        self._replaced[b.var] = value
        self.changed = True
        return True

    def finish(self) -> Function:
        """The function without what it no longer needs; the same object if nothing changed."""
        if not self.changed:
            return self.f
        bindings = self._bindings
        if self._renamed:
            bindings = [
                Binding(
                    self._renamed.get(b.var, b.var), substitute(b.value, self._renamed), b.origins
                )
                for b in bindings
            ]
        return live(self.f.with_body(bindings, self.f.results))


def call(op: str | OpDef, *args: Atom, **attrs: object) -> Call:
    """A call of an operator, which may be given by its name."""
    definition = get_op(op) if isinstance(op, str) else op
    return Call(definition, args, definition.make_attrs(**attrs))


def typed(name: str, value: Value, origins: Sequence[str]) -> Binding:
    """A binding of a new variable of the type that `value` has."""
    return Binding(Var(name, infer_value(value)), value, tuple(origins))


def same_type(a: Atom, b: Atom) -> bool:
    """Whether two values have the same type: for tensors, shape and dtype."""
    return atom_type(a) == atom_type(b)
