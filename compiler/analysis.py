"""Figures of a module for reports: multiply-accumulates, parameters, their size, operators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.ir.expr import (
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
from compiler.ir.types import TensorType, TupleType
from compiler.op.opdef import OpDef
from compiler.symbolic import Index

_INTEGERS = re.compile(r"u?int\d+ x u?int\d+")


@dataclass(frozen=True)
class ModelCost:
    """What a module takes.

    Attributes:
        macs: multiply-accumulates of one run, symbolic dimensions (the batch size) taken as 1;
            branches and bodies of loops count once.
        parameters: elements of the constants that operators read, each constant counted once.
        parameter_bytes: their size; a custom dtype of b bits takes b / 8 bytes per element.
        operators: operator name -> number of calls.
        macs_by_dtypes: "uint8 x int8", data and weights, custom dtypes by their names, ->
            multiply-accumulates.
        elements: "nn.relu float32", operator and dtype, -> elements of its results.
        bit_operations: every multiply-accumulate times the widths of its two operands.
        activation_bytes: the most that is alive at once, operator by operator (fused kernels need
            less), constants apart.
    """

    macs: int
    parameters: int
    parameter_bytes: int
    operators: Mapping[str, int]
    macs_by_dtypes: Mapping[str, int]
    elements: Mapping[str, int]
    bit_operations: int
    activation_bytes: int

    @property
    def integer_share(self) -> float:
        """Share of the multiply-accumulates whose two operands are integers; 0 without any."""
        both = [n for pair, n in self.macs_by_dtypes.items() if _INTEGERS.fullmatch(pair)]
        return sum(both) / self.macs if self.macs else 0.0


def cost(mod: IRModule) -> ModelCost:
    """The cost of `main`; needs inferred types.

    Raises:
        compiler.errors.TypeInferenceError: types have not been inferred.
    """
    macs: Counter[str] = Counter()
    bit_operations = 0
    operators: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    constants: dict[Constant, None] = {}
    for b in _bindings(mod.main):
        constants.update((a, None) for a in operands(b.value) if isinstance(a, Constant))
        if isinstance(b.value, Call) and isinstance(b.value.op, OpDef):
            operators[b.value.op.name] += 1
            for t in b.var.type.fields if isinstance(b.var.type, TupleType) else (b.var.type,):
                if isinstance(t, TensorType):
                    elements[f"{b.value.op.name} {t.dtype.name or t.dtype}"] += _elements(t)
            count = _macs(b, b.value)
            if count:
                data, weights = (tensor_type(a).dtype for a in b.value.args[:2])
                macs[f"{data.name or data} x {weights.name or weights}"] += count
                bit_operations += count * data.bits * weights.bits
    constants.update((r, None) for r in mod.main.results if isinstance(r, Constant))
    bits = sum(c.data.size * c.dtype.bits for c in constants)
    return ModelCost(
        macs=macs.total(),
        parameters=sum(c.data.size for c in constants),
        parameter_bytes=-(-bits // 8),
        operators=dict(sorted(operators.items())),
        macs_by_dtypes=dict(sorted(macs.items())),
        elements=dict(sorted(elements.items())),
        bit_operations=bit_operations,
        activation_bytes=_most_alive(mod.main),
    )


def _most_alive(f: Function) -> int:
    """Bytes of the parameters and bound tensors that are alive at once, at their most."""
    last: dict[Var, int] = {}
    for k, b in enumerate(f.bindings):
        last.update((a, k) for a in operands(b.value) if isinstance(a, Var))
    last.update((r, len(f.bindings)) for r in f.results if isinstance(r, Var))
    alive = {p: _bits(p) for p in f.params}
    most = sum(alive.values())
    for k, b in enumerate(f.bindings):
        alive[b.var] = _bits(b.var)
        most = max(most, sum(alive.values()))
        alive = {v: n for v, n in alive.items() if last.get(v, -1) > k}
    return -(-most // 8)


def _bits(v: Var) -> int:
    """Bits of a tensor; a tuple has those of its parts already."""
    return _elements(v.type) * v.type.dtype.bits if isinstance(v.type, TensorType) else 0


def _elements(t: TensorType) -> int:
    """Elements of a tensor, symbolic dimensions taken as 1."""
    n = Index.of(1)
    for d in t.shape:
        n = n * d
    return int(n.value(dict.fromkeys(n.vars(), 1)))


def _bindings(f: Function) -> Iterator[Binding]:
    """Bindings of a function and of the functions in it."""
    for b in f.bindings:
        yield b
        for g in nested(b.value):
            yield from _bindings(g)
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            yield from _bindings(b.value.op)


def _macs(b: Binding, call: Call) -> int:
    assert isinstance(call.op, OpDef)
    if call.op.macs is None:
        return 0
    n = Index.of(call.op.macs(call.attrs, [tensor_type(a) for a in call.args], tensor_type(b.var)))
    return int(n.value(dict.fromkeys(n.vars(), 1)))
