"""How operators become post-operations of the primitive before them; each by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.engines.onednn.chain import Chain
from compiler.engines.onednn.library import Refused
from compiler.engines.onednn.objects import Kind, Pair
from compiler.engines.onednn.plan import Value
from compiler.ir.expr import Atom, Constant, Var
from compiler.symbolic import Index
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True, eq=False)
class Node:
    """A call of an operator in a region."""

    var: Var
    name: str
    attrs: Any
    args: tuple[Atom, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its value."""
        return shape_of(self.var)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its value."""
        return dtype_of(self.var)


def shape_of(a: Atom) -> tuple[int, ...]:
    """The sizes of a value.

    Raises:
        Refused: they are not known, or it is no tensor.
    """
    t = a.type
    if not isinstance(t, TensorType):
        raise Refused(f"oneDNN takes tensors, not {t}")
    if any(isinstance(d, Index) or not isinstance(d, int) for d in t.shape):
        raise Refused("sizes must be known for oneDNN to choose its code: give shapes")
    return tuple(int(d) for d in t.shape)  # type: ignore[arg-type]


def dtype_of(a: Atom) -> np.dtype[Any]:
    """The dtype of a value, as numpy has it.

    Raises:
        Refused: oneDNN does not have it.
    """
    t = a.type
    name = str(t.dtype) if isinstance(t, TensorType) else str(t)
    if name not in ("float32", "int32", "int8", "uint8"):
        raise Refused(f"oneDNN computes float32 and integers of 8 bits here, not {name}")
    return np.dtype(name)


Apply = Callable[[Chain, Node, int, Callable[[Atom], Value]], None]
"""(chain, node, which of its operands the chain is, atom -> its value): append the node's
post-operations."""
POSTS: dict[str, Apply] = {}


def post(name: str) -> Callable[[Apply], Apply]:
    """Register how an operator becomes post-operations."""

    def register(f: Apply) -> Apply:
        POSTS[name] = f
        return f

    return register


def _require_float(node: Node) -> None:
    for a in (node.var, *node.args):
        if dtype_of(a) != np.float32:
            raise Refused(f"{node.name} is done in float32 here, not in {dtype_of(a)}")


def known(a: Atom, what: str) -> Array:
    """What a constant holds.

    Raises:
        Refused: it is none.
    """
    if not isinstance(a, Constant):
        raise Refused(f"{what} must be constant")
    return np.asarray(a.data)


# ---- functions of one number ---------------------------------------------------------------------
def _function(kind: Kind, alpha: str | float = 0.0, beta: str | float = 0.0) -> Apply:
    """oneDNN's function, with constants or what attributes say."""

    def apply(chain: Chain, node: Node, at: int, value: Any) -> None:
        _require_float(node)
        a, b = (getattr(node.attrs, v) if isinstance(v, str) else v for v in (alpha, beta))
        chain.function(kind, a, b)

    return apply


# Not log: its logarithm is off by up to 3e-6 whatever the result, so that of 1.000001 has the wrong
# sign, and takes subnormal numbers for the smallest normal one.
post("tanh")(_function(Kind.TANH))
post("exp")(_function(Kind.EXP))
post("sqrt")(_function(Kind.SQRT))
post("abs")(_function(Kind.ABS))
post("sigmoid")(_function(Kind.LOGISTIC))
post("negative")(_function(Kind.LINEAR, -1.0))
post("nn.leaky_relu")(_function(Kind.RELU, "alpha"))
post("nn.hard_sigmoid")(_function(Kind.HARD_SIGMOID, "alpha", "beta"))
post("nn.hard_swish")(_function(Kind.HARD_SWISH, "alpha", "beta"))


@post("nn.relu")
def _relu(chain: Chain, node: Node, at: int, value: Any) -> None:
    dtype_of(node.var)
    chain.function(Kind.RELU)


@post("clip")
def _clip(chain: Chain, node: Node, at: int, value: Any) -> None:
    dtype_of(node.var)
    low, high = node.attrs.a_min, node.attrs.a_max
    if math.isinf(low) or math.isinf(high):
        for kind, bound in ((Pair.MAX, low), (Pair.MIN, high)):
            if not math.isinf(bound):
                chain.by_constant(kind, np.array(bound))
    else:
        chain.function(Kind.CLIP, low, high)


@post("nn.gelu")
def _gelu(chain: Chain, node: Node, at: int, value: Any) -> None:
    _require_float(node)
    chain.function(Kind.GELU_ERF if node.attrs.approximate == "none" else Kind.GELU_TANH)


# ---- two operands --------------------------------------------------------------------------------
def _binary(kind: Pair, *before: tuple[Kind, float], swapped: Pair | None = None) -> Apply:
    """`kind`; where the chain is the second operand, `swapped` after the functions `before`."""

    def apply(chain: Chain, node: Node, at: int, value: Any) -> None:
        _require_float(node)
        other = node.args[1 - at]
        if at and swapped is None:
            raise Refused(f"{node.name} takes what was computed as its first operand here")
        for name, alpha in before if at else ():
            chain.function(name, alpha)
        using = (swapped or kind) if at else kind
        if isinstance(other, Constant) and np.size(other.data) == 1 and using in _LINEAR:
            chain.function(Kind.LINEAR, *_LINEAR[using](float(np.ravel(other.data)[0])))
        else:
            chain.binary(using, value(other))

    return apply


_LINEAR: dict[Pair, Callable[[float], tuple[float, float]]] = {
    Pair.ADD: lambda c: (1.0, c),
    Pair.SUB: lambda c: (1.0, -c),
    Pair.MUL: lambda c: (c, 0.0),
}
"""What a constant is added to or multiplied by is a linear function, which rounds once."""

post("add")(_binary(Pair.ADD, swapped=Pair.ADD))
post("subtract")(_binary(Pair.SUB, (Kind.LINEAR, -1.0), swapped=Pair.ADD))
post("multiply")(_binary(Pair.MUL, swapped=Pair.MUL))
post("divide")(_binary(Pair.DIV))
post("maximum")(_binary(Pair.MAX, swapped=Pair.MAX))
post("minimum")(_binary(Pair.MIN, swapped=Pair.MIN))


# ---- integers ------------------------------------------------------------------------------------
EXACT = float(1 << 24)
"""Integers up to it are float32 numbers."""


def _scale(chain: Chain, node: Node) -> Array:
    """The scales of a node, in the shape in which they broadcast to its value."""
    scale = known(node.args[1], "scales")
    if scale.size == 1:
        return scale.reshape(())
    rank = len(node.shape)
    shape = [1] * rank
    shape[node.attrs.axis % rank] = scale.size
    return scale.reshape(shape)


@post("qnn.quantize")
def _quantize(chain: Chain, node: Node, at: int, value: Any) -> None:
    chain.by_constant(Pair.DIV, _scale(chain, node))
    chain.to_integers(node.attrs.zero_point, node.attrs.qmin, node.attrs.qmax)


@post("qnn.dequantize")
def _dequantize(chain: Chain, node: Node, at: int, value: Any) -> None:
    if dtype_of(node.args[0]) == np.int32 and chain.sums is None:
        raise Refused("int32 data is dequantized where it was summed up only")
    chain.shift(-node.attrs.zero_point)
    chain.by_constant(Pair.MUL, _scale(chain, node))


@post("qnn.requantize")
def _requantize(chain: Chain, node: Node, at: int, value: Any) -> None:
    """One float32 product, as oneDNN has it: the same bits while sums are float32 numbers."""
    a = node.attrs
    if a.rounding != "float32":
        raise Refused(f"oneDNN requantizes by a float32 product, not by {a.rounding!r}")
    if dtype_of(node.args[0]) == np.int32:
        scale = _scale(chain, node).ravel()
        if chain.sums is None:
            raise Refused("int32 data is requantized where it was summed up only")
        along = a.axis % len(node.shape) == chain.channels % len(node.shape) or scale.size == 1
        most = chain.sums * scale if along else chain.sums.max() * scale
        # The sum without its bias, the bias, and the two together are each rounded to 24 bits.
        if float(np.max(most)) * 2**-23 > 0.5 and float(np.max(chain.sums)) > EXACT:
            raise Refused(
                "sums may be so large that float32, in which oneDNN adds the bias, is off by more "
                "than a step of the result"
            )
    chain.shift(-a.input_zero_point)
    chain.by_constant(Pair.MUL, _scale(chain, node))
    chain.to_integers(a.output_zero_point, a.qmin, a.qmax)


@post("qnn.add")
def _quantized_add(chain: Chain, node: Node, at: int, value: Any) -> None:
    """(a - za) * sa, rounded; then + (b - zb) * sb as one fused operation: where that is exactly
    between two integers, one step from two products and a sum."""
    a = node.attrs
    if a.rounding != "float32":
        raise Refused(f"oneDNN adds integers in float32, not by {a.rounding!r}")
    scales = (a.a_scale, a.b_scale)
    zeros = (a.a_zero_point, a.b_zero_point)
    for x in node.args:
        if dtype_of(x).itemsize != 1 or dtype_of(x) != node.dtype:
            raise Refused("oneDNN adds integers of one dtype of 8 bits")
    chain.shift(-zeros[at])
    chain.function(Kind.LINEAR, float(np.float32(scales[at])))
    other = node.args[1 - at]
    chain.accumulate(value(other), float(np.float32(scales[1 - at])), zeros[1 - at])
    chain.to_integers(a.output_zero_point, a.qmin, a.qmax)
