"""Small ONNX models for the tests, and the comparison with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate
from compiler.ir.expr import IRModule
from compiler.ir.verifier import verify

_IR = {9: 4, 10: 5, 11: 6, 12: 7}


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    dtypes: Mapping[str, int] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    """A model; `inputs` maps names to shapes (float32, unless in `dtypes`)."""
    given = [
        helper.make_tensor_value_info(n, (dtypes or {}).get(n, TensorProto.FLOAT), s)
        for n, s in inputs.items()
    ]
    made = [helper.make_empty_tensor_value_info(n) for n in outputs]
    stored = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", given, made, stored)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR.get(opset, 8), **more)


@dataclass(frozen=True)
class Const:
    """An operand that is a weight of the model."""

    data: np.ndarray


@dataclass(frozen=True)
class Case:
    """One node: operands are arrays (inputs), Const (weights) or None (left out)."""

    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    dynamic: bool = True

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Inputs by name."""
        return {f"x{i}": a for i, a in enumerate(self.operands) if isinstance(a, np.ndarray)}

    def model(self, symbolic: bool = False) -> onnx.ModelProto:
        """The model; with `symbolic`, the first dimension of the first input is `n`."""
        names = [
            "" if a is None else f"{'w' if isinstance(a, Const) else 'x'}{i}"
            for i, a in enumerate(self.operands)
        ]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, name="the_node", **self.attrs)
        shapes: dict[str, list[Any]] = {n: list(a.shape) for n, a in self.arrays.items()}
        if symbolic:
            first = next(iter(shapes))
            size = shapes[first][0]
            for s in shapes.values():
                # operands of the same batch share it; those that broadcast do not
                if len(s) == len(shapes[first]) and s[0] == size:
                    s[0] = "n"
        weights = {f"w{i}": a.data for i, a in enumerate(self.operands) if isinstance(a, Const)}
        dtypes = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in self.arrays.items()}
        return model([node], shapes, outputs, weights, self.opset, dtypes)


def run_onnxruntime(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs by onnxruntime, without graph optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, dict(arrays)))


def assert_close(got: Any, want: Sequence[np.ndarray], tolerance: float = 1e-4) -> None:
    """max|a-b| <= tolerance * max|b| for every output, in dtype and shape too."""
    outputs = got if isinstance(got, list) else [got]
    assert len(outputs) == len(want)
    for a, b in zip(outputs, want, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite])
        scale = np.abs(b[finite]).max(initial=0)
        error = np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0)
        assert error <= tolerance * scale, f"error {error} of {scale}"


def check(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray], **options: Any) -> IRModule:
    """Import, verify, evaluate, and compare with onnxruntime; the module."""
    mod = from_onnx(proto, **options)
    verify(mod)
    assert_close(evaluate(mod, dict(arrays)), run_onnxruntime(proto, arrays))
    return mod
