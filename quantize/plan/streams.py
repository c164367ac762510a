"""Residual streams of a network: values that only layers make and read, but for sums with each
other, so that their channels may be turned into any other basis.

A stream begins where root mean square norms read; it is all that is added to it, and all that it is
added to. What makes it are layers and tables of embeddings, what reads it are layers, through such
norms or directly. These take the new basis into their weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.ir.expr import Atom, Binding, Call, Constant, IRModule, Var, tensor_type, uses
from compiler.op.facts import IntegerForm, Moves
from compiler.op.opdef import OpDef
from compiler.op.shapes import SHAPE_OF
from compiler.types.tensor_types import TensorType
from quantize.plan.call_facts import Form, contraction, contraction_of, form

_SUMS = (Form.ADD, Form.SUBTRACT)


@dataclass
class Stream:
    """One residual stream.

    Attributes:
        width: how many channels it has.
        values: all that is in its basis, in the order in which they were found.
        makers: layers whose results are in it. tables: calls that take rows of a constant.
        constants: sums with a constant, and which operand that is.
        norms: the norms that read it, whose gains go into the weights of what reads them.
        readers: layers that read it -> the norm before them, if there is one.
    """

    width: int
    values: dict[Var, None] = field(default_factory=dict)
    makers: list[Var] = field(default_factory=list)
    tables: list[Var] = field(default_factory=list)
    constants: list[tuple[Var, int]] = field(default_factory=list)
    norms: list[Var] = field(default_factory=list)
    readers: dict[Var, Var | None] = field(default_factory=dict)


def residual_streams(module: IRModule) -> list[Stream | str]:
    """The residual streams of a prepared module, in the order in which norms read them; in place of
    one that cannot be turned, why."""
    return _Finder(module).streams()


class _Declined(Exception):
    """Why a value cannot be in another basis."""


class _Finder:
    def __init__(self, module: IRModule):
        self.f = module.main
        self.at = {b.var: b for b in self.f.bindings}
        self.uses = uses(self.f)

    def streams(self) -> list[Stream | str]:
        """See `residual_streams`."""
        found: list[Stream | str] = []
        seen: set[Var] = set()
        for b in self.f.bindings:
            if not isinstance(b.value, Call) or not _is_norm(b.value):
                continue
            start = b.value.args[0]
            if not isinstance(start, Var) or start in seen:
                continue
            width = tensor_type(start).shape[-1]
            if not isinstance(width, int):
                found.append(f"{start.name!r} has an open number of channels")
                continue
            stream = Stream(width)
            try:
                self._follow(start, stream)
                found.append(stream)
            except _Declined as e:
                found.append(str(e))
            seen |= set(stream.values)
        return found

    def _follow(self, start: Var, stream: Stream) -> None:
        todo: list[Var] = [start]
        while todo:
            v = todo.pop()
            if v not in stream.values:
                stream.values[v] = None
                todo += self._made(v, stream)
                todo += self._read(v, stream)

    def _made(self, v: Var, stream: Stream) -> list[Var]:
        """The values that `v` is made of, as far as they are of the stream."""
        b = self.at.get(v)
        if b is None:
            raise _Declined(f"{v.name!r} is an input")
        call = _call(b)
        if call is None:
            raise _Declined(f"{v.name!r} is made by control flow")
        if form(call) in _SUMS:
            return self._summands(b, call, stream)
        if _passes(call, v):
            x = call.args[0]
            assert isinstance(x, Var)
            return [x]
        if _is_layer(call) and contraction(call).channels % tensor_type(v).rank == _last(v):
            stream.makers.append(v)
            return []
        if _is_table(call, v):
            stream.tables.append(v)
            return []
        raise _Declined(f"{v.name!r} is made by {call.op}, which no basis can be folded into")

    def _summands(self, b: Binding, call: Call, stream: Stream) -> list[Var]:
        out: list[Var] = []
        for k, a in enumerate(call.args):
            shape = tensor_type(a).shape
            if not shape or shape[-1] != stream.width:
                raise _Declined(f"{b.var.name!r} adds a value without its channels")
            if isinstance(a, Constant):
                stream.constants.append((b.var, k))
            elif isinstance(a, Var):
                out.append(a)
        return out

    def _read(self, v: Var, stream: Stream) -> list[Var]:
        """The values that are made of `v` and of the stream."""
        out: list[Var] = []
        for r in self.uses.get(v, []):
            if r is None:
                raise _Declined(f"{v.name!r} is a result of the network")
            call = _call(r)
            if call is None:
                raise _Declined(f"control flow reads {v.name!r}")
            if form(call) in _SUMS or _passes(call, r.var):
                out.append(r.var)
            elif _is_norm(call) and _has_gain(call, v, stream.width):
                stream.norms.append(r.var)
                self._behind(r.var, r.var, stream)
            elif not self._reader(r, call, v, None, stream):
                raise _Declined(_why(r, call, v))
        return out

    def _behind(self, v: Var, norm: Var, stream: Stream) -> None:
        """Note the layers that read a norm, or what is moved from it."""
        for r in self.uses.get(v, []):
            call = None if r is None else _call(r)
            if r is None or call is None:
                raise _Declined(f"{v.name!r} is read by what is no layer")
            if _passes(call, r.var):
                self._behind(r.var, norm, stream)
            elif not self._reader(r, call, v, norm, stream):
                raise _Declined(_why(r, call, v))

    def _reader(self, r: Binding, call: Call, v: Var, norm: Var | None, stream: Stream) -> bool:
        """Whether a binding reads a value as a layer does (it is noted then), or its shape only."""
        if call.op is SHAPE_OF:
            return True
        if (
            not _is_layer(call)
            or call.args[0] != v
            or contraction(call).data % _rank(v) != _last(v)
        ):
            return False
        stream.readers[r.var] = norm
        return True


# ---- calls ---------------------------------------------------------------------------------------
def _call(b: Binding) -> Call | None:
    return b.value if isinstance(b.value, Call) and isinstance(b.value.op, OpDef) else None


def _rank(a: Atom) -> int:
    return tensor_type(a).rank


def _last(a: Atom) -> int:
    return _rank(a) - 1


def _why(r: Binding, call: Call, v: Var) -> str:
    if form(call) == Form.LAYER_NORM and not _is_norm(call):
        return f"the layer norm {r.var.name!r} takes a mean away, which other bases do not keep"
    return f"{r.var.name!r} ({call.op}) reads the channels of {v.name!r} one by one"


def _is_norm(call: Call) -> bool:
    """Whether a call is a root mean square norm over the last axis."""
    if not isinstance(call.op, OpDef) or call.op.integer_form != IntegerForm.RMS_NORM:
        return False
    return bool(call.attrs.axis % _rank(call.args[0]) == _last(call.args[0]))


def _has_gain(call: Call, v: Var, width: int) -> bool:
    gain = call.args[1]
    return call.args[0] == v and isinstance(gain, Constant) and gain.data.size in (1, width)


def _is_layer(call: Call) -> bool:
    """Whether a call multiplies rows by constant weights."""
    axes = contraction_of(call)
    return (
        axes is not None
        and axes.by_rows
        and not axes.kernel
        and all(isinstance(a, Constant) for a in call.args[1:])
    )


def _is_table(call: Call, v: Var) -> bool:
    """Whether a call takes rows of a constant: what it selects is not along the last axis."""
    op, table = call.op, call.args[0]
    if not isinstance(op, OpDef) or op.moves != Moves.SELECT or not isinstance(table, Constant):
        return False
    return _keeps_last(call, table, v)


def _passes(call: Call, v: Var) -> bool:
    """Whether a call moves elements of one value, but not along its last axis; or multiplies all by
    one number."""
    op = call.op
    if not isinstance(op, OpDef) or not call.args or not isinstance(call.args[0], Var):
        return False
    x = call.args[0]
    if not isinstance(x.type, TensorType) or not x.type.rank or not isinstance(v.type, TensorType):
        return False
    if form(call) == Form.MULTIPLY:
        number = call.args[1]
        return isinstance(number, Constant) and number.data.size == 1 and _same_last(x, v)
    if op.moves in (Moves.SAME, Moves.VIEW, Moves.REPEAT):
        return _same_last(x, v)
    if op.moves == Moves.PERMUTE:
        return bool(call.attrs.axes and call.attrs.axes[-1] % _rank(x) == _last(x))
    return op.moves == Moves.SELECT and _keeps_last(call, x, v)


def _same_last(x: Atom, v: Var) -> bool:
    return bool(tensor_type(v).rank and tensor_type(x).shape[-1] == tensor_type(v).shape[-1])


def _keeps_last(call: Call, x: Atom, v: Var) -> bool:
    """Whether what a call selects is along other axes than the last."""
    along = getattr(call.attrs, "axes", None)
    along = (getattr(call.attrs, "axis", None),) if along is None else along
    known = [k % _rank(x) for k in along if isinstance(k, int)]
    return bool(known) and _last(x) not in known and _same_last(x, v)
