"""An engine nobody has built, in one file: a runtime of its own computes a network's convolutions.

The runtime reads a region as JSON and multiplies matrices, by numpy here, where a real one would
have a driver or a device. It is told to take convolutions, with the addition and the activation
behind them if there are any; everything else stays ours. With this file as an adapter, the engine
is known on the command line and in sweeps:

    dtypelab --adapter new_engine.py bench mnist_resnet8 --engine matrices --engine-costs measured
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import compiler
from compiler.engines.json_graph import json_engine
from compiler.pattern import any_order, constant, is_op, wildcard
from compiler.pattern.search import Found
from compiler.types.dtypes import Array
from experiments import zoo
from experiments.data import datasets


def plain(found: Found) -> str | None:
    """Why the runtime does not take a convolution."""
    call = found.called("conv").value
    assert isinstance(call, compiler.Call)
    fits = call.attrs.groups == 1 and set(call.attrs.dilation) == {1}
    return None if fits else "it has groups or holes"


CONV = is_op("nn.conv2d")(wildcard(), constant(), constant()).bind("conv")
ADD = any_order(is_op("add"), CONV.once(), wildcard())
RELU = is_op("nn.relu")
PATTERNS = [
    compiler.CompositePattern("conv_add_relu", RELU(ADD.once()), plain),
    compiler.CompositePattern("conv_relu", RELU(CONV.once()), plain),
    compiler.CompositePattern("conv", CONV, plain),
]


def convolved(x: Array, w: Array, bias: Array, attrs: dict[str, Any]) -> Array:
    """A convolution as one product of matrices."""
    top, left, bottom, right = attrs["padding"]
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    (down, across), (rows, columns) = attrs["strides"], w.shape[2:]
    windows = sliding_window_view(x, (rows, columns), axis=(2, 3))[:, :, ::down, ::across]
    out = np.tensordot(windows, w, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
    return np.asarray(out + bias.reshape(-1, 1, 1))


KERNELS: dict[str, Callable[..., Array]] = {
    "conv2d": convolved,
    "add": lambda x, y, _: x + y,
    "relu": lambda x, _: np.maximum(x, 0),
}


def runtime(text: str, constants: Sequence[Array]) -> Callable[..., None]:
    """What runs a graph."""
    graph = json.loads(text)

    def at(ref: list[Any], given: Sequence[Array], made: Sequence[Array]) -> Array:
        arrays = {"input": given, "constant": constants, "node": made}[ref[0]]
        found: Array = arrays[ref[1]]
        return found

    def computed(nodes: list[Any], given: Sequence[Array]) -> list[Array]:
        made: list[Array] = []
        for node in nodes:
            operands = [at(ref, given, made) for ref in node["inputs"]]
            if "composite" in node:
                made.append(computed(node["inside"], operands)[-1])
            else:
                kernel = KERNELS[node["op"].rpartition(".")[2]]
                made.append(kernel(*operands, node["attrs"]))
        return made

    def run(*arrays: Array) -> None:
        given = arrays[: len(graph["inputs"])]
        made = computed(graph["nodes"], given)
        for ref, out in zip(graph["outputs"], arrays[len(given) :], strict=True):
            np.copyto(out, at(ref, given, made))

    return run


compiler.register_engine(json_engine("matrices", PATTERNS, runtime), override=True)

if __name__ == "__main__":
    digits = datasets.load("mnist1k")
    network = compiler.from_onnx(zoo.FOLDER / "mnist_resnet8.onnx")
    usual = compiler.build(network)
    mixed = compiler.build(network, engines=["matrices"])
    for region in mixed.regions:
        print(f"{region.name}: {len(region.nodes)} nodes, {', '.join(region.nodes[:3])} ...")
    x = digits.x[:100]
    np.testing.assert_allclose(mixed(x), usual(x), rtol=1e-3, atol=1e-3)
    print("the same answers:", (mixed(x).argmax(axis=1) == usual(x).argmax(axis=1)).all())
