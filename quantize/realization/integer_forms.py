"""Forms in which a rewritten module holds values, and what an operator's integer form is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from compiler.ir.expr import Atom, Binding, Call, Constant, Var, tensor_type
from compiler.types.dtypes import Array, DType
from quantize.plan.call_facts import clips, contraction
from quantize.plan.params import ValueParams, WeightParams


@dataclass(frozen=True, eq=False)
class OnGrid:
    """An atom that holds a value on the grid of `params`."""

    atom: Atom
    params: ValueParams


@dataclass(frozen=True, eq=False)
class Result:
    """What an integer node computes: `var` (the end of its chain of folded activations), whose real
    values are kept within `bounds` (-inf, inf without such an activation)."""

    binding: Binding
    call: Call
    var: Var
    origins: tuple[str, ...]
    bounds: tuple[float, float]


class Forms(ABC):
    """The form of values on the grid, and of every operator on them."""

    @abstractmethod
    def bind_grid(self, r: Result, value: Call) -> Var:
        """Bind the grid form of a result."""

    @abstractmethod
    def quantize(self, a: Atom, params: ValueParams, name: str) -> Var:
        """Real values put on a grid."""

    @abstractmethod
    def dequantize(self, var: Var, x: OnGrid) -> Atom:
        """The real form of the value `var`, from its grid form."""

    @abstractmethod
    def constant(self, q: Array, params: ValueParams) -> Constant:
        """Constant integers in the form of values on a grid."""

    @abstractmethod
    def constant_on_grid(self, value: float, params: ValueParams) -> float:
        """A number as the grid form of values holds it."""

    @abstractmethod
    def weighted(self, r: Result, weights: WeightParams) -> None:
        """conv2d or dense."""

    @abstractmethod
    def product(self, r: Result) -> None:
        """matmul of two activations."""

    @abstractmethod
    def function(self, r: Result, root: Var) -> None:
        """A function of the value `root`."""

    @abstractmethod
    def add(self, r: Result) -> None:
        """Sum of two values, or of one and a constant."""

    @abstractmethod
    def subtract(self, r: Result) -> None:
        """Difference of two values, or of one and a constant."""

    @abstractmethod
    def multiply(self, r: Result) -> None:
        """Product of two values, or of one and a constant."""

    @abstractmethod
    def softmax(self, r: Result) -> None:
        """Softmax along an axis."""

    @abstractmethod
    def layer_norm(self, r: Result) -> None:
        """Layer norm with constant gain and offset."""

    @abstractmethod
    def average(self, r: Result) -> None:
        """Mean over axes or under a window."""

    @abstractmethod
    def concatenate(self, r: Result) -> None:
        """Several values side by side."""

    @abstractmethod
    def activation(self, r: Result) -> None:
        """A relu or clip that its producer does not do."""


def integers(values: Array) -> Constant:
    """A constant of the array's own dtype."""
    return Constant(values, DType.parse(str(values.dtype)))


def weights_of(r: Result, weights: WeightParams) -> tuple[Array, Array | None]:
    """The float weights of a node, and its bias [C] with the plan's shift, if it has either."""
    weight, *bias = (a.data for a in r.call.args[1:] if isinstance(a, Constant))
    return weight, weights.shifted(bias[0] if bias else None)


def channel_axis(r: Result) -> int:
    """The axis of a conv2d's or dense's result that its channels are on."""
    return contraction(r.call).channels % tensor_type(r.binding.var).rank


def activation_bounds(call: Call) -> tuple[float, float]:
    """The real bounds that a relu or clip keeps its result in."""
    bounds = clips(call)
    assert bounds is not None, "only activations are folded"
    return bounds


def clipped_bounds(inner: tuple[float, float], outer: tuple[float, float]) -> tuple[float, float]:
    """The bounds that clipping to `inner` and then to `outer` keeps values in."""
    low = min(max(inner[0], outer[0]), outer[1])
    return low, min(max(inner[1], outer[0]), outer[1])
