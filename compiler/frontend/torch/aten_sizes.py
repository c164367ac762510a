"""Converters of arithmetic on sizes, and of checks that torch adds to programs."""

from __future__ import annotations

import re

from compiler.errors import ModelError
from compiler.frontend.node import Results
from compiler.frontend.run_time import checked
from compiler.frontend.torch.node import TorchNode, aten
from compiler.frontend.values import Imported, symbolic
from compiler.ir.expr import Constant, tensor_type
from compiler.types.dtypes import BOOL, FLOAT64, INT64

_SPELLINGS = {
    "operator.add": "Add",
    "operator.sub": "Sub",
    "operator.mul": "Mul",
    "operator.mod": "Mod",
    "operator.neg": "Neg",
    "torch.sym_max": "Max",
    "torch.sym_min": "Min",
    "operator.eq": "Equal",
    "operator.lt": "Less",
    "operator.le": "LessOrEqual",
    "operator.gt": "Greater",
    "operator.ge": "GreaterOrEqual",
    "operator.and_": "And",
    "operator.or_": "Or",
}


@aten("sym_size")
def sym_size(n: TorchNode) -> Results:
    """The size of an axis."""
    t = tensor_type(n.x())
    return symbolic(t.shape[n.front(n.number("dim"), t.rank)], INT64)


@aten("sym_numel")
def sym_numel(n: TorchNode) -> Results:
    """The number of elements."""
    return n.spelled("Size", n.x())


@aten(*_SPELLINGS)
def arithmetic(n: TorchNode) -> Results:
    """Of sizes, symbolic or found at run time."""
    return n.spelled(_SPELLINGS[n.op], *_operands(n))


@aten("operator.floordiv")
def floor_division(n: TorchNode) -> Results:
    """Rounded down; sizes are not negative."""
    return n.spelled("Div", *_operands(n))


@aten("operator.truediv")
def true_division(n: TorchNode) -> Results:
    """In float64."""
    a, b = (n.converted(n.made(v), FLOAT64) for v in _operands(n))
    return n.call("divide", a, b)


@aten("operator.pow")
def power(n: TorchNode) -> Results:
    """In float64 where it is not known."""
    return n.spelled("Pow", *_operands(n))


@aten("torch.sym_float")
def sym_float(n: TorchNode) -> Results:
    """A size as a number of float64."""
    (v,) = _operands(n)
    return n.converted(n.made(v), FLOAT64)


@aten("torch.sym_not")
def sym_not(n: TorchNode) -> Results:
    """Whether something is not so."""
    return n.spelled("Not", *_operands(n))


def _operands(n: TorchNode) -> list[Imported]:
    return [n.imported(n.arg(k)) for k in n.args]


@aten("_assert_tensor_metadata", "_assert_async", "sym_constrain_range",
      "sym_constrain_range_for_size")  # fmt: skip
def metadata(n: TorchNode) -> Results:
    """Types are known here, and what programs do with data is checked where they do it."""
    return Constant.of(True, BOOL)


@aten("_assert_scalar")
def assert_scalar(n: TorchNode) -> Results:
    """What torch took for granted: known to be wrong it is refused, else checked where the program
    has found out."""
    v = n.made(n.imported(n.arg("self")))
    stated = re.sub(r".*expression (.*) on node .*", r"\1", str(n.arg("assert_msg")))
    claim = f"{n.where}: {stated} does not hold, which torch took for granted"
    if not isinstance(v, Constant):
        checked(n, n.step("cast", v, dtype="int64"), 1, "asserted", claim)
    elif not v.data.all():
        raise ModelError(claim)
    return Constant.of(True, BOOL)
