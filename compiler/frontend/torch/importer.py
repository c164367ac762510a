"""from_torch: a module of torch as an IRModule. The aten_*.py files convert its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.boundary.elements import ELEMENTS
from compiler.boundary.index_ranges import INDICES
from compiler.errors import ModelError
from compiler.frontend import library as onnx_library  # noqa: F401  (as which nodes are spelled)
from compiler.frontend.limits import MEMORY, Budget
from compiler.frontend.torch import library  # noqa: F401  (each registers its converters)
from compiler.frontend.torch.exporting import exported
from compiler.frontend.torch.graph import TorchImport
from compiler.frontend.torch.node import ATEN
from compiler.frontend.torch.traced import Traced, of_program
from compiler.ir.expr import IRModule
from compiler.transform.use_integers import with_integers

if TYPE_CHECKING:
    import torch


def supported_torch_ops() -> list[str]:
    """The operators of torch that `from_torch` imports, by name."""
    return sorted(ATEN)


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    memory_limit: int = MEMORY,
) -> IRModule:
    """Import a module of torch, or what `torch.export.export` made of one.

    Inputs have the names of the module's arguments, outputs those of the keys of what it returns
    (`output` of a single tensor). Parameters and buffers become constants that share torch's
    memory: who changes a weight in place changes the program, until it is built. The bindings'
    `origins` are the paths of the modules they come from (`layer1.0.conv1`); `mod.attrs` holds the
    `inputs` and `outputs` in order.

    Args:
        module: a module, in evaluation mode, or an ExportedProgram.
        args: example inputs; of a program, none are needed.
        kwargs: example inputs by name.
        dynamic_shapes: as torch.export takes it; a size of the name `torch.export.Dim("batch")` is
            the dimension `batch` of the types, any size from 1 on unless the Dim has bounds.
        memory_limit: bytes that the weights may take.

    Raises:
        ModelError: torch.export refuses the module; the message is its own.
        UnsupportedError: operators that we do not implement (all are listed), or element types.
    """
    program = exported(module, args, kwargs, dynamic_shapes)
    return imported(of_program(program, dynamic_shapes), memory_limit)


def imported(traced: Traced, memory_limit: int = MEMORY) -> IRModule:
    """The program of a graph that torch traced.

    Raises:
        UnsupportedError: operators that we do not implement (all are listed), or element types.
    """
    return of_import(TorchImport(traced, Budget(memory_limit)))


def of_import(importer: TorchImport) -> IRModule:
    """The program that an import makes.

    Raises:
        UnsupportedError: operators that we do not implement (all are listed), or element types.
    """
    main = importer.run()
    attrs: dict[str, Any] = {
        "producer": "torch",
        "inputs": tuple(importer.inputs),
        "outputs": tuple(name for name, _ in importer.traced.results),
    }
    declared = {
        "inputs": [importer.declared(p) for p in main.params],
        "outputs": [importer.declared(r) for r in main.results],
    }
    if any(map(any, declared.values())):
        attrs[ELEMENTS] = declared
    if importer.indices:
        attrs[INDICES] = [r.row() for r in importer.indices.values()]
    result = IRModule({"main": main}, attrs)
    return with_integers(result) if importer.quantized else result


def from_fx(
    graph: torch.fx.GraphModule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    memory_limit: int = MEMORY,
) -> IRModule:
    """Import a graph that `torch.fx.symbolic_trace`, or a pass on such graphs, made; all else is as
    for `from_torch`.

    Raises:
        ModelError: it is no GraphModule, or torch.export refuses it.
        UnsupportedError: see `from_torch`.
    """
    if not (hasattr(graph, "graph") and hasattr(graph.graph, "nodes")):
        raise ModelError(f"from_fx takes a torch.fx.GraphModule, not {type(graph).__name__}")
    return from_torch(graph, args, kwargs, dynamic_shapes=dynamic_shapes, memory_limit=memory_limit)
