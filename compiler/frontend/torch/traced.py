"""What torch traced, whoever asked it to: nodes, what callers pass, what is known, and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.errors import UnsupportedError
from compiler.frontend.torch.signature import dimension_names, output_names

Bounds = Mapping[str, tuple[int, int | None]]
"""Dimension -> the least and the largest size with which torch traced; None: no largest."""


@dataclass(frozen=True)
class Traced:
    """A graph of torch's operators.

    Attributes:
        nodes: in the order in which they are computed.
        held: placeholder -> the tensor that it is known to be.
        results: names of what is returned, and the nodes that compute it.
        dimensions: torch's symbols (`s77`) -> names of dimensions.
        bounds: see Bounds.
        names: placeholder -> what the module calls the tensor.
        inputs: placeholder -> name of the input, where it is another.
        draws: whether nodes may draw random numbers, by one more input of the program, an int64[].
    """

    nodes: Sequence[Any]
    held: Mapping[str, Any]
    results: Sequence[tuple[str, Any]]
    dimensions: Mapping[str, str] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    draws: bool = False


def of_program(program: Any, dynamic_shapes: Any) -> Traced:
    """What an ExportedProgram holds.

    Raises:
        UnsupportedError: it changes what it is given, or returns what is no tensor.
    """
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise UnsupportedError(
            f"the module writes to {', '.join(map(repr, changed[:5]))}: that is not supported; "
            "what only training writes to is left alone after module.eval()"
        )
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {**program.constants, **program.state_dict}
    dimensions = dimension_names(program, dynamic_shapes)
    nodes = list(program.graph.nodes)
    (returned,) = nodes[-1].args
    results = [
        (name, x) for name, x in zip(output_names(program), returned, strict=True) if x is not None
    ]
    for name, x in results:
        if not hasattr(x, "meta"):
            raise UnsupportedError(f"the result {name!r} is {x!r}, no tensor")
    bounds = {
        dimensions.get(str(symbol), str(symbol)): (int(r.lower), _finite(r.upper))
        for symbol, r in program.range_constraints.items()
    }
    held = {placeholder: tensors[name] for placeholder, name in names.items() if name in tensors}
    return Traced(nodes, held, results, dimensions, bounds, names)


def _finite(bound: Any) -> int | None:
    """A bound of torch's as a number; None if it is infinite."""
    return int(bound) if getattr(bound, "is_Integer", isinstance(bound, int)) else None
