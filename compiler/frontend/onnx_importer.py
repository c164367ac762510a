"""from_onnx: an ONNX model as an IRModule. The converters_*.py files convert its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.boundary.assumptions import assumptions, check_assumptions
from compiler.boundary.elements import ELEMENTS
from compiler.boundary.index_ranges import INDICES
from compiler.errors import (
    ConfigError,
    DtypelabError,
    InputError,
    ModelError,
    UnsupportedError,
    nearest,
)
from compiler.frontend import library  # noqa: F401  (each registers its converters)
from compiler.frontend.foreign.handing import NotATensor
from compiler.frontend.foreign.importing import Foreign
from compiler.frontend.foreign.kernels import advice_for, is_refused
from compiler.frontend.foreign.kinds import kinds_of, no_tensor
from compiler.frontend.foreign.session import ENGINE, missing
from compiler.frontend.graph_import import GraphImport
from compiler.frontend.limits import MEMORY, Budget
from compiler.frontend.local_functions import all_nodes, inlined
from compiler.frontend.model_file import opset_of, read_model
from compiler.frontend.node import CONVERTERS
from compiler.frontend.schema import operator_key
from compiler.frontend.signature import input_types
from compiler.ir.expr import Function, IRModule, tensor_type
from compiler.symbolic import Index, Var
from compiler.transform.use_integers import with_integers

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx


Shapes = Mapping[str, Sequence[int | str | None]]


def supported_ops() -> list[str]:
    """The ONNX operators that `from_onnx` imports, by name."""
    return sorted(CONVERTERS)


def from_onnx(
    model: str | Path | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    memory_limit: int = MEMORY,
    engines: Sequence[str] = (),
) -> IRModule:
    """Import a model of the default ONNX domain, opset 7 or newer (or older, if none of its
    operators changed until 7); of onnxruntime's own operators (com.microsoft), those on quantized
    data, and those that models of language are made of: attention, embeddings and norms; QONNX's
    Quant, BipolarQuant and FloatQuant.

    Inputs and outputs keep their names, whatever is in them; a symbolic dimension `N` of the model
    is the dimension `N` of the types, and unnamed ones are called `d0`, `d1` ... Weights become
    constants. The bindings' `origins` are the names of the ONNX nodes they come from (of a node's
    first output when it has no name). `mod.attrs` holds `opset`, `producer`, `ir_version`, and the
    model's own `inputs` and `outputs` names in order. Those of types that numpy does not have are
    arrays of ml_dtypes (see `compiler.boundary.elements`).

    Args:
        model: path, serialized bytes, or a ModelProto.
        shapes: input name -> dimensions that replace the model's, e.g. `{"x": (1, 3, 224, 224)}`;
            a string is a symbolic dimension, None or -1 keeps the model's.
        constants: input name -> value, for inputs that are to be known now: axes, shapes, pads, or
            anything else. They are no inputs of the module.
        memory_limit: bytes that the file and its weights may take; sizes are checked against it,
            and against the files that hold them, before anything is allocated.
        engines: `["onnxruntime"]` hands it what would be refused otherwise: operators, attributes
            and types that we do not have, with as few other nodes as possible. See
            `compiler.frontend.foreign`; `handed(mod)` says what went there. Inputs and outputs may
            then be strings, sequences and optional values.

    Operators without a converter of our own that ONNX defines by other operators are imported as
    their definition.

    What a quantized model writes as float operators between DequantizeLinear and QuantizeLinear
    becomes integer operators (see `compiler.transform.use_integers`), but for those of another
    PassContext, e.g. `disabled_pass=["UseIntegers"]`.

    A file need not be trusted: nothing in it is executed, weights are read only from inside its own
    folder, and what a small file may grow into is limited (see compiler.frontend.limits). With
    engines it must be: native code reads nodes of it, and may compute what is constant.

    Raises:
        ModelError: the file cannot be read, or what it holds is not a valid model.
        UnsupportedError: an operator, attribute, dtype or opset that we do not implement; or what
            an engine needs is not installed.
        ConfigError: an engine that does not take nodes of files.
    """
    _check_engines(engines)
    proto, folder = read_model(model, memory_limit)
    opset = opset_of(proto)
    if proto.functions:
        proto = inlined(proto)
    if not proto.graph.output:
        raise ModelError("the model has no outputs; export it again")
    try:
        importer, main = _imported(
            proto, folder, opset, memory_limit, shapes or {}, constants or {}, bool(engines)
        )
    except ModelError:
        # What the model takes for granted says more than the node where given sizes do not fit.
        budget = Budget(memory_limit)
        why = broken_assumption(proto.graph, folder, opset, budget, shapes or {}, constants or {})
        if not why:
            raise
        raise ModelError(why) from None
    attrs = {
        "opset": opset,
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "ir_version": int(proto.ir_version),
        "inputs": tuple(importer.inputs),
        "outputs": tuple(o.name for o in proto.graph.output),
    }
    declared = {
        "inputs": [importer.declared(name) for name in importer.inputs],
        "outputs": [importer.declared(o.name) for o in proto.graph.output],
    }
    if any(map(any, declared.values())):
        attrs[ELEMENTS] = declared
    if importer.indices:
        attrs[INDICES] = [r.row() for r in importer.indices.values()]
    module = IRModule({"main": main}, attrs)
    return with_integers(module) if importer.quantized else module


def _check_engines(engines: Sequence[str]) -> None:
    """Raise an error if one of them takes no nodes of files, or is not installed."""
    if isinstance(engines, str):
        raise ConfigError(f"engines is a list of names: engines=[{engines!r}]")
    for name in engines:
        if name != ENGINE:
            raise ConfigError(
                f"engine {name!r} computes no nodes of files: from_onnx takes "
                f"engines=[{ENGINE!r}], and compiler.build all others"
            )
        if said := missing():
            raise UnsupportedError(f"engine {name!r} cannot run here: {said}")


def _imported(
    proto: Any, folder: Path | None, opset: int, limit: int, shapes: Shapes, constants: Any,
    engine: bool,
) -> tuple[GraphImport, Function]:  # fmt: skip
    """An import that has run, and what it made; with regions of onnxruntime if that may be."""
    if not engine:
        importer = GraphImport(proto.graph, folder, opset, Budget(limit))
        try:
            _check_operators(proto.graph, opset)
            return importer, importer.run(shapes, constants)
        except UnsupportedError as e:
            raise UnsupportedError(f"{e}{advice_for(proto, opset, importer.at)}") from None
    kinds = kinds_of(proto)
    while True:
        foreign = Foreign(proto, kinds, lambda n: is_refused(n, opset))
        importer = GraphImport(proto.graph, folder, opset, Budget(limit), foreign)
        try:
            return importer, importer.run(shapes, constants)
        except NotATensor as e:
            kinds[e.name] = no_tensor()


def _check_operators(graph: Any, opset: int) -> None:
    """Raise one UnsupportedError for all operators without a converter."""
    lacking: dict[str, list[str]] = {}
    for n in all_nodes(graph):
        op = operator_key(n)
        if is_refused(n, opset):
            lacking.setdefault(op, []).append(n.name or (n.output[0] if n.output else "?"))
    if not lacking:
        return
    parts = []
    for op, nodes in sorted(lacking.items()):
        close = nearest(op.rpartition(".")[2], CONVERTERS, 1)
        hint = f"; nearest supported: {close[0]}" if close else ""
        more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
        shown = op if op.replace(".", "").isidentifier() else repr(op)
        parts.append(f"{shown} (node {', '.join(map(repr, nodes[:5]))}{more}{hint})")
    raise UnsupportedError(f"unsupported operators: {'; '.join(parts)}")


def broken_assumption(
    graph: Any, folder: Path | None, opset: int, budget: Budget, shapes: Shapes, constants: Any
) -> str:
    """The assumption that known sizes in `shapes` break, as a call of the open model would say it;
    empty if there is none, or the model cannot be imported with open sizes either.

    Args:
        graph, folder, opset, budget: as for `GraphImport`.
        shapes, constants: as for `from_onnx`.
    """
    if not shapes:
        return ""
    weights = {t.name for t in graph.initializer}
    entries = [e for e in graph.input if e.name not in weights and e.name not in constants]
    try:
        given = input_types(entries, shapes)
        names = [[d if isinstance(d, str | Index) else None for d in s] for s in shapes.values()]
        f = GraphImport(graph, folder, opset, budget).run(
            dict(zip(shapes, names, strict=True)), constants
        )
    except DtypelabError:
        return ""
    inputs = [(p.name, tensor_type(p)) for p in f.params]
    sizes: dict[Var, int] = {}
    for (_, t), known in zip(inputs, given.values(), strict=True):
        pairs = zip(t.shape, known.shape, strict=True)
        sizes.update((d, n) for d, n in pairs if isinstance(d, Var) and isinstance(n, int))
    try:
        check_assumptions(assumptions(f), inputs, sizes)
    except InputError as error:
        return str(error)
    return ""
