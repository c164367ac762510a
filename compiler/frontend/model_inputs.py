"""What a model file says of its inputs, for callers that must know before they can import it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compiler.errors import UnsupportedError
from compiler.frontend import library  # noqa: F401  (what has converters)
from compiler.frontend.foreign.importing import plain_entries
from compiler.frontend.foreign.kernels import advice_for
from compiler.frontend.foreign.kinds import is_foreign
from compiler.frontend.limits import MEMORY
from compiler.frontend.model_file import opset_of, read_model
from compiler.frontend.signature import input_types
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class ModelInterface:
    """What a model file declares.

    Attributes:
        entries: its inputs, as ValueInfoProtos; weights are none.
        outputs: names, in order.
        output_dims: output name -> declared dimensions, None where they are symbolic or unknown
            (also of a whole shape, and of what is no tensor).
        branches: whether it has a node with branches.
        metadata: what else is said of it, by keys.
        advice: what may help if the types of its inputs are refused, as the end of a sentence.
    """

    entries: tuple[Any, ...]
    outputs: tuple[str, ...]
    output_dims: Mapping[str, tuple[int | None, ...] | None]
    branches: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""

    @property
    def inputs(self) -> dict[str, tuple[int | None, ...] | None]:
        """Input name -> declared dimensions, None where they are symbolic or unknown (also of a
        whole shape)."""
        return {entry.name: _dims(entry) for entry in self.entries}

    @property
    def packed(self) -> dict[str, str]:
        """The types, as text, of inputs that engines take as bytes (`compiler.boundary.packed`)."""
        return plain_entries(self.entries, {})[2]

    def types(
        self,
        shapes: Mapping[str, Sequence[int | str | None]] | None = None,
        engines: Sequence[str] = (),
    ) -> dict[str, TensorType]:
        """Input name -> type, as `from_onnx` with these shapes and engines gives them.

        Raises:
            ModelError: an input has no shape, or `shapes` does not fit.
            UnsupportedError: an element type that we do not have.
        """
        if engines:
            entries, wanted, _ = plain_entries(self.entries, shapes or {})
            return input_types(entries, wanted)
        try:
            return input_types(self.entries, shapes or {})
        except UnsupportedError as e:
            raise UnsupportedError(f"{e}{self.advice}") from None


def model_interface(model: str | Path | bytes) -> ModelInterface:
    """The inputs and outputs of a model.

    Raises:
        ModelError: the file cannot be read or is no model.
    """
    proto = read_model(model, MEMORY)[0]
    graph = proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    entries = tuple(e for e in graph.input if e.name not in weights)
    outputs = tuple(o.name for o in graph.output)
    branches = any(n.op_type == "If" for n in graph.node)
    said = {p.key: p.value for p in proto.metadata_props}
    dims = {o.name: _dims(o) for o in graph.output}
    advice = ""
    if any(is_foreign(e.type) for e in entries):
        advice = advice_for(proto, opset_of(proto))
    return ModelInterface(entries, outputs, dims, branches, said, advice)


def _dims(entry: Any) -> tuple[int | None, ...] | None:
    kind = entry.type.tensor_type
    dims = tuple(d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim)
    return dims if kind.HasField("shape") else None


def model_inputs(model: str | Path | bytes) -> dict[str, tuple[int | None, ...] | None]:
    """Input name -> declared dimensions, see `ModelInterface`.

    Raises:
        ModelError: the file cannot be read or is no model.
    """
    return model_interface(model).inputs
