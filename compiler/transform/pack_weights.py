"""PackWeights: layers of few rows read weights of few bits as they are kept.

A dense layer whose constant weights are dequantized from integers of up to 8 bits, or looked up by
codes of up to 4, with a scale for all, each unit or each group of inputs, becomes qnn.packed_dense:
it reads its integers, 4 bits each where they fit, instead of float32 numbers that they were made.
Sums are formed group by group, so that they differ from those of the layer by roundings of float32.

Weights of 8 bits with a scale for each unit stay, as integer networks have them in layers that give
float32. Integer products by groups read weights of 2 or 4 bits packed too, and get wider ones as
dot products of bytes take them; that changes no bit.

It runs before constants are folded, and only where weights as float32 would not stay in the cache,
and few rows share them, as in a decoder that writes a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant, Function, IRModule, tensor_type
from compiler.op.elementwise import MULTIPLY
from compiler.op.facts import Moves
from compiler.op.qnn.grouped import GROUPED_DENSE
from compiler.op.qnn.lookup import LOOKUP
from compiler.op.qnn.packed_dense import WORD, PackedDenseAttrs, packed_words, word_type
from compiler.op.qnn.packed_grouped import STEPS, WIDTHS, packed_bytes
from compiler.op.qnn.quantize import DEQUANTIZE
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, call, op_of, typed
from compiler.target.registry import Target
from compiler.types.dtypes import FLOAT32, INT8, UINT8, Array

MOST_ROWS = 16
"""Rows for which unpacking costs less than reading more: with more, weights are unpacked once."""
TABLE_BITS, TABLE_BYTES = 4, 64
"""Widest codes that a table in a register is looked up by, and the registers that hold one."""
BYTE = 8
"""Bits of a byte."""
HALF = 128
"""What makes int8 uint8."""


@dataclass(frozen=True)
class _Known:
    """What weights are made from, both flat, with as many integers a scale for every scale.

    Attributes:
        integers: numbers, or positions in a table.
        scales: float32.
        table: float32, what integers stand for; None: themselves.
    """

    integers: Array
    scales: Array
    table: Array | None = None

    def attributes(self, vector_bytes: int) -> PackedDenseAttrs | None:
        """How they are packed; None if they have more than 8 bits, or 4 of a table."""
        if self.table is None:
            return _attributes(self.integers, vector_bytes)
        most = int(self.integers.max(initial=0))
        bits = next((n for n in (2, TABLE_BITS) if most < 1 << n), None)
        if bits is None:
            return None
        return PackedDenseAttrs(bits, tuple(map(float, self.table[: 1 << bits])))


def _known_weights(r: Rewriter, a: Atom) -> _Known | None:
    """What weights are dequantized from, or looked up and scaled, and reshaped at most."""
    made = r.producer(a)
    while made is not None and isinstance(made.value, Call):
        op = op_of(made.value)
        if op is None or op.moves is not Moves.VIEW:
            break
        made = r.producer(made.value.args[0])
    if made is None or not isinstance(made.value, Call):
        return None
    if made.value.op is DEQUANTIZE:
        return _dequantized(made.value)
    return _looked_up(r, made.value) if made.value.op is MULTIPLY else None


def _dequantized(made: Call) -> _Known | None:
    q, scale = made.args
    if not isinstance(q, Constant) or not isinstance(scale, Constant):
        return None
    vector = scale.data.ndim == 1 and scale.data.size > 1
    if scale.data.ndim > 1 or (vector and made.attrs.axis % q.data.ndim != 0):
        return None
    integers = q.data.reshape(-1).astype(np.int64) - made.attrs.zero_point
    return _Known(integers, scale.data.reshape(-1))


def _looked_up(r: Rewriter, scaled: Call) -> _Known | None:
    """Of rows of codes that are looked up, and then multiplied by a scale each."""
    numbers, scales = scaled.args
    made = r.producer(numbers)
    if made is None or not isinstance(made.value, Call) or made.value.op is not LOOKUP:
        return None
    match (*made.value.args, scales):
        case (Constant() as codes, Constant() as table, Constant() as each):
            pass
        case _:
            return None
    rows = each.data.shape == (len(codes.data), *[1] * (codes.data.ndim - 1))
    if not rows or codes.dtype != UINT8 or table.dtype != FLOAT32:
        return None
    return _Known(codes.data.reshape(-1).astype(np.int64), each.data.reshape(-1), table.data)


class PackWeights(FunctionPass):
    """Dense layers over dequantized constants read them packed.

    Args:
        target: what code is made for: its cache, and its vectors.
    """

    name = "PackWeights"
    opt_level = 2
    required = ("InferType",)

    def __init__(self, target: str | Target = "llvm"):
        self.target = Target.parse(target)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with such layers packed."""
        r = Rewriter(f)
        for b in map(r.read, f.bindings):
            raised = _for_dot_products(b)
            value = raised or self._packed(r, b)
            if value is None:
                r.keep(b)
            elif raised is None and isinstance(b.value, Call) and len(b.value.args) == 3:
                sums = r.emit(typed(r.fresh(f"{b.var.name}_packed"), value, b.origins))
                shifted = call("nn.bias_add", sums, b.value.args[2], axis=-1)
                r.emit(Binding(b.var, shifted, b.origins))
            else:
                r.emit(Binding(b.var, value, b.origins))
        return r.finish()

    def _packed(self, r: Rewriter, b: Binding) -> Call | None:
        """The product of a layer, without its bias, of packed weights; None of anything else."""
        op, layer = op_of(b.value), b.value
        if op is None or op.contraction is None or not isinstance(layer, Call):
            return None
        if not self.target.fma:
            return None  # each would be a call of a function
        dense = op.contraction.by_rows and not op.contraction.kernel
        if not dense or layer.attrs.accumulate != "sequential":
            return None
        if any(tensor_type(a).dtype != FLOAT32 for a in layer.args):
            return None
        x, weight = (tensor_type(a) for a in layer.args[:2])
        units, inputs = weight.shape
        if not isinstance(units, int) or not isinstance(inputs, int):
            return None
        rows = [n for n in x.shape[:-1] if isinstance(n, int)]
        held = units * inputs * FLOAT32.nbytes > self.target.architecture.caches.next
        if math.prod(rows) > MOST_ROWS or not held:
            return None
        known = _known_weights(r, layer.args[1])
        return None if known is None else self._call(layer.args[0], units, inputs, known)

    def _call(self, x: Atom, units: int, inputs: int, known: _Known) -> Call | None:
        q, scales = known.integers, known.scales
        each = q.size // scales.size
        group = inputs if each % inputs == 0 else each
        attrs = known.attributes(self.target.vector_bytes)
        if attrs is None or inputs % group or group * attrs.bits % WORD:
            return None
        if attrs.bits > TABLE_BITS and group == inputs:
            return None  # an integer network's last layer, whose sums stay as they were
        first = np.arange(0, q.size, group) // each
        words = packed_words(q.reshape(units, inputs // group, group), attrs.bits)
        held = np.ascontiguousarray(scales[first].reshape(units, -1), np.float32)
        return call(
            "qnn.packed_dense", x, Constant(words, word_type(attrs.bits)), Constant(held, FLOAT32),
            bits=attrs.bits, table=attrs.table,
        )  # fmt: skip


def _for_dot_products(b: Binding) -> Call | None:
    """Integer products by groups with packed weights where these have 2 or 4 bits, else with uint8
    weights in place of int8, which instructions multiply by int8 data; None of anything else."""
    layer = b.value
    if not isinstance(layer, Call) or layer.op is not GROUPED_DENSE or len(layer.args) != 3:
        return None
    x, w, scales = layer.args
    plain = not layer.attrs.input_zero_point and not layer.attrs.weight_zero_point
    if not plain or not isinstance(w, Constant) or tensor_type(x).dtype != INT8:
        return None
    (units, inputs), group = w.data.shape, layer.attrs.group
    for bits in WIDTHS:
        half = 1 << (bits - 1)
        whole = inputs % group == 0 and group % (STEPS * (BYTE // bits)) == 0
        if whole and w.data.min(initial=0) >= -half and w.data.max(initial=0) < half:
            held = packed_bytes(w.data.reshape(units, inputs // group, group), bits)
            return call("qnn.packed_grouped_dense", x, Constant(held, UINT8), scales, bits=bits)
    raised = Constant((w.data.astype(np.int16) + HALF).astype(np.uint8), UINT8)
    attrs = replace(layer.attrs, weight_zero_point=HALF)
    return Call(layer.op, (x, raised, scales), attrs)


def _attributes(integers: Array, vector_bytes: int) -> PackedDenseAttrs | None:
    """How integers are packed: in the fewest bits, as they are, or looked up, where they lie beside
    0 or that is quicker."""
    low, high = int(integers.min(initial=0)), int(integers.max(initial=0))
    for bits in (2, 4, 8):
        half, several = 1 << (bits - 1), 1 << bits
        signed = -half <= low and high < half
        if signed and (bits > TABLE_BITS or vector_bytes < TABLE_BYTES):
            return PackedDenseAttrs(bits)
        first = -half if signed else low
        if bits <= TABLE_BITS and high - first < several:
            stands = (first + (n - first) % several for n in range(several))
            return PackedDenseAttrs(bits, tuple(map(float, stands)))
    return None
