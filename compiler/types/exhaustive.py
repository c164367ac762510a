"""Whether patterns cover all values of a type; if not, one that none of them has.

L. Maranget, "Warnings for pattern matching", J. Functional Programming 17 (3), 2007: the algorithm
I, which finds a row of patterns that no row of a matrix covers, and U, whether a row covers any
value that none before it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from compiler.errors import TypeInferenceError
from compiler.types.data import Anything, Form, Named, Pattern, Several

Row = tuple[Pattern, ...]
_ANY = Anything()

CASES_BEFORE = "all that it is for have gone to those before it"
"""Why no value reaches a case."""
MOST_MATRICES = 20_000
"""Matrices of patterns that are looked at, whose number may grow exponentially."""


@lru_cache(maxsize=256)
def missing(patterns: tuple[Pattern, ...]) -> Pattern | None:
    """A pattern of values that none of `patterns`, which are of one type, has; None if all values
    have one.

    Raises:
        TypeInferenceError: that takes too long to tell.
    """
    found = _Search().uncovered([(p,) for p in patterns], 1)
    return None if found is None else found[0]


def unreached(patterns: tuple[Pattern, ...]) -> list[int]:
    """The numbers of those of `patterns` that no value reaches: all that have one of them have an
    earlier one. Where that takes too long to tell, none are named."""
    found = []
    for k, p in enumerate(patterns):
        try:
            if not _Search().reached([(q,) for q in patterns[:k]], (p,)):
                found.append(k)
        except TypeInferenceError:
            break
    return found


class _Search:
    def __init__(self) -> None:
        self.looked_at = 0

    def look(self) -> None:
        """One more matrix."""
        self.looked_at += 1
        if self.looked_at > MOST_MATRICES:
            raise TypeInferenceError(
                "too many patterns to tell whether all values have one: match in several steps"
            )

    def reached(self, rows: Sequence[Row], row: Row) -> bool:
        """Whether there are values beside each other that have the patterns of `row`, and those of
        none of `rows` (Maranget's U)."""
        self.look()
        if not row:
            return not rows
        first, *rest = row
        if isinstance(first, Form | Several):
            name = first.constructor if isinstance(first, Form) else ""
            inner = (*first.fields, *rest)
            return self.reached(_opened(rows, name, len(first.fields)), inner)
        heads = [r[0] for r in rows]
        tuples = [p for p in heads if isinstance(p, Several)]
        forms = {p.constructor: p for p in heads if isinstance(p, Form)}
        definition = next((p.definition for p in forms.values()), None)
        if tuples:
            ways = [("", len(tuples[0].fields))]
        elif definition and len(forms) == len(definition.constructors):
            ways = [(c.name, len(c.fields)) for c in definition.constructors]
        else:
            left = [r[1:] for r in rows if isinstance(r[0], Anything | Named)]
            return self.reached(left, tuple(rest))
        return any(self.reached(_opened(rows, c, n), ((_ANY,) * n + tuple(rest))) for c, n in ways)

    def uncovered(self, rows: Sequence[Row], width: int) -> Row | None:
        """`width` patterns of values beside each other that no row has."""
        self.look()
        if width == 0:
            return None if rows else ()
        heads = [row[0] for row in rows]
        tuples = [p for p in heads if isinstance(p, Several)]
        if tuples:
            count = len(tuples[0].fields)
            found = self.uncovered(_opened(rows, "", count), count + width - 1)
            return None if found is None else (Several(found[:count]), *found[count:])
        forms = {p.constructor: p for p in heads if isinstance(p, Form)}
        definition = next((p.definition for p in forms.values()), None)
        absent = [c for c in definition.constructors if c.name not in forms] if definition else []
        if definition is None or absent:
            rest = [row[1:] for row in rows if isinstance(row[0], Anything | Named)]
            found = self.uncovered(rest, width - 1)
            if found is None:
                return None
            if definition is None:
                return (Anything(), *found)
            fields = (Anything(),) * len(absent[0].fields)
            return (Form(definition, absent[0].name, fields), *found)
        for c in definition.constructors:
            count = len(c.fields)
            found = self.uncovered(_opened(rows, c.name, count), count + width - 1)
            if found is not None:
                return (Form(definition, c.name, found[:count]), *found[count:])
        return None


def _opened(rows: Sequence[Row], constructor: str, count: int) -> list[Row]:
    """The rows for a first value that is of a constructor, or a tuple: the patterns of its `count`
    fields stand in its place."""
    out: list[Row] = []
    for first, *rest in rows:
        if isinstance(first, Anything | Named):
            out.append((Anything(),) * count + tuple(rest))
        elif isinstance(first, Several) or first.constructor == constructor:
            out.append((*first.fields, *rest))
    return out
