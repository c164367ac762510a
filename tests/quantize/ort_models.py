"""Models that onnxruntime's own tool quantizes, and all integers that a model computes in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime import quantization as q
from onnxruntime.quantization.shape_inference import quant_pre_process
from quantize_nets import ZOO, images

import compiler
from compiler.ir.expr import IRModule, tensor_type
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

VIT = Path(__file__).parents[2].parent / "shared" / "data" / "mnist_vit.onnx"
ort.set_default_logger_severity(3)


class _Reader(q.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str, batches: Iterable[Array]):
        self.rest = iter([{name: part} for part in batches])

    def get_next(self) -> Any:
        return next(self.rest, None)


def source(name: str) -> Path:
    """The float model."""
    return VIT if name == "vit" else ZOO / f"mnist_{name}.onnx"


def quantized(
    name: str, form: str, channels: bool, dtype: str, folder: Path, weights: str = "int8",
    **options: Any,
) -> Path:  # fmt: skip
    """A network as the tool writes it: `form` is qdq, qoperator or dynamic."""
    out = folder / f"{name}_{form}.onnx"
    if form == "dynamic":
        proto = onnx.load(str(source(name)))
        del proto.graph.value_info[:]  # the tool transposes weights, and then finds other shapes
        q.quantize_dynamic(proto, str(out), weight_type=q.QuantType.QInt8)
        return out
    static(source(name), out, np.array_split(images()[0][:100], 4), form, channels, dtype, weights,
           **options)  # fmt: skip
    return out


def static(
    model: Path, out: Path, batches: Iterable[Array], form: str, channels: bool = True,
    dtype: str = "uint8", weights: str = "int8", **options: Any,
) -> None:  # fmt: skip
    """Quantize a float model by the tool; `options` are its extra_options, and reduce_range."""
    ready = out.with_suffix(".ready.onnx")
    quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
    formats = {"qdq": q.QuantFormat.QDQ, "qoperator": q.QuantFormat.QOperator}
    given = onnx.load(str(ready)).graph.input[0].name
    reduced = options.pop("reduce_range", False)
    q.quantize_static(
        str(ready), str(out), _Reader(given, batches), quant_format=formats[form],
        per_channel=channels, reduce_range=reduced, activation_type=_kind(dtype),
        weight_type=_kind(weights), extra_options=options,
    )  # fmt: skip


def _kind(dtype: str) -> Any:
    return getattr(q.QuantType, {"uint": "QUInt", "int": "QInt"}[dtype.rstrip("0123456789")]
                   + dtype.lstrip("uint"))  # fmt: skip


def run(
    model: Any, x: Array, wanted: list[str] | None = None, literally: bool = False
) -> dict[str, Array]:
    """Results of a model in onnxruntime by name; `literally`: node by node, as the file says."""
    options = ort.SessionOptions()
    if literally:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = wanted or [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: x}), strict=True))


def activations(path: Path, x: Array, literally: bool = False) -> dict[str, Array]:
    """All 8-bit and 16-bit activations of a model in onnxruntime, by name."""
    proto = onnx.load(str(path))
    t = onnx.TensorProto
    kinds = (t.INT8, t.UINT8, t.INT16, t.UINT16)
    known = {i.name: i.data_type for i in proto.graph.initializer}
    names: dict[str, int] = {}
    for n in proto.graph.node:
        if n.op_type == "QuantizeLinear" and n.input[0] in known:
            continue  # weights that the model quantizes itself
        if n.op_type == "QuantizeLinear" or (n.op_type.startswith("Q") and len(n.input) >= 5):
            at = {"QLinearConcat": 1, "QGemm": 8}.get(n.op_type, _zero_point_of(n))
            kind = known.get(n.input[at], 0) if at < len(n.input) else 0
            if kind in kinds:
                names[n.output[0]] = kind
    for name, kind in names.items():
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
    return run(proto, x, list(names), literally) if names else {}


def _zero_point_of(n: Any) -> int:
    """Which input is the zero point of the result."""
    if n.op_type == "QuantizeLinear":
        return 2
    if n.op_type in ("QLinearAdd", "QLinearMul", "QLinearConv", "QLinearMatMul"):
        return 7
    return 4


def native_values(mod: IRModule, x: Array) -> dict[str, Array]:
    """Every value of 8 or 16 bits of a module by name, compiled."""
    f = mod.main
    kept = [
        b.var
        for b in f.bindings
        if isinstance(b.var.type, TensorType)
        and str(tensor_type(b.var).dtype) in ("int8", "uint8", "int16", "uint16")
    ]
    got = compiler.build(mod.with_function("main", f.with_body(f.bindings, kept)))(x)
    return dict(zip([v.name for v in kept], got if isinstance(got, list) else [got], strict=True))


def agreement(ours: dict[str, Array], theirs: dict[str, Array]) -> dict[str, float]:
    """Activation -> the share of its elements that are equal, for those that both have."""
    out = {}
    for name, want in theirs.items():
        printable = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")  # as values are named here
        for mine in (name, name.removesuffix("_q"), printable):
            if mine in ours and ours[mine].shape == want.shape:
                out[name] = float((ours[mine] == want).mean())
                break
    return out


def whole(shares: dict[str, float], values: dict[str, Array]) -> float:
    """The share of all elements that are equal, of `values` that have a share."""
    total = sum(values[k].size for k in shares)
    return sum(v * values[k].size for k, v in shares.items()) / total
