"""What `OpDef` says of the operator of a call and its operands; nothing of calls of functions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from compiler.errors import DtypelabError
from compiler.ir.expr import Atom, Call, Constant, tensor_type
from compiler.op.facts import Contraction, IntegerForm, Moves
from compiler.op.opdef import OpDef, Quantized
from compiler.types.dtypes import FLOAT32


class Form(Enum):
    """What an operator is on integers: each has a method of `quantize.realization` and a rule of
    `quantize.reference`.

    WEIGHTED: sums of products with weights. MATMUL: of two activations. ADD, SUBTRACT, MULTIPLY: of
    two activations, or of one and a constant. LAYER_NORM: also one that takes no mean away. JOIN:
    several values side by side. PAD: adds elements of its own. MOVE: any other operator that moves
    or selects values. NONE: it stays float.
    """

    WEIGHTED = "weighted"
    MATMUL = "matmul"
    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    AVERAGE = "average"
    SOFTMAX = "softmax"
    LAYER_NORM = "layer_norm"
    CLIP = "clip"
    JOIN = "join"
    PAD = "pad"
    MOVE = "move"
    NONE = "none"


ARITHMETIC = (Form.ADD, Form.SUBTRACT, Form.MULTIPLY)
_BY_FORM = {
    IntegerForm.SUM: Form.ADD,
    IntegerForm.DIFFERENCE: Form.SUBTRACT,
    IntegerForm.PRODUCT: Form.MULTIPLY,
    IntegerForm.SOFTMAX: Form.SOFTMAX,
    IntegerForm.LAYER_NORM: Form.LAYER_NORM,
    IntegerForm.RMS_NORM: Form.LAYER_NORM,
}
_BY_MOVE = {Moves.JOIN: Form.JOIN, Moves.PAD: Form.PAD}


def form_of(op: OpDef) -> Form:
    """The integer form of an operator, by its facts."""
    if op.quantized == Quantized.FLOAT:
        return Form.NONE
    if op.contraction is not None:
        return Form.WEIGHTED if op.contraction.by_rows else Form.MATMUL
    if op.average is not None:
        return Form.AVERAGE
    if op.integer_form is not None:
        return _BY_FORM[op.integer_form]
    if op.clips is not None:
        return Form.CLIP
    if op.moves in _BY_MOVE:
        return _BY_MOVE[op.moves]
    return Form.MOVE if op.quantized == Quantized.SAME else Form.NONE


def form(call: Call) -> Form:
    """The integer form of what a call calls, if it alone counts."""
    return form_of(call.op) if isinstance(call.op, OpDef) else Form.NONE


def contraction(call: Call) -> Contraction:
    """The axes of a call that sums products.

    Raises:
        DtypelabError: it is none.
    """
    found = contraction_of(call)
    if found is None:
        raise DtypelabError(f"{call.op} is no contraction")
    return found


def contraction_of(call: Call) -> Contraction | None:
    """The axes of a call that sums products; None if it is none."""
    return call.op.contraction if isinstance(call.op, OpDef) else None


def centred(call: Call) -> bool:
    """Whether a layer norm takes the mean away; else it is a root mean square norm."""
    return isinstance(call.op, OpDef) and call.op.integer_form is not IntegerForm.RMS_NORM


def clips(call: Call) -> tuple[float, float] | None:
    """The real bounds of an activation (relu, clip), which its producer's clipping can do; None of
    other calls."""
    found = call.op.clips if isinstance(call.op, OpDef) else None
    return found(call.attrs) if found is not None else None


def operands(call: Call) -> Sequence[Atom]:
    """The two factors of a call that multiplies; of any other the one operand in a format."""
    return call.args[: 1 if contraction_of(call) is None else 2]


def block_axis(call: Call, k: int) -> int:
    """The axis of operand `k` that products are summed along, which blocks run along: input
    channels of convolutions (see `flat_blocks`)."""
    axes = contraction_of(call)
    if axes is None:  # a table, by rows
        return 1
    axis = axes.weights if k == 1 else axes.data
    return axis if axis >= 0 else tensor_type(call.args[k]).rank + axis


def is_lookup(call: Call) -> bool:
    """Whether a call takes rows of a constant float32 table."""
    table = call.args[0] if len(call.args) == 2 else None
    selects = isinstance(call.op, OpDef) and call.op.moves == Moves.SELECT
    if not selects or not isinstance(table, Constant):
        return False
    return table.dtype == FLOAT32 and table.data.ndim == 2 and call.attrs.axis == 0
