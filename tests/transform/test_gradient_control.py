"""Gradients through branches, loops, closures and recursion: of the interpreter and of the virtual
machine, against central differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler.types.dtypes import Array

BRANCH = """
def @main(%x: Tensor[(n, 4), float64], %w: Tensor[(4,), float64], %c: Tensor[(), bool])
    -> Tensor[(), float64] {
  %d = multiply(%x, %w);
  %y = if (%c) {
    %z = multiply(%d, %x);
    %z
  } else {
    %z = tanh(%w);
    %v = subtract(%d, %z);
    %v
  };
  %r = multiply(%y, %d);
  %s = sum(%r);
  %s
}
"""
RECURSION = """
def @main(%x: Tensor[(n, 4), float64], %w: Tensor[(4,), float64], %k: Tensor[(), int64])
    -> Tensor[(), float64] {
  %y = @times(%k, %x, %w);
  %s = sum(%y);
  %s
}

def @times(%i: Tensor[(), int64], %a: Tensor[(m, 4), float64], %b: Tensor[(4,), float64])
    -> Tensor[(m, 4), float64] {
  %go = greater(%i, 0int64);
  %r = if (%go) {
    %j = subtract(%i, 1int64);
    %t = tanh(%a);
    %c = multiply(%t, %b);
    %s = @times(%j, %c, %b);
    %q = add(%s, %a);
    %q
  } else {
    %a
  };
  %r
}
"""
LOOP = """
def @main(%x: Tensor[(n, 3), float64], %w: Tensor[(3,), float64], %k: Tensor[(), int64])
    -> Tensor[(), float64] {
  %go = less(0int64, %k);
  %out = loop (%go, %i: Tensor[(), int64] = 0int64, %a: Tensor[(n, 3), float64] = %x) {
    %j = add(%i, 1int64);
    %m = multiply(%a, %w);
    %t = tanh(%m);
    %b = add(%t, %x);
    %again = less(%j, %k);
    (%again, %j, %b)
  };
  %last = %out.1;
  %q = multiply(%last, %last);
  %s = sum(%q);
  %s
}
"""
STACK = """
def @main(%x: Tensor[(n, 3), float64], %w: Tensor[(3,), float64], %k: Tensor[(), int64])
    -> Tensor[(), float64] {
  %go = less(0int64, %k);
  %out = loop steps (%go, %i: Tensor[(), int64] = 0int64, %a: Tensor[(n, 3), float64] = %x) {
    %j = add(%i, 1int64);
    %m = multiply(%a, %w);
    %b = tanh(%m);
    %c = multiply(%b, %x);
    %again = less(%j, %k);
    (%again, %j, %b, %j, %c, %b)
  };
  %last = %out.1;
  %products = %out.3;
  %states = %out.4;
  %q = multiply(%products, %states);
  %t = sum(%q);
  %u = sum(%last);
  %s = add(%t, %u);
  %s
}
"""
CLOSURE = """
def @main(%x: Tensor[(n, 2), float64], %w: Tensor[(2,), float64]) -> Tensor[(), float64] {
  %f = fn (%a: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
    %b = multiply(%a, %w);
    %c = exp(%b);
    %c
  };
  %y = %f(%x);
  %z = %f(%y);
  %s = sum(%z);
  %s
}
"""
TWO = """
def @main(%x: Tensor[(n, 2), float64], %w: Tensor[(2,), float64], %c: Tensor[(), bool])
    -> Tensor[(), float64] {
  %both = if (%c) {
    %a = multiply(%x, %w);
    %b = exp(%w);
    (%a, %b)
  } else {
    (%x, %w)
  };
  %p = %both.0;
  %q = %both.1;
  %m = multiply(%p, %q);
  %t = multiply(%m, %p);
  %s = sum(%t);
  %s
}
"""
PROGRAMS = [
    (BRANCH, 4, [np.asarray(True)]),
    (BRANCH, 4, [np.asarray(False)]),
    (RECURSION, 4, [np.asarray(0)]),
    (RECURSION, 4, [np.asarray(3)]),
    (LOOP, 3, [np.asarray(0)]),
    (LOOP, 3, [np.asarray(1)]),
    (LOOP, 3, [np.asarray(4)]),
    (STACK, 3, [np.asarray(0)]),
    (STACK, 3, [np.asarray(4)]),
    (CLOSURE, 2, []),
    (TWO, 2, [np.asarray(True)]),
    (TWO, 2, [np.asarray(False)]),
]


@pytest.mark.parametrize(("source", "width", "more"), PROGRAMS)
def test_programs(source: str, width: int, more: list[Array]) -> None:
    mod = compiler.parse(source)
    rng = np.random.default_rng(0)
    x, w = rng.uniform(-1, 1, (2, width)), rng.uniform(-1, 1, width)
    both = compiler.gradient(mod, ["x", "w"])
    compiler.verify(both)
    value, of_x, of_w = compiler.evaluate(both, x, w, *more)
    assert value == compiler.evaluate(mod, x, w, *more)
    for mine, a, at in ((of_x, x, 0), (of_w, w, 1)):
        np.testing.assert_allclose(mine, differences(mod, [x, w, *more], at), rtol=1e-6, atol=1e-8)
        assert mine.shape == a.shape


@pytest.mark.parametrize(
    ("source", "width", "more"),
    [
        pytest.param(*p, marks=[] if p[0] is RECURSION and p[2][0] == 3 else pytest.mark.thorough)
        for p in PROGRAMS
    ],
)
def test_the_machine_runs_them(source: str, width: int, more: list[Array]) -> None:
    rng = np.random.default_rng(0)
    both = compiler.gradient(compiler.parse(source), ["x", "w"])
    args = [rng.uniform(-1, 1, (2, width)), rng.uniform(-1, 1, width), *more]
    for got, want in zip(compiler.build(both)(*args), compiler.evaluate(both, *args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def differences(mod: compiler.IRModule, args: list[Any], k: int) -> Array:
    out = np.zeros(args[k].shape)
    for at in np.ndindex(*out.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = args[k].copy()
            moved[at] += step
            ends.append(float(compiler.evaluate(mod, *args[:k], moved, *args[k + 1 :])))
        out[at] = (ends[0] - ends[1]) / 2e-6
    return out


def test_text_of_gradients_is_read_back() -> None:
    both = compiler.gradient(compiler.parse(RECURSION), ["x", "w"])
    again = compiler.parse(both.astext(show_meta_data=True))
    assert compiler.structural_equal(both, again)
