"""What a model needs, found in its file before anything is imported or run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import DtypelabError, nearest

if TYPE_CHECKING:
    import onnx

OWN, DEFINED, MISSING = "supported", "supported by its definition", "not supported"


@dataclass(frozen=True)
class OperatorNeed:
    """One operator: how often, and whether we have it. `nearest`: supported ones like it."""

    name: str
    count: int
    support: str
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelNeeds:
    """What a model file asks for.

    Attributes:
        opset: version of the default operator set; 0 if the file does not say.
        other_opsets: the other domains' versions.
        operators: by name.
        dtypes: ONNX element type -> number of inputs, outputs and weights that have it.
        unsupported_dtypes: those of them that we do not have.
        dynamic_axes: input name -> its dimensions that are not fixed, as (axis, name).
        external_data: files that hold weights.
        problem: why it cannot be imported as it is; empty if it can.
    """

    opset: int
    other_opsets: Mapping[str, int]
    operators: tuple[OperatorNeed, ...]
    dtypes: Mapping[str, int]
    unsupported_dtypes: tuple[str, ...]
    dynamic_axes: Mapping[str, tuple[tuple[int, str], ...]]
    external_data: tuple[str, ...]
    problem: str


def requirements(
    model: str | Path | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    engines: Sequence[str] = (),
) -> ModelNeeds:
    """Report what a model needs; `shapes` and `engines` as `from_onnx` takes them.

    Raises:
        ModelError: the file cannot be read, or is no model.
    """
    from compiler.frontend.limits import MEMORY
    from compiler.frontend.model_file import read_model

    proto, _ = read_model(model, MEMORY)
    versions = {o.domain: int(o.version) for o in proto.opset_import}
    opset = versions.pop("", versions.pop("ai.onnx", 0))
    dtypes = Counter(map(_type_name, _element_types(proto.graph)))
    return ModelNeeds(
        opset,
        versions,
        tuple(_operators(proto, opset)),
        dict(sorted(dtypes.items())),
        tuple(sorted({_type_name(c) for c in _element_types(proto.graph) if not _known(c)})),
        {i.name: axes for i in _inputs(proto.graph) if (axes := tuple(_dynamic(i)))},
        tuple(sorted({e.value for t in proto.graph.initializer for e in t.external_data
                      if e.key == "location"})),
        _problem(model, shapes, engines),
    )  # fmt: skip


def _operators(proto: Any, opset: int) -> Iterator[OperatorNeed]:
    from compiler.frontend.function_body import has_body
    from compiler.frontend.local_functions import all_nodes
    from compiler.frontend.node import CONVERTERS
    from compiler.frontend.onnx_importer import supported_ops
    from compiler.frontend.schema import operator_key

    supported = supported_ops()
    local = {(f.domain, f.name) for f in proto.functions}
    graphs = [proto.graph, *proto.functions]
    counts = Counter((n.domain, operator_key(n)) for g in graphs for n in all_nodes(g))
    for (domain, name), count in sorted(counts.items()):
        op = name.removeprefix(f"{domain}.")
        if name in CONVERTERS:
            yield OperatorNeed(name, count, OWN)
        elif (domain, op) in local or has_body(op, opset, domain):
            yield OperatorNeed(name, count, DEFINED)
        else:
            yield OperatorNeed(name, count, MISSING, tuple(nearest(op, supported, 2)))


def _inputs(graph: Any) -> list[Any]:
    weights = {t.name for t in graph.initializer}
    return [i for i in graph.input if i.name not in weights]


def _element_types(graph: Any) -> Iterator[int]:
    for v in [*graph.input, *graph.output]:
        if v.type.WhichOneof("value") == "tensor_type" and v.type.tensor_type.elem_type:
            yield v.type.tensor_type.elem_type
    yield from (t.data_type for t in graph.initializer)


def _type_name(code: int) -> str:
    import onnx

    known = onnx.TensorProto.DataType.values()
    return str(onnx.TensorProto.DataType.Name(code)).lower() if code in known else str(code)


def _known(code: int) -> bool:
    from compiler.frontend.element_types import element_dtype

    try:
        element_dtype(code, "")
    except DtypelabError:
        return False
    return True


def _dynamic(entry: Any) -> Iterator[tuple[int, str]]:
    for axis, d in enumerate(entry.type.tensor_type.shape.dim):
        if d.dim_param or d.dim_value < 1:
            yield axis, d.dim_param or "?"


def _problem(model: Any, shapes: Any, engines: Sequence[str]) -> str:
    from compiler.frontend.onnx_importer import from_onnx

    try:
        from_onnx(model, shapes, engines=engines)
    except DtypelabError as e:
        return str(e)
    return ""
