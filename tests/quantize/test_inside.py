"""Networks with branches and loops: what is inside them stays float, and the plan says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.ir.expr import IRModule

TEXT = """
def @main(%x: Tensor[(n, 8), float32], %c: Tensor[(), bool]) -> Tensor[(n, 4), float32] {{
  %h = nn.dense(%x, {0});
  %y = if (%c) {{
    %m = nn.dense(%h, {1});
    %r = nn.relu(%m);
    %r
  }} else {{
    %m = nn.dense(%h, {2});
    %m
  }};
  %go = less(0int64, 3int64);
  %l = loop (%go, %i: Tensor[(), int64] = 0int64, %s: Tensor[(n, 8), float32] = %y) {{
    %j = add(%i, 1int64);
    %t = nn.relu(%s);
    %again = less(%j, 3int64);
    (%again, %j, %t)
  }};
  %last = %l.1;
  %z = nn.dense(%last, {3});
  %z
}}
"""


def network() -> IRModule:
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=s).astype(np.float32) for s in ((8, 8), (8, 8), (8, 8), (4, 8))]
    names = [f"meta[Constant][{k}]" for k in range(4)]
    rows = [
        f"{n} = float32{list(w.shape)} {w.tobytes().hex()}"
        for n, w in zip(names, weights, strict=True)
    ]
    return compiler.parse(TEXT.format(*names) + "\n#[metadata]\n" + "\n".join(rows) + "\n")


def batches() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [
        {"x": rng.normal(size=(4, 8)).astype(np.float32), "c": np.asarray(k % 2 == 0)}
        for k in range(4)
    ]


def test_the_plan_names_what_stays_float_inside_branches_and_loops() -> None:
    mod, data = network(), batches()
    plan = quantize.calibrate(mod, data)
    assert {n for n, p in plan.nodes.items() if p.decision == "integer"} == {"h", "z"}
    inside = {"y.then.m", "y.then.r", "y.else.m", "l.body.t"}
    assert {n for n, reason in plan.skipped.items() if "inside a branch" in reason} == inside
    assert plan.nodes["y.then.m"].macs == 64
    qmod = quantize.realize(mod, plan)
    exe = compiler.build(qmod)
    for b in data:
        want, got = compiler.evaluate(mod, b), exe(**b)
        np.testing.assert_allclose(got, compiler.evaluate(qmod, b), rtol=1e-5, atol=1e-5)
        assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_a_plan_that_wants_integers_inside_a_branch_is_refused() -> None:
    mod = network()
    plan = quantize.calibrate(mod, batches())
    wanted = replace(plan.nodes["y.then.m"], decision="integer", reason="")
    changed = replace(plan, nodes={**plan.nodes, "y.then.m": wanted})
    with pytest.raises(ConfigError, match="inside a branch"):
        quantize.realize(mod, changed)


def test_networks_that_take_data_apart_are_quantized_around_the_cases() -> None:
    w = np.random.default_rng(3).normal(size=(8, 8)).astype(np.float32)
    types = compiler.prelude().types
    x = compiler.var("x", ("n", 8))
    first = compiler.call("nn.dense", x, w).named("first")
    some = compiler.construct(types, "Some", first)
    inner = compiler.cases(some, types, {
        "Some(%y)": lambda y: compiler.call("nn.relu", y).named("relu"),
        "None": lambda: x,
    }).named("inner")  # fmt: skip
    last = compiler.call("nn.dense", inner, w).named("last")
    mod = IRModule({"main": compiler.function([x], last)}, types=types)
    data = [{"x": np.random.default_rng(4).normal(size=(4, 8)).astype(np.float32)}]
    plan = quantize.calibrate(mod, data)
    assert {n: node.decision for n, node in plan.nodes.items()} == {
        "first": "integer", "last": "integer", "inner.case0.relu": "float",
    }  # fmt: skip
    done = quantize.realize(mod, plan)
    compiler.verify(done)
    want = compiler.evaluate(mod, *data[0].values())
    got = compiler.evaluate(done, *data[0].values())
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()
    run = compiler.build(done)(*data[0].values())
    np.testing.assert_allclose(run, got, rtol=1e-5, atol=1e-5)
