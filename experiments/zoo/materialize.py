"""Real architectures without trained weights become networks whose activations look trained.

The "light" models of the onnx package hold real graphs whose weights are all one constant. Here
each weight is drawn from a seeded generator and scaled on the way through the network, layer by
layer, as in Mishkin and Matas, All You Need Is a Good Init (2016): every convolution and dense
layer gives values of standard deviation 1, and batch normalizations hold the statistics that they
see. Such a network is good for latency and for the error of quantization; its answers mean nothing.

The weights are the same on every machine. What decides them is held on a grid: values of the
network are multiples of `STEP`, drawn weights integers, so that float64 sums of their products are
exact, in whatever order an instruction set forms them; and what a mathematical library rounds in
its own way (logarithms behind normal numbers) is far finer than the grid.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ModelError

Array = NDArray[Any]
#: A value of the network for each of the calibration inputs.
Values = list[Array]

OPSET = 17
STEP = 2.0**-12
"""What every value of the network is a multiple of while it is filled; float32 holds such values
up to 2048."""
DRAWN_STEP = 2.0**-10
"""The same of weights as they are drawn. Sums of 2**15 products of weights below 8 and values below
64 stay below 2**53 steps, which float64 holds."""
CENTRED = 0.5
"""Share of the mean that batch normalizations take away. With all of it, random networks amplify
every difference between two inputs, an error of quantization included, from layer to layer (Yang
et al., A Mean Field Theory of Batch Normalization, 2019)."""
LOGIT_STD = 1.0
RESIDUAL_SCALE = 0.3
"""Of what is added to another value: small, as training leaves it, so that errors do not grow from
block to block (Goyal et al., Accurate, Large Minibatch SGD, 2017, start it at zero)."""
_COMPILED = ("Conv", "Gemm", "AveragePool", "MaxPool")


def materialize(source: Path, x: Values) -> bytes:
    """The serialized ONNX model of `source` (opset 17) with weights; the same every time.

    `x` holds float32 inputs of the shape that the model declares (a batch of 1 each); they set the
    scale of the weights.

    Raises:
        ModelError: the model has several inputs, or a weight in a place unknown here.
        DtypelabError: a node cannot be imported.
    """
    import onnx
    from onnx import numpy_helper, version_converter

    model = version_converter.convert_version(onnx.load(source), OPSET)
    graph = model.graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in constants]
    if len(inputs) != 1:
        raise ModelError(f"{source.name} has {len(inputs)} inputs; only models with one are filled")
    last = [n.output[0] for n in graph.node if n.op_type in ("Conv", "Gemm")][-1]
    summed = {i for n in graph.node if n.op_type == "Sum" for i in n.input}
    filler = _Filler(constants, inputs[0].name, x, summed)
    nodes = [n for n in graph.node if filler.visit(n, last=n.output[0] == last)]
    used = {name for n in nodes for name in n.input}
    del graph.node[:], graph.initializer[:], graph.input[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.input.append(inputs[0])
    graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(_stored(a)), name)
        for name, a in filler.constants.items()
        if name in used
    )
    model.ir_version = 8
    return bytes(model.SerializeToString(deterministic=True))


class _Filler:
    """Walks the nodes in order with the values of every tensor, float32 on the grid.

    Constants are float64 while nodes are computed; float32 holds those that are written.
    """

    def __init__(self, constants: dict[str, Array], name: str, x: Values, summed: set[str]):
        self.constants, self.summed = constants, summed
        self.values: dict[str, Values] = {name: [on_grid(a) for a in x]}
        self.same: dict[str, str] = {}
        self.fills: dict[str, Callable[[Any, Any, bool], Values]] = {
            "Conv": self._weighted,
            "Gemm": self._weighted,
            "BatchNormalization": self._batch_norm,
            "Mul": self._scale_or_shift,
            "Add": self._scale_or_shift,
        }

    def visit(self, node: Any, last: bool) -> bool:
        """Compute the node, filling its weights. False: nothing needs it any more."""
        for k, i in enumerate(node.input):
            node.input[k] = self.same.get(i, i)
        name = node.output[0]
        known = [self.constants[i] for i in node.input if i in self.constants]
        if node.op_type == "Dropout":
            self.same[name] = node.input[0]
        elif node.op_type == "ConstantOfShape":
            self.constants[name] = np.zeros(known[0], np.float32)
        elif node.op_type == "Shape":
            self.constants[name] = np.array(self.values[node.input[0]][0].shape, np.int64)
        elif len(known) == len(node.input):
            self.constants[name] = run_node(node, {}, self.constants)
        else:
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            fill = self.fills.get(node.op_type) if known else None
            self.values[name] = fill(node, rng, last) if fill else self._run(node)
            return True
        return False

    def _run(self, node: Any, scale: float = 1.0) -> Values:
        """The node's results times `scale`, on the grid."""
        read = [i for i in node.input if i in self.values]
        columns = zip(*(self.values[i] for i in read), strict=True)
        return [
            on_grid(run_node(node, dict(zip(read, c, strict=True)), self.constants) * scale)
            for c in columns
        ]

    def _weighted(self, node: Any, rng: Any, last: bool) -> Values:
        """He et al., Delving Deep into Rectifiers (2015), then a gain that makes the standard
        deviation of the results 1, and a small bias."""
        _, weight, *biases = node.input
        shape = self.constants[weight].shape
        drawn = np.rint(rng.standard_normal(shape) / DRAWN_STEP)
        self.constants[weight] = drawn
        for bias in biases:
            self.constants[bias] = np.zeros(self.constants[bias].shape)
        scale = DRAWN_STEP * math.sqrt(2 / math.prod(shape[1:]))
        results = self._run(node, scale)
        wanted = LOGIT_STD if last else 1.0
        gain = wanted / max(_deviation(results), STEP)
        self.constants[weight] = drawn * (scale * gain)
        shift = np.zeros(1)
        for bias in biases:
            shift = on_grid(rng.standard_normal(self.constants[bias].shape) * (0.05 * wanted))
            self.constants[bias] = shift
        along = shift.reshape(1, -1, *(1,) * (results[0].ndim - 2))
        return [on_grid(r * np.float64(gain) + along) for r in results]

    def _batch_norm(self, node: Any, rng: Any, last: bool) -> Values:
        data, scale, shift, mean, variance = node.input
        seen = np.stack([_steps(v) for v in self.values[data]])
        axes = (0, 1, *range(3, seen.ndim))
        channels, count = seen.shape[2], seen.size // seen.shape[2]
        total = seen.sum(axis=axes, keepdims=True)
        centre = np.rint(CENTRED / count * total).astype(np.int64)
        spread = np.square(seen - centre).sum(axis=axes) / count * STEP**2
        self.constants[mean] = centre.reshape(channels) * STEP
        self.constants[variance] = _stored(spread + 1e-4)
        size = RESIDUAL_SCALE if node.output[0] in self.summed else 1.0
        self.constants[scale] = on_grid(rng.uniform(0.6, 1.4, channels) * size)
        self.constants[shift] = on_grid(rng.standard_normal(channels) * 0.1)
        return self._run(node)

    def _scale_or_shift(self, node: Any, rng: Any, last: bool) -> Values:
        """A factor or term for each channel, as exporters of Caffe models write batch norms."""
        (name,) = (i for i in node.input if i in self.constants)
        shape = self.constants[name].shape
        draw = rng.uniform(0.6, 1.4, shape) if node.op_type == "Mul" else rng.normal(0, 0.1, shape)
        self.constants[name] = on_grid(draw)
        return self._run(node)


def on_grid(values: Array) -> Array:
    """The multiples of `STEP` nearest to `values`, as float32."""
    return (np.rint(values.astype(np.float64) / STEP) * STEP).astype(np.float32)


def _steps(values: Array) -> NDArray[np.int64]:
    """Values on the grid, in steps."""
    return (values.astype(np.float64) / STEP).astype(np.int64)


def _deviation(values: Values) -> float:
    """Standard deviation of all values: exact sums, rounded once by the quotient and the root."""
    steps = np.concatenate([_steps(v).reshape(-1) for v in values])
    count, total, squares = steps.size, int(steps.sum()), int(np.square(steps).sum())
    return math.sqrt((count * squares - total * total) / count**2) * STEP


def _stored(constant: Array) -> Array:
    """A constant as the model file has it: floating point in float32."""
    return constant.astype(np.float32) if constant.dtype == np.float64 else constant


def _computed(array: Array) -> Array:
    """An array as nodes are computed with it: floating point in float64."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


def run_node(node: Any, inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> Array:
    """The first result of one ONNX node in float64: heavy operators compiled, the others in
    numpy."""
    import onnx
    from onnx import helper, numpy_helper

    import compiler

    arrays = {name: _computed(a) for name, a in inputs.items()}
    fixed = {i: _computed(constants[i]) for i in node.input if i in constants}
    graph = helper.make_graph(
        [node],
        "node",
        [_info(name, a.dtype, a.shape) for name, a in arrays.items()],
        [onnx.ValueInfoProto(name=node.output[0])],
        [numpy_helper.from_array(a, name) for name, a in fixed.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    module = compiler.from_onnx(model)
    run = compiler.build(module) if node.op_type in _COMPILED else None
    given = arrays.values()
    return np.asarray(run(*given) if run else compiler.evaluate(module, *given))


def _info(name: str, dtype: Any, shape: Sequence[int]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
