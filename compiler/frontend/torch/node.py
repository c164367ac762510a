"""What converters of torch's operators see: a node of an exported graph, with its arguments by the
names of the operator's schema.

What ONNX has an operator for is written by its converter (`spelled`), so that both readers make the
same program of the same network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.frontend import symbolic_ops
from compiler.frontend.node import CONVERTERS, ByDefinition, Node, Results
from compiler.frontend.torch.element_types import dtype_of
from compiler.frontend.values import Imported, Symbolic, constant_of, symbolic
from compiler.ir.expr import Atom, Constant, Var, tensor_type
from compiler.symbolic import Dim, dim
from compiler.types.dtypes import INT64, DType


@dataclass(frozen=True)
class Ref:
    """An argument that another node computes; `dtype`: torch's element type, None of a number.
    `strides`: how far apart torch has neighbours along each axis in memory, in elements."""

    name: str
    dtype: Any = None
    rank: int = 0
    strides: tuple[Any, ...] = ()


@dataclass(frozen=True)
class TorchNode(Node):
    """One node of torch's graph being converted; `op` is the operator's name (`aten.add`).

    Attributes:
        label: how errors name it, with the path of its module.
        args: arguments by the schema's names, with defaults: numbers, Refs, and lists of them.
        dtypes: torch's element types of its outputs; None of what is no tensor.
        fresh: makes a name of a value that no node has.
        named: gives a value a name by which nodes find it.
        drawn: of a shape and a probability: bools that are true with it, others for every draw.
    """

    label: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[Any, ...] = ()
    fresh: Callable[[str], str] = str
    named: Callable[[Imported], str] = str
    drawn: Callable[[Sequence[Dim], float], Atom] | None = None

    @property
    def where(self) -> str:
        """How errors name the node."""
        return self.label

    # ---- arguments -------------------------------------------------------------------------------
    def arg(self, name: str) -> Any:
        """An argument as it is; None if it is not given."""
        return self.args.get(name)

    def tensor(self, name: str) -> Imported:
        """An argument that is a tensor.

        Raises:
            UnsupportedError: it is none.
        """
        return self.imported(self.arg(name), name)

    def imported(self, given: Any, what: str = "an argument") -> Imported:
        """The value of a Ref; numbers become scalars."""
        if isinstance(given, Ref):
            return self.graph.value(given.name)
        if isinstance(given, (bool, int, float)):
            return Constant.of(np.asarray(given))
        raise self.unsupported(f"{what}={given!r}")

    def x(self, name: str = "self") -> Atom:
        """An argument that is a tensor, as an operand."""
        return self.made(self.tensor(name))

    def made(self, v: Imported) -> Atom:
        """A value as an operand."""
        if not isinstance(v, Symbolic):
            return v
        return self.graph.computed(v, self.graph.printable(self.outputs[0]))

    def in_dtype(self, name: str, dtype: DType) -> Atom:
        """A tensor or a number, converted to `dtype`."""
        given = self.arg(name)
        if isinstance(given, (bool, int, float)):
            return constant_of(given, dtype)
        return self.converted(self.made(self.imported(given, name)), dtype)

    def converted(self, x: Atom, dtype: DType) -> Atom:
        """`x` in `dtype`."""
        if tensor_type(x).dtype == dtype:
            return x
        return self.step("cast", x, dtype=str(dtype))

    def number(self, name: str) -> Any:
        """A number that is known, or None if it is not given.

        Raises:
            UnsupportedError: the program computes it.
        """
        given = self.arg(name)
        if not isinstance(given, Ref):
            return given
        v = self.graph.value(given.name)
        if isinstance(v, Constant) and v.data.size == 1:
            return v.data.reshape(()).item()
        raise self.unsupported(f"{name} computed at run time")

    def numbers(self, name: str, count: int) -> tuple[int, ...]:
        """A list of numbers that are known; one is meant for all `count`."""
        given = self.arg(name)
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        known = [self.size(x) for x in listed]
        if not all(isinstance(d, int) for d in known):
            raise self.unsupported(f"{name}={tuple(map(str, known))}, which is symbolic")
        return tuple(int(str(d)) for d in (known * count if len(known) == 1 else known))

    def size(self, given: Any) -> Dim:
        """A whole number, perhaps symbolic.

        Raises:
            UnsupportedError: it is known only when the program runs.
        """
        if not isinstance(given, Ref):
            return int(given)
        v = self.graph.value(given.name)
        if isinstance(v, Var):
            raise self.unsupported(f"the number {given.name!r} computed at run time")
        return dim(v.data.astype(object).reshape(-1)[0])

    def sizes(self, name: str) -> tuple[Dim, ...]:
        """A list of sizes."""
        return tuple(self.size(x) for x in self.arg(name))

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """A list of axes, counted from the front, ascending; all if none are given."""
        given = self.arg(name)
        if given is None or given == []:
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(sorted(self.front(int(a), max(rank, 1)) for a in listed))

    @property
    def dtype(self) -> DType:
        """The dtype of the first output."""
        return dtype_of(self.dtypes[0])

    # ---- emission --------------------------------------------------------------------------------
    def spelled(self, op: str, *operands: Imported | None, **attrs: Any) -> Results:
        """The node as ONNX's operator `op`, whose converter writes it.

        Raises:
            UnsupportedError: the converter has no form for these attributes.
        """
        names = tuple("" if v is None else self.named(v) for v in operands)
        node = replace(self, op=op, inputs=names, attrs=attrs)
        try:
            known = symbolic_ops.evaluate(node)
            return CONVERTERS[op](node) if known is None else known
        except ByDefinition:
            raise UnsupportedError(f"its form as {op} is not supported") from None

    def spelled_step(self, op: str, *operands: Imported | None, **attrs: Any) -> Imported:
        """The same, on the way to the output."""
        node = replace(self, outputs=(self.fresh(f"{self.outputs[0]}_{op.lower()}"),))
        return only(node.spelled(op, *operands, **attrs))

    def spelled_steps(
        self, op: str, count: int, *operands: Imported | None, **attrs: Any
    ) -> list[Atom]:
        """The same of an operator with `count` outputs."""
        names = tuple(self.fresh(f"{self.outputs[0]}_{op.lower()}") for _ in range(count))
        found = replace(self, outputs=names).spelled(op, *operands, **attrs)
        values = [found] if isinstance(found, (Var, Constant, Symbolic)) else list(found)
        return [self.made(v) for v in values[:count]]


def only(results: Results) -> Imported:
    """The first of a converter's results."""
    return results if isinstance(results, (Var, Constant, Symbolic)) else results[0]


def whole(values: Sequence[Dim]) -> Imported:
    """A vector of sizes as ONNX's operators take it."""
    return symbolic(list(values), INT64)


TorchConverter = Callable[[TorchNode], Results]

ATEN: dict[str, TorchConverter] = {}
"""Operator of torch (`aten.add`, of any overload) -> converter; the aten_*.py files fill it."""


def aten(*ops: str) -> Callable[[TorchConverter], TorchConverter]:
    """Decorator: the function converts torch's operators `ops`, of the namespace aten if they name
    none."""

    def register(f: TorchConverter) -> TorchConverter:
        for op in ops:
            key = op if "." in op else f"aten.{op}"
            assert key not in ATEN, key
            ATEN[key] = f
        return f

    return register
