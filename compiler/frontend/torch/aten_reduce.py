"""Converters of reductions, sorting and running sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compiler.frontend.node import Results
from compiler.frontend.torch.aten_elementwise import as_bool
from compiler.frontend.torch.node import TorchNode, aten, whole
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Index
from compiler.types.dtypes import INT64

_NAMES = {"aten.sum": "sum", "aten.mean": "mean", "aten.amax": "max", "aten.amin": "min",
          "aten.prod": "prod"}  # fmt: skip


@aten(*_NAMES)
def reduction(n: TorchNode) -> Results:
    """Over axes; over all if none are given."""
    x = n.x() if _NAMES[n.op] in ("max", "min") else n.in_dtype("self", n.dtype)
    return _reduced(n, _NAMES[n.op], x)


def _reduced(n: TorchNode, op: str, x: Atom) -> Atom:
    rank = tensor_type(x).rank
    axes = n.axes("dim", rank)
    if not rank or not axes:
        return x
    return n.call(op, x, axis=axes, keepdims=bool(n.args.get("keepdim")))


@aten("any", "all")
def flags(n: TorchNode) -> Results:
    """Whether any is, or all are, not 0."""
    bits = n.step("cast", as_bool(n, "self"), dtype="uint8")
    y = _reduced(n, "max" if n.op == "aten.any" else "min", bits)
    return n.converted(y, n.dtype)


@aten("max", "min")
def extreme(n: TorchNode) -> Results:
    """Of all; along an axis, with the position; or of two tensors."""
    name = n.op.removeprefix("aten.")
    if n.arg("other") is not None:
        both = (n.in_dtype(k, n.dtype) for k in ("self", "other"))
        return n.call(f"{name}imum", *both)
    x = n.x()
    y = _reduced(n, name, x)
    if not n.wants(1):
        return [y]
    axis, keep = n.front(n.number("dim"), tensor_type(x).rank), bool(n.arg("keepdim"))
    return [y, n.result(1, f"arg{name}", x, axis=axis, keepdims=keep)]


@aten("argmax", "argmin")
def arg(n: TorchNode) -> Results:
    """Position of the extreme along an axis, or in the flattened tensor."""
    x, op, keep = n.x(), n.op.removeprefix("aten."), bool(n.arg("keepdim"))
    if n.arg("dim") is None:
        y = n.step(op, n.step("reshape", x, newshape=(-1,)), axis=0, keepdims=False)
        return n.call("reshape", y, newshape=(1,) * tensor_type(x).rank) if keep else y
    axis = n.front(n.number("dim"), tensor_type(x).rank)
    return n.call(op, x, axis=axis, keepdims=keep)


@aten("var", "std", "var_mean", "std_mean")
def variance(n: TorchNode) -> Results:
    """Mean squared distance from the mean; `correction` is taken off the number of elements."""
    x = n.in_dtype("self", n.dtype)
    t = tensor_type(x)
    axes, keep = n.axes("dim", t.rank), bool(n.args.get("keepdim"))
    less = n.arg("correction") if "correction" in n.args else int(bool(n.args.get("unbiased", 1)))
    less = 1 if less is None else less
    mean = n.step("mean", x, axis=axes, keepdims=True)
    away = n.step("subtract", x, mean)
    squares = n.step("multiply", away, away)
    count = Index.of(1)
    for a in axes:
        count = count * t.shape[a]
    if less == 0:
        y = n.step("mean", squares, axis=axes, keepdims=keep)
    else:
        total = n.step("sum", squares, axis=axes, keepdims=keep)
        known = n.imported(0) if count.terms else Constant.of(np.int64(count.const), INT64)
        if count.terms:
            raise n.unsupported(f"correction={less} of the symbolic number {count}")
        left = max(float(np.asarray(getattr(known, "data", 0))) - less, 0)
        with np.errstate(divide="ignore"):
            y = n.step("divide", total, scalar(left, t))
    if "std" in n.op:
        y = n.step("sqrt", y)
    if "mean" not in n.op:
        return y
    return [y, mean if keep else n.step("squeeze", mean, axis=axes)]


@aten("cumsum", "cumprod")
def running(n: TorchNode) -> Results:
    """Along one axis."""
    x = n.in_dtype("self", n.dtype)
    rank = tensor_type(x).rank
    if not rank:
        return x
    return n.call(n.op.removeprefix("aten."), x, axis=n.front(n.number("dim"), rank))


@aten("logsumexp")
def log_sum_exp(n: TorchNode) -> Results:
    """log of the sum of exponentials."""
    x = n.in_dtype("self", n.dtype)
    axes = Constant.of(np.array(n.axes("dim", tensor_type(x).rank)), INT64)
    return n.spelled("ReduceLogSumExp", x, axes, keepdims=int(bool(n.arg("keepdim"))))


@aten("norm", "linalg_vector_norm")
def norm(n: TorchNode) -> Results:
    """The norms 1, 2 and infinity."""
    x = n.in_dtype("self", n.dtype)
    p = n.number("ord" if "ord" in n.args else "p")
    rank = tensor_type(x).rank
    axes = Constant.of(np.array(n.axes("dim", rank)), INT64)
    keep = int(bool(n.args.get("keepdim")))
    p = 2 if p is None else p
    if p in (1, 2):
        return n.spelled(f"ReduceL{int(p)}", x, axes, keepdims=keep)
    if p == float("inf"):
        return _reduced(n, "max", n.step("abs", x))
    raise n.unsupported(f"the norm {p}; supported: 1, 2, inf")


@aten("topk")
def topk(n: TorchNode) -> Results:
    """Values and positions."""
    largest, k = int(bool(n.arg("largest"))), whole([n.size(n.arg("k"))])
    return n.spelled("TopK", n.x(), k, axis=n.number("dim"), largest=largest)


@aten("sort")
def sort(n: TorchNode) -> Results:
    """All elements along an axis, and where they were."""
    return _sorted(n)


def _sorted(n: TorchNode) -> Sequence[Imported]:
    x = n.x()
    t = tensor_type(x)
    axis = n.front(n.number("dim"), t.rank)
    largest = int(bool(n.arg("descending")))
    found = n.spelled("TopK", x, whole([t.shape[axis]]), axis=axis, largest=largest)
    return [found] if isinstance(found, Imported) else found


@aten("argsort")
def argsort(n: TorchNode) -> Results:
    """Where the elements were that come first when sorted."""
    return _sorted(replace(n, outputs=("", *n.outputs)))[1]
