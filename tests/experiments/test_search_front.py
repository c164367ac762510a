"""No point of a search's front is worse than greedy by sensitivity or a uniform format, which are
computed here in another way: of tables with whatever interaction, and of networks."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import compiler
import experiments
import quantize
from compiler.errors import ConfigError
from compiler.transform.preparation import prepare
from experiments.cheapest.assignment import Chosen
from experiments.cheapest.bound import Bound
from experiments.cheapest.exploring import MOST_MEASURED, Explorer
from experiments.measure import metrics
from experiments.zoo import model_batches

Array = NDArray[np.float64]
KINDS = {"int8": 0.2, "int4": 0.06, "int3": 0.045}
"""Formats, and picojoules of a multiply-accumulate in them."""


def greedily(costs: Array, noises: Array, most: float) -> Chosen | None:
    """The noisiest layer that can do better does, by its next candidate in cost that is less noisy;
    the last state that costs at most so much."""
    now = []
    for layer, own in enumerate(noises):
        now.append(min(np.flatnonzero(own < np.inf), key=lambda k: (costs[layer, k], own[k])))
    last: Chosen | None = None
    while True:
        if sum(c[k] for c, k in zip(costs, now, strict=True)) <= most * (1 + 1e-12):
            last = tuple(map(int, now))
        ways = []
        for layer, k in enumerate(now):
            better = [j for j in range(costs.shape[1]) if noises[layer, j] < noises[layer, k]]
            if better:
                ways.append((-noises[layer, k], layer))
        if not ways:
            return last
        layer = min(ways)[1]
        better = [j for j in range(costs.shape[1]) if noises[layer, j] < noises[layer, now[layer]]]
        now[layer] = min(better, key=lambda j: (costs[layer, j], noises[layer, j]))


@settings(max_examples=12)
@given(
    st.integers(1, 7), st.integers(1, 5), st.integers(0, 10**6), st.floats(0, 6), st.floats(-5, 60)
)
def test_no_point_of_the_front_is_worse_than_greedy_or_a_uniform_choice(
    layers: int, kinds: int, seed: int, interaction: float, least: float
) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.integers(1, 60, (layers, kinds)).astype(np.float64)
    noises = 10 ** rng.uniform(-6, 0, (layers, kinds))
    noises[rng.random((layers, kinds)) < 0.05] = np.inf
    if not np.isfinite(noises).any(axis=1).all():
        return

    def measured(chosen: Chosen) -> Mapping[str, float]:
        # Layers do to each other what nobody could predict, the same every time.
        off = np.random.default_rng(zlib.crc32(repr((seed, chosen)).encode())).normal()
        noise = sum(noises[layer, k] for layer, k in enumerate(chosen))
        return {"sqnr": -10 * math.log10(noise) + interaction * off}

    explorer, bound = Explorer(costs, noises, measured), Bound("sqnr", True, least)
    try:
        explorer.within([bound])
        refused = ""
    except ConfigError as error:
        refused = str(error)
    if refused:
        assert f"sqnr {max(p.figures['sqnr'] for p in explorer.points.values()):.4g}" in refused
    explorer.fill_front()
    front = explorer.front()
    assert len(explorer.points) <= MOST_MEASURED
    assert all(p.figures == measured(p.chosen) for p in front)
    for p in front:
        other = greedily(costs, noises, p.cost)
        assert other is None or measured(other)["sqnr"] <= p.figures["sqnr"]
    for k in range(kinds):
        if np.isfinite(noises[:, k]).all():
            spent, sqnr = costs[:, k].sum(), measured((k,) * layers)["sqnr"]
            assert any(p.cost <= spent and p.figures["sqnr"] >= sqnr for p in front)
    good = [p.cost for p in explorer.points.values() if p.figures["sqnr"] >= least]
    assert not good or explorer.best([bound]).cost == min(good)


def test_results_that_are_nan_are_no_point_of_the_front() -> None:
    costs, noises = np.array([[1.0, 2.0, 3.0]]), np.array([[0.5, 0.1, 0.01]])
    found = {(0,): math.nan, (1,): 10.0, (2,): 20.0}
    explorer = Explorer(costs, noises, lambda chosen: {"sqnr": found[chosen]})
    assert explorer.within([Bound("sqnr", True, 5.0)]).chosen == (1,)
    assert [p.chosen for p in explorer.front()] == [(1,), (2,)]


def _small_network(folder: Path, layers: int, seed: int) -> tuple[Path, Path, Array]:
    """A perceptron of layers of random widths and magnitudes, its data, and its calibration
    inputs."""
    rng = np.random.default_rng(seed)
    widths = [int(w) for w in rng.integers(4, 24, layers + 1)]
    nodes, weights, name = [], [], "x"
    for k, (n, m) in enumerate(itertools.pairwise(widths)):
        w = (rng.normal(size=(n, m)) * rng.uniform(0.2, 2, m) / np.sqrt(n)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{k}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{k}"], [f"y{k}"]))
        nodes.append(helper.make_node("Relu", [f"y{k}"], [f"z{k}"]))
        name = f"z{k}"
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", w])
        for n, w in (("x", widths[0]), (f"y{layers - 1}", widths[-1]))
    ]
    graph = helper.make_graph(nodes[:-1], "g", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 18)]
    model, data = folder / f"{seed}.onnx", folder / f"{seed}.npz"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), model)
    x = rng.normal(size=(24, widths[0])).astype(np.float32)
    np.savez(data, x=x[:8], x_calib=x[8:])
    return model, data, x[8:]


def _sqnr(mod: compiler.IRModule, x: Array, kinds: Mapping[str, str | None]) -> float:
    """Of the network with layers in integers, or (None) in float32, by what users call."""
    own = {
        n: {"weight_dtype": k, "activation_dtype": k} if k else {"skip": True}
        for n, k in kinds.items()
    }
    config = quantize.QConfig(softmax_dtype="float32", activation_dtype="int8", overrides=own)
    found = compiler.build(quantize.quantize(mod, [x], config))(x)
    return float(metrics.sqnr_db(found, compiler.build(mod)(x)))


@pytest.mark.thorough
@pytest.mark.parametrize(("layers", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_networks_have_no_better_greedy_or_uniform_choice(
    tmp_path: Path, layers: int, seed: int
) -> None:
    model, data, x = _small_network(tmp_path, layers, seed)
    found = experiments.search(
        model, data, "sqnr>=15", "energy", [*KINDS], n_calib=len(x), threads=1, judge_front=True,
        picojoules={f"{k} x {k}": pj for k, pj in KINDS.items()},
    )  # fmt: skip
    assert found.evaluations <= layers * len(KINDS) + MOST_MEASURED
    mod = prepare(model_batches.load_for_batch(model, x.shape[1:], "N"))
    nodes = [*found.layers["node"]]
    assert len(nodes) == layers
    sizes = [math.prod(w.dims) for w in onnx.load(model).graph.initializer]
    costs = 1e-6 * np.outer(sizes, [*KINDS.values()])
    noises = np.zeros((layers, len(KINDS)))
    alone: dict[str, str | None] = dict.fromkeys(nodes)
    for (layer, node), (k, kind) in itertools.product(enumerate(nodes), enumerate(KINDS)):
        noises[layer, k] = 10 ** (-_sqnr(mod, x, {**alone, node: kind}) / 10)
    for row in found.front.to_dict("records"):
        other = greedily(costs, noises, row["cost"])
        assert other is None or (
            _sqnr(mod, x, {n: [*KINDS][k] for n, k in zip(nodes, other, strict=True)})
            <= row["sqnr_db"] + 1e-3
        )
    for kind in KINDS:
        (spent,) = found.uniforms[found.uniforms["format"] == kind]["cost"]
        assert math.isclose(spent, costs[:, [*KINDS].index(kind)].sum())
        own = _sqnr(mod, x, dict.fromkeys(nodes, kind))
        assert (found.front[found.front["cost"] <= spent]["sqnr_db"] >= own - 1e-3).any()
    assert (found.front["test_n_eval"] == 8).all()
