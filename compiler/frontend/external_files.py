"""The files beside a model that hold weights of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compiler.errors import ModelError
from compiler.files.reading import open_file
from compiler.frontend.limits import MEMORY
from compiler.frontend.local_functions import all_nodes
from compiler.frontend.model_file import read_model

_MARK = b"location"
"""The key that names a file of external data; a model without it has none."""


def external_files(path: Path) -> tuple[Path, ...]:
    """The files of external data that a model file names, sorted; they may be missing.

    Raises:
        ModelError: the file cannot be read, or is no model.
    """
    if not path.is_file() or path.stat().st_size > MEMORY:  # which importing it will say
        return ()
    with open_file(path, "the model", ModelError, None) as file:
        if _MARK not in (file.read() or b""):
            return ()
    proto, folder = read_model(path, MEMORY)
    root = folder or Path()
    names = {e.value for t in _tensors(proto) for e in t.external_data if e.key == "location"}
    return tuple(root / name for name in sorted(names))


def _tensors(model: Any) -> Iterator[Any]:
    """The constant tensors of a model, those in its functions, branches and loops included."""
    for graph in [model.graph, *model.functions]:
        yield from getattr(graph, "initializer", ())
        for node in all_nodes(graph):
            for a in node.attribute:
                yield from [a.t, *a.tensors]
                for inner in [a.g, *a.graphs]:
                    yield from inner.initializer
