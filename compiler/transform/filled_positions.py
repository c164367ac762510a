"""Where a value is known to be its zero point: what was put in between or around data by padding,
as a transposed convolution's data are by its strides."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Var, tensor_type
from compiler.op.facts import Moves
from compiler.op.opdef import OpDef
from compiler.symbolic import Index
from compiler.types.dtypes import Array

Made = dict[Var, Binding]
MOST = 1 << 24
"""Elements of a value that is looked at."""
_ONE = {Moves.VIEW, Moves.SAME, Moves.PERMUTE, Moves.REPEAT, Moves.SELECT, Moves.PAD}


def data_positions(a: Atom, made: Made, zero_point: int) -> Array | None:
    """bool, of the shape of `a`: which of its elements are no zero points put in by padding; None
    where all can be, or sizes are open (of the first axis as 1) or too large to look at."""
    if not _padded(a, made):
        return None
    found = _positions(a, made, zero_point)
    return None if found is None or found.all() else found


def _moved(a: Atom, made: Made) -> tuple[Call, OpDef, Var] | None:
    """The call that moves the elements of one operand, if that is what makes a value, and its
    result."""
    b = made.get(a) if isinstance(a, Var) else None
    if b is None or not isinstance(b.value, Call) or not isinstance(b.value.op, OpDef):
        return None
    op = b.value.op
    return (b.value, op, b.var) if op.moves in _ONE and len(b.value.args) == 1 else None


def _padded(a: Atom, made: Made) -> bool:
    found = _moved(a, made)
    return found is not None and (found[1].moves == Moves.PAD or _padded(found[0].args[0], made))


def _positions(a: Atom, made: Made, zero_point: int) -> Array | None:
    from compiler.interpret.graph import call_reference

    shape = tensor_type(a).shape
    open_sizes = {v: 1 for n in shape[:1] for v in Index.of(n).vars()}
    sizes = [Index.of(n).value(open_sizes) if k == 0 else n for k, n in enumerate(shape)]
    known = [n for n in sizes if isinstance(n, int)]
    if len(known) < len(sizes) or prod(known) > MOST:
        return None
    found = _moved(a, made)
    if found is None:
        return np.ones(known, bool)
    call, op, out = found
    before = _positions(call.args[0], made, zero_point)
    if before is None:
        return None
    if op.moves == Moves.PAD and call.attrs.mode == "constant":
        call = replace(call, attrs=replace(call.attrs, value=float(call.attrs.value != zero_point)))
    dtype = tensor_type(call.args[0]).dtype
    after = call_reference(call, [before.astype(dtype.storage)], out, open_sizes)
    return np.asarray(after, bool)
