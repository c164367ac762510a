"""A region as an ONNX model of its own: nodes with their weights inside, and plain tensors (or
strings, sequences ...) around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.frontend.element_types import NARROW
from compiler.frontend.foreign.border import Unit
from compiler.frontend.limits import Budget
from compiler.frontend.local_functions import all_nodes
from compiler.frontend.model_file import constant
from compiler.ir.expr import Constant
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType

RANDOM = {
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
    "Multinomial", "Dropout",
}  # fmt: skip
"""Operators that give other results each time they run."""
INSIDE = 1 << 30
"""Bytes of weights that become part of a region; more are its operands, as others are."""
_FLOAT, _EXTERNAL = 1, 1
_PLAIN = {"int8": 3, "uint8": 2}


@dataclass
class Submodel:
    """A region that is being written.

    Attributes:
        source: the ModelProto that it is part of.
        unit: its nodes.
        model: the model.
        casts: nodes at its border, of element types that numpy does not have.
        dims: names of its inputs' dimensions -> the program's.
    """

    source: Any
    unit: Unit
    model: Any = field(init=False)
    before: list[Any] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)
    dims: dict[str, Any] = field(default_factory=dict)
    left: int = INSIDE

    def __post_init__(self) -> None:
        import onnx

        self.model = onnx.ModelProto()
        self.model.ir_version = self.source.ir_version
        self.model.opset_import.extend(self.source.opset_import)
        self.model.graph.name = "region"
        names = {*self.unit.reads, *self.unit.writes}
        self._taken = set(names)

    def fresh(self, stem: str) -> str:
        """A name that no value of the region has."""
        name, k = stem, 1
        while name in self._taken:
            name, k = f"{stem}_{k}", k + 1
        self._taken.add(name)
        return name

    def take_input(self, name: str, kind: Any) -> None:
        """A value from outside that is no tensor of numbers; `kind`: its TypeProto."""
        made = self.model.graph.input.add()
        made.name = name
        made.type.CopyFrom(kind)

    def take_tensor(self, name: str, code: int, t: TensorType) -> DType | None:
        """A tensor from outside.

        Returns:
            The dtype that it is to be given in, if not its own.
        """
        import onnx

        plain = _plain_code(code)
        shape = [d if isinstance(d, int) else self._dim(d) for d in t.shape]
        outer = name if plain == code else self.fresh(f"{name}_given")
        info = onnx.helper.make_tensor_value_info(outer, plain, shape)
        self.model.graph.input.append(info)
        if plain == code:
            return None
        self.before.append(onnx.helper.make_node("Cast", [outer], [name], to=code))
        return None if code in NARROW else DType.parse("float32")

    def take_weight(self, name: str, code: int, c: Constant) -> bool:
        """A known tensor; False if it is too large to be part of the region."""
        import onnx

        if c.data.nbytes > self.left:
            return False
        self.left -= c.data.nbytes
        t = onnx.TensorProto(dims=c.data.shape, data_type=code, name=name)
        if code in NARROW:
            t.name, t.data_type = self.fresh(f"{name}_bytes"), _plain_code(code)
            self.before.append(onnx.helper.make_node("Cast", [t.name], [name], to=code))
        data = np.ascontiguousarray(c.data)
        t.raw_data = data.astype(data.dtype.newbyteorder("<")).tobytes()
        self.model.graph.initializer.append(t)
        return True

    def take_proto(self, t: Any) -> None:
        """A weight as the file has it: one that is sparse, or of strings."""
        sparse = hasattr(t, "indices")
        (self.model.graph.sparse_initializer if sparse else self.model.graph.initializer).append(t)

    def give(self, name: str, code: int) -> None:
        """A result; `code`: its element type, if it is a tensor and that is known."""
        import onnx

        outer, plain = name, _plain_code(code)
        if plain != code:
            outer = self.fresh(f"{name}_given")
            self.after.append(onnx.helper.make_node("Cast", [name], [outer], to=plain))
        out = self.model.graph.output.add()
        out.name = outer

    def bring_in(self, folder: Path | None, budget: Budget) -> None:
        """Add the nodes, with what their tensors hold in files beside the model: nothing but us
        reads these, as it does for any model.

        Raises:
            ModelError, UnsupportedError: see `compiler.frontend.model_file.constant`.
        """
        self.model.graph.node.extend([*self.before, *self.unit.nodes, *self.after])
        for t in tensors_in(self.model):
            if t.data_location != _EXTERNAL:
                continue
            if t.data_type in NARROW:
                raise UnsupportedError("integers of 2 or 4 bits in a file beside the model")
            data = constant(t, folder, f"tensor {t.name!r}", budget).data
            t.raw_data = data.astype(data.dtype.newbyteorder("<")).tobytes()
            t.ClearField("data_location")
            del t.external_data[:]

    def finish(self) -> bytes:
        """The model."""
        self._seed()
        default = {o.domain for o in self.model.opset_import} & {"", "ai.onnx"}
        if not default:
            entry = self.model.opset_import.add()
            entry.domain, entry.version = "", 21
        data: bytes = self.model.SerializeToString()
        return data

    def asking_for_rank(self, k: int) -> bytes:
        """The model with the shape of its result `k` as its only result: onnxruntime says how long
        that is, but not whether a result without dimensions is a scalar or of unknown rank."""
        import onnx

        asking = onnx.ModelProto()
        asking.CopyFrom(self.model)
        shape = self.fresh("shape_of_result")
        name = asking.graph.output[k].name
        asking.graph.node.append(onnx.helper.make_node("Shape", [name], [shape]))
        del asking.graph.output[:]
        asking.graph.output.add().name = shape
        data: bytes = asking.SerializeToString()
        return data

    def _seed(self) -> None:
        """Give random nodes seeds of their own: in a model of one node, onnxruntime draws the same
        numbers as in any other."""
        import onnx

        every = [n.name or n.output[0] for n in all_nodes(self.source.graph) if n.output]
        for n in all_nodes(self.model.graph):
            if n.op_type in RANDOM and not any(a.name == "seed" for a in n.attribute):
                seed = 1 + every.index(n.name or n.output[0])
                given = seed if n.op_type == "Dropout" else float(seed)
                n.attribute.append(onnx.helper.make_attribute("seed", given))

    def _dim(self, d: Any) -> str:
        known = next((name for name, x in self.dims.items() if x == d), "")
        if not known:
            known = f"dtypelab_{len(self.dims)}"
            self.dims[known] = d
        return known


def tensors_in(message: Any) -> Iterator[Any]:
    """All TensorProtos in a protobuf message."""
    for about, value in message.ListFields():
        if about.type != about.TYPE_MESSAGE:
            continue
        for v in [value] if hasattr(value, "ListFields") else value:
            if v.DESCRIPTOR.name == "TensorProto":
                yield v
            else:
                yield from tensors_in(v)


def _plain_code(code: int) -> int:
    """The element type in which values of an element type go over the border: their own if numpy
    has it, float32 for floats that it has not, bytes for narrow integers."""
    if code in NARROW:
        return _PLAIN[str(NARROW[code].dtype)]
    return code if code in _BUILTIN or not code else _FLOAT


_BUILTIN = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13}
