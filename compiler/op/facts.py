"""Facts about operators that passes and quantize ask for instead of names: what an `OpDef` holds of
contractions, sums, means, moves of elements, and scales and shifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from compiler.symbolic import Dim
from compiler.types.dtypes import Array

Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class Contraction:
    """Contraction of two operands, data and weights: sums of products along an axis of each, and,
    of a convolution, over the taps of a kernel. A third operand, if any, is a bias of the output
    channels.

    Axes are positions, negative ones counted from the end. Attributes that several contractions
    have, have one name and meaning everywhere: `groups` (the input channels of the weights are
    those of a group), `padding` and `padding_value`, `data_layout` and `out_layout`, `out_dtype`,
    `input_zero_point`, `accumulate`.

    Attributes:
        data: axis of the data along which it sums: the input channels.
        weights: axis of the weights along which it sums.
        units: axis of the weights that gives the output channels.
        channels: axis of the result that the output channels are on.
        kernel: how many axes a kernel has; they are the last ones of the weights.
    """

    data: int
    weights: int
    units: int
    channels: int
    kernel: int = 0

    @property
    def by_rows(self) -> bool:
        """Whether the weights of each output channel are a row (units first): what scales by
        channel, and biases, go with. Else (a product of matrices) both operands are data."""
        return self.units == 0


@dataclass(frozen=True)
class Undivided:
    """The sums that a mean divides: an operator, its attributes, and, of sums under windows, the
    shape of a second factor of ones (OIHW weights)."""

    op: str
    attrs: dict[str, Any]
    ones: tuple[int, ...] = ()


@dataclass(frozen=True)
class Division:
    """The division that ends a mean.

    Attributes:
        sums: (attrs, shape of the first operand, shape of the result) -> the sums that are divided.
        counts: (attrs, shapes as before) -> int64 array of what they are divided by; None:
            by as many as each has terms.
    """

    sums: Callable[[Any, Shape, Shape], Undivided]
    counts: Callable[[Any, Shape, Shape], Array] | None = None


@dataclass(frozen=True)
class Summation:
    """Its result is a sum, rounded once where `accumulate` says so (a softmax has sums inside).

    Attributes:
        operands: positions of what is added up or, in pairs, multiplied.
        products: of products of two operands, if it has two.
        itself: where float64 holds its exact sums, its own loop nest adds up float64; else it is
            written as an operator on float64, which has faster kernels.
        division: of a mean.
        of_products: name of the operator that does the same with products of two operands.
        holds: attributes with which it adds up.
    """

    operands: tuple[int, ...] = (0,)
    products: bool = False
    itself: bool = True
    division: Division | None = None
    of_products: str = ""
    holds: Callable[[Any], bool] = lambda _: True


@dataclass(frozen=True)
class Average:
    """Mean of elements of the one operand.

    Attributes:
        axes: (attrs, rank of the operand) -> over which axes it is (none: all), and whether they
            stay, with length 1; None: the mean is one under a sliding window, of the attributes of
            nn.avg_pool2d.
        integer: name of the operator that does it on integers; empty: it is that itself.
    """

    axes: Callable[[Any, int], tuple[tuple[int, ...], bool]] | None
    integer: str

    def integer_attrs(self, attrs: Any, rank: int) -> dict[str, Any]:
        """Attributes of the operator on integers, but for scales and zero points."""
        if self.axes is None:
            return dict(vars(attrs))
        axes, keepdims = self.axes(attrs, rank)
        return {"axis": axes, "keepdims": keepdims}


class IntegerForm(Enum):
    """What an operator is on integers that says no other fact (a contraction, an average, a clip
    and a move are known by those): a sum, a difference or a product of two operands, a softmax, a
    layer norm, or one that takes no mean away."""

    SUM = "sum"
    DIFFERENCE = "difference"
    PRODUCT = "product"
    SOFTMAX = "softmax"
    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"


class Moves(Enum):
    """How an operator moves elements of its operand (JOIN: of all operands) without changing them.

    VIEW: gives the same elements, in row-major order, another shape. SAME: is its operand. PERMUTE:
    changes the order of axes. REPEAT: broadcasts. SELECT: takes some. SPLIT: gives parts, as a
    tuple. JOIN: puts operands one behind another. PAD: adds elements of its own.
    """

    VIEW = "view"
    SAME = "same"
    PERMUTE = "permute"
    REPEAT = "repeat"
    SELECT = "select"
    SPLIT = "split"
    JOIN = "join"
    PAD = "pad"


@dataclass(frozen=True)
class Zeros:
    """Attributes that say which integer stands for zero: the operator gives the same result where
    it and all integers of the operand are shifted alike.

    Attributes:
        operands: the attribute of each operand, from the first on (empty: a shift of the operand
            alone changes nothing); those behind have none.
        result: that of the result; empty: none. The attributes `out_dtype`, `qmin` and `qmax`
            stand beside it.
        holds: other attributes with which this is so.
    """

    operands: tuple[str, ...] = ()
    result: str = ""
    holds: Callable[[Any], bool] = lambda _: True


Clips = Callable[[Any], tuple[float, float]]
"""attrs -> the least and the largest value that elements are clipped to; infinite: no bound."""
Affine = Callable[[Any, Sequence[Array], bool], tuple[Array | None, Array | None] | None]
"""(attrs, the constant operands in float64, whether they come first) -> scale (None: 1) and shift
(None: 0) of the other operand; None: it is none with these. Constants go along the attribute `axis`
of the operators that have it, and broadcast elsewhere."""


@dataclass(frozen=True)
class OnnxNode:
    """The ONNX node of the same meaning over the same operands.

    Attributes:
        name: its operator.
        attributes: ONNX's attribute -> the attribute here.
        axes: the attribute `axis` is ONNX's second operand, and left out if it means all axes.
    """

    name: str
    attributes: Mapping[str, str]
    axes: bool = False


def onnx_node(name: str, *same: str, axes: bool = False, **renamed: str) -> OnnxNode:
    """An ONNX node with attributes of the `same` names, and `renamed` ones as ONNX=ours."""
    return OnnxNode(name, {**{n: n for n in same}, **renamed}, axes)
