"""prepare on random networks: same numbers, same interface, no origin lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simplify_cases import Net, conv, f, same_results, stats

from compiler.ir.expr import Var
from compiler.passes.instruments import VerifyInstrument
from compiler.passes.live import live
from compiler.passes.manager import PassContext
from compiler.symbolic import Var as Dimension
from compiler.transform.preparation import prepare

CHANNELS = 4
STEPS = ["conv", "conv", "bn", "bn", "scale", "shift", "relu", "dropout", "reshape", "transpose",
         "residual", "split"]  # fmt: skip


def step(net: Net, kind: str, x: Var, other: Var, name: str) -> Var:
    """One layer on x[n, CHANNELS, 5, 5]."""
    wide = (CHANNELS, 1, 1)
    if kind == "conv":
        return conv(net, x, CHANNELS, groups=2, name=name)
    if kind == "bn":
        return net.op("nn.batch_norm", x, *stats(CHANNELS), name=name)
    if kind == "scale":
        return net.op("multiply", f(*wide), x, name=name)
    if kind == "shift":
        factor = net.op("negative", f(1, *wide), name=f"{name}_constant")
        return net.op("subtract", x, factor, name=name)
    if kind == "reshape":
        return net.op("reshape", x, name=name, newshape=(0, CHANNELS, -1, 5))
    if kind == "transpose":
        return net.op("transpose", x, name=name, axes=(0, 1, 3, 2))
    if kind == "residual":
        return net.op("add", x, other, name=name)
    if kind == "split":
        parts = net.op("split", x, name=f"{name}_parts", sizes=(1, CHANNELS - 1), axis=1)
        return net.op("concatenate", net.get(parts, 1), net.get(parts, 0), name=name, axis=1)
    return net.op({"relu": "nn.relu", "dropout": "nn.dropout"}[kind], x, name=name)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.integers(0, 9)),
                min_size=1, max_size=12),
       st.sets(st.integers(0, 12), max_size=2))  # fmt: skip
def test_random_networks(plan: list[tuple[str, int, int]], extra: set[int]) -> None:
    net = Net()
    values = [net.param("x", (Dimension("n"), CHANNELS, 5, 5))]
    for k, (kind, back, other) in enumerate(plan):
        x = values[max(0, len(values) - 1 - back)]
        values.append(step(net, kind, x, values[other % len(values)], f"v{k}"))
    results = [values[-1], *(values[k] for k in sorted(extra) if 0 < k < len(values) - 1)]
    mod = net.module(*results)
    with PassContext(instruments=[VerifyInstrument()]):
        out = prepare(mod)
    assert [str(r) for r in out.main.results] == [str(r) for r in results]
    assert [r.type for r in out.main.results] == [r.type for r in results]
    kept = {o for b in out.main.bindings for o in b.origins}
    layers = {b.var.name for b in live(mod.main).bindings} & {f"v{k}" for k in range(len(plan))}
    # an identity of the input has no binding that could keep its name
    gone = layers - kept
    assert all(plan[int(name[1:])][0] in ("dropout", "reshape") for name in gone)
    same_results(out, mod, np.asarray(f(2, CHANNELS, 5, 5)))
