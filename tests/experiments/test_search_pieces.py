"""A network in pieces gives what it gives as a whole: results in every assignment of formats to its
layers, and what each layer does alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
import quantize
from compiler.ir.expr import IRModule
from compiler.runtime.executable import GraphExecutable
from compiler.transform.preparation import prepare
from experiments.cheapest.candidate import BASE, Candidate
from experiments.cheapest.network import Network
from experiments.cheapest.pieces import Pieces, can_be_cut
from experiments.cheapest.whole import Whole
from experiments.data import datasets
from experiments.zoo import model_files

CANDIDATES = (
    *(Candidate("int8"), Candidate("int4"), Candidate("float8_e4m3fn", "exact")),
    *(Candidate("posit8_es1"), Candidate("mxfp4_e2m1")),
)


def _branching(folder: Path, rng: np.random.Generator, by_data: bool = False) -> IRModule:
    """Two branches of convolutions that are split, added and read again behind several layers; and
    a dense layer. `by_data`: behind a choice of rows that the data makes."""
    weights = {
        "w0": (4, 3, 3, 3), "b0": (4,), "w1": (2, 2, 3, 3), "w2": (2, 2, 1, 1), "w3": (4, 4, 1, 1),
        "w4": (16, 5),
    }  # fmt: skip
    inits = [
        numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n)
        for n, s in weights.items()
    ]
    inits.append(numpy_helper.from_array(np.array([0, 16], np.int64), "flat"))
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], **same),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Split", ["r0"], ["left", "right"], axis=1, num_outputs=2),
        helper.make_node("Conv", ["left", "w1"], ["c1"], **same),
        helper.make_node("Conv", ["right", "w2"], ["c2"]),
        helper.make_node("Concat", ["c1", "c2"], ["j"], axis=1),
        helper.make_node("Conv", ["j", "w3"], ["c3"]),
        helper.make_node("Add", ["c3", "r0"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "flat"], ["f"]),
        helper.make_node("MatMul", ["f", "w4"], ["y"]),
    ]
    if by_data:
        every = numpy_helper.from_array(np.array([1, 2, 3], np.int64), "others")
        first = numpy_helper.from_array(np.array(0, np.int64), "first")
        inits += [every, first]
        nodes[0:0] = [
            helper.make_node("ReduceMax", ["x0", "others"], ["most"], keepdims=0),
            helper.make_node("NonZero", ["most"], ["rows"]),
            helper.make_node("Gather", ["rows", "first"], ["row"], axis=0),
            helper.make_node("Gather", ["x0", "row"], ["x"], axis=0),
        ]
    start = helper.make_tensor_value_info(nodes[0].input[0], TensorProto.FLOAT, ["n", 3, 4, 4])
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [start], [end], inits)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "m.onnx")
    return prepare(compiler.from_onnx(folder / "m.onnx"))


def _agree(
    module: IRModule,
    nodes: list[str],
    batches: list[dict[str, np.ndarray]],
    candidates: Sequence[Candidate],
) -> None:
    """Pieces and the whole, in float32, alone in every candidate, and in random assignments."""
    pieces, whole = (kind(module, nodes, batches, 1) for kind in (Pieces, Whole))
    plans = [
        quantize.calibrate(module, batches, quantize.QConfig(**BASE, **c.fields))
        for c in candidates
    ]
    for own, other in zip(pieces.reference, whole.reference, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
    rng, choices = np.random.default_rng(5), [None, *plans]
    for _ in plans:
        chosen = [choices[k] for k in rng.integers(0, len(choices), len(nodes))]
        results = [runs.results(chosen) for runs in (pieces, whole)]
        for own, other in zip(*results, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
    every = [None, *plans]
    told: list[tuple[str, int, int]] = []
    own, other = (runs.noises(every, lambda *a: told.append(a)) for runs in (pieces, whole))
    assert np.isnan(own[:, 0]).all()
    assert np.isnan(other[:, 0]).all()
    np.testing.assert_allclose(own[:, 1:], other[:, 1:], rtol=1e-3)
    assert all(0 <= done <= of for _, done, of in told)


@pytest.mark.parametrize(
    "candidates", [CANDIDATES[1:2], pytest.param(CANDIDATES, marks=pytest.mark.thorough)]
)
def test_a_network_with_branches_in_pieces_is_the_whole(
    tmp_path: Path, candidates: Sequence[Candidate]
) -> None:
    rng = np.random.default_rng(3)
    module = _branching(tmp_path, rng)
    nodes = [b.var.name for b in module.main.bindings if b.var.name in ("c0", "c1", "c2", "c3")]
    nodes.append(module.main.results[0].name)
    assert can_be_cut(module, nodes)
    batches = [{"x": rng.normal(size=(n, 3, 4, 4)).astype(np.float32)} for n in (3, 2)]
    _agree(module, nodes, batches, candidates)


def test_programs_that_share_a_workspace_compute_what_they_did(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    module = _branching(tmp_path, rng)
    first, second, apart = (compiler.build(module) for _ in range(3))
    assert isinstance(first, GraphExecutable)
    assert isinstance(second, GraphExecutable)
    second.share_workspace(first)
    for n in (1, 5, 2):
        x = rng.normal(size=(n, 3, 4, 4)).astype(np.float32)
        for program in (second, first):
            np.testing.assert_array_equal(program(x), apart(x))


def test_sizes_that_the_data_decide_are_cut_by_nobody(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    module = _branching(tmp_path, rng, by_data=True)
    x = rng.normal(size=(3, 3, 4, 4)).astype(np.float32)
    network = Network(module, [{"x0": x}], {"x0": x[:1]}, "top1", (), ("sqnr",), 1)
    assert not can_be_cut(module, [layer.node for layer in network.layers])
    assert isinstance(network.runs, Whole)
    plan = quantize.calibrate(module, network.batches, quantize.QConfig(**BASE))
    assert network.measured([plan] * len(network.layers))["sqnr"] > 15


@pytest.mark.thorough
def test_a_network_that_ships_is_the_whole_in_pieces() -> None:
    path = model_files.model_file("mnist_resnet8")
    data = datasets.load("mnist1k").for_model(path)
    network = Network.load(path, data, "", "top1", (), 3, 0, 1)
    assert isinstance(network.runs, Pieces)
    _agree(network.module, [layer.node for layer in network.layers], [*network.batches], CANDIDATES)
