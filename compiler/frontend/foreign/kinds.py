"""Types of a model's values, as far as a file and the standard's schemas say them: which values are
no tensors of numbers must be known before anything is imported.

ONNX's own inference is not asked: it is native code, which files that are damaged can crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.errors import UnsupportedError
from compiler.frontend.element_types import element_dtype

CODES = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16, "float8e4m3fn": 17,
    "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20, "uint4": 21, "int4": 22,
    "float4e2m1": 23,
}  # fmt: skip
"""Element types as onnxruntime calls them -> their ONNX codes."""


_NAMES = {code: name for name, code in CODES.items()} | {8: "string"}


def kind_text(kind: Any) -> str:
    """A TypeProto as onnxruntime writes it: `seq(tensor(float))`."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return f"tensor({_NAMES.get(kind.tensor_type.elem_type, '?')})"
    if which == "sequence_type":
        return f"seq({kind_text(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({kind_text(kind.optional_type.elem_type)})"
    if which == "map_type":
        names = {code: name for name, code in CODES.items()} | {8: "string"}
        return (
            f"map({names.get(kind.map_type.key_type, '?')},{kind_text(kind.map_type.value_type)})"
        )
    return str(which)


def kinds_of(model: Any) -> dict[str, Any]:
    """Value name -> TypeProto, of what is declared, and of results whose types follow from those of
    operands; these have no shapes."""
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    kinds = declared_kinds(model.graph)
    for n in model.graph.node:
        for k, name in enumerate(n.output):
            if name and name not in kinds and (kind := _result_kind(n, k, versions, kinds)):
                kinds[name] = kind
    return kinds


def declared_kinds(graph: Any) -> dict[str, Any]:
    """Value name -> TypeProto, of the values of a graph whose types a file says."""
    import onnx

    kinds = {
        t.name: onnx.helper.make_tensor_type_proto(t.data_type, list(t.dims))
        for t in graph.initializer
    }
    values = [*graph.value_info, *graph.output, *graph.input]
    return kinds | {v.name: v.type for v in values if v.type.WhichOneof("value")}


def _result_kind(
    n: Any, k: int, versions: Mapping[str, int], kinds: Mapping[str, Any]
) -> Any | None:
    """The type of output `k` of a node; None if its schema does not tell."""
    import onnx

    branches = [a.g for a in n.attribute if a.HasField("g")]
    if n.op_type == "If" and branches and k < len(branches[0].output):
        return _shapeless(branches[0].output[k].type)
    domain = "" if n.domain == "ai.onnx" else n.domain
    try:
        schema = onnx.defs.get_schema(n.op_type, versions.get(domain, 0), domain)
    except (onnx.defs.SchemaError, TypeError):  # the latter of versions beyond all
        return None
    if not schema.outputs:
        return None
    name = schema.outputs[min(k, len(schema.outputs) - 1)].type_str
    for i, x in enumerate(n.input if schema.inputs else ()):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if x in kinds and formal.type_str == name and formal.is_homogeneous:
            return _shapeless(kinds[x])
    allowed = next(
        (t.allowed_type_strs for t in schema.type_constraints if t.type_param_str == name), [name]
    )
    if not any(t.startswith("tensor(") for t in allowed):
        return no_tensor()
    element = allowed[0].removeprefix("tensor(").removesuffix(")")
    code = _STRING if element == "string" else CODES.get(element, 0)
    return onnx.helper.make_tensor_type_proto(code, None) if len(allowed) == 1 and code else None


_STRING = 8


def _shapeless(kind: Any) -> Any | None:
    """A type without the shape of a tensor; None of nothing."""
    import onnx

    out = onnx.TypeProto()
    out.CopyFrom(kind)
    if out.HasField("tensor_type"):
        out.tensor_type.ClearField("shape")
    return out if out.WhichOneof("value") else None


def is_foreign(kind: Any) -> bool:
    """Whether a TypeProto is of values that our programs have no type for."""
    if kind.WhichOneof("value") != "tensor_type":
        return True
    try:
        element_dtype(kind.tensor_type.elem_type, "")
    except UnsupportedError:
        return bool(kind.tensor_type.elem_type)  # 0: not known
    return False


def no_tensor() -> Any:
    """A TypeProto of something that is no tensor."""
    import onnx

    return onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, None))
