"""KnownBits: layers are told that their data have few bits, where products of so few are quicker.

What makes the data says which integers they can be: of 7 bits, say, after quantization to 7 bits.
The layer then multiplies the low bits alone, which are all there are, and no number changes.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.expr import Binding, Call, Constant, Function, IRModule, tensor_type
from compiler.passes.manager import FunctionPass, PassContext
from compiler.transform.fold_batch_norm import layer
from compiler.transform.value_ranges import ValueRanges
from compiler.types.dtypes import INT8, UINT8


class KnownBits(FunctionPass):
    """`input_bits` of integer layers with constant weights, where their data never have more."""

    name = "KnownBits"
    opt_level = 1
    required = ("InferType",)

    def __init__(self, bits: int = 7):
        """`bits`: how many the target's dot product multiplies more quickly; 0: none does."""
        self.bits = bits

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with its layers told; itself, if there is nothing to tell."""
        if not self.bits:
            return f
        ranges = ValueRanges(f)
        bindings = [self._told(b, ranges) for b in f.bindings]
        same = all(a is b for a, b in zip(bindings, f.bindings, strict=True))
        return f if same else f.with_body(bindings, f.results)

    def _told(self, b: Binding, ranges: ValueRanges) -> Binding:
        v = b.value
        if not isinstance(v, Call) or layer(v) is None or not hasattr(v.attrs, "input_bits"):
            return b
        data, weight, *_ = v.args
        bytes_ = tensor_type(data).dtype == UINT8 and tensor_type(weight).dtype == INT8
        plain = v.attrs.accumulate == "sequential"
        if not bytes_ or not plain or v.attrs.input_bits or not isinstance(weight, Constant):
            return b
        filling = getattr(v.attrs, "padding_value", 0) or v.attrs.input_zero_point
        low, high = ranges.of(data)
        if not 0 <= min(low, filling) <= max(high, filling) < 1 << self.bits:
            return b
        return replace(b, value=replace(v, attrs=replace(v.attrs, input_bits=self.bits)))
