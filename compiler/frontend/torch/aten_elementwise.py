"""Converters of elementwise operators: operands of several dtypes are converted as torch does."""

from __future__ import annotations

import math
from typing import Any

from compiler.arithmetic.scalar_functions import UNARY
from compiler.frontend.node import Results
from compiler.frontend.torch.element_types import dtype_of
from compiler.frontend.torch.node import Ref, TorchNode, aten
from compiler.frontend.values import Imported, constant_of, scalar
from compiler.frontend.windows import Emit
from compiler.ir.expr import Atom, tensor_type
from compiler.types.dtypes import BOOL, DType

_UNARY = {
    **{f"aten.{name}": name for name in UNARY},
    "aten.relu": "nn.relu",
    "aten.abs": "abs",
    "aten.neg": "negative",
    "aten.sign": "sign",
    "aten.bitwise_not": "bitwise_not",
}

_BINARY = {
    "aten.mul": "multiply",
    "aten.maximum": "maximum",
    "aten.minimum": "minimum",
    "aten.fmod": "fmod",
    "aten.bitwise_and": "bitwise_and",
    "aten.bitwise_or": "bitwise_or",
    "aten.bitwise_xor": "bitwise_xor",
    "aten.__and__": "bitwise_and",
    "aten.__or__": "bitwise_or",
    "aten.__xor__": "bitwise_xor",
    "aten.__lshift__": "left_shift",
    "aten.__rshift__": "right_shift",
    "aten.bitwise_left_shift": "left_shift",
    "aten.bitwise_right_shift": "right_shift",
}

_COMPARISONS = {
    "aten.eq": "equal",
    "aten.ne": "not_equal",
    "aten.lt": "less",
    "aten.le": "less_equal",
    "aten.gt": "greater",
    "aten.ge": "greater_equal",
}

_LOGIC = {
    "aten.logical_and": "logical_and",
    "aten.logical_or": "logical_or",
    "aten.logical_xor": "logical_xor",
}


def promoted(n: TorchNode, *names: str) -> DType:
    """The dtype in which torch computes with these arguments."""
    import torch

    given = [n.arg(name) for name in names]
    like = [_example(a) for a in given]
    found: Any = like[0]
    for x in like[1:]:
        found = torch.empty(0, dtype=torch.result_type(found, x)) if _both(found, x) else found
    return dtype_of(found.dtype if isinstance(found, torch.Tensor) else torch.result_type(found, 0))


def _both(a: Any, b: Any) -> bool:
    return a is not None and b is not None


def _example(a: Any) -> Any:
    """Something of the category (tensor, number) and dtype of an argument."""
    import torch

    if isinstance(a, Ref):
        return 0 if a.dtype is None else torch.empty((1,) * (a.rank > 0), dtype=a.dtype)
    return a


def as_bool(n: TorchNode, name: str) -> Atom:
    """Whether elements are not 0."""
    given = n.arg(name)
    if isinstance(given, (bool, int, float)):
        return constant_of(bool(given), BOOL)
    x = n.x(name)
    t = tensor_type(x)
    return x if t.dtype == BOOL else n.step("not_equal", x, scalar(0, t))


@aten(*_UNARY)
def unary(n: TorchNode) -> Results:
    """One operand; functions of integers are computed in floats."""
    if n.op == "aten.bitwise_not" and n.dtype == BOOL:
        return n.call("logical_not", n.x())
    return n.call(_UNARY[n.op], n.in_dtype("self", n.dtype))


@aten("logical_not")
def logical_not(n: TorchNode) -> Results:
    """Whether elements are 0."""
    return n.call("logical_not", as_bool(n, "self"))


@aten("isnan", "isinf")
def kinds(n: TorchNode) -> Results:
    """Of floats; integers are finite."""
    x = n.x()
    x = (
        x
        if tensor_type(x).dtype.kind in ("float", "custom")
        else n.step("cast", x, dtype="float32")
    )
    return n.call(n.op.removeprefix("aten."), x)


@aten("reciprocal")
def reciprocal(n: TorchNode) -> Results:
    """1 / x."""
    return n.call("divide", constant_of(1, n.dtype), n.in_dtype("self", n.dtype))


@aten("trunc")
def trunc(n: TorchNode) -> Results:
    """Towards zero."""
    return _toward_zero(n, n.x(), n.call)


def _toward_zero(n: TorchNode, x: Atom, emit: Emit) -> Atom:
    t = tensor_type(x)
    if not t.dtype.is_float:
        return x
    up = n.step("ceil", x)
    return emit("where", n.step("less", x, scalar(0, t)), up, n.step("floor", x))


@aten("log2", "log10", "log1p", "expm1", "exp2")
def logarithms(n: TorchNode) -> Results:
    """In float64, of log and exp, rounded once."""
    x = n.in_dtype("self", DType.parse("float64"))
    t, name = tensor_type(x), n.op.removeprefix("aten.")
    one, two = scalar(1, t), scalar(math.log(2), t)
    if name == "log1p":
        y = n.step("log", n.step("add", x, one))
    elif name == "expm1":
        y = n.step("subtract", n.step("exp", x), one)
    elif name == "exp2":
        y = n.step("exp", n.step("multiply", x, two))
    else:
        base = two if name == "log2" else scalar(math.log(10), t)
        y = n.step("divide", n.step("log", x), base)
    return n.converted(y, n.dtype)


@aten(*_BINARY)
def binary(n: TorchNode) -> Results:
    """Two operands that broadcast."""
    dtype = n.dtype
    op = _BINARY[n.op]
    if dtype == BOOL:  # numbers of one bit
        op = {"multiply": "logical_and", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
              "bitwise_xor": "logical_xor", "maximum": "logical_or", "minimum": "logical_and",
              }[op]  # fmt: skip
    return n.call(op, n.in_dtype("self", dtype), n.in_dtype("other", dtype))


@aten("add", "sub", "rsub")
def sums(n: TorchNode) -> Results:
    """a + alpha * b and its like."""
    dtype = n.dtype
    a, b = n.in_dtype("self", dtype), n.in_dtype("other", dtype)
    if dtype == BOOL:
        return n.call("logical_or", a, b)
    if n.op == "aten.rsub":
        a, b = b, a
    alpha = n.number("alpha") if "alpha" in n.args else 1
    if alpha not in (None, 1):
        factor = constant_of(alpha, dtype)
        if n.op == "aten.rsub":
            a, b = a, n.step("multiply", b, factor)
        else:
            b = n.step("multiply", b, factor)
    return n.call("add" if n.op == "aten.add" else "subtract", a, b)


@aten("div", "floor_divide", "true_divide")
def div(n: TorchNode) -> Results:
    """A true quotient, or one that is rounded down or towards zero."""
    mode = "floor" if n.op == "aten.floor_divide" else n.arg("rounding_mode")
    dtype = n.dtype
    a, b = n.in_dtype("self", dtype), n.in_dtype("other", dtype)
    if mode is None:
        return n.call("divide", a, b)
    if not dtype.is_float:
        if mode == "trunc":
            return n.call("divide", a, b)
        rest = n.step("mod", a, b)  # of the sign of b
        return n.call("divide", n.step("subtract", a, rest), b)
    if mode == "trunc":
        return _toward_zero(n, n.step("divide", a, b), n.call)
    rest = n.step("mod", a, b)
    exact = n.step("divide", n.step("subtract", a, rest), b)
    return n.call("round", exact)


@aten("atan2")
def atan2(n: TorchNode) -> Results:
    """The angle of (other, self): that of the quotient, in the quadrant that the signs say."""
    y, x = n.in_dtype("self", n.dtype), n.in_dtype("other", n.dtype)
    t = tensor_type(n.step("multiply", y, x))
    zero, half = scalar(0, t), scalar(math.pi, t)
    back = n.step("where", n.step("less", y, zero), scalar(-math.pi, t), half)
    angle = n.step("atan", n.step("divide", y, x))
    angle = n.step("where", n.step("less", x, zero), n.step("add", angle, back), angle)
    at_zero = n.step("logical_and", n.step("equal", x, zero), n.step("equal", y, zero))
    return n.call("where", at_zero, zero, angle)


@aten("remainder")
def remainder(n: TorchNode) -> Results:
    """Of the sign of the divisor."""
    return n.call("mod", n.in_dtype("self", n.dtype), n.in_dtype("other", n.dtype))


@aten(*_COMPARISONS)
def comparison(n: TorchNode) -> Results:
    """In the dtype that both are converted to."""
    dtype = promoted(n, "self", "other")
    return n.call(_COMPARISONS[n.op], n.in_dtype("self", dtype), n.in_dtype("other", dtype))


@aten(*_LOGIC)
def logic(n: TorchNode) -> Results:
    """Of what is not 0."""
    return n.call(_LOGIC[n.op], as_bool(n, "self"), as_bool(n, "other"))


@aten("pow")
def power(n: TorchNode) -> Results:
    """Small known exponents are multiplications."""
    base, exponent = n.in_dtype("self", n.dtype), n.arg("exponent")
    if isinstance(exponent, (int, float)) and exponent in (-1, -2, -0.5):
        one = constant_of(1, n.dtype)
        if exponent == -0.5:
            return n.call("rsqrt", base)
        down = base if exponent == -1 else n.step("multiply", base, base)
        return n.call("divide", one, down)
    return n.spelled("Pow", base, n.in_dtype("exponent", n.dtype))


@aten("where")
def where(n: TorchNode) -> Results:
    """Elements of `self` where the condition holds, else of `other`."""
    a, b = (n.in_dtype(name, n.dtype) for name in ("self", "other"))
    return n.call("where", as_bool(n, "condition"), a, b)


@aten("masked_fill")
def masked_fill(n: TorchNode) -> Results:
    """A value where the mask holds."""
    return n.call("where", as_bool(n, "mask"), n.in_dtype("value", n.dtype), n.x())


@aten("clamp", "clamp_min", "clamp_max", "hardtanh")
def clamp(n: TorchNode) -> Results:
    """Within bounds, either of which may be missing."""
    bounds: list[Imported | None] = []
    for names in (("min", "min_val"), ("max", "max_val")):
        name = next((x for x in names if n.arg(x) is not None), None)
        bounds.append(None if name is None else n.in_dtype(name, n.dtype))
    return n.spelled("Clip", n.in_dtype("self", n.dtype), *bounds)


@aten("lerp")
def lerp(n: TorchNode) -> Results:
    """self + weight * (end - self)."""
    a, b = n.in_dtype("self", n.dtype), n.in_dtype("end", n.dtype)
    way = n.step("multiply", n.in_dtype("weight", n.dtype), n.step("subtract", b, a))
    return n.call("add", a, way)


@aten("addcmul", "addcdiv")
def addc(n: TorchNode) -> Results:
    """self + value * tensor1 * tensor2, or / tensor2."""
    a, p, q = (n.in_dtype(name, n.dtype) for name in ("self", "tensor1", "tensor2"))
    part = n.step("multiply" if n.op == "aten.addcmul" else "divide", p, q)
    if n.number("value") != 1:
        part = n.step("multiply", part, constant_of(n.number("value"), n.dtype))
    return n.call("add", a, part)


@aten("_to_copy", "to", "type_as")
def to_copy(n: TorchNode) -> Results:
    """Another dtype, if one is asked for."""
    x = n.x()
    if tensor_type(x).dtype == n.dtype:
        return x
    return n.call("cast", x, dtype=str(n.dtype))


@aten("clone", "alias", "detach", "lift_fresh_copy", "contiguous", "lift_fresh", "copy_",
      "prims.view_of")  # fmt: skip
def same(n: TorchNode) -> Results:
    """The operand itself."""
    return n.tensor("self" if "self" in n.args else "a")


@aten("copy")
def copy(n: TorchNode) -> Results:
    """`src` in the shape and dtype of `self`."""
    src = n.in_dtype("src", n.dtype)
    shape = tensor_type(n.x()).shape
    return src if tensor_type(src).shape == shape else n.call("broadcast_to", src, shape=shape)


@aten("dropout", "native_dropout", "feature_dropout")
def dropout(n: TorchNode) -> Results:
    """Nothing is dropped in evaluation; in training, what our own draws say, and what stays is
    divided by its share."""
    name = "self" if "self" in n.args else "input"
    share = n.number("p")
    if not n.arg("train") or not share:
        shape = tensor_type(n.x(name)).shape
        kept = n.step("broadcast_to", constant_of(True, BOOL), shape=shape) if n.wants(1) else None
        return [n.tensor(name), *([] if kept is None else [kept])]
    if n.drawn is None or n.op == "aten.feature_dropout":
        raise n.unsupported("train=True: it drops others in every run; call module.eval() first")
    x = n.x(name)
    t = tensor_type(x)
    kept = n.drawn(t.shape, 1.0 - share)
    scale = constant_of(1.0 / (1.0 - share) if share < 1 else 0.0, t.dtype)
    ones = n.step("multiply", x, n.converted(kept, t.dtype))  # what is infinite gives NaN, as there
    return [n.call("multiply", ones, scale), kept]


@aten("bernoulli")
def bernoulli(n: TorchNode) -> Results:
    """1 with a probability, which is one number for all elements."""
    share = n.number("p")
    if n.drawn is None or share is None:
        raise n.unsupported(
            "random numbers are drawn in compiled training alone, with one probability for all"
        )
    kept = n.drawn(tensor_type(n.x()).shape, share)
    return n.call("cast", kept, dtype=str(n.dtype))
