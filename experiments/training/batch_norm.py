"""Batch normalization by the batch: the form that it has while its network is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Binding, Call, Function, Var, operands, tensor_type
from compiler.ir.substitution import with_operands
from compiler.op.library import get_op

KEPT = 0.1
"""The share of a batch in the statistics that are kept, as in torch."""


@dataclass(frozen=True, eq=False)
class Batchwise:
    """A function that normalizes by its batch.

    Attributes:
        function: the same results, then the statistics that are kept, in the order of the
            parameters that they replace.
        moments: names of the values that are means, variances and what is kept of them.
    """

    function: Function
    moments: frozenset[str]


def by_batch(f: Function) -> Batchwise:
    """The function with every nn.batch_norm by the mean and variance of its batch.

    Of these a tenth is kept, with nine tenths of what was; of variances, those without bias.
    """
    b, new = FunctionBuilder(), dict[Atom, Atom]()
    kept: dict[Atom, Var] = {}
    moments: set[str] = set()
    for p in f.params:
        b.add_param(p)
    for name in (x.var.name for x in f.bindings):
        b.fresh(name)  # taken: what is written beside them must be called otherwise
    for binding in f.bindings:
        value = with_operands(binding.value, [new.get(a, a) for a in operands(binding.value)])
        if isinstance(value, Call) and value.op is get_op("nn.batch_norm"):
            norm = _Norm(b, value, binding)
            new[binding.var] = norm.result()
            kept |= zip(value.args[3:5], norm.statistics(), strict=True)
            moments |= norm.moments
        else:
            new[binding.var] = b.emit(Binding(binding.var, value, binding.origins))
    statistics = [kept[p] for p in f.params if p in kept]
    results = [new.get(r, r) for r in f.results]
    return Batchwise(b.finish(*results, *statistics, attrs=f.attrs), frozenset(moments))


class _Norm:
    """One normalization, in the operations of nn.batch_norm's reference."""

    def __init__(self, b: FunctionBuilder, call: Call, binding: Binding):
        self.b, self.attrs, self.var = b, call.attrs, binding.var
        self.origins = binding.origins
        self.x, self.gain, self.shift, self.mean, self.variance = call.args
        shape = tensor_type(self.x).static_shape
        self.channel = self.attrs.axis % len(shape)
        self.axes = tuple(k for k in range(len(shape)) if k != self.channel)
        self.shape = shape
        self.moments: set[str] = set()
        self.center = self.moment("mean", self.x, axis=self.axes, keepdims=True)
        self.away = self.moment("subtract", self.x, self.center)
        square = self.moment("multiply", self.away, self.away)
        self.spread = self.moment("mean", square, axis=self.axes, keepdims=True)

    def call(self, op: str, *args: Atom, **attrs: Any) -> Var:
        return self.b.call(op, *args, name=f"{self.var.name}_{op}", origins=self.origins, **attrs)

    def moment(self, op: str, *args: Atom, **attrs: Any) -> Var:
        found = self.call(op, *args, **attrs)
        self.moments.add(found.name)
        return found

    def number(self, value: float) -> Atom:
        return self.b.const(value, "float32")

    def result(self) -> Var:
        """((x - mean) / sqrt(variance + epsilon)) * gain + shift."""
        form = tuple(-1 if k == self.channel else 1 for k in range(len(self.shape)))[1:]
        form = form if self.channel else (-1, *form)
        gain, shift = (self.call("reshape", p, newshape=form) for p in (self.gain, self.shift))
        root = self.moment("sqrt", self.moment("add", self.spread, self.number(self.attrs.epsilon)))
        y = self.call("multiply", self.call("divide", self.away, root), gain)
        return self.b.emit(
            Binding(self.var, Call(get_op("add"), (y, shift), get_op("add").make_attrs()),
                    self.origins)
        )  # fmt: skip

    def statistics(self) -> list[Var]:
        """The mean and the variance that are kept from now on."""
        count = 1
        for k in self.axes:
            count *= self.shape[k]
        whole = self.moment("multiply", self.spread, self.number(count / max(count - 1, 1)))
        return [
            self.share(old, found)
            for old, found in ((self.mean, self.center), (self.variance, whole))
        ]

    def share(self, old: Atom, found: Var) -> Var:
        flat = self.moment("reshape", found, newshape=tensor_type(old).shape)
        before = self.moment("multiply", old, self.number(1 - KEPT))
        return self.moment("add", before, self.moment("multiply", flat, self.number(KEPT)))
