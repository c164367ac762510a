"""Real architectures without trained weights become networks whose activations look trained.

The "light" models of the onnx package hold real graphs whose weights are all one constant. Here
each weight is drawn from a seeded generator and scaled on the way through the network, layer by
layer, as in Mishkin and Matas, All You Need Is a Good Init (2016): every convolution and dense
layer gives values of standard deviation 1, and batch normalizations hold the statistics that they
see. Such a network is good for latency and for the error of quantization; its answers mean nothing.
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
        numpy_helper.from_array(np.ascontiguousarray(a), name)
        for name, a in filler.constants.items()
        if name in used
    )
    model.ir_version = 8
    return bytes(model.SerializeToString(deterministic=True))


class _Filler:
    """Walks the nodes in order with the values of every tensor that is still to be read."""

    def __init__(self, constants: dict[str, Array], name: str, x: Values, summed: set[str]):
        self.constants, self.summed = constants, summed
        self.values: dict[str, Values] = {name: x}
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

    def _run(self, node: Any) -> Values:
        read = [i for i in node.input if i in self.values]
        columns = zip(*(self.values[i] for i in read), strict=True)
        return [run_node(node, dict(zip(read, c, strict=True)), self.constants) for c in columns]

    def _weighted(self, node: Any, rng: Any, last: bool) -> Values:
        """He et al., Delving Deep into Rectifiers (2015), then a gain that makes the standard
        deviation of the results 1."""
        _, weight, *bias = node.input
        shape = self.constants[weight].shape
        fan_in = math.prod(shape[1:])
        drawn = rng.standard_normal(shape, dtype=np.float32) * np.float32(math.sqrt(2 / fan_in))
        self.constants[weight] = drawn
        for b in bias:
            drawn = rng.standard_normal(self.constants[b].shape, dtype=np.float32)
            self.constants[b] = drawn * np.float32(0.05)
        results = self._run(node)
        wanted = LOGIT_STD if last else 1.0
        gain = np.float32(wanted / max(float(np.std(results)), 1e-6))
        for parameter in (weight, *bias):
            self.constants[parameter] = self.constants[parameter] * gain
        return [r * gain for r in results]

    def _batch_norm(self, node: Any, rng: Any, last: bool) -> Values:
        data, scale, shift, mean, variance = node.input
        seen = np.stack(self.values[data]).astype(np.float64)
        axes = (0, 1, *range(3, seen.ndim))
        channels = seen.shape[2]
        centre = CENTRED * seen.mean(axis=axes, keepdims=True)
        self.constants[mean] = centre.reshape(channels).astype(np.float32)
        spread = np.square(seen - centre).mean(axis=axes)
        self.constants[variance] = (spread + 1e-4).astype(np.float32)
        size = RESIDUAL_SCALE if node.output[0] in self.summed else 1.0
        self.constants[scale] = (rng.uniform(0.6, 1.4, channels) * size).astype(np.float32)
        self.constants[shift] = (rng.standard_normal(channels) * 0.1).astype(np.float32)
        return self._run(node)

    def _scale_or_shift(self, node: Any, rng: Any, last: bool) -> Values:
        """A factor or term for each channel, as exporters of Caffe models write batch norms."""
        (name,) = (i for i in node.input if i in self.constants)
        shape = self.constants[name].shape
        draw = rng.uniform(0.6, 1.4, shape) if node.op_type == "Mul" else rng.normal(0, 0.1, shape)
        self.constants[name] = draw.astype(np.float32)
        return self._run(node)


def run_node(node: Any, inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> Array:
    """The first result of one ONNX node: heavy operators compiled, the others in numpy."""
    import onnx
    from onnx import helper, numpy_helper

    import compiler

    fixed = dict.fromkeys(i for i in node.input if i in constants)
    graph = helper.make_graph(
        [node],
        "node",
        [_info(name, a.dtype, a.shape) for name, a in inputs.items()],
        [onnx.ValueInfoProto(name=node.output[0])],
        [numpy_helper.from_array(constants[name], name) for name in fixed],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    module = compiler.from_onnx(model)
    run = compiler.build(module) if node.op_type in _COMPILED else None
    arrays: Sequence[Array] = list(inputs.values())
    return np.asarray(run(*arrays) if run else compiler.evaluate(module, *arrays))


def _info(name: str, dtype: Any, shape: Sequence[int]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
