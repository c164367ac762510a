"""Costs counted again, from what a plan says and what the realized graph shows, by other rules of
thumb than those of `compiler.transform.analysis` and `quantize.search.costs`: values by their
names, widths by the plan's entries, memory by intervals."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
)
from compiler.op.opdef import OpDef
from compiler.symbolic import Index
from compiler.transform.fuse_ops import FuseOps
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType, TupleType
from quantize.annotation.annotate import prepared
from quantize.formats.blocks import block_format
from quantize.plan.plan import Plan

#: What each arithmetic keeps of a scale: a float, a multiplier and a shift, a shift.
SCALE_BITS = {
    "float32": 32,
    "float64": 64,
    "shift": 8,
    "fixed_upward": 32 + 8,
    "fixed_tonearest_even": 32 + 8,
    "gemmlowp": 32 + 8,
}
#: What qnn.add keeps of two: multipliers of fixed point share their shift; those of gemmlowp do
#: not, and the result has one too.
PAIR_BITS = {
    **{r: 32 + 32 + 8 if bits == 40 else 2 * bits for r, bits in SCALE_BITS.items()},
    "gemmlowp": 3 * (32 + 8),
}


@dataclass
class Recount:
    """Bytes, bit operations and multiply-accumulates by what they multiply."""

    size_bytes: int = 0
    activation_bytes: int = 0
    traffic_bytes: int = 0
    bit_operations: int = 0
    macs: Counter[str] = field(default_factory=Counter)


def of_plan(mod: IRModule, plan: Plan, realized: IRModule) -> Recount:
    """The costs of a plan; `mod` is what it was made for, `realized` what became of that."""
    out = Recount()
    f = prepared(mod).main
    producers = {b.var.name: b.value for b in f.bindings}
    calls = {b.var.name: b.value for b in f.bindings if isinstance(b.value, Call)}
    for name, node in plan.nodes.items():
        if node.macs:
            pair = _factors(name, plan, calls[name], producers)
            out.macs[" x ".join(label for label, _ in pair)] += node.macs
            out.bit_operations += node.macs * math.prod(bits for _, bits in pair)
    _count_memory(out, realized, plan)
    return out


def of_graph(mod: IRModule) -> Recount:
    """The costs of a module whose dtypes say all."""
    out = Recount()
    for b in mod.main.bindings:
        v = b.value
        if not isinstance(v, Call) or not isinstance(v.op, OpDef) or v.op.macs is None:
            continue
        types = [_tensor(a) for a in v.args]
        n = Index.of(v.op.macs(v.attrs, types, _tensor(b.var)))
        count = int(n.value(dict.fromkeys(n.vars(), 1)))
        out.macs[" x ".join(t.dtype.name or str(t.dtype) for t in types[:2])] += count
        out.bit_operations += count * types[0].dtype.bits * types[1].dtype.bits
    _count_memory(out, mod, None)
    return out


# ---- factors -------------------------------------------------------------------------------------
def _factors(
    name: str, plan: Plan, call: Call, producers: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """Number systems and widths of what a node multiplies, from the plan."""
    decision = plan.nodes[name].decision
    if decision == "float":
        return [("float32", 32)] * 2
    if decision == "format":
        return [(f.format, _element_bits(f.format)) for f in plan.formats[name]]
    if decision == "weights":
        bits = plan.weights[name].bits
        return [("float32", 32), (f"int{bits}", bits)]
    assert decision == "integer"
    pair = [_integer(a, plan, producers) for a in call.args[: 1 if name in plan.weights else 2]]
    if name in plan.weights:
        pair.append((f"int{plan.weights[name].bits}", plan.weights[name].bits))
    return pair


def _integer(a: Atom, plan: Plan, producers: Mapping[str, Any]) -> tuple[str, int]:
    """The integers of a value: its own, or those of what it was moved from."""
    while isinstance(a, Var) and a.name not in plan.values:
        v = producers[a.name]
        a = v.value if isinstance(v, TupleGetItem) else v.args[0]
    assert isinstance(a, Var)
    params = plan.values[a.name]
    return ("uint" if params.dtype == "uint8" else "int") + str(params.bits), params.bits


def _element_bits(name: str) -> int:
    if name == "float32":
        return 32
    block = block_format(name)
    return DType.parse(block.element if block else name).bits


# ---- memory --------------------------------------------------------------------------------------
def _count_memory(out: Recount, mod: IRModule, plan: Plan | None) -> None:
    stored, numbers = _stored(mod.main, plan)
    out.size_bytes = math.ceil((sum(stored.values()) + numbers) / 8)
    bits = _Bits(mod.main, plan)
    kernels = FuseOps()(mod).main
    moved, out.activation_bytes = _between(kernels, bits)
    out.traffic_bytes = math.ceil(moved / 8) + out.size_bytes


def _stored(f: Function, plan: Plan | None) -> tuple[dict[Constant, int], int]:
    """Bits of the constants, and of scales and zero points among attributes."""
    constants: dict[Constant, int] = {}
    numbers = 0
    for b in f.bindings:
        v = b.value
        if not isinstance(v, Call):
            continue
        attrs = asdict(v.attrs) if is_dataclass(v.attrs) and not isinstance(v.attrs, type) else {}
        numbers += _numbers(str(v.op), attrs, [_tensor(a) for a in v.args], b.var)
        for k, a in enumerate(v.args):
            if isinstance(a, Constant) and a not in constants:
                constants[a] = _constant_bits(b.var.name, v, k, a, plan)
    for r in f.results:
        if isinstance(r, Constant):
            constants.setdefault(r, r.data.size * r.dtype.bits)
    return constants, numbers


def _numbers(op: str, attrs: dict[str, Any], types: list[TensorType], result: Var) -> int:
    """Bits of the scales and zero points that an operator has as attributes."""
    if not op.startswith(("qnn.", "nn.")):
        return 0
    bits = 0
    for name, value in attrs.items():
        if name in ("output_zero_point", "zero_point") and value:
            dequantized = op == "qnn.dequantize"
            bits += types[0].dtype.bits if dequantized else _tensor(result).dtype.bits
        elif name in ("input_zero_point", "a_zero_point") and value:
            bits += types[0].dtype.bits
        elif name in ("weight_zero_point", "b_zero_point") and value:
            bits += types[1].dtype.bits
        elif name == "a_scale":
            bits += PAIR_BITS[attrs["rounding"]]
        elif name == "ratio":  # no shift divides by a count
            rounding = attrs["rounding"].replace("shift", "fixed_upward")
            bits += SCALE_BITS[rounding]
        elif name == "inverse" or (name == "unit" and "e8m0" not in attrs["scale_dtype"]):
            bits += 32
    return bits


def _constant_bits(name: str, call: Call, k: int, a: Constant, plan: Plan | None) -> int:
    op, elements = str(call.op), a.data.size
    if op == "qnn.requantize" and k == 1:
        return elements * SCALE_BITS[call.attrs.rounding]
    if plan is None:
        return elements * a.dtype.bits
    node = re.sub(r"_(acc|groups|weight)$", "", name)
    multiplies = op in ("nn.conv2d", "nn.dense", "qnn.dequantize", "nn.conv1d", "nn.conv3d")
    if node in plan.weights and multiplies and a.dtype.is_integer and k == (op[:2] == "nn"):
        weights = plan.weights[node]
        return (elements + len(weights.zero_points)) * weights.bits
    if node in plan.formats and k < 2 and plan.config.compute == "storage" and op[:3] == "nn.":
        f = plan.formats[node][k]
        block = block_format(f.format)
        if block is None:
            scales = 0 if f.format == "float32" else 32 * len(f.scales)
            return elements * _element_bits(f.format) + scales
        unit = 0 if block.scale == "float8_e8m0fnu" else 32
        shape = a.data.shape
        if f.flat:  # one line of an output channel's weights
            shape = (*shape[: f.axis], math.prod(shape[f.axis :]))
        return _blocks(shape, f.axis, block.block, block.element, block.scale) + unit
    return elements * a.dtype.bits


def _blocks(shape: tuple[int, ...], axis: int, block: int, element: str, scale: str) -> int:
    """Bits of blocks along an axis, each with its scale."""
    lines = math.prod(shape) // shape[axis]
    scales = lines * math.ceil(shape[axis] / block)
    return math.prod(shape) * DType.parse(element).bits + scales * DType.parse(scale).bits


class _Bits:
    """Bits of the values of a realized graph: by the call that makes each, and its name."""

    def __init__(self, f: Function, plan: Plan | None):
        self.plan = plan
        self.made: dict[str, Any] = {b.var.name: b.value for b in f.bindings}
        self.params = {p.name: p for p in f.params}

    def of(self, name: str, t: TensorType) -> int:
        v = self.made.get(name)
        shape = tuple(d if isinstance(d, int) else 1 for d in t.shape)
        size = math.prod(shape)
        if isinstance(v, Call) and str(v.op) == "qnn.simulated_cast":
            return size * DType.parse(v.attrs.dtype).bits
        if isinstance(v, Call) and str(v.op) == "qnn.simulated_blocks":
            a = v.attrs
            return _blocks(shape, a.axis, a.block, a.dtype, a.scale_dtype)
        return size * (self.integer(name) or t.dtype.bits)

    def integer(self, name: str) -> int:
        """Width of a value on the grid, by the plan's entry for it or what it was moved from; else
        0."""
        v = self.made.get(name)
        if self.plan is None or name in self.params:
            return 0
        if isinstance(v, TupleGetItem):
            assert isinstance(v.value, Var)
            return self.integer(v.value.name)
        if not isinstance(v, Call) or not re.search(r"_(q|part|wide)(_\d+)?$", name):
            return 0
        found = self.plan.values.get(re.sub(r"_(q|part)(_\d+)?$", "", name))
        if found is not None:
            return found.bits
        return self.integer(v.args[0].name) if isinstance(v.args[0], Var) else 0


def _between(f: Function, bits: _Bits) -> tuple[int, int]:
    """Bits that kernels read and write, and bytes alive at once, by intervals."""
    lies: dict[Var, list[str]] = {}  # a value -> the tensors that it is, or is made of
    sizes: dict[str, int] = {}
    interval: dict[str, list[int]] = {}
    moved = 0

    def place(a: Atom) -> list[str]:
        return lies[a] if isinstance(a, Var) else []

    def make(v: Var, step: int) -> list[str]:
        fields = v.type.fields if isinstance(v.type, TupleType) else (v.type,)
        names = []
        for k, t in enumerate(fields):
            assert isinstance(t, TensorType)
            names.append(f"{v.name}.{k}")
            sizes[names[-1]] = bits.of(v.name, t)
            interval[names[-1]] = [step, step]
        return names

    # What blocks are made of where it is made is written as blocks, if only they are made of it.
    blocks = {b.var: b.value.args[0] for b in f.bindings if _operator(b) == "qnn.simulated_blocks"}
    written_as: dict[Atom, Var] = {}
    for rounded, x in blocks.items():
        readers = [b for b in f.bindings if x in _atoms(b)]
        made_here = any(b.var is x and _is_kernel(b) for b in f.bindings)
        if made_here and len(readers) == 1 and x not in f.results:
            written_as[x] = rounded
    for p in f.params:
        lies[p] = make(p, 0)
    for step, b in enumerate(f.bindings, start=1):
        v = b.value
        atoms = _atoms(b)
        for name in {n for a in atoms for n in place(a)}:
            interval[name][1] = step
        if isinstance(v, TupleGetItem):
            whole = place(v.value)
            lies[b.var] = whole[v.index : v.index + 1]
        elif isinstance(v, Tuple):
            lies[b.var] = [n for a in v.fields for n in place(a)]
        elif isinstance(v, Call) and isinstance(v.op, OpDef) and v.op.view:
            lies[b.var] = place(v.args[0])
        elif all(not place(a) for a in atoms):
            lies[b.var] = []  # of constants alone
        elif b.var in written_as.values():
            lies[b.var] = place(atoms[0])
        else:
            assert isinstance(v, Call)
            lies[b.var] = make(written_as.get(b.var, b.var), step)
            written = sum(sizes[n] for n in lies[b.var])
            part = _takes_a_part(v)
            for name in {n for a in atoms for n in place(a)}:
                moved += min(sizes[name], written) if part else sizes[name]
            moved += written
    end = len(f.bindings) + 1
    for r in f.results:
        for name in place(r):
            interval[name][1] = end
    alive = [
        sum(sizes[n] for n, (first, last) in interval.items() if first <= step <= last)
        for step in range(end + 1)
    ]
    return moved, math.ceil(max(alive) / 8)


def _atoms(b: Binding) -> list[Atom]:
    v = b.value
    if isinstance(v, Call):
        return list(v.args)
    if isinstance(v, Tuple):
        return list(v.fields)
    assert isinstance(v, TupleGetItem)
    return [v.value]


def _operator(b: Binding) -> str:
    """The operator of a kernel that is one alone."""
    op = b.value.op if isinstance(b.value, Call) else None
    if isinstance(op, Function) and len(op.bindings) == 1:
        inner = op.bindings[0].value
        op = inner.op if isinstance(inner, Call) else None
    return op.name if isinstance(op, OpDef) else ""


def _is_kernel(b: Binding) -> bool:
    op = b.value.op if isinstance(b.value, Call) else None
    return isinstance(op, Function) or (isinstance(op, OpDef) and not op.view)


def _takes_a_part(v: Call) -> bool:
    """Whether a kernel only moves elements, so that it need not read all that it is given."""
    op = v.op
    if isinstance(op, Function) and len(op.bindings) == 1:
        inner = op.bindings[0].value
        assert isinstance(inner, Call)
        op = inner.op
    return isinstance(op, OpDef) and op.fusion.value == "injective"


def _tensor(a: Atom) -> TensorType:
    t = a.type
    if isinstance(t, TupleType):
        (t, *_) = t.fields
    assert isinstance(t, TensorType)
    return t
