"""Programs with control flow, as text, and what they compute in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Program:
    """`source` is the text; `inputs` makes arrays of a size; `expected` computes the result."""

    name: str
    source: str
    inputs: Callable[[int], list[np.ndarray]]
    expected: Callable[..., Any]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


BRANCH = Program(
    "branch",
    """
def @main(%x: Tensor[(n, 4), float32], %c: Tensor[(), bool]) -> Tensor[(n, 4), float32] {
  %d = add(%x, %x);
  %y = if (%c) {
    %z = multiply(%d, %x);
    %w = nn.relu(%z);
    %w
  } else {
    %z = subtract(%d, 1.0float32);
    %z
  };
  %r = add(%y, %d);
  %r
}
""",
    lambda n: [floats(n, 4), np.asarray(n % 2 == 0)],
    lambda x, c: (np.maximum(2 * x * x, 0) if c else 2 * x - 1) + 2 * x,
)

RECURSION = Program(
    "recursion",
    """
def @main(%x: Tensor[(n, 4), float32], %k: Tensor[(), int64]) -> Tensor[(n, 4), float32] {
  %y = @times(%k, %x);
  %y
}

def @times(%i: Tensor[(), int64], %a: Tensor[(m, 4), float32]) -> Tensor[(m, 4), float32] {
  %go = greater(%i, 0int64);
  %r = if (%go) {
    %j = subtract(%i, 1int64);
    %b = multiply(%a, 2.0float32);
    %s = @times(%j, %b);
    %s
  } else {
    %a
  };
  %r
}
""",
    lambda n: [floats(n, 4), np.asarray(n, np.int64)],
    lambda x, k: x * np.float32(2) ** int(k),
)

LOOP = Program(
    "loop",
    """
def @main(%x: Tensor[(n, 3), float32], %k: Tensor[(), int64])
    -> (Tensor[(n, 3), float32], Tensor[(steps, n, 3), float32]) {
  %go = less(0int64, %k);
  %out = loop steps (%go, %i: Tensor[(), int64] = 0int64, %a: Tensor[(n, 3), float32] = %x) {
    %j = add(%i, 1int64);
    %b = add(%a, %x);
    %again = less(%j, %k);
    %row = multiply(%b, %b);
    (%again, %j, %b, %row)
  };
  %last = %out.1;
  %rows = %out.2;
  %all = multiply(%rows, 0.5float32);
  (%last, %all)
}
""",
    lambda n: [floats(n, 3), np.asarray(n, np.int64)],
    lambda x, k: _loop(x, int(k)),
)


def _loop(x: np.ndarray, k: int) -> list[np.ndarray]:
    a, rows = x, []
    for _ in range(k):
        a = a + x
        rows.append(a * a * np.float32(0.5))
    return [a, np.stack(rows)]


CLOSURE = Program(
    "closure",
    """
def @main(%x: Tensor[(n, 2), float32], %c: Tensor[(), bool]) -> Tensor[(n, 2), float32] {
  %s = nn.relu(%x);
  %f = fn (%a: Tensor[(n, 2), float32]) -> Tensor[(n, 2), float32] {
    %b = add(%a, %s);
    %b
  };
  %g = @pick(%c, %f);
  %h = @twice;
  %y = %g(%x);
  %z = %h(%g, %y);
  %z
}

def @pick(%c: Tensor[(), bool], %f: fn(Tensor[(n, 2), float32]) -> Tensor[(n, 2), float32])
    -> fn(Tensor[(n, 2), float32]) -> Tensor[(n, 2), float32] {
  %r = if (%c) {
    %f
  } else {
    %g = fn (%a: Tensor[(n, 2), float32]) -> Tensor[(n, 2), float32] {
      %b = %f(%a);
      %d = %f(%b);
      %d
    };
    %g
  };
  %r
}

def @twice(%f: fn(Tensor[(n, 2), float32]) -> Tensor[(n, 2), float32],
    %x: Tensor[(n, 2), float32]) -> Tensor[(n, 2), float32] {
  %y = %f(%x);
  %z = %f(%y);
  %z
}
""",
    lambda n: [floats(n, 2), np.asarray(n % 2 == 0)],
    lambda x, c: x + (3 if c else 6) * np.maximum(x, 0),
)

MATCH = Program(
    "match",
    """
def @main(%x: Tensor[(n, 2), float32], %k: Tensor[(), int64]) -> Tensor[(m, 2), float32] {
  %y = @grow(%k, %x);
  %z = add(%y, %y);
  %z
}

def @grow(%i: Tensor[(), int64], %a: Tensor[(n, 2), float32]) -> Tensor[(m, 2), float32] {
  %go = greater(%i, 0int64);
  %r = if (%go) {
    %j = subtract(%i, 1int64);
    %b = concatenate(%a, %a, axis=0);
    %s = @grow(%j, %b);
    %s
  } else {
    %e = match(%a, Tensor[(m, 2), float32]);
    %e
  };
  %r
}
""",
    lambda n: [floats(n, 2), np.asarray(n, np.int64)],
    lambda x, k: 2 * np.concatenate([x] * 2 ** int(k)),
)

TUPLES = Program(
    "tuples",
    """
def @main(%x: Tensor[(n, 6), float32], %c: Tensor[(), bool])
    -> (Tensor[(n, 3), float32], Tensor[(n, 3), float32]) {
  %s = split(%x, sizes=[3, 3], axis=1);
  %p = if (%c) {
    %s
  } else {
    %a = %s.0;
    %b = %s.1;
    %t = (%b, %a);
    %t
  };
  %q = @both(%p);
  %y = %q.0;
  %z = %q.1;
  (%y, %z)
}

def @both(%p: (Tensor[(n, 3), float32], Tensor[(n, 3), float32]))
    -> (Tensor[(n, 3), float32], Tensor[(n, 3), float32]) {
  %a = %p.0;
  %b = %p.1;
  %d = add(%a, %b);
  %t = (%d, %b);
  %t
}
""",
    lambda n: [floats(n, 6), np.asarray(n % 2 == 0)],
    lambda x, c: [x[:, :3] + x[:, 3:], x[:, 3:] if c else x[:, :3]],
)

SIZES = Program(
    "sizes",
    """
def @main(%x: Tensor[(n, 2), float32], %k: Tensor[(), int64]) -> Tensor[(m + 1, 2), float32] {
  %c = reshape(%k, newshape=[1]);
  %s = match_shape(%c, shape=[m]);
  %a = arange(size=m + 1);
  %r = take(%x, %a, axis=0);
  %y = add(%r, %r);
  %y
}
""",
    lambda n: [floats(n, 2), np.asarray(n, np.int64)],
    lambda x, k: 2 * x[np.minimum(np.arange(k + 1), k - 1)],
)

PROGRAMS = [BRANCH, RECURSION, LOOP, CLOSURE, MATCH, TUPLES, SIZES]
