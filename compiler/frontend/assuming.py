"""What an import takes for granted of sizes because it cannot be proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from compiler.errors import TypeInferenceError, UnequalSizes
from compiler.ir.expr import Atom, Call, Value, Var
from compiler.op.assume import ASSUME
from compiler.symbolic import Dim, Facts, Index, IntLike, dim
from compiler.types.tensor_types import TensorType

Bind = Callable[[Value, str], Var]
"""Binds a value under a name that begins so."""


class Assuming:
    """What is assumed so far.

    Where two sizes must be equal and neither that nor the contrary is known, the program assumes
    it: an operand is given the other size's name by `assume`, which is checked when it runs, and
    the equality is a fact for all that comes later.

    Args:
        is_given: whether the model's inputs tell a size, so that its dimensions are at least 1.
    """

    def __init__(self, is_given: Callable[[Index], bool]):
        self.facts, self.is_given = Facts(), is_given
        self._made: dict[tuple[Var, Any], Var] = {}
        self._apart = 0

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Assume nothing: what is imported now may not be what runs."""
        self._apart += 1
        try:
            yield
        finally:
            self._apart -= 1

    def forget(self) -> None:
        """Do not use variables again that have been bound: they may be taken back."""
        self._made = {}

    def learn(self, e: UnequalSizes) -> None:
        """Assume what an operator needs.

        Raises:
            TypeInferenceError: it is impossible, or nothing is to be assumed.
        """
        if self._apart:
            raise TypeInferenceError(str(e)) from None
        for a, b in e.pairs:
            if self.facts.equal(a, b):
                continue
            given = self.is_given(Index.of(a) - b)
            if self.facts.contradicted(a, b, least=1 if given else 0):
                raise TypeInferenceError(f"{e}: {a} is never {b}") from None
            self.facts.add(a, b)

    def unless(self, a: IntLike, b: IntLike, node: str) -> bool:
        """Whether what `node` does where two sizes differ needs that to be assumed: they may be
        equal for all that is known.

        Raises:
            TypeInferenceError: nothing is to be assumed.
        """
        given = self.is_given(Index.of(a) - b)
        if self.facts.contradicted(a, b, least=1 if given else 0):
            return False
        if self._apart:
            raise TypeInferenceError(f"{node} does not have one rank: {a} may be {b} or not")
        return True

    def renamed(
        self, x: Atom, pairs: Sequence[tuple[IntLike, IntLike]], node: str, bind: Bind
    ) -> Atom:
        """`x` with the sizes of its type simplified; what is equal to another by no rule is called
        as the other of its pair is."""
        t = x.type
        if not isinstance(x, Var) or not isinstance(t, TensorType):
            return x
        for size in dict.fromkeys(d for d in t.shape if isinstance(d, Index)):
            new = self.facts.simplified(size)
            if new == size:
                others = (b for a, b in pairs if a == size and not self.facts.equal(a, b))
                new = next(map(dim, others), size)
            if new != size:
                x = self._assumed(x, size, new, node, bind)
        return x

    def _assumed(self, x: Var, size: Dim, equal: Dim, node: str, bind: Bind) -> Var:
        key = x, (size, equal)
        if key not in self._made:
            attrs = ASSUME.make_attrs(size=size, equal=equal, node=node)
            self._made[key] = bind(Call(ASSUME, (x,), attrs), f"{x.name}_assumed")
        return self._made[key]

    def attributes(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes with their sizes simplified."""

        def simplified(v: Any) -> Any:
            if isinstance(v, Index):
                return self.facts.simplified(v)
            return tuple(map(simplified, v)) if isinstance(v, (tuple, list)) else v

        return {k: simplified(v) for k, v in attrs.items()}
