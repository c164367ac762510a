"""A network to train: an imported model whose weights are parameters of its function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    atom_type,
    nested,
    operands,
    tensor_type,
)
from compiler.ir.substitution import with_operands
from compiler.op.facts import IntegerForm
from compiler.op.nn.norm import BATCH_NORM
from compiler.op.opdef import OpDef
from compiler.types.dtypes import FLOAT32
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType

Floats = NDArray[np.float32]

WEIGHT, BIAS, GAIN, SHIFT, MEAN, VARIANCE = "weight", "bias", "gain", "shift", "mean", "variance"
STEP = "step"
"""The step of a grid that values or weights are rounded to."""
STATISTICS = (MEAN, VARIANCE)
"""What batch normalization keeps of the batches that it saw: not trained."""
_NORM = (GAIN, SHIFT, MEAN, VARIANCE)


@dataclass(frozen=True, eq=False)
class Parameter:
    """A weight of a network.

    Attributes:
        name: of the value that it first goes into, and what it is there: `conv2d.weight`.
        kind: WEIGHT, BIAS, GAIN, SHIFT, MEAN, VARIANCE or STEP.
        value: what the model file holds, float32.
        fan_in: how many products each sum has that it is in; 0 of what is in no contraction.
        pull: what its gradient is multiplied by.
        size: what an optimizer that moves by the rate, whatever the gradient, multiplies the rate
            by: of the same rank; None: nothing.
    """

    name: str
    kind: str
    value: Floats
    fan_in: int = 0
    pull: float = 1.0
    size: Floats | None = None

    @property
    def trained(self) -> bool:
        """Whether it has a gradient."""
        return self.kind not in STATISTICS


@dataclass(frozen=True, eq=False)
class Network:
    """A model with scores [N, classes] as its result.

    `function`: its parameters are the inputs, then `parameters`, in their order, by their names.
    """

    function: Function
    parameters: tuple[Parameter, ...]

    @property
    def inputs(self) -> tuple[Var, ...]:
        """The parameters of the function that are none of the network's: one for a model's input;
        several where the first layers are computed before."""
        f = self.function
        return f.params[: len(f.params) - len(self.parameters)]

    @property
    def classes(self) -> int:
        """How many scores an example has."""
        return tensor_type(self.function.results[0]).static_shape[1]

    @property
    def trained(self) -> tuple[Parameter, ...]:
        """The parameters that have gradients."""
        return tuple(p for p in self.parameters if p.trained)

    @property
    def statistics(self) -> tuple[Parameter, ...]:
        """What batch normalization keeps."""
        return tuple(p for p in self.parameters if not p.trained)

    @property
    def module(self) -> IRModule:
        """The network as a module, as it is after training: normalized by what it has kept."""
        return IRModule({"main": self.function})


def network(mod: IRModule) -> Network:
    """The network of an imported model.

    Weights of contractions, their biases, what is added to values, and gains and shifts of norms
    become parameters; other constants stay.

    Raises:
        UnsupportedError: it has control flow, several inputs or results, no weights, or scores that
            are no float32 [N, classes].
    """
    f = mod.main
    found = found_weights(f)

    def renewed(a: Atom) -> Atom:
        return found[id(a)][0] if isinstance(a, Constant) and id(a) in found else a

    bindings = tuple(
        replace(b, value=with_operands(b.value, map(renewed, operands(b.value))))
        for b in f.bindings
    )
    variables, parameters = zip(*found.values(), strict=True)
    function = replace(f, params=(*f.params, *variables), bindings=bindings)
    return Network(function, parameters)


def found_weights(f: Function) -> dict[int, tuple[Var, Parameter]]:
    """Ids of the constants of a network that are trained -> a variable for each, and what it is.

    Raises:
        UnsupportedError: as `network`.
    """
    _check(f)
    found: dict[int, tuple[Var, Parameter]] = {}
    names = {p.name for p in f.params} | {b.var.name for b in f.bindings}
    for b in f.bindings:
        for c, kind, fan_in in _weights(b):
            if id(c) not in found:
                name = unique(f"{_stem(b)}.{kind}", names)
                value = np.asarray(c.data, np.float32)
                found[id(c)] = Var(name, c.type), Parameter(name, kind, value, fan_in)
    if not found:
        raise UnsupportedError("the model has no weights to train: no contraction has constants")
    return found


def _check(f: Function) -> None:
    for b in f.bindings:
        called = isinstance(b.value, Call) and not isinstance(b.value.op, OpDef)
        if called or list(nested(b.value)):
            raise UnsupportedError(
                f"%{b.var.name} is control flow or a call of a function, which training does not "
                "take: inline it, or train the network without"
            )
    if len(f.params) != 1 or len(f.results) != 1:
        raise UnsupportedError(
            f"training takes networks with one input and one result, not {len(f.params)} and "
            f"{len(f.results)}"
        )
    scores = atom_type(f.results[0])
    if not isinstance(scores, TensorType) or scores.rank != 2 or scores.dtype != FLOAT32:
        raise UnsupportedError(f"training takes float32 scores [N, classes], not {scores}")


def _stem(b: Binding) -> str:
    return b.var.name


def _weights(b: Binding) -> Iterator[tuple[Constant, str, int]]:
    """The constants of a binding that are weights, what they are, and the terms of their sums."""
    if not isinstance(b.value, Call) or not isinstance(b.value.op, OpDef):
        return
    op, args = b.value.op, b.value.args
    kinds: dict[int, str] = {}
    fan_in = 0
    if op.contraction is not None:
        kinds = {1: WEIGHT, 2: BIAS}
        weights = tensor_type(args[1])
        axis = op.contraction.units % weights.rank
        sizes = (n for k, n in enumerate(weights.shape) if k != axis)
        fan_in = prod(n for n in sizes if isinstance(n, int))  # all of them, of constants
    elif op is BATCH_NORM or op.integer_form is IntegerForm.LAYER_NORM:
        kinds = dict(enumerate(_NORM, start=1))
    elif op.integer_form is IntegerForm.RMS_NORM:
        kinds = {1: GAIN}
    elif _adds(op, b.value):
        kinds = {0: BIAS, 1: BIAS}
    for place, kind in kinds.items():
        a = args[place] if place < len(args) else None
        if isinstance(a, Constant) and a.dtype == FLOAT32 and a.data.ndim:
            yield a, kind, fan_in


def _adds(op: OpDef, v: Call) -> bool:
    """Whether a constant operand is added as it is."""
    if op.affine is None or len(v.args) != 2:
        return False
    constants = [a.data for a in v.args if isinstance(a, Constant)]
    if len(constants) != 1:
        return False
    found = op.affine(v.attrs, constants, isinstance(v.args[0], Constant))
    return found is not None and found[0] is None and found[1] is constants[0]
