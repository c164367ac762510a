"""Gradients of programs whose functions are values: branches choose them, functions are given them,
and branches and loops read them."""

from __future__ import annotations

import numpy as np
import pytest
from test_gradient_control import differences

import compiler
from compiler.errors import UnsupportedError

CHOSEN = """
def @main(%x: Tensor[(n, 2), float64], %w: Tensor[(2,), float64], %c: Tensor[(), bool])
    -> Tensor[(), float64] {
  %f = fn (%a: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
    %b = multiply(%a, %w);
    %t = tanh(%b);
    %t
  };
  %h = if (%c) {
    %f
  } else {
    %v = exp(%w);
    %g = fn (%a: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
      %b = multiply(%a, %v);
      %b
    };
    %g
  };
  %y = %h(%x);
  %z = %h(%y);
  %s = sum(%z);
  %s
}
"""
NESTED = """
def @main(%x: Tensor[(n, 2), float64], %w: Tensor[(2,), float64], %c: Tensor[(), bool])
    -> Tensor[(), float64] {
  %f = fn (%a: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
    %b = multiply(%a, %w);
    %b
  };
  %t = sum(%w);
  %big = greater(%t, 0.0float64);
  %both = if (%c) {
    %inner = if (%big) {
      %f
    } else {
      %e = fn (%a: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
        %b = exp(%a);
        %b
      };
      %e
    };
    %d = multiply(%w, %w);
    (%inner, %d)
  } else {
    (%f, %w)
  };
  %h = %both.0;
  %y = %h(%x);
  %s = sum(%y);
  %s
}
"""
GIVEN = """
def @main(%x: Tensor[(n, 2), float64], %w: Tensor[(2,), float64], %c: Tensor[(), bool])
    -> Tensor[(), float64] {
  %f = fn (%a: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
    %b = multiply(%a, %w);
    %b
  };
  %y = @twice(%f, %x, %c);
  %s = sum(%y);
  %s
}

def @twice(%g: fn(Tensor[(m, 2), float64]) -> Tensor[(m, 2), float64],
           %a: Tensor[(m, 2), float64], %c: Tensor[(), bool]) -> Tensor[(m, 2), float64] {
  %b = %g(%a);
  %r = if (%c) {
    %d = %g(%b);
    %d
  } else {
    %b
  };
  %r
}
"""
TURNS = """
def @main(%x: Tensor[(n, 2), float64], %w: Tensor[(2,), float64], %c: Tensor[(), bool])
    -> Tensor[(), float64] {
  %f = fn (%a: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
    %b = multiply(%a, %w);
    %t = tanh(%b);
    %t
  };
  %out = loop (%c, %i: Tensor[(), int64] = 0int64, %a: Tensor[(n, 2), float64] = %x) {
    %j = add(%i, 1int64);
    %b = %f(%a);
    %more = less(%j, 3int64);
    (%more, %j, %b)
  };
  %last = %out.1;
  %s = sum(%last);
  %s
}
"""


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("source", [CHOSEN, NESTED, GIVEN, TURNS])
def test_functions_that_are_values(source: str, chosen: bool, sign: int) -> None:
    mod = compiler.parse(source)
    rng = np.random.default_rng(0)
    x, w, c = rng.uniform(-1, 1, (2, 2)), sign * rng.uniform(0.2, 1, 2), np.asarray(chosen)
    both = compiler.gradient(mod, ["x", "w"])
    compiler.verify(both)
    value, of_x, of_w = compiler.evaluate(both, x, w, c)
    assert value == compiler.evaluate(mod, x, w, c)
    for mine, at in ((of_x, 0), (of_w, 1)):
        want = differences(mod, [x, w, c], at)
        np.testing.assert_allclose(mine, want, rtol=1e-6, atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("source", [CHOSEN, NESTED, GIVEN, TURNS])
def test_the_machine_runs_them(source: str) -> None:
    rng = np.random.default_rng(0)
    both = compiler.gradient(compiler.parse(source), ["x", "w"])
    program = compiler.build(both)
    for chosen in (True, False):
        args = rng.uniform(-1, 1, (2, 2)), rng.uniform(-1, 1, 2), np.asarray(chosen)
        for got, want in zip(program(*args), compiler.evaluate(both, *args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)


RECURSIVE = """
def @main(%x: Tensor[(), float64], %w: Tensor[(), float64], %k: Tensor[(), int64])
    -> Tensor[(), float64] {
  %f = fn (%a: Tensor[(), float64]) -> Tensor[(), float64] {
    %b = multiply(%a, %w);
    %b
  };
  %y = @times(%f, %k);
  %y
}

def @times(%g: fn(Tensor[(), float64]) -> Tensor[(), float64], %k: Tensor[(), int64])
    -> Tensor[(), float64] {
  %more = greater(%k, 0int64);
  %r = if (%more) {
    %j = subtract(%k, 1int64);
    %s = @times(%g, %j);
    %t = %g(%s);
    %t
  } else {
    1.0float64
  };
  %r
}
"""
CARRIED = """
def @main(%x: Tensor[(), float64], %w: Tensor[(), float64], %c: Tensor[(), bool])
    -> Tensor[(), float64] {
  %f = fn (%a: Tensor[(), float64]) -> Tensor[(), float64] {
    %b = multiply(%a, %w);
    %b
  };
  %out = loop (%c, %h: fn(Tensor[(), float64]) -> Tensor[(), float64] = %f) {
    %g = fn (%a: Tensor[(), float64]) -> Tensor[(), float64] {
      %b = %h(%a);
      %d = %h(%b);
      %d
    };
    (Falsebool, %g)
  };
  %h1 = %out.0;
  %y = %h1(%x);
  %y
}
"""


def test_functions_that_recursions_are_given() -> None:
    mod = compiler.parse(RECURSIVE)
    both = compiler.gradient(mod, ["w"])
    for depth in (0, 1, 5):
        value, of_w = compiler.evaluate(both, np.float64(1), np.float64(0.7), np.asarray(depth))
        np.testing.assert_allclose(value, 0.7**depth)
        np.testing.assert_allclose(of_w, depth * 0.7 ** (depth - 1))


def test_what_only_the_run_knows_is_refused() -> None:
    """Never zeros in silence: what the function captures would get none."""
    with pytest.raises(UnsupportedError, match="node %out has no gradient"):
        compiler.gradient(compiler.parse(CARRIED), ["w"])
