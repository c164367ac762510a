"""Losses: a module becomes one whose first result is a scalar that says how wrong it is."""

from __future__ import annotations

from collections.abc import Callable

from compiler.errors import InputError, unknown
from compiler.ir.expr import Function, IRModule, Var, names_in
from compiler.ir.expression import Operand, call
from compiler.passes.infer_type import InferType
from compiler.transform.gradient_step import Bindings, differentiable
from compiler.types.dtypes import INT64
from compiler.types.tensor_types import TensorType


def with_loss(mod: IRModule, loss: str, target: str = "target") -> IRModule:
    """`mod` whose `main` gives a loss, of the dtype of its first result, and behind it its results.

    "cross_entropy": the mean over all rows of -log_softmax(logits)[label]; the last axis of the
    first result has the logits, and the labels, int64, have the shape of the others.
    "soft_cross_entropy": the mean over all rows of the sum of -target * log_softmax(logits), for a
    target of the logits' type. "squared_error": the mean over all elements of the squares of
    result - target, as the mean of those of its rows: one sum of all would lose, in float32, four
    ten-thousandths of a million terms.

    Args:
        mod: the module.
        loss: its name.
        target: name of the parameter, behind the others, that has what is wanted.

    Raises:
        InputError: there is no such loss, or the first result has no numbers that it is of; the
            name of the target is taken.
    """
    if loss not in _LOSSES:
        raise InputError(unknown("loss", loss, _LOSSES))
    mod = InferType()(mod)
    f = mod.main
    y = f.results[0]
    t = y.type
    if not isinstance(t, TensorType) or not differentiable(t.dtype):
        raise InputError(f"a loss is of floats, and the first result is {t}")
    taken = names_in(f)
    if target in taken:
        raise InputError(f"the name %{target} is taken: give the target another")
    want, value = _LOSSES[loss](y, t, target)
    bindings = Bindings(taken | {target}, f.bindings)
    made = bindings.atom(value, "loss")
    results = (made, *f.results)
    new = Function((*f.params, want), tuple(bindings.done), results, dict(f.attrs))
    return InferType()(mod.with_function("main", new))


Loss = Callable[[Operand, TensorType, str], tuple[Var, Operand]]
"""(result, its type, name of the target) -> the target, and the loss."""


def _rows(t: TensorType) -> None:
    if t.rank < 1:
        raise InputError("a cross entropy is of rows of logits, and the first result is a scalar")


def _cross_entropy(y: Operand, t: TensorType, target: str) -> tuple[Var, Operand]:
    _rows(t)
    labels = Var(target, TensorType(t.shape[:-1], INT64))
    at = call("expand_dims", labels, axes=(t.rank - 1,))
    found = call("gather_elements", call("nn.log_softmax", y), at, axis=t.rank - 1)
    return labels, call("negative", call("mean", found))


def _soft_cross_entropy(y: Operand, t: TensorType, target: str) -> tuple[Var, Operand]:
    _rows(t)
    wanted = Var(target, t)
    rows = call("sum_products", wanted, call("nn.log_softmax", y), axis=(t.rank - 1,))
    return wanted, call("negative", call("mean", rows))


def _squared_error(y: Operand, t: TensorType, target: str) -> tuple[Var, Operand]:
    wanted = Var(target, t)
    away = call("subtract", y, wanted)
    if t.rank < 2:
        return wanted, call("mean_products", away, away)
    return wanted, call("mean", call("mean_products", away, away, axis=(t.rank - 1,)))


_LOSSES: dict[str, Loss] = {
    "cross_entropy": _cross_entropy,
    "soft_cross_entropy": _soft_cross_entropy,
    "squared_error": _squared_error,
}
