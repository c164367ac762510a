"""Rules of linear operators that are no contractions: rotary embedding, the Walsh-Hadamard
transform, einsum, and scaling of images."""

from __future__ import annotations

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import collapse
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
    it does not have."""
    text = s.attrs.equation.replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if not arrow or "..." in text or any(len(set(t)) < len(t) for t in terms):
        raise s.refuse("only equations with a result, without dots and repeated letters have one")
    sizes: dict[str, Dim] = {}
    for term, x in zip(terms, s.args, strict=True):
        sizes |= dict(zip(term, s.type(x).shape, strict=True))
    parts: list[Value | None] = []
    for k, term in enumerate(terms):
        if not s.wants[k]:
            parts.append(None)
            continue
        others = [(t, x) for j, (t, x) in enumerate(zip(terms, s.args, strict=True)) if j != k]
        known = {c for t, _ in others for c in t} | set(result)
        alone = "".join(c for c in term if c not in known)
        if alone:  # letters that were summed over in this operand only
            others.append((alone, s.full(1, [sizes[c] for c in alone])))
        equation = ",".join([result, *(t for t, _ in others)]) + f"->{term}"
        factors = (s.cotangent, *(x for _, x in others))
        parts.append(s.call("einsum", *factors, equation=equation, accumulate=s.attrs.accumulate))
    return parts
