"""Rules of linear operators that are no contractions: rotary embedding, the Walsh-Hadamard
transform, einsum, and scaling of images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_letters

from compiler.op.equation import extents_of, letters_of
from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import along, collapse, reshaped, where
from compiler.op.gradients.moves import cut, fixed
from compiler.symbolic import Dim


def _halves(s: Step, x: Value) -> tuple[Value, Value, int]:
    t = s.type(x)
    last = t.rank - 1
    size = fixed(s, t.shape[last], "the last axis")
    half = size // 2
    return cut(s, x, last, 0, half), cut(s, x, last, half, size), last


def rotary(s: Step) -> Parts:
    """x * cos + turned(x) * sin, where turned(x) is -second, then first half: x gets dy * cos +
    (second half of dy * sin, then the first, negated), cos dy * x and sin dy * turned(x)."""
    x, cos, sin = s.args
    dy = s.cotangent
    parts: list[Value | None] = [None, None, None]
    if s.wants[0]:
        first, second, last = _halves(s, dy * sin)
        back = s.call("concatenate", second, s.call("negative", first), axis=last)
        parts[0] = dy * cos + back
    if s.wants[1]:
        parts[1] = collapse(s, dy * x, cos)
    if s.wants[2]:
        first, second, last = _halves(s, x)
        turned = s.call("concatenate", s.call("negative", second), first, axis=last)
        parts[2] = collapse(s, dy * turned, sin)
    return parts


def hadamard(s: Step) -> Parts:
    """The transform itself, which is symmetric."""
    return [s.call("nn.hadamard", s.cotangent)]


def einsum(s: Step) -> Parts:
    """To each operand the sum of products of the cotangent with the others, over the letters that
    it does not have; along a diagonal (a letter that an operand has twice), zeros elsewhere."""
    operands, result = letters_of(s.attrs.equation, [s.type(x).rank for x in s.args])
    shapes = [s.type(x).shape for x in s.args]
    extents = extents_of(operands, shapes)
    # Axes of length 1 that `...` broadcasts are left out.
    held = [
        [c for c, n in zip(names, shape, strict=True) if n == extents[c]]
        for names, shape in zip(operands, shapes, strict=True)
    ]
    factors = [
        reshaped(s, x, [extents[c] for c in names]) for x, names in zip(s.args, held, strict=True)
    ]
    plain = _letters_for(extents)
    parts: list[Value | None] = []
    for k, names in enumerate(held):
        if not s.wants[k]:
            parts.append(None)
            continue
        others = [(t, x) for j, (t, x) in enumerate(zip(held, factors, strict=True)) if j != k]
        own = list(dict.fromkeys(names))
        known = {c for t, _ in others for c in t} | set(result)
        alone = [c for c in own if c not in known]
        if alone:  # letters that were summed over in this operand only
            others.append((alone, s.full(1, [extents[c] for c in alone])))
        left = ",".join(
            "".join(map(plain.__getitem__, t)) for t in (result, *(t for t, _ in others))
        )
        equation = f"{left}->{''.join(map(plain.__getitem__, own))}"
        given = (s.cotangent, *(x for _, x in others))
        made = s.call("einsum", *given, equation=equation, accumulate=s.attrs.accumulate)
        parts.append(reshaped(s, _on_diagonals(s, made, names, extents), shapes[k]))
    return parts


def _letters_for(names: Iterable[str]) -> dict[str, str]:
    """A letter for each name: its own, or, of an axis of `...`, one that is free."""
    taken = set(names)
    free = (c for c in ascii_letters if c not in taken)
    return {c: c if c.isalpha() else next(free) for c in names}


def _on_diagonals(s: Step, x: Value, names: Sequence[str], extents: Mapping[str, Dim]) -> Value:
    """`x`, whose axes are `names` without those that come again, with them: zeros where their
    positions differ."""
    if len(set(names)) == len(names):
        return x
    firsts = [names.index(c) == k for k, c in enumerate(names)]
    shape = [extents[c] if first else 1 for c, first in zip(names, firsts, strict=True)]
    x = reshaped(s, x, shape)
    for k, c in enumerate(names):
        if not firsts[k]:
            places = s.call("arange", size=extents[c])
            both = [along(s, places, len(names), at) for at in (names.index(c), k)]
            x = where(s, s.call("equal", *both), x)
    return x
