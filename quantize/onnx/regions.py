"""Nodes that engines were handed at import, written back as the nodes that they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.boundary.elements import ELEMENTS
from compiler.boundary.packed import STRING, inner
from compiler.errors import UnsupportedError
from compiler.ir.expr import Call, Constant, Function, IRModule, Var, atom_type
from compiler.ir.function_calls import CALL_DPS_PACKED, CALL_PACKED
from compiler.ir.handed import DIGEST, decoded, engine_of
from compiler.op.sizes import MATCH_SHAPE
from compiler.symbolic import Index
from compiler.types.tensor_types import TensorType, TupleType
from quantize.onnx.export import Writer
from quantize.onnx.operators import OPERATORS

DEFAULT = ("", "ai.onnx")


def imports_of(f: Function, opsets: tuple[int, ...]) -> tuple[int, dict[str, int]]:
    """The version of the default operator set, one of `opsets`, in which the regions' nodes mean
    what they do in theirs, and the versions of other domains that they use.

    Raises:
        UnsupportedError: there is none, or two regions need several.
    """
    domains: dict[str, int] = {}
    fits = list(opsets)
    for b in f.bindings:
        if not engine_of(b.value):
            continue
        assert isinstance(b.value, Call)
        model = _model(b.value)[1]
        versions = {o.domain: int(o.version) for o in model.opset_import}
        used = {n.domain for n in _nodes(model.graph)}
        for domain in used - {*DEFAULT}:
            version = versions.get(domain, 1)
            if domains.setdefault(domain, version) != version:
                raise UnsupportedError(f"two versions of the operators of {domain} are needed")
        own = versions.get("", versions.get("ai.onnx", 0))
        fits = [v for v in fits if _means_the_same(model.graph, own, v)]
    if not fits:
        raise UnsupportedError(
            f"nodes that an engine computes mean something else in opset {opsets[-1]}"
        )
    return fits[0], domains


def _means_the_same(graph: Any, a: int, b: int) -> bool:
    import onnx

    try:
        return all(
            onnx.defs.get_schema(n.op_type, a, "").since_version
            == onnx.defs.get_schema(n.op_type, b, "").since_version
            for n in _nodes(graph)
            if n.domain in DEFAULT
        )
    except onnx.defs.SchemaError:
        return False


def _nodes(graph: Any) -> list[Any]:
    out = list(graph.node)
    for n in graph.node:
        for a in n.attribute:
            out += _nodes(a.g) if a.HasField("g") else []
    return out


def _model(call: Call) -> tuple[bytes, Any]:
    """The key of a region, and its ModelProto."""
    import onnx

    region = call.args[0]
    assert isinstance(region, Constant)
    model = onnx.ModelProto.FromString(decoded(region.data)[1])
    return region.data[:DIGEST].tobytes(), model


def _call(w: Writer, call: Call, out: Var) -> None:
    """The nodes of a region; or, where its sizes are asked for before, these."""
    if not engine_of(call):
        raise UnsupportedError("a registered function")
    part = call.attrs.func.rpartition(".")[2]
    operands = [w.name(a) for a in call.args[2 if part == "found" else 1 :]]
    names = _written(w, call, operands, out.name)
    if part == "sizes":
        shapes = [w.step("Shape", [name], f"{out.name}_shape") for name in names]
        ticket = w.constant([0], "int64")
        w.node("Concat", [*shapes, ticket], w.out(out), axis=0)
    elif isinstance(atom_type(out), TupleType):
        for field, name in zip(w.fields(out, len(names)), names, strict=True):
            w.node("Identity", [name], field)
    else:
        w.alias(out, names[0])


def _written(w: Writer, call: Call, operands: list[str], stem: str) -> list[str]:
    """The names of a region's results; its nodes are written once."""
    import onnx.compose

    key, model = _model(call)
    if (key, *operands) in w.regions:
        return w.regions[key, *operands]
    g = onnx.compose.add_prefix_graph(model.graph, w.fresh(f"{stem}_region") + "/")
    for given, own in zip(operands, g.input, strict=True):
        w.node("Identity", [given], own.name)
    w.initializers.extend(g.initializer)
    w.sparse.extend(g.sparse_initializer)
    w.nodes.extend(g.node)
    w.regions[key, *operands] = [o.name for o in g.output]
    return w.regions[key, *operands]


def _match_shape(w: Writer, call: Call, out: Var) -> None:
    """A size that a region finds: the numbers themselves, which have been computed."""
    if not w.regions:
        raise UnsupportedError("sizes that are found at run time")
    name = w.name(call.args[0])
    w.alias(out, name)
    for d in call.attrs.shape if len(call.attrs.shape) == 1 else ():
        if isinstance(d, Index):
            w.sizes.setdefault(d, name)


for _op in (CALL_DPS_PACKED, CALL_PACKED):
    OPERATORS[_op] = _call
OPERATORS[MATCH_SHAPE] = _match_shape


def declared(mod: IRModule, side: str) -> list[str]:
    """What is declared of the inputs or outputs that numpy has no dtype for; "" of others."""
    noted: Mapping[str, list[str]] = mod.attrs.get(ELEMENTS, {})
    return list(noted.get(side, ()))


def packed_info(name: str, kind: str, t: TensorType) -> Any:
    """The ValueInfoProto of an input or output that is no tensor of numbers.

    Raises:
        UnsupportedError: it is a map.
    """
    from onnx import TensorProto, helper

    def proto(kind: str) -> Any:
        if kind.startswith("seq("):
            return helper.make_sequence_type_proto(proto(inner(kind)[0]))
        if kind.startswith("optional("):
            return helper.make_optional_type_proto(proto(inner(kind)[0]))
        if not kind.startswith("tensor("):
            raise UnsupportedError(f"{name!r} is of the type {kind}")
        element = inner(kind)[0].upper()
        return helper.make_tensor_type_proto(TensorProto.DataType.Value(element), None)

    if kind == STRING:
        shape = [d if isinstance(d, int) else str(d) for d in t.shape[:-1]]
        return helper.make_tensor_value_info(name, TensorProto.STRING, shape)
    return helper.make_value_info(name, proto(kind))
