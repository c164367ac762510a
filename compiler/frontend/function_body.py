"""Operators that ONNX itself defines by other operators: their bodies, written out node by node.

Where we have no converter for an operator, the function body of its schema is imported instead;
its meaning is ONNX's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from compiler.errors import UnsupportedError
from compiler.frontend.element_types import element_code
from compiler.frontend.schema import DEFAULT, PREVIEW, schema_of
from compiler.symbolic import Index
from compiler.types.tensor_types import TensorType


@cache
def has_body(op: str, opset: int, domain: str = "") -> bool:
    """Whether the standard defines the operator by others in this opset."""
    import onnx

    if domain not in (*DEFAULT, PREVIEW):
        return False
    try:
        schema = schema_of(op, opset, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def body_of(node: Any, opset: int, types: Sequence[TensorType | None]) -> tuple[list[Any], int]:
    """The nodes that compute `node`, with their values named after it, and their opset.

    Args:
        node: a NodeProto whose operator `has_body`.
        opset: version of the default operator set.
        types: of its inputs; None for one that is left out.

    Raises:
        UnsupportedError: the standard has no body for these types and attributes.
    """
    import onnx

    schema = schema_of(node.op_type, opset, node.domain)
    if schema.has_function:
        function = schema.function_body
        versions = [v for v in schema.function_opset_versions if v <= opset]
        if versions:
            text = schema.get_function_with_opset_version(max(versions))
            function = onnx.FunctionProto.FromString(text) if isinstance(text, bytes) else function
    else:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        given = [_type_proto(t) for t in types]
        text = b""
        if versions:
            text = schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), [g.SerializeToString() for g in given]
            )
        if not text:
            raise UnsupportedError(
                f"{node.op_type} is not supported with these operand types and attributes"
            )
        function = onnx.FunctionProto.FromString(text)
    if node.op_type == "AffineGrid":
        _squeeze_rows_only(function)
    versions = [o.version for o in function.opset_import if o.domain in ("", "ai.onnx")]
    return _renamed(function, node, schema), max([opset, *versions])


def _squeeze_rows_only(function: Any) -> None:
    """ONNX takes the rows of AffineGrid's matrices [batch, 1, columns] apart by a Squeeze without
    axes, which takes away a batch of 1 as well; only axis 1 is meant."""
    for branch in (a.g for n in function.node for a in n.attribute if a.HasField("g")):
        for n in branch.node:
            if n.op_type == "Squeeze" and len(n.input) == 1:
                n.input.append("one_1d")  # a value of the function's


def _type_proto(t: TensorType | None) -> Any:
    import onnx

    code = element_code(t.dtype) if t is not None else 0
    if t is None or not code:
        return onnx.TypeProto()
    shape = [str(d) if isinstance(d, Index) else d for d in t.shape]
    return onnx.helper.make_tensor_type_proto(code, shape)


def _renamed(function: Any, node: Any, schema: Any) -> list[Any]:
    """The function's nodes with the caller's values and attributes in place of its own."""
    prefix = f"{node.name or node.output[0]}/{node.op_type}/"
    names = {"": ""}
    for formal, actual in zip(function.input, node.input, strict=False):
        names[formal] = actual
    for formal in list(function.input)[len(node.input) :]:
        names[formal] = ""
    for formal, actual in zip(function.output, node.output, strict=False):
        names[formal] = actual or prefix + formal
    given = {a.name: a for a in node.attribute}
    defaults = {a.name: a for a in function.attribute_proto}
    defaults |= {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}
    return [_copy(n, names, {**defaults, **given}, node, prefix) for n in function.node]


def _copy(n: Any, names: dict[str, str], attributes: Mapping[str, Any], node: Any, at: str) -> Any:
    import onnx

    out = onnx.NodeProto()
    out.CopyFrom(n)
    out.name = node.name or node.output[0]
    del out.input[:], out.output[:], out.attribute[:]
    out.input.extend(names.setdefault(i, at + i) for i in n.input)
    out.output.extend(names.setdefault(o, at + o) for o in n.output)
    for a in n.attribute:
        if not a.ref_attr_name:
            made = out.attribute.add()
            made.CopyFrom(a)
            if a.HasField("g"):
                made.g.CopyFrom(_subgraph(a.g, names, attributes, node, at))
        elif a.ref_attr_name in attributes:
            made = out.attribute.add()
            made.CopyFrom(attributes[a.ref_attr_name])
            made.name = a.name
    return out


def _subgraph(
    g: Any, names: dict[str, str], attributes: Mapping[str, Any], node: Any, at: str
) -> Any:
    """A subgraph of the function's, its own names renamed like the function's."""
    import onnx

    out = onnx.GraphProto()
    out.CopyFrom(g)
    del out.node[:]
    for v in [*out.input, *out.output, *out.initializer]:
        v.name = names.setdefault(v.name, at + v.name)
    out.node.extend(_copy(n, names, attributes, node, at) for n in g.node)
    return out


__all__ = ["body_of", "has_body"]
