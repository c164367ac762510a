"""The state of one import of a graph of torch's operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from compiler.errors import ModelError, UnsupportedError
from compiler.frontend.element_types import NARROW, element_code, exotic_name
from compiler.frontend.limits import Budget
from compiler.frontend.named_values import NamedValues
from compiler.frontend.node import Results
from compiler.frontend.torch.element_types import constant_of_tensor, dtype_of
from compiler.frontend.torch.exporting import (
    FIELD,
    check_operators,
    module_path,
    packet,
    place,
)
from compiler.frontend.torch.node import ATEN, Ref, TorchNode
from compiler.frontend.torch.signature import size_of
from compiler.frontend.torch.traced import Traced
from compiler.frontend.values import Imported, symbolic
from compiler.ir.expr import Atom, Call, Function, Var, tensor_type
from compiler.op.assume import ASSUME
from compiler.symbolic import Dim, Index
from compiler.symbolic import Var as Dimension
from compiler.types.dtypes import INT64

OPSET = 23
"""The version of ONNX's operators as which nodes are spelled."""
DRAW = "random_draw"
"""The last input of programs that draw random numbers, an int64[]."""


_MOVES = {
    FIELD, "aten.t", "aten.transpose", "aten.permute", "aten.view", "aten.reshape",
    "aten._unsafe_view", "aten.expand", "aten.clone", "aten.detach", "aten.sym_size",
}  # fmt: skip


class TorchImport(NamedValues):
    """The state of one import; implements `compiler.frontend.node.Graph`.

    Args:
        traced: a graph of operators that have converters.
        budget: what the import may take.
    """

    fixed_with = "sizes that dynamic_shapes leaves out"

    def __init__(self, traced: Traced, budget: Budget):
        super().__init__(budget)
        self.traced, self.opset = traced, OPSET
        self._count, self._draws = 0, 0
        self._draw: Var | None = None
        self._aliases: dict[str, str] = {}
        self._bounds = dict(traced.bounds)
        computed = (n for n in traced.nodes if n.op == "call_function")
        apart = [n for n in computed if not is_move(n)]
        self._alone = Counter(map(module_path, apart))
        self._sources = Counter(map(_source, apart))

    # ---- the import ------------------------------------------------------------------------------
    def run(self) -> Function:
        """The function that the graph computes.

        Raises:
            UnsupportedError: an operator, an argument or an element type that we do not implement.
        """
        check_operators(self.traced.nodes)
        for n in self.traced.nodes:
            if n.op == "placeholder":
                self._given(n)
            elif n.op == "call_function":
                self._convert(n)
            elif n.op == "get_attr":
                self._held(n, _attribute(n))
            elif n.op != "output":
                raise UnsupportedError(f"{place(n)}: a node {n.op} is not supported")
        results = [self._aliases.get(x.name, x.name) for _, x in self.traced.results]
        if not results:
            raise ModelError("the module returns no tensors")
        return self.builder.finish(*map(self.atom, results))

    def made(self, n: Any) -> Imported | None:
        """The value of a node, once the graph was imported; None if it has none."""
        return self._values.get(self._aliases.get(n.name, n.name))

    def _given(self, n: Any) -> None:
        """A parameter, a buffer, a constant, an input, or a size of one."""
        value = n.meta.get("val")
        if n.name in self.traced.held:
            self._held(n, self.traced.held[n.name])
        elif hasattr(value, "shape"):
            self._input(n, value)
        elif hasattr(value, "node") and hasattr(value.node, "expr"):
            self._values[n.name] = symbolic(size_of(value, self.traced.dimensions), INT64)
        elif n.users:
            raise UnsupportedError(f"the input {n.name!r} is {value!r}, no tensor")

    def _held(self, n: Any, tensor: Any) -> None:
        """A tensor that is known."""
        if n.users:
            what = repr(n.name)
            self.budget.reserve(tuple(tensor.shape), tensor.element_size(), what)
            name = self.traced.names.get(n.name, "")
            value = replace(constant_of_tensor(tensor, what), name=name)
            self._values[n.name] = value
            if getattr(tensor, "requires_grad", False):
                self.learned.add(value)

    def _input(self, n: Any, value: Any) -> None:
        name = self.traced.inputs.get(n.name, str(n.name))
        self.inputs.append(name)
        self.names.call(n.name, name)
        shape = tuple(size_of(d, self.traced.dimensions) for d in value.shape)
        try:
            param = self.builder.param(name, shape, dtype_of(value.dtype))
        except UnsupportedError as e:
            raise UnsupportedError(f"input {name!r}: {e}") from None
        self.names.taken |= {str(v) for d in shape if isinstance(d, Index) for v in d.vars()}
        self._values[n.name] = self._within(param)

    def _within(self, x: Var) -> Var:
        """An input whose sizes are within the bounds that torch took for granted as it traced."""
        for d in tensor_type(x).shape:
            low, high = (
                self._bounds.pop(d.name, (1, None)) if isinstance(d, Dimension) else (1, None)
            )
            size = Index.of(d)
            sizes = [Index.of(low - 1) // size] if low > 2 else []  # 2 is what it calls "not 1"
            sizes += [] if high is None else [size // (high + 1)]
            for zero in sizes:
                attrs = ASSUME.make_attrs(size=zero, equal=0, node="the traced module")
                x = self.bind(Call(ASSUME, (x,), attrs), f"{x.name}_within", x.name)
        return x

    # ---- nodes -----------------------------------------------------------------------------------
    def _convert(self, n: Any) -> None:
        self.budget.step()
        op = packet(n.target)
        if op == FIELD:
            return  # an output of another node, which has its name
        outputs, dtypes = self._outputs(n)
        path = module_path(n)
        single = path and self._alone[path] == 1 and not is_move(n)
        short = self._called_as(n) or op.partition(".")[2].strip("_")
        origin = path if single else f"{path}.{short}" if path else short
        self.names.call(outputs[0] or n.name, origin)
        args = self._arguments(n)
        label = f"node {origin!r} ({op})"
        node = TorchNode(
            op, origin, tuple(refs(args)), outputs, {}, self, label=label, args=args,
            dtypes=dtypes, fresh=self._fresh, named=self._named,
            drawn=partial(self._drawn, outputs[0] or n.name) if self.traced.draws else None,
        )  # fmt: skip
        self.keep(node, self.results_of(node, lambda: self._made(node)))

    def _called_as(self, n: Any) -> str:
        """What the module's code calls that became this node alone, where that is an operator of
        which there is a converter: the graphs of torch.compile have parts of operators where
        exported ones have them whole, and plans name them."""
        key, name = _source(n)
        alone = name and not is_move(n) and self._sources[key, name] == 1
        return name if alone and f"aten.{name}" in ATEN else ""

    def _made(self, node: TorchNode) -> Results:
        return ATEN[node.op](node)

    def _outputs(self, n: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """Names of a node's outputs, "" of those that nobody reads, and their element types."""
        value = n.meta.get("val")
        if not isinstance(value, (tuple, list)):
            return (str(n.name),), (getattr(value, "dtype", None),)
        names = [""] * len(value)
        for user in n.users:
            if packet(user.target) == FIELD:
                k = user.args[1]
                self._aliases[user.name] = names[k] = names[k] or str(user.name)
        return tuple(names), tuple(getattr(v, "dtype", None) for v in value)

    def _arguments(self, n: Any) -> dict[str, Any]:
        """Arguments by the names of the operator's schema; of Python's functions, by position."""
        schema = getattr(n.target, "_schema", None)
        if schema is None:
            return {str(k): self._argument(a) for k, a in enumerate(n.args)}
        args = {}
        for k, declared in enumerate(schema.arguments):
            given = n.kwargs.get(declared.name, declared.default_value)
            if k < len(n.args) and not declared.kwarg_only:
                given = n.args[k]
            args[declared.name] = self._argument(given)
        return args

    def _argument(self, a: Any) -> Any:
        if isinstance(a, (list, tuple)):
            return [self._argument(x) for x in a]
        if not hasattr(a, "meta"):
            return a
        value, name = a.meta.get("val"), self._aliases.get(a.name, a.name)
        strides = tuple(value.stride()) if hasattr(value, "stride") else ()
        return Ref(name, getattr(value, "dtype", None), getattr(value, "ndim", 0), strides)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem} #{self._count}"

    def _named(self, v: Imported) -> str:
        name = self._fresh("")
        self._values[name] = v
        return name

    def _drawn(self, stem: str, shape: Sequence[Dim], probability: float) -> Atom:
        """Bools that are true with a probability; every node has draws of its own."""
        if self._draw is None:
            self._draw = self.builder.param(self.intermediate(DRAW), (), INT64)
            self.inputs.append(self._draw.name)
        attrs = {"shape": tuple(shape), "probability": probability, "node": self._draws}
        self._draws += 1
        return self.emit("bernoulli", (self._draw,), attrs, self.intermediate(stem), stem)

    # ---- what nodes use (see Graph) --------------------------------------------------------------
    def element(self, name: str) -> int:
        """See Graph."""
        return element_code(tensor_type(self.atom(name)).dtype)

    def declared(self, v: Atom) -> str:
        """Name of a value's element type if numpy does not have it; else empty."""
        return exotic_name(element_code(tensor_type(v).dtype))

    def mark(self, name: str, code: int) -> None:
        """See Graph."""
        if code in NARROW:
            raise UnsupportedError("integers of 2 or 4 bits are not supported")

    def inline(self, graph: Any, operands: Sequence[Imported]) -> list[Imported]:
        """See Graph."""
        raise UnsupportedError("graphs inside a graph are not supported")


def _attribute(n: Any) -> Any:
    """The tensor that a graph's module has by a name."""
    found = n.graph.owning_module
    for part in str(n.target).split("."):
        found = getattr(found, part, None)
    if not hasattr(found, "element_size"):
        raise UnsupportedError(f"{place(n)}: functions as arguments are not supported")
    return found


def _source(n: Any) -> tuple[str, str]:
    """The call in the module's code that a node of torch.compile comes from, and the name of what
    it calls."""
    stack = n.meta.get("source_fn_stack") or [("", "")]
    key, called = stack[-1]
    return str(key), called if isinstance(called, str) else getattr(called, "__name__", "")


def is_move(n: Any) -> bool:
    """Whether a node only picks, moves or measures: a module that computes one thing beside these
    names it."""
    return packet(n.target) in _MOVES


def refs(x: Any) -> list[str]:
    """Names of what an argument refers to."""
    if isinstance(x, Ref):
        return [x.name]
    inner = x.values() if isinstance(x, dict) else x if isinstance(x, list) else ()
    return [name for a in inner for name in refs(a)]
