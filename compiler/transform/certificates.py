"""Certificates: the narrowest accumulators that provably hold every sum of a module.

Bounds follow from the weights, the bias and what integers the data can be (see
`compiler.op.sum_bounds`); of number formats, the width is that of the exact sum, from the last bit
of the finest product to the largest sum. Sums inside softmax and normalization have no certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from compiler.errors import UnsupportedError
from compiler.ir.expr import Binding, Call, Constant, IRModule, tensor_type
from compiler.op.accumulator_width import LEAST_BITS
from compiler.op.opdef import OpDef
from compiler.op.sum_bounds import Known, SumBounds
from compiler.transform.exact_widths import exact_bounds, not_negative
from compiler.transform.filled_positions import data_positions
from compiler.transform.value_ranges import ValueRanges

BYTES = {"int8", "uint8"}
"""Factors whose accumulators can have any width."""


@dataclass(frozen=True)
class Certificate:
    """What the sums of one call need.

    Attributes:
        node: name of its result.
        op: name of the operator.
        factors: dtypes of what is multiplied or added up.
        terms: how many terms a sum has, the bias not counted.
        bits: of a signed integer that holds every whole sum: an accumulator of this width that
            wraps gives what a wider one does. Of formats, of the exact sum. 0: not known.
        step_bits: of one that holds every partial sum too: it may as well saturate.
        channel_bits: `bits` of each output channel (and group); one number where all are alike.
        low, high: the least and the largest sum, in units of 2**unit.
        unit: 0 for integers.
        reason: why nothing is known.
        data_bits: what the sums of given data needed; 0 where none were looked at.
    """

    node: str
    op: str
    factors: tuple[str, ...]
    terms: int = 0
    bits: int = 0
    step_bits: int = 0
    channel_bits: tuple[int, ...] = ()
    low: int = 0
    high: int = 0
    unit: int = 0
    reason: str = ""
    data_bits: int = 0

    @property
    def accumulate(self) -> str:
        """The accumulation of this width; empty where there is none: of other than bytes."""
        found = BYTES.issuperset(self.factors) and 0 < self.bits <= 32
        return f"int{self.bits}_wrap" if found else ""


def certificates(mod: IRModule) -> tuple[Certificate, ...]:
    """One for every sum of integers or of numbers of a format in `main`, in program order; needs
    inferred types. Weights that are packed, or multiplied as floats, have no integer sums."""
    ranges = ValueRanges(mod.main)
    found = (_certificate(b, ranges) for b in mod.main.bindings)
    return tuple(c for c in found if c is not None)


def bits_of(low: int, high: int) -> int:
    """Bits of the narrowest signed integer that holds both numbers, 2 at least."""
    return max(high.bit_length(), (~low if low < 0 else low).bit_length(), LEAST_BITS - 1) + 1


def _certificate(b: Binding, ranges: ValueRanges) -> Certificate | None:
    call = b.value
    if not isinstance(call, Call) or not isinstance(call.op, OpDef) or not call.args:
        return None
    dtype = tensor_type(call.args[0]).dtype
    op = call.op
    factors = _factors(op, call)
    try:
        if op.integer_sums is not None and dtype.is_integer:
            sums, unit = op.integer_sums(call.attrs, _known(call, ranges)), 0
        elif dtype.is_custom and op.summation is not None and op.summation.holds(call.attrs):
            sums, unit = exact_bounds(call, partial(not_negative, made=ranges.made))
        elif op.contraction is not None and dtype.is_integer:
            raise UnsupportedError(f"{op.name} does not say what bounds its sums have")
        else:
            return None
    except UnsupportedError as e:
        return Certificate(b.var.name, op.name, factors, reason=str(e))
    return certificate(b.var.name, op.name, factors, sums, unit)


def certificate(
    node: str, op: str, factors: tuple[str, ...], s: SumBounds, unit: int
) -> Certificate:
    """The certificate of sums with these bounds, in units of 2**unit."""
    lows, highs = (a.reshape(-1).tolist() for a in (s.low, s.high))
    each = tuple(map(bits_of, lows, highs))
    whole = bits_of(min(lows), max(highs))
    steps = bits_of(int(s.least.min()), int(s.most.max()))
    each = each[:1] if len(set(each)) == 1 else each
    return Certificate(node, op, factors, s.terms, whole, steps, each, min(lows), max(highs), unit)


def _factors(op: OpDef, call: Call) -> tuple[str, ...]:
    """Names of the dtypes of what is summed, or multiplied before."""
    count = 2 if op.summation is None or op.summation.products else 1
    types = (tensor_type(a).dtype for a in call.args[:count])
    return tuple(t.name or str(t) for t in types)


def _known(call: Call, ranges: ValueRanges) -> list[Known]:
    zero = getattr(call.attrs, "input_zero_point", 0)
    found = []
    for k, a in enumerate(call.args):
        ends = ranges.of(a) if tensor_type(a).dtype.is_integer else (0, 0)
        data = a.data if isinstance(a, Constant) else None
        at = data_positions(a, ranges.made, zero) if k == 0 else None
        found.append(Known(tensor_type(a), *ends, data, at))
    return found
