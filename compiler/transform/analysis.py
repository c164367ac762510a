"""Figures of a module for reports: multiply-accumulates, parameters, their size, operators, what
moves."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.boundary.smallest_sizes import smallest_sizes
from compiler.errors import DtypelabError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    nested,
    operands,
    tensor_type,
)
from compiler.ir.handed import engine_of
from compiler.op.opdef import OpDef
from compiler.symbolic import Index, IntLike, product
from compiler.symbolic import Var as Dim
from compiler.transform.fuse_ops import fused
from compiler.transform.movement import movement
from compiler.transform.operations import operations
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType, TupleType

_INTEGERS = re.compile(r"u?int\d+ x u?int\d+")


@dataclass(frozen=True)
class Kept:
    """What a value is kept as, where its dtype only holds it (four bits in an int8).

    Attributes:
        name: of the number system, as in `ModelCost.macs_by_dtypes`.
        bits: of an element.
        more: bits of what lies with the elements: scales and zero points.
    """

    name: str
    bits: int
    more: int = 0


@dataclass(frozen=True)
class ModelCost:
    """What a module takes. Sizes are those of values as they are kept, packed, without what a
    target's layouts fill them up with.

    Attributes:
        macs: multiply-accumulates of one run, symbolic dimensions (the batch size) taken as
            `assumed` says; branches and bodies of loops count once.
        parameters: elements of the constants that operators read, each constant counted once; what
            engines are handed at import is none.
        parameter_bytes: their size, and that of scales and zero points among the attributes of
            operators; a custom dtype of b bits takes b / 8 bytes per element.
        operators: operator name -> number of calls.
        macs_by_dtypes: "uint8 x int8", data and weights, what is no built-in dtype by its name, ->
            multiply-accumulates.
        elements: "nn.relu float32", operator and dtype, -> elements of its results, but for what is
            computed from constants alone.
        operations: key of `elements` -> "add float32", -> how many the operators beside
            multiply-accumulates do (see `compiler.transform.operations`); a key that is not there
            does what no such operations say.
        bit_operations: every multiply-accumulate times the widths of its two operands.
        activation_bytes: the most that is alive at once between kernels, constants apart; operators
            are fused as the current PassContext says.
        traffic_bytes: what these kernels read and write (see `compiler.transform.movement`), and
            `parameter_bytes`, read once.
        assumed: symbolic dimension -> the size that all of these take it for: the smallest that the
            module takes (see `compiler.boundary.smallest_sizes`), 1 for what is found at run time.
    """

    macs: int
    parameters: int
    parameter_bytes: int
    operators: Mapping[str, int]
    macs_by_dtypes: Mapping[str, int]
    elements: Mapping[str, int]
    operations: Mapping[str, Mapping[str, int]]
    bit_operations: int
    activation_bytes: int
    traffic_bytes: int
    assumed: Mapping[str, int]

    @property
    def integer_share(self) -> float:
        """Share of the multiply-accumulates whose two operands are integers; 0 without any."""
        both = [n for pair, n in self.macs_by_dtypes.items() if _INTEGERS.fullmatch(pair)]
        return sum(both) / self.macs if self.macs else 0.0


def cost(mod: IRModule, kept: Mapping[Atom, Kept] | None = None) -> ModelCost:
    """The cost of `main`; needs inferred types.

    Args:
        mod: the module, not yet optimized for a target.
        kept: what its variables and constants are kept as, where not as their dtypes say.

    Raises:
        compiler.errors.TypeInferenceError: types have not been inferred.
    """
    return _Costs(kept or {}).of(mod)


class _Costs:
    def __init__(self, kept: Mapping[Atom, Kept]):
        self.kept = kept
        self.stored: dict[Constant, int] = {}
        self.regions: set[Constant] = set()
        self.attributes = 0
        self.macs: Counter[str] = Counter()
        self.bit_operations = 0
        self.operators: Counter[str] = Counter()
        self.elements: Counter[str] = Counter()
        self.operations: dict[str, Counter[str]] = {}
        self.unsaid: set[str] = set()
        self.assumed: dict[str, int] = {}
        self.sizes: dict[Dim, int] = {}

    def of(self, mod: IRModule) -> ModelCost:
        """The cost of a module."""
        self.sizes = smallest_sizes(mod.main)
        for b, varies in _bindings(mod.main, set()):
            if isinstance(b.value, Call) and isinstance(b.value.op, OpDef):
                self.operator(b, b.value, b.value.op, varies)
            self.constants(b)
        for r in mod.main.results:
            if isinstance(r, Constant):
                self.stored.setdefault(r, self.bits(r, r.type))
        parameters = -(-(sum(self.stored.values()) + self.attributes) // 8)
        between = movement(fused(mod).main, self.bits)
        return ModelCost(
            macs=self.macs.total(),
            parameters=sum(c.data.size for c in self.stored if c not in self.regions),
            parameter_bytes=parameters,
            operators=dict(sorted(self.operators.items())),
            macs_by_dtypes=dict(sorted(self.macs.items())),
            elements=dict(sorted(self.elements.items())),
            operations={
                key: dict(sorted(found.items()))
                for key, found in sorted(self.operations.items())
                if key not in self.unsaid
            },
            bit_operations=self.bit_operations,
            activation_bytes=-(-between.alive // 8),
            traffic_bytes=-(-between.moved // 8) + parameters,
            assumed=self.assumed,
        )

    def operator(self, b: Binding, call: Call, op: OpDef, varies: bool) -> None:
        """Count a call of an operator; `varies`: it is computed for every input."""
        self.operators[op.name] += 1
        for t in b.var.type.fields if isinstance(b.var.type, TupleType) else (b.var.type,):
            if isinstance(t, TensorType):
                named = (v for d in t.shape for v in Index.of(d).vars())
                self.assumed |= {str(v): self.sizes.get(v, 1) for v in named}
            if isinstance(t, TensorType) and varies:
                self.result(b, call, op, t)
        if count := self.products(b, call):
            pair = [self.number(a, tensor_type(a)) for a in call.args[:2]]
            self.macs[" x ".join(name for name, _ in pair)] += count
            self.bit_operations += count * pair[0][1] * pair[1][1]

    def result(self, b: Binding, call: Call, op: OpDef, t: TensorType) -> None:
        """Count the elements of a result that is computed for every input."""
        number = self.number(b.var, t)[0]
        key = f"{op.name} {number}"
        self.elements[key] += self.count(t)
        found = operations(call, op, t, self.known, number)
        if found is None:
            self.unsaid.add(key)
        else:
            self.operations.setdefault(key, Counter()).update(found)

    def constants(self, b: Binding) -> None:
        """Count what a binding reads that is stored."""
        value = b.value
        widths: Mapping[int, int] = {}
        if isinstance(value, Call) and isinstance(value.op, OpDef) and value.op.stored:
            found = value.op.stored(value.attrs, [tensor_type(a) for a in value.args])
            self.attributes += found.attributes
            widths = found.operands
        for k, a in enumerate(operands(value)):
            if isinstance(a, Constant):
                if k == 0 and engine_of(value):  # an engine's own form of what it computes
                    self.regions.add(a)
                bits = widths[k] * a.data.size if k in widths else self.bits(a, a.type)
                self.stored.setdefault(a, bits)

    def count(self, t: TensorType) -> int:
        """Elements of a tensor."""
        return self.known(product(t.shape))

    def known(self, number: IntLike) -> int:
        """A number at the sizes that open dimensions are taken for."""
        n = Index.of(number)
        return int(n.value({v: self.sizes.get(v, 1) for v in n.vars()}))

    def products(self, b: Binding, call: Call) -> int:
        """Multiply-accumulates of a call of an operator."""
        assert isinstance(call.op, OpDef)
        if call.op.macs is None:
            return 0
        types = [tensor_type(a) for a in call.args]
        return self.known(call.op.macs(call.attrs, types, tensor_type(b.var)))

    def number(self, a: Atom, t: TensorType) -> tuple[str, int]:
        """Name and width of the numbers that a value is made of."""
        kept = self.kept.get(a)
        return (kept.name, kept.bits) if kept else (number_name(t.dtype), t.dtype.bits)

    def bits(self, a: Atom, t: TensorType) -> int:
        """Bits of a value as it is kept."""
        kept = self.kept.get(a)
        return self.count(t) * (kept.bits if kept else t.dtype.bits) + (kept.more if kept else 0)


def number_name(dtype: DType) -> str:
    """The name of a format alone, if that tells its width too; else as the dtype prints."""
    with contextlib.suppress(DtypelabError):
        if dtype.is_custom and DType.parse(dtype.name).bits == dtype.bits:
            return dtype.name
    return str(dtype)


def _bindings(f: Function, constant: set[Var]) -> Iterator[tuple[Binding, bool]]:
    """Bindings of a function and of the functions in it, and whether they compute from more than
    constants; `constant` collects the others."""
    for b in f.bindings:
        read = operands(b.value)
        varies = not read or not all(isinstance(a, Constant) or a in constant for a in read)
        if not varies:
            constant.add(b.var)
        yield b, varies
        for g in nested(b.value):
            yield from _bindings(g, constant)
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            yield from _bindings(b.value.op, constant)
