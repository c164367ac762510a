"""What converters see: one ONNX node with its operands, attributes, and a way to emit calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from compiler.boundary.index_ranges import IndexRange
from compiler.errors import ModelError, UnsupportedError
from compiler.frontend.assuming import Assuming
from compiler.frontend.limits import Budget
from compiler.frontend.values import Imported, Symbolic, numbers
from compiler.ir.expr import Atom, Constant, Function, TupleGetItem, Value, Var, tensor_type
from compiler.symbolic import Dim, Index, dim
from compiler.symbolic import Var as Dimension
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType, shape_text


class ByDefinition(Exception):
    """A converter has no form of its own for these attributes and operands: the node is imported as
    the standard's definition of its operator."""


class Graph(Protocol):
    """The importer's state, as nodes use it."""

    opset: int
    budget: Budget
    assuming: Assuming
    counts: dict[Dimension, Atom | tuple[Atom, int]]
    """Dimensions that are found at run time, and the scalars that say how large they are; or a
    value and the axis of it that has this size."""
    matched: dict[tuple[Atom | Index, str], Dimension]
    """Scalars and expressions that have been found to be sizes, and the dimensions that they are;
    or that they are if not negative ("or 0")."""

    compared: dict[Atom, tuple[Dim, Dim]]
    """What says, when the program runs, whether two sizes are equal."""

    def is_equal(self, a: Dim, b: Dim) -> bool:
        """Whether two sizes are equal by what has been assumed."""
        ...

    def value(self, name: str) -> Imported:
        """The value of an ONNX name."""
        ...

    def atom(self, name: str) -> Atom:
        """The value as an operand; symbolic integers are computed by the program."""
        ...

    def emit(
        self, op: str, args: Sequence[Atom], attrs: Mapping[str, Any], name: str, origin: str
    ) -> Atom:
        """Append a call (or fold it, when it is small and all operands are constants)."""
        ...

    def bind(self, value: Value, name: str, *origins: str) -> Var:
        """Append a binding."""
        ...

    def inline(self, graph: Any, operands: Sequence[Imported]) -> list[Imported]:
        """Write out the nodes of a GraphProto, whose inputs are `operands`; its outputs."""
        ...

    def known(self, v: Imported) -> Constant | None:
        """The constant that a value is, or is dequantized from (if it is small)."""
        ...

    def maker(self, v: Var) -> Value | None:
        """What the program computes a variable by; None of parameters."""
        ...

    def sources(self, name: str) -> list[str]:
        """The model's inputs that a value is computed from."""
        ...

    def element(self, name: str) -> int:
        """ONNX code of a value's element type."""
        ...

    def mark(self, name: str, code: int) -> None:
        """Remember that a value is of a narrow integer type."""
        ...

    def nested(self, params: Sequence[Var], make: Callable[[], Sequence[Atom]]) -> Function:
        """A function inside the program: what `make` emits, and the results that it gives."""
        ...

    def computed(self, v: Symbolic, stem: str) -> Atom:
        """Symbolic integers, computed by the program."""
        ...

    def runs(self) -> bool:
        """Whether what is imported now runs in every call: it is in no branch and no loop."""
        ...

    def note_indices(self, r: IndexRange, v: Var | None = None) -> None:
        """Have calls check positions, if `v` that holds them is an input."""
        ...

    def is_given(self, size: Index) -> bool:
        """Whether the model's inputs tell a size, so that its dimensions are at least 1."""
        ...

    def rewind(self) -> Callable[[], None]:
        """What takes back the bindings that are appended from now on."""
        ...

    def printable(self, name: str) -> str:
        """The variable name of an ONNX value name."""
        ...

    def intermediate(self, stem: str) -> str:
        """A variable name that no ONNX value has."""
        ...


@dataclass(frozen=True)
class Node:
    """One ONNX node being converted."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    graph: Graph
    given: Mapping[int, Constant] = field(default_factory=dict)
    """Inputs whose value is taken to be known (see compiler.frontend.choices)."""

    @property
    def opset(self) -> int:
        """Version of the default operator set."""
        return self.graph.opset

    @property
    def origin(self) -> str:
        """The node's name, or its first output's when it has none."""
        return self.name or self.outputs[0]

    @property
    def where(self) -> str:
        """How errors name the node."""
        return f"node {self.origin!r} ({self.op})"

    # ---- operands --------------------------------------------------------------------------------
    def has(self, i: int) -> bool:
        """Whether input `i` is given (optional inputs are left out, or empty)."""
        return i < len(self.inputs) and self.inputs[i] != ""

    def value(self, i: int) -> Imported:
        """Input `i` as it is.

        Raises:
            ModelError: the node has no such input.
        """
        if i in self.given:
            return self.given[i]
        if not self.has(i):
            raise ModelError(f"{self.where} lacks its input {i}")
        return self.graph.value(self.inputs[i])

    def atom(self, i: int) -> Atom:
        """Input `i` as an operand."""
        self.value(i)
        return self.given.get(i) or self.graph.atom(self.inputs[i])

    def atoms(self) -> list[Atom]:
        """All inputs as operands; at least one."""
        return [self.atom(i) for i in range(max(1, len(self.inputs)))]

    def type(self, i: int) -> TensorType:
        """Type of input `i`."""
        return tensor_type(self.atom(i))

    def element(self, i: int) -> int:
        """ONNX code of the element type of input `i`."""
        self.value(i)
        return self.graph.element(self.inputs[i])

    def mark(self, i: int, code: int) -> None:
        """Say that output `i` is of a narrow integer type (see element_types.NARROW)."""
        self.graph.mark(self.outputs[i], code)

    def constant(self, i: int) -> Array | None:
        """The numbers of input `i` if they are known now, else None."""
        v = self.graph.known(self.value(i))
        return None if v is None else numbers(v)

    def with_input(self, i: int, value: Constant) -> Node:
        """The same node with input `i` known: one of several ways to write it out, whose variables
        have names of their own."""
        return replace(self, given={**self.given, i: value})

    def is_computed(self, i: int) -> bool:
        """Whether the program computes the numbers of input `i`."""
        return isinstance(self.value(i), Var)

    def known(self, i: int, what: str) -> Array:
        """The numbers of input `i`.

        Raises:
            UnsupportedError: it is computed at run time.
        """
        data = self.constant(i)
        if data is None:
            given = ", ".join(f"{name!r}: ..." for name in self.graph.sources(self.inputs[i]))
            advice = f"give constants={{{given}}}, or " if given else ""
            raise self.unsupported(
                f"{what} computed at run time; {advice}fix symbolic dimensions with shapes=..."
            )
        return data

    def dims(self, i: int, what: str) -> tuple[Dim, ...]:
        """A vector of integers, possibly symbolic.

        Raises:
            UnsupportedError: it is computed at run time.
        """
        v = self.value(i)
        data = v.data if isinstance(v, Symbolic) else self.known(i, what)
        return tuple(dim(d) for d in data.astype(object).reshape(-1))

    # ---- attributes ------------------------------------------------------------------------------
    def attr(self, name: str, default: Any = None) -> Any:
        """Attribute `name`; lists are tuples and strings are str. Numbers are those of float32, as
        all floats of a file are, the default too."""
        given = self.attrs.get(name, default)
        return float(np.float32(given)) if isinstance(given, float) else given

    def need(self, name: str) -> Any:
        """Attribute `name`.

        Raises:
            ModelError: it is missing.
        """
        if name not in self.attrs:
            raise ModelError(f"{self.where} lacks its attribute {name!r}")
        return self.attrs[name]

    def expect(self, name: str, default: Any, *allowed: Any) -> Any:
        """Attribute `name`, which must be one of `allowed`.

        Raises:
            UnsupportedError: it is not.
        """
        v = self.attr(name, default)
        if v not in allowed:
            raise self.unsupported(f"{name}={v!r}; supported: {', '.join(map(repr, allowed))}")
        return v

    def ints(self, name: str, i: int, since: int) -> tuple[int, ...] | None:
        """Integers that are an attribute before opset `since`, and input `i` from it on."""
        if self.opset < since:
            v = self.attr(name)
            return None if v is None else tuple(v)
        return tuple(int(x) for x in self.known(i, name).reshape(-1)) if self.has(i) else None

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """The axis attribute, counted from the front."""
        return self.front(self.attr(name, default), rank)

    def front(self, axis: int, rank: int) -> int:
        """`axis` of a tensor of rank `rank`, counted from the front.

        Raises:
            ModelError: out of range.
        """
        if not -rank <= axis < rank:
            raise ModelError(f"{self.where}: axis {axis} is out of range for rank {rank}")
        return axis % rank

    def unsupported(self, what: str) -> UnsupportedError:
        """An error naming the node and its operator."""
        return UnsupportedError(f"{self.where} is not supported with {what}")

    def rank_of(self, i: int, *allowed: int) -> int:
        """Rank of input `i`.

        Raises:
            UnsupportedError: it is not one of `allowed`.
        """
        t = self.type(i)
        if t.rank not in allowed:
            raise self.unsupported(f"an input of shape {shape_text(t.shape)}")
        return t.rank

    def reserve(self, *shape: int) -> None:
        """Account for a constant of this shape (of 8-byte elements) that is about to be made.

        Raises:
            ModelError: the model takes more memory than it may.
        """
        self.graph.budget.reserve(shape, 8, self.where)

    # ---- emission --------------------------------------------------------------------------------
    def call(self, op: str, *args: Atom, **attrs: Any) -> Atom:
        """Emit the call that computes the node's (first) output."""
        return self.result(0, op, *args, **attrs)

    def output(self, v: Imported, i: int) -> Atom:
        """A value that is to be output `i`, as an operand."""
        if not isinstance(v, Symbolic):
            return v
        return self.graph.computed(v, self.graph.printable(self.outputs[i] or self.origin))

    def result(self, i: int, op: str, *args: Atom, **attrs: Any) -> Atom:
        """Emit the call that computes output `i`."""
        return self.graph.emit(op, args, attrs, self._variable(i), self.origin)

    def wants(self, i: int) -> bool:
        """Whether output `i` is in use."""
        return i < len(self.outputs) and self.outputs[i] != ""

    def empty(self, shape: Sequence[Dim], dtype: DType) -> Constant:
        """A tensor without elements.

        Raises:
            compiler.errors.TypeInferenceError: a dimension is symbolic.
        """
        return Constant(np.empty(TensorType.of(shape, dtype).static_shape, dtype.storage), dtype)

    def step(self, op: str, *args: Atom, **attrs: Any) -> Atom:
        """Emit a call on the way to the output."""
        stem = f"{self.graph.printable(self.outputs[0])}_{op.rpartition('.')[2]}"
        return self.graph.emit(op, args, attrs, self.graph.intermediate(stem), self.origin)

    def field(self, value: Atom, index: int) -> Var:
        """Bind field `index` of a tuple as output `index`."""
        return self.graph.bind(TupleGetItem(value, index), self._variable(index), self.origin)

    def _variable(self, i: int) -> str:
        """What the variable that is output `i` is called."""
        name = self.graph.printable(self.outputs[i])
        return self.graph.intermediate(name) if self.given else name


Results = Imported | Sequence[Imported]
Converter = Callable[[Node], Results]

CONVERTERS: dict[str, Converter] = {}
"""Operator -> converter; the converters_*.py files fill it."""


def converts(*ops: str) -> Callable[[Converter], Converter]:
    """Decorator: the function converts the ONNX operators `ops`."""

    def register(f: Converter) -> Converter:
        for op in ops:
            assert op not in CONVERTERS, op
            CONVERTERS[op] = f
        return f

    return register
