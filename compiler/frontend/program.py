"""The program that an import has written so far: its bindings and names, and what is known of its
sizes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from compiler.boundary.index_ranges import IndexRange
from compiler.errors import UnequalSizes, UnsupportedError
from compiler.frontend.assuming import Assuming
from compiler.frontend.folding import computation, empty, folded, is_size
from compiler.frontend.limits import Budget
from compiler.frontend.values import Imported, Symbolic
from compiler.frontend.windows import Emit
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Call, Constant, Function, Value, Var, tensor_type
from compiler.ir.inference import infer_value
from compiler.symbolic import Dim, Index, IntLike, Quasi
from compiler.symbolic import Var as Dimension
from compiler.types.dtypes import INT64
from compiler.types.names import identifier, unique
from compiler.types.tensor_types import TensorType


class ValueNames:
    """ONNX value name -> variable name; `taken` holds every name that no variable may get again."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.taken: set[str] = set()

    def name_interface(self, inputs: Iterable[str], graph: Any) -> None:
        """Name inputs and outputs before all else: these have the model's own names, whatever is in
        them. A value that an Identity makes an output has the output's name."""
        outputs = [o.name for o in graph.output]
        for name in [*inputs, *outputs]:
            self._names[name] = name
            self.taken.add(name)
        makers = {name: n for n in graph.node for name in n.output}
        for output in outputs:
            maker = makers.get(output)
            while maker is not None and maker.op_type == "Identity" and maker.input:
                source = maker.input[0]
                if source in self._names or source not in makers:
                    break
                self._names[source] = self._names[output]
                maker = makers[source]

    def without(self, hidden: Container[str]) -> ValueNames:
        """The same names, but for values that others of a subgraph hide."""
        inner = ValueNames()
        inner._names = {k: v for k, v in self._names.items() if k not in hidden}
        inner.taken = self.taken
        return inner

    def printable(self, name: str) -> str:
        """The variable name of an ONNX value name."""
        if name not in self._names:
            self._names[name] = self.intermediate(name)
        return self._names[name]

    def call(self, name: str, variable: str) -> None:
        """Have a value's variable be called so, as far as that is possible."""
        self._names[name] = self.intermediate(variable)

    def intermediate(self, stem: str) -> str:
        """A variable name that no ONNX value has."""
        return unique(identifier(stem) or "v", self.taken)


MOST_ASSUMED = 16
"""How often a node, or a call, is tried anew because it needs sizes to be equal."""


class Program:
    """The bindings of a function and of those around it; what nodes use of them, see
    `compiler.frontend.node.Graph`."""

    def __init__(self, budget: Budget):
        self.budget = budget
        self.builder = FunctionBuilder()
        self._around: list[FunctionBuilder] = []
        self.names = ValueNames()
        self.assuming = Assuming(self.is_given)
        self.where = ""  # the node being converted
        self.quantized = False  # whether something is dequantized
        self.learned: set[Atom] = set()  # parameters: what has a gradient stays a call
        self._dequantized: dict[Var, Call] = {}  # constants that are, which UseIntegers reads
        self.compared: dict[Atom, tuple[Dim, Dim]] = {}
        self.counts: dict[Dimension, Atom | tuple[Atom, int]] = {}
        self.matched: dict[tuple[Atom | Index, str], Dimension] = {}
        self._makers: dict[Var, Value] = {}
        self._computed: dict[Any, Var] = {}  # integers, by how they are computed
        self.indices: dict[tuple[str, str, int], IndexRange] = {}

    def emit(
        self, op: str, args: Sequence[Atom], attrs: Mapping[str, Any], name: str, origin: str
    ) -> Atom:
        """See Graph."""
        from compiler.op.library import get_op

        self.budget.step()
        shape = attrs.get("newshape", ()) if op == "reshape" else ()
        if 0 in shape and -1 not in shape:  # a size: converters write out what ONNX says by 0
            attrs = {**attrs, "allowzero": True}
        definition = get_op(op)
        call = Call(definition, tuple(args), definition.make_attrs(**attrs))
        for _ in range(MOST_ASSUMED):
            try:
                result = infer_value(call)
                break
            except UnequalSizes as e:
                self.assuming.learn(e)
                given = tuple(self.renamed(a, e, origin) for a in call.args)
                if op == "reshape" and given == call.args and tensor_type(given[0]).rank > 1:
                    # No axis alone is to blame: all elements in a row have one size.
                    flat = self.emit(
                        op, given, {"newshape": (-1,)}, self.intermediate(name), origin
                    )
                    given = (self.renamed(flat, e, origin),)
                attrs = self.assuming.attributes(attrs)
                call = Call(definition, given, definition.make_attrs(**attrs))
        else:
            result = infer_value(call)
        args = call.args
        if isinstance(result, TensorType) and 0 in result.shape:
            return empty(result)
        known = args and all(isinstance(a, Constant) for a in args)
        if op == "qnn.dequantize":
            self.quantized = True
            var = self.bind(call, name, origin)
            self._dequantized |= {var: call} if known else {}
            return var
        stays = callable(definition.gradient) and not self.learned.isdisjoint(args)
        if known and not stays:
            value = folded(call, result)
            if value is not None:
                return value
        if not is_size(result) or definition.effect:
            return self.bind(call, name, origin)
        key = computation(call)
        if key not in self._computed:
            self._computed[key] = self.bind(call, name, origin)
        return self._computed[key]

    def bind(self, value: Value, name: str, *origins: str) -> Var:
        """See Graph."""
        var = self.builder.bind(value, name, origins)
        self._makers[var] = value
        return var

    def known(self, v: Imported) -> Constant | None:
        """See Graph."""
        if isinstance(v, Var) and v in self._dequantized:
            return folded(self._dequantized[v], tensor_type(v))
        return v if isinstance(v, Constant) else None

    def maker(self, v: Var) -> Value | None:
        """See Graph."""
        return self._makers.get(v)

    def nested(self, params: Sequence[Var], make: Callable[[], Sequence[Atom]]) -> Function:
        """See Graph."""
        self._around.append(self.builder)
        outside = self._computed, self.matched
        self._computed, self.matched = dict(self._computed), dict(self.matched)
        self.builder = FunctionBuilder()
        self.assuming.forget()
        known = self.assuming.facts.rules
        try:
            for p in params:
                self.builder.add_param(p)
            results = make()
            return self.builder.finish(*results)
        finally:
            self.builder = self._around.pop()
            self.assuming.forget()
            self.assuming.facts.rules = known  # what it assumes is checked only if it runs
            self._computed, self.matched = outside

    def rewind(self) -> Callable[[], None]:
        """See Graph."""
        bindings, count = self.builder.bindings, len(self.builder.bindings)
        computed, matched = dict(self._computed), dict(self.matched)

        def back() -> None:
            del bindings[count:]
            self.assuming.forget()
            self._computed, self.matched = computed, matched

        return back

    def printable(self, name: str) -> str:
        """See Graph."""
        return self.names.printable(name)

    def intermediate(self, stem: str) -> str:
        """See Graph."""
        return self.names.intermediate(stem)

    def is_equal(self, a: Dim, b: Dim) -> bool:
        """See Graph."""
        return self.assuming.facts.equal(a, b)

    def renamed(self, x: Atom, e: UnequalSizes, origin: str) -> Atom:
        """`x` with the names of sizes that what is assumed gives it."""

        def bind(value: Value, stem: str) -> Var:
            return self.bind(value, self.intermediate(stem), origin)

        return self.assuming.renamed(x, e.pairs, self.where, bind)

    # ---- symbolic dimensions as run-time values --------------------------------------------------
    def runs(self) -> bool:
        """See Graph."""
        return not self._around

    def note_indices(self, r: IndexRange, v: Var | None = None) -> None:
        """See Graph."""
        sizes = Index.of(r.size) + r.highest
        if (v is None or any(v is p for p in self.builder.params)) and self.is_given(sizes):
            self.indices[r.node, r.input, r.column] = r

    def is_given(self, size: Index) -> bool:
        """See Graph."""
        main = self._around[0] if self._around else self.builder
        shown = [d for p in main.params for d in tensor_type(p).shape if isinstance(d, Index)]
        return size.vars() <= set().union(*(d.vars() for d in shown))

    def computed(self, v: Symbolic, stem: str) -> Atom:
        """See Graph. They come from the shapes of the parameters, or have been found."""

        def emit(op: str, *args: Atom, **attrs: Any) -> Atom:
            return self.emit(op, args, attrs, self.intermediate(f"{stem}_{op}"), stem)

        def size_of(d: Dimension) -> Atom:
            if d in self.counts:
                count = self.counts[d]
                if isinstance(count, tuple):
                    axis = Constant.of([count[1]], INT64)
                    return emit("take", emit("shape_of", count[0]), axis, axis=0)
                return emit("reshape", count, newshape=(1,))
            for param in [p for scope in (*self._around, self.builder) for p in scope.params]:
                shape = tensor_type(param).shape
                if d in shape:
                    axis = Constant.of([shape.index(d)], INT64)
                    return emit("take", emit("shape_of", param), axis, axis=0)
            raise UnsupportedError(
                f"dimension {d} is used as data but no input has it: fix it with shapes=..."
            )

        return computed_dimensions(v, emit, size_of)


def computed_dimensions(v: Symbolic, emit: Emit, size_of: Callable[[Dimension], Atom]) -> Atom:
    """The value of `v`. `size_of` gives the size of a dimension as a vector of one int64."""

    def number(x: IntLike) -> Atom:
        if not isinstance(x, Index):
            return Constant.of([x], INT64)
        out: Atom | None = Constant.of([x.const], INT64) if x.const or not x.terms else None
        for a, c in x.terms.items():
            term = leaf(a)
            if c != 1:
                term = emit("multiply", term, Constant.of([c], INT64))
            out = term if out is None else emit("add", out, term)
        assert out is not None
        return out

    def leaf(a: Dimension | Quasi) -> Atom:
        if not isinstance(a, Quasi):
            return size_of(a)
        p, q = number(a.a), number(a.b)
        if a.op == "%":
            whole = emit("multiply", emit("divide", p, q), q)
            return emit("subtract", p, whole)
        return emit({"*": "multiply", "//": "divide", "min": "minimum"}[a.op], p, q)

    parts = [number(x) for x in v.data.reshape(-1)]
    out = parts[0] if len(parts) == 1 else emit("concatenate", *parts, axis=0)
    if v.data.ndim != 1:
        out = emit("reshape", out, newshape=v.data.shape)
    return out if v.dtype == INT64 else emit("cast", out, dtype=str(v.dtype))
