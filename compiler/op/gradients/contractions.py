"""Rules of dense layers, matrix products and einsum. Sums go over rows in their order, and are
formed as those of the operator are (`accumulate`)."""

from __future__ import annotations

from compiler.op.gradient import Parts, Step, Value
from compiler.op.gradients.common import (
    collapse,
    in_cotangents_dtype,
    last_two_turned,
    reshaped,
)


def _checked(s: Step, *zero_points: int) -> None:
    if any(zero_points):
        raise s.refuse("it works on integers that count from a zero point")


def _rows(s: Step, x: Value) -> Value:
    """A matrix: all axes but the last are one."""
    return reshaped(s, x, (-1, s.type(x).shape[-1])) if s.type(x).rank != 2 else x


def dense(s: Step) -> Parts:
    """x [..., K], w [N, K]: x gets dy times w, w the transposed rows of dy times those of x, the
    bias the sum of dy's rows."""
    _checked(s, s.attrs.input_zero_point)
    x, w = (in_cotangents_dtype(s, v) for v in s.args[:2])
    dy, mode = s.cotangent, s.attrs.accumulate
    parts: list[Value | None] = [None] * len(s.args)
    if s.wants[0]:
        parts[0] = s.call("nn.matmul", dy, w, accumulate=mode)
    rows = _rows(s, dy)
    if s.wants[1]:
        parts[1] = s.call("nn.matmul", last_two_turned(s, rows), _rows(s, x), accumulate=mode)
    if len(s.args) > 2 and s.wants[2]:
        parts[2] = s.call("sum", rows, axis=(0,))
    return parts


def matmul(s: Step) -> Parts:
    """a [..., M, K], b [..., K, N]: a gets dy times b transposed, b gets a transposed times dy;
    what was broadcast, the sum of that. Vectors are matrices of one row or column."""
    _checked(s, s.attrs.input_zero_point, s.attrs.weight_zero_point)
    a, b = (in_cotangents_dtype(s, v) for v in s.args)
    dy, mode = s.cotangent, s.attrs.accumulate
    shapes = [s.type(v).shape for v in (a, b)]
    if len(shapes[1]) == 1:
        b = reshaped(s, b, (shapes[1][0], 1))
        dy = s.call("expand_dims", dy, axes=(s.type(dy).rank,))
    if len(shapes[0]) == 1:
        a = reshaped(s, a, (1, shapes[0][0]))
        dy = s.call("expand_dims", dy, axes=(s.type(dy).rank - 1,))
    parts: list[Value | None] = [None, None]
    if s.wants[0]:
        left = s.call("nn.matmul", dy, last_two_turned(s, b), accumulate=mode)
        parts[0] = reshaped(s, collapse(s, left, a), shapes[0])
    if s.wants[1]:
        if s.type(b).rank == 2 and s.type(a).rank > 2:
            rows = last_two_turned(s, _rows(s, a)), _rows(s, dy)
            right = s.call("nn.matmul", *rows, accumulate=mode)
        else:
            right = s.call("nn.matmul", last_two_turned(s, a), dy, accumulate=mode)
        parts[1] = reshaped(s, collapse(s, right, b), shapes[1])
    return parts
