"""Steps of grids: constants of a plan, or variables that training learns (learned step sizes; Esser
et al., Learned Step Size Quantization, 2020)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Constant, Var, tensor_type
from compiler.op.elementwise import DIVIDE, MULTIPLY
from compiler.passes.rewrite import call
from compiler.types.dtypes import FLOAT32, FLOAT64, DType
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import Plan


@dataclass(frozen=True)
class Owned(ValueParams):
    """Parameters that know whose they are: what only moves a value keeps them."""

    owner: str = ""

    @classmethod
    def by(cls, owner: str, params: ValueParams) -> Owned:
        """`params` of the value `owner`."""
        return cls(**{f.name: getattr(params, f.name) for f in fields(params)}, owner=owner)


def owned(plan: Plan) -> Plan:
    """The plan, whose values' parameters say which value they are of."""
    return replace(plan, values={k: Owned.by(k, v) for k, v in plan.values.items()})


@dataclass(frozen=True, eq=False)
class Step:
    """A step that is learned.

    Attributes:
        var: the variable: a scalar, or one number for each output channel.
        of: name of the value, or of the node whose weights it is of. weights: the latter.
        value: what the plan says, float32.
        pull: what its gradient is to be multiplied by, so that it follows as fast as what it rounds
            does: 1 / sqrt(N * q), of the N elements that it rounds (of one example) and the largest
            integer q.
    """

    var: Var
    of: str
    weights: bool
    value: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    pull: float


class Steps:
    """The steps of a plan as atoms; those of the values in `pinned`, and of the weights of the
    nodes in `frozen`, are constants, whatever is learned.

    `learned`: whether the others are variables, whose names are none of `names`.
    """

    def __init__(
        self, plan: Plan, learned: bool, names: Iterable[str], pinned: Iterable[str] = (),
        frozen: Iterable[str] = (),
    ):  # fmt: skip
        self.plan, self.learned = plan, learned
        self.pinned, self.frozen = {*pinned}, {*frozen}
        self.made: dict[tuple[str, bool], Step] = {}
        self._names = {*names}

    def of_value(self, params: ValueParams, elements: int) -> Atom:
        """The step of a value on a grid; `elements`: of one example."""
        scale = np.float32(params.scale)
        if not self.learned or not isinstance(params, Owned) or params.owner in self.pinned:
            return Constant.of(scale, FLOAT32)
        return self._variable(params.owner, False, np.asarray(scale), elements, params.span)

    def of_weights(self, node: str, weights: WeightParams, elements: int) -> Atom:
        """The step, or steps, of a node's weights; `elements`: of all of them."""
        scales = np.asarray(weights.scales, np.float32)
        value = np.asarray(scales[0]) if len(scales) == 1 else scales
        if not self.learned or node in self.frozen:
            return Constant.of(value, FLOAT32)
        largest = (1 << (weights.bits - 1)) - 1
        return self._variable(node, True, value, elements // len(scales), largest)

    def pin(self, *params: ValueParams) -> None:
        """These are numbers that the program has in attributes or tables."""
        self.pinned |= {p.owner for p in params if isinstance(p, Owned)}

    def _variable(
        self, of: str, weights: bool, value: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
        elements: int, largest: int,
    ) -> Var:  # fmt: skip
        if (of, weights) not in self.made:
            name = unique(f"{of}.{'weight_step' if weights else 'step'}", self._names)
            var = Var(name, TensorType.of(value.shape, "float32"))
            pull = float(max(elements, 1) * max(largest, 1)) ** -0.5
            self.made[of, weights] = Step(var, of, weights, value, pull)
        return self.made[of, weights].var


def product(b: FunctionBuilder, x: Atom, y: Atom, name: str, dtype: DType = FLOAT32) -> Atom:
    """x * y, a constant if both are."""
    if isinstance(x, Constant) and isinstance(y, Constant):
        return Constant.of(np.multiply(x.data, y.data, dtype=dtype.storage), dtype)
    return b.bind(call(MULTIPLY, x, y), name)


def quotient(b: FunctionBuilder, x: Atom, y: Atom, name: str, dtype: DType = FLOAT32) -> Atom:
    """x / y, a constant if both are."""
    if isinstance(x, Constant) and isinstance(y, Constant):
        return Constant.of(np.divide(x.data, y.data, dtype=dtype.storage), dtype)
    return b.bind(call(DIVIDE, x, y), name)


def in_float64(b: FunctionBuilder, x: Atom, name: str) -> Atom:
    """The same numbers in float64."""
    if isinstance(x, Constant):
        return Constant.of(x.data.astype(np.float64), FLOAT64)
    return b.bind(call("cast", x, dtype="float64"), f"{name}_wide")


def shape_for_rows(b: FunctionBuilder, x: Atom, rank: int, name: str) -> Atom:
    """A number for each first position, in a shape that broadcasts to tensors of `rank`; a scalar
    as it is."""
    if tensor_type(x).rank == 0:
        return x
    if isinstance(x, Constant):
        return Constant(x.data.reshape(-1, *[1] * (rank - 1)), x.dtype)
    return b.bind(call("reshape", x, newshape=(-1, *[1] * (rank - 1))), f"{name}_rows")
