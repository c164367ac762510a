"""Checks nodes against ONNX's operator schemas: converters meet only what is declared."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from compiler.errors import ModelError, UnsupportedError, unknown
from compiler.frontend.converters_microsoft import DOMAIN, INPUTS, OUTPUTS, RUNTIME_OWN

DEFAULT = ("", "ai.onnx")
"""How files write the default domain."""
PREVIEW = "ai.onnx.preview"
"""Another domain of the standard's: its operators have schemas and definitions, and one version."""


def schema_of(op: str, opset: int, domain: str) -> Any:
    """ONNX's schema of an operator, by the version of the default domain.

    Raises:
        onnx.defs.SchemaError: there is none.
    """
    import onnx

    default = domain in DEFAULT
    return onnx.defs.get_schema(op, opset if default else 1, "" if default else domain)


def operator_key(node: Any) -> str:
    """The name of a node's converter: `DOMAIN.NAME` outside the default domain."""
    if node.domain not in DEFAULT:
        return f"{node.domain}.{node.op_type}"
    return f"{DOMAIN}.{node.op_type}" if node.op_type in RUNTIME_OWN else str(node.op_type)


@cache
def _schema(op: str, opset: int, domain: str) -> tuple[Any, Mapping[str, Any]]:
    import onnx

    try:
        schema = schema_of(op, opset, domain)
    except onnx.defs.SchemaError:
        raise UnsupportedError(f"operator {op} does not exist in opset {opset}") from None
    return schema, dict(schema.attributes)


def check_node(node: Any, opset: int, where: str) -> None:
    """Check a NodeProto's attributes (names, types, required ones) and its numbers of operands.

    Of an operator of another domain, whose schema onnx does not have, the number of inputs.

    Raises:
        ModelError: it does not follow the operator's schema.
        UnsupportedError: the operator does not exist in this opset.
    """
    if node.domain not in (*DEFAULT, PREVIEW) or node.op_type in RUNTIME_OWN:
        least, most = INPUTS[node.op_type]
        if not 1 <= len(node.output) <= OUTPUTS[node.op_type]:
            raise ModelError(
                f"{where} has {len(node.output)} outputs; at most {OUTPUTS[node.op_type]} exist"
            )
        if not least <= len(node.input) <= most:
            raise ModelError(f"{where} has {len(node.input)} inputs; it takes {least} to {most}")
        return
    schema, attributes = _schema(node.op_type, opset, node.domain)
    given = set()
    for a in node.attribute:
        if a.name not in attributes:
            raise ModelError(f"{where}: {unknown('attribute', a.name, attributes)}")
        wanted = attributes[a.name].type.value
        if a.type != wanted:
            raise ModelError(f"{where}: its attribute {a.name!r} has the wrong type")
        given.add(a.name)
    for name, a in attributes.items():
        if a.required and name not in given:
            raise ModelError(f"{where} lacks its attribute {name!r}")
    for kind, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            raise ModelError(f"{where} has {count} {kind}; {node.op_type} takes {wanted}")
