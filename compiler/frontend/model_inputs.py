"""What a model file says of its inputs, for callers that must know before they can import it."""

from __future__ import annotations

from pathlib import Path

from compiler.frontend.limits import MEMORY
from compiler.frontend.model_file import read_model


def model_inputs(model: str | Path | bytes) -> dict[str, tuple[int | None, ...] | None]:
    """Input name -> declared dimensions, None where they are symbolic or unknown (also of a whole
    shape); weights do not count.

    Raises:
        ModelError: the file cannot be read or is no model.
    """
    graph = read_model(model, MEMORY)[0].graph
    weights = {tensor.name for tensor in graph.initializer}
    found: dict[str, tuple[int | None, ...] | None] = {}
    for entry in graph.input:
        kind = entry.type.tensor_type
        if entry.name not in weights:
            dims = tuple(d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim)
            found[entry.name] = dims if kind.HasField("shape") else None
    return found
