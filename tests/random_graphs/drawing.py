"""Grows a random graph node by node. Every node is run by onnxruntime on the values that its
operands have as soon as it is drawn, so that shapes, dtypes and the reference are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, helper

from random_graphs import oracle
from random_graphs.numbers_drawn import FLAVOURS, draw, is_float
from random_graphs.oracle import BFLOAT16, Array, Unavailable

SIZES = (1, 2, 3, 4, 5, 7)
"""Lengths of axes."""
LARGEST = 4096
"""Elements of a value; nodes that give more are not kept."""
OPSETS = (9, 11, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24)
NARROW_FLOATS = (np.dtype(np.float16), BFLOAT16)
INT64 = np.dtype(np.int64)
BOOL = np.dtype(bool)


@dataclass(frozen=True)
class Drawn:
    """A node, what it reads (values that its subgraphs read included), and what it gives."""

    proto: NodeProto
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    promoted: bool = False
    """Whether the reference computes in float32, as onnxruntime has no kernel of the dtype."""

    @property
    def op(self) -> str:
        """Operator, with the domain if it is not the default one."""
        return f"{self.proto.domain}.{self.proto.op_type}".lstrip(".")


@dataclass(frozen=True)
class Graph:
    """A drawn graph with the values of one run."""

    seed: int
    opset: int
    nodes: tuple[Drawn, ...]
    arrays: Mapping[str, Array]
    weights: frozenset[str]
    """Which values are stored in the model; those that no node gives are inputs."""

    @property
    def inputs(self) -> list[str]:
        """Values that are read, not stored, and given by no node."""
        given = {o for n in self.nodes for o in n.gives} | self.weights
        return list(dict.fromkeys(r for n in self.nodes for r in n.reads if r not in given))

    @property
    def ends(self) -> list[str]:
        """Values that no node reads."""
        read = {r for n in self.nodes for r in n.reads}
        return [o for n in self.nodes for o in n.gives if o not in read]

    def of(self, nodes: Sequence[Drawn]) -> Graph:
        """Some of the nodes; what the others gave them are inputs."""
        return replace(self, nodes=tuple(nodes))

    def rerun(self, inputs: Mapping[str, Array]) -> Graph:
        """The graph with the values of another run.

        Raises:
            Unavailable: onnxruntime refuses these values.
        """
        arrays = {n: a for n, a in self.arrays.items() if n in self.weights} | dict(inputs)
        for n in self.nodes:
            found = reference(n, arrays, self.weights, self.opset)
            arrays |= dict(zip(n.gives, found, strict=True))
        return replace(self, arrays=arrays)


def reference(
    n: Drawn, arrays: Mapping[str, Array], weights: frozenset[str] | set[str], opset: int
) -> list[Array]:
    """What onnxruntime gives for one node.

    Raises:
        Unavailable: it refuses the node.
    """
    read = {r: arrays[r] for r in n.reads}
    if n.op in oracle.ENDS_ON_NOTHING and not all(a.size for a in read.values()):
        raise oracle.Unavailable(f"{n.op} of nothing ends the process")
    if n.promoted:
        read = {r: promoted(a) for r, a in read.items()}
    stored = {r: a for r, a in read.items() if r in weights}
    given = {r: a for r, a in read.items() if r not in weights}
    found = oracle.run(oracle.model([n.proto], given, n.gives, stored, opset), given)
    if n.promoted:
        narrow = next(arrays[r].dtype for r in n.reads if arrays[r].dtype in NARROW_FLOATS)
        with np.errstate(all="ignore"):
            found = [a.astype(narrow) if a.dtype == np.float32 else a for a in found]
    return found


def promoted(a: Array) -> Array:
    """Narrow floats as float32."""
    return a.astype(np.float32) if a.dtype in NARROW_FLOATS else a


Maker = Callable[["Drawing", str], None]
MAKERS: dict[str, Maker] = {}
"""Operator -> what draws a node of it; the makers_*.py files fill it."""


def draws(*ops: str) -> Callable[[Maker], Maker]:
    """Decorator: the function draws nodes of the operators `ops`."""

    def register(f: Maker) -> Maker:
        for op in ops:
            assert op not in MAKERS, op
            MAKERS[op] = f
        return f

    return register


@cache
def schema_of(op: str, opset: int) -> Any:
    """ONNX's schema; None where the operator does not exist (any more), or is not ONNX's."""
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


@cache
def dtypes_of(op: str, opset: int, operand: int) -> tuple[np.dtype, ...]:
    """The dtypes that an operand may have by its schema, of those that graphs are drawn of."""
    schema = schema_of(op, opset)
    variable = schema.inputs[min(operand, len(schema.inputs) - 1)].type_str
    named = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    names = [t.removeprefix("tensor(").removesuffix(")") for t in named.get(variable, [variable])]
    return tuple(_DTYPES[n] for n in names if n in _DTYPES)


_DTYPES = {
    "float": np.dtype(np.float32), "double": np.dtype(np.float64), "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16, "bool": BOOL,
    **{f"{u}int{b}": np.dtype(f"{u}int{b}") for u in ("", "u") for b in (8, 16, 32, 64)},
}  # fmt: skip


@dataclass
class Drawing:
    """A graph that grows."""

    rng: np.random.Generator
    opset: int
    home: np.dtype
    """The float dtype that most values have."""
    flavour: str
    empty: float
    """How likely a new axis has no elements."""
    pure: bool = False
    """Whether all floats are of the home dtype."""
    nodes: list[Drawn] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)
    count: int = 0

    # ---- chances ---------------------------------------------------------------------------------
    def chance(self, p: float = 0.5) -> bool:
        """True with probability `p`."""
        return bool(self.rng.random() < p)

    def any(self, of: Sequence[Any]) -> Any:
        """One of several things."""
        return of[int(self.rng.integers(len(of)))]

    def int(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def shape(self, rank: int) -> tuple[int, ...]:
        """A shape; now and then with an axis of no elements."""
        dims = [self.any(SIZES) for _ in range(rank)]
        while rank > 2 and np.prod(dims) > 512:
            dims[int(np.argmax(dims))] -= 2
        return tuple(0 if self.chance(self.empty) else int(d) for d in dims)

    def dtype(self, op: str, operand: int = 0, floats: bool = False) -> np.dtype:
        """A dtype that the operator takes there: mostly the graph's own float."""
        known = dtypes_of(op, self.opset, operand)
        known = tuple(d for d in known if is_float(d)) if floats else known
        if self.home in known and self.chance(0.75):
            return self.home
        if self.pure:
            known = tuple(d for d in known if not is_float(d) or d == self.home)
        if not known:
            raise Unavailable(f"{op} takes no dtype that is drawn")
        return self.any(known)

    # ---- operands --------------------------------------------------------------------------------
    def value(self, dtype: np.dtype, ranks: Sequence[int] = (0, 1, 2, 2, 3, 3, 4)) -> str:
        """A value of this dtype and of one of these ranks: an earlier one, or a new input."""
        fitting = [
            n
            for n, a in self.arrays.items()
            if a.dtype == dtype and a.ndim in ranks and n not in self.weights and _useful(a)
        ]
        if fitting and self.chance(0.7):
            return str(self.any(fitting[-12:]))
        return self.given(self.shape(self.any(ranks)), dtype)

    def given(
        self, shape: Sequence[int], dtype: np.dtype, weight: float = 0.3, flavour: str = ""
    ) -> str:
        """A new input of a shape (or a weight, so likely), or an earlier value of that shape."""
        fitting = [n for n, a in self.arrays.items() if a.dtype == dtype and a.shape == shape]
        if fitting and not flavour and self.chance(0.3) and _useful(self.arrays[fitting[-1]]):
            return fitting[-1]
        array = draw(self.rng, shape, dtype, flavour or self.flavour)
        return self.stored(array) if self.chance(weight) else self.input(array)

    def input(self, array: Array) -> str:
        """A new input with these numbers."""
        name = self.name("x")
        self.arrays[name] = array
        return name

    def stored(self, array: Any, dtype: Any = None) -> str:
        """A new weight of the model."""
        name = self.name("w")
        self.arrays[name] = np.asarray(array, dtype)
        self.weights.add(name)
        return name

    def numbers(self, values: Sequence[int] | int) -> str:
        """A weight of int64: axes, a shape, and the like."""
        return self.stored(np.asarray(values, np.int64))

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts with another one."""
        dims = [1 if self.chance(0.25) else d for d in shape]
        cut = self.int(0, len(dims)) if self.chance(0.4) else 0
        more = [self.int(2, 3)] if cut == 0 and len(dims) < 4 and self.chance(0.1) else []
        return (*more, *dims[cut:])

    def name(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def of(self, name: str) -> Array:
        """The numbers of a value."""
        return self.arrays[name]

    def axis(self, rank: int, beyond: int = 0) -> int:
        """An axis, from the front or from behind."""
        rank += beyond
        if rank == 0:
            raise Unavailable("a scalar has no axis")
        return self.int(-rank, rank - 1)

    # ---- nodes -----------------------------------------------------------------------------------
    def has(self, op: str, attribute: str) -> bool:
        """Whether the operator has an attribute in this opset."""
        schema = schema_of(op, self.opset)
        return schema is not None and attribute in schema.attributes

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: int = 1,
        captured: Sequence[str] = (),
        **attrs: Any,
    ) -> list[str]:
        """Add a node, and run it.

        Raises:
            Unavailable: onnxruntime does not run it, or what it gives is too large.
        """
        domain, _, kind = op.rpartition(".")
        gives = tuple(self.name("v") for _ in range(outputs))
        attrs = {k: v for k, v in attrs.items() if v is not None}
        proto = helper.make_node(kind, list(inputs), gives, domain=domain, **attrs)
        reads = tuple(dict.fromkeys(i for i in (*inputs, *captured) if i))
        drawn = Drawn(proto, reads, gives)
        try:
            found = reference(drawn, self.arrays, self.weights, self.opset)
        except Unavailable:
            if not any(self.arrays[r].dtype in NARROW_FLOATS for r in reads) or kind in _TYPED:
                raise
            drawn = replace(drawn, promoted=True)
            found = reference(drawn, self.arrays, self.weights, self.opset)
        if any(a.size > LARGEST or a.dtype not in _DTYPES.values() for a in found):
            raise Unavailable("a value is too large, or of another dtype")
        self.nodes.append(drawn)
        self.arrays |= dict(zip(gives, found, strict=True))
        return list(gives)


_TYPED = {"Cast", "CastLike", "BitCast", "EyeLike", "If", "Loop", "Scan"}
"""Operators whose meaning is in the dtypes: they are not computed in float32 instead."""


def _useful(a: Array) -> bool:
    """Whether most of it is finite: nodes that see nothing but NaN show nothing."""
    if not is_float(a.dtype) or a.size == 0:
        return True
    return bool(np.mean(ml_isfinite(a)) > 0.6)


def ml_isfinite(a: Array) -> Array:
    """np.isfinite, of bfloat16 too."""
    return np.isfinite(a.astype(np.float32) if a.dtype == ml_dtypes.bfloat16 else a)


def drawn_graph(
    seed: int, nodes: int, ops: Sequence[str] | None = None, home: Any = None
) -> tuple[Graph, dict[str, int]]:
    """A graph of so many nodes, and how many draws of each operator onnxruntime refused.

    Args:
        seed: draws everything.
        nodes: how many; fewer if refusals are many.
        ops: operators to draw; all that there are.
        home: the float dtype of all values; if None, one is drawn that most values have.
    """
    rng = np.random.default_rng([seed, nodes])
    floats = [np.float32] * 7 + [np.float64, np.float16, np.float16, BFLOAT16]
    g = Drawing(
        rng,
        opset=int(rng.choice(OPSETS)),
        home=np.dtype(home or floats[int(rng.integers(len(floats)))]),
        flavour=str(rng.choice(FLAVOURS)),
        empty=float(rng.choice([0, 0, 0, 0, 0.05])),
        pure=home is not None,
    )
    known = [o for o in ops or MAKERS if "." in o or schema_of(o, g.opset)]
    refused: dict[str, int] = {}
    tries = 0
    while len(g.nodes) < nodes and tries < 4 * nodes:
        tries += 1
        op = str(g.any(known))
        before = len(g.nodes)
        try:
            MAKERS[op](g, op)
        except Unavailable:
            del g.nodes[before:]
            refused[op] = refused.get(op, 0) + 1
    read = {r for n in g.nodes for r in n.reads} | {o for n in g.nodes for o in n.gives}
    arrays = {n: a for n, a in g.arrays.items() if n in read}
    return Graph(seed, g.opset, tuple(g.nodes), arrays, frozenset(g.weights & read)), refused
