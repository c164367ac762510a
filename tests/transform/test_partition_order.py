"""Regions among what has effects or finds sizes: their order is that of the program."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from toy_engines import toy_engines

import compiler
from compiler.boundary.external import register_func, remove_func
from compiler.ir.expr import Call, Function, IRModule
from compiler.ir.regions import composite_of, regions
from compiler.transform import InferType, PassContext, VerifyInstrument
from compiler.types.dtypes import Array

FOUND = """
def @main(%x: Tensor[(4, 2), float32], %c: Tensor[(1,), int64]) {
  %first = nn.relu(%x);
  %s = match_shape(%c, shape=[k]);
  %i = arange(size=k);
  %y = take(%first, %i);
  %z = add(%y, %y);
  %r = nn.relu(%z);
  %e = exp(%r);
  %h = multiply(%e, 0.5float32);
  (%h, %first)
}
"""
EFFECTS = """
def @main(%x: Tensor[(2,), float32]) {
  %a = nn.relu(%x);
  %0 = call_packed("test.seen", (%a,), ());
  %b = add(%a, %x);
  %c = call_packed("test.next", (%b,), Tensor[(2,), float32]);
  %d = nn.relu(%c);
  %1 = call_packed("test.seen", (%d,), ());
  %e = add(%d, %b);
  %f = nn.relu(%e);
  %2 = call_packed("test.seen", (%f,), ());
  (%f, %d)
}
"""


@pytest.fixture(autouse=True)
def seen() -> Iterator[list[float]]:
    """What `test.seen` was called with; `test.next` adds how often it was called."""
    log: list[float] = []
    count = iter(range(100))

    def following(x: Array, y: Array) -> None:
        np.add(x, np.float32(next(count)), out=y)

    register_func("test.seen", lambda x: log.append(float(x[0])))
    register_func("test.next", following)
    with toy_engines():
        yield log
    remove_func("test.seen")
    remove_func("test.next")


def partitioned(mod: IRModule) -> IRModule:
    with PassContext(instruments=[VerifyInstrument()]):
        return compiler.partition(mod, ["left", "right"])


def test_sizes_that_are_found_come_before_what_has_them() -> None:
    mod = InferType()(compiler.parse(FOUND))
    out = partitioned(mod)
    inside = [[b.var.name for b in out[r.name].bindings] for r in regions(out)]
    assert inside == [["first"], ["r"], ["e", "h"]]
    names = [b.var.name for b in out.main.bindings]
    assert names.index("s") < names.index("y") < names.index("r") < names.index("h")
    x = np.array([[1, -2], [3, 4], [-5, 6], [7, 8]], np.float32)
    exe = compiler.build(out)
    for k in (1, 3, 4, 0):
        given = (x, np.int64([k]))
        want = compiler.evaluate(mod, *given)
        for a, b, c in zip(want, compiler.evaluate(out, *given), exe(*given), strict=True):
            np.testing.assert_array_equal(b, a)
            np.testing.assert_allclose(c, a, rtol=1e-6)


def test_effects_stay_in_order(seen: list[float]) -> None:
    mod = InferType()(compiler.parse(EFFECTS))
    x = np.array([2, -1], np.float32)
    want = compiler.evaluate(mod, x)
    before = list(seen)
    out = partitioned(mod)
    inside = [[b.var.name for b in out[r.name].bindings] for r in regions(out)]
    assert inside == [["a", "b"], ["d", "f"]]
    calls = [b.value.attrs.func for b in out.main.bindings if _packed(b.value)]
    assert calls == ["test.seen", "test.next", "test.seen", "test.seen"]
    for run in (lambda: compiler.evaluate(out, x), lambda: compiler.build(out)(x)):
        seen.clear()
        first = run()
        assert len(first) == len(want)
        assert len(seen) == len(before)
        shift = first[1][0] - want[1][0]  # of the counter, which has gone on
        assert seen == [before[0], before[1] + shift, before[2] + shift]


def _packed(value: object) -> bool:
    return isinstance(value, Call) and str(value.op) == "call_packed"


def test_regions_in_a_loop() -> None:
    x, times = compiler.var("x", ("n", 4)), compiler.var("times", (), "int64")
    _, y = compiler.while_loop(
        lambda k, state: k < times,
        lambda k, state: (k + 1, compiler.call("nn.relu", state + x) * 0.5),
        init=(compiler.const(0), x),
    )
    mod = InferType()(IRModule({"main": compiler.function([x, times], y)}))
    out = partitioned(mod)
    inside = [
        str(c.attrs["composite"])
        for r in regions(out)
        for b in out[r.name].bindings
        if (c := composite_of(b.value)) is not None
    ]
    assert sorted(inside) == ["left.add", "left.add_relu", "right.scaled"]
    assert all(isinstance(f, Function) for f in out.functions.values())
    given = np.array([[1, -2, 3, -4]], np.float32)
    exe = compiler.build(out)
    for n in (0, 1, 3):
        want = compiler.evaluate(mod, given, np.int64(n))
        np.testing.assert_array_equal(compiler.evaluate(out, given, np.int64(n)), want)
        np.testing.assert_allclose(exe(given, np.int64(n)), want, rtol=1e-6)
