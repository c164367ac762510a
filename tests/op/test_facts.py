"""What OpDef says of an operator holds of its reference: for each fact, on the cases of every
operator that states it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from op_case import F32, F64, I32, Case, values
from op_cases import CASES
from op_harness import N, known
from test_every_op import label, types_of

from compiler.arithmetic.arrays import arithmetic
from compiler.op.facts import Moves
from compiler.op.library import all_ops, get_op
from compiler.op.opdef import Fusion, OpDef, Quantized
from compiler.transform.exact_sums_apart import sums_inside
from compiler.types.dtypes import BOOL, Array
from compiler.types.tensor_types import TensorType

Run = tuple[Case, Any]


def runs(fact: Callable[[OpDef], object], dtypes: tuple[Any, ...] = (F32, F64)) -> list[Run]:
    """The cases of operators of which a fact holds, in the first of the dtypes that each has."""
    found = ((c, [d for d in dtypes if d in c.dtypes]) for c in CASES if fact(get_op(c.op)))
    return [(c, held[0]) for c, held in found if held]


class Calls:
    """An operator on the operands of a case."""

    def __init__(self, run: Run):
        case, which = run
        self.op = get_op(case.op)
        self.attrs = self.op.make_attrs(**case.attrs)
        symbolic = types_of(case, case.operand_dtypes(which))
        self.types = [TensorType.of(known(t, {N: 2}), t.dtype) for t in symbolic]
        rng = np.random.default_rng(0)
        self.args = [values(rng, t, case.low, case.high) for t in self.types]
        self.result = self.of(*self.args)

    def of(self, *args: Array) -> Array:
        """Its reference on other operands."""
        dtype = (self.types[0] if self.types else TensorType.of((), F32)).dtype
        with np.errstate(all="ignore"):
            got = self.op.reference(arithmetic(dtype), self.attrs, *args)
        return np.asarray(got[0] if isinstance(got, tuple) else got)

    def with_operand(self, k: int, a: Array) -> Array:
        """Its reference where one operand is another one."""
        return self.of(*self.args[:k], a.astype(self.args[k].dtype), *self.args[k + 1 :])


def same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def changed(a: Array, b: Array, axis: int) -> set[int]:
    """Positions along an axis at which two arrays differ anywhere."""
    rest = tuple(k for k in range(a.ndim) if k != axis % a.ndim)
    return {int(k) for k in np.flatnonzero((a != b).any(axis=rest))}


@pytest.mark.parametrize("run", runs(lambda op: op.commutes, (F32, I32, BOOL)), ids=label)
def test_commutes(run: Run) -> None:
    c = Calls(run)
    assert same(c.of(*c.args[::-1]), c.result)


@pytest.mark.parametrize("run", runs(lambda op: op.homogeneous), ids=label)
def test_homogeneous(run: Run) -> None:
    """Powers of two scale without rounding, a channel each."""
    c = Calls(run)
    axis = 1 if c.args[0].ndim >= 3 else c.args[0].ndim - 1
    scale = np.exp2(np.arange(c.args[0].shape[axis]) - 1)
    along = scale.reshape([-1 if k == axis else 1 for k in range(c.args[0].ndim)])
    want = (c.result * along).astype(c.result.dtype)
    np.testing.assert_allclose(c.with_operand(0, c.args[0] * along), want, rtol=1e-6)


@pytest.mark.parametrize("run", runs(lambda op: op.clips), ids=label)
def test_clips(run: Run) -> None:
    c = Calls(run)
    assert c.op.clips is not None
    low, high = c.op.clips(c.attrs)
    assert np.array_equal(c.result, np.clip(c.args[0], low, high))


@pytest.mark.parametrize("run", runs(lambda op: op.affine), ids=label)
def test_affine(run: Run) -> None:
    """Of the first operand and, where there are two of one shape, of the second."""
    c = Calls(run)
    assert c.op.affine is not None
    axis = getattr(c.attrs, "axis", None)
    for first in (False, True) if axis is None else (False,):
        data, *others = c.args[::-1] if first else c.args
        wide = [a.astype(np.float64) for a in others]
        found = c.op.affine(c.attrs, wide, first)
        if found is None:
            continue
        scale, shift = (
            v if v is None or axis is None or v.ndim == 0
            else v.reshape([-1 if k == axis % data.ndim else 1 for k in range(data.ndim)])
            for v in found
        )  # fmt: skip
        want = data * (1.0 if scale is None else scale) + (0.0 if shift is None else shift)
        np.testing.assert_allclose(c.result, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", runs(lambda op: op.moves), ids=label)
def test_moves(run: Run) -> None:
    c = Calls(run)
    joined = c.args if c.op.moves is Moves.JOIN else c.args[:1]
    before = np.concatenate([a.reshape(-1) for a in joined])
    after = c.result.reshape(-1)
    allowed = [*before, getattr(c.attrs, "value", 0.0)] if c.op.moves is Moves.PAD else before
    assert np.isin(after, allowed).all()
    if c.op.moves in (Moves.VIEW, Moves.SAME):
        assert same(after, before)
    if c.op.moves in (Moves.JOIN, Moves.PERMUTE):
        assert same(np.sort(after), np.sort(before))
    if c.op.moves is Moves.SAME:
        assert c.result.shape == c.args[0].shape


@pytest.mark.parametrize("run", runs(lambda op: op.in_order), ids=label)
def test_in_order(run: Run) -> None:
    c = Calls(run)
    if (c.result.shape, c.result.dtype) == (c.args[0].shape, c.args[0].dtype):
        assert same(c.result, c.args[0])


@pytest.mark.parametrize("run", runs(lambda op: op.function), ids=label)
def test_function(run: Run) -> None:
    """Element by element, whatever the shape."""
    c = Calls(run)
    flat = [np.broadcast_to(a, c.result.shape).reshape(-1) for a in c.args]
    assert same(c.of(*flat), c.result.reshape(-1))


@pytest.mark.parametrize("run", runs(lambda op: op.contraction, (F32, I32)), ids=label)
def test_contraction(run: Run) -> None:
    """Linear in both operands; each output channel reads one position of the weights' axis of
    units; the summed axes of both operands belong together."""
    c = Calls(run)
    of, (x, w) = c.op.contraction, c.args[:2]
    assert of is not None
    if min(x.ndim, w.ndim) < 2 or (x.ndim > 4 or getattr(c.attrs, "out_layout", "NCHW") != "NCHW"):
        return  # vectors, and blocks of channels, have other axes
    bias = [np.zeros_like(b) for b in c.args[2:]]
    plain = c.of(x, w, *bias)
    np.testing.assert_allclose(c.of(x, 2 * w, *bias), 2 * plain, rtol=1e-5)
    np.testing.assert_allclose(c.of(2 * x, w, *bias), 2 * plain, rtol=1e-5)
    units = w.shape[of.units]
    groups = getattr(c.attrs, "groups", 1)
    assert plain.shape[of.channels] == units
    assert w.shape[of.weights] * groups == x.shape[of.data]
    one = np.moveaxis(w.copy(), of.units, 0)
    one[units - 1] += 1
    assert changed(c.of(x, np.moveaxis(one, 0, of.units), *bias), plain, of.channels) <= {units - 1}
    if of.kernel:
        assert x.ndim == w.ndim == of.kernel + 2
    without = np.moveaxis(w.copy(), of.weights, 0)
    without[1:] = 0
    data = np.moveaxis(x.copy(), of.data, 0)
    data[np.arange(len(data)) % w.shape[of.weights] != 0] = 0
    both = np.moveaxis(data, 0, of.data), np.moveaxis(without, 0, of.weights)
    np.testing.assert_allclose(c.of(both[0], w, *bias), c.of(x, both[1], *bias), rtol=1e-5)


@pytest.mark.parametrize("run", runs(lambda op: op.summation), ids=label)
def test_summation(run: Run) -> None:
    """Doubled terms double the sum; a mean is its sums, divided."""
    c = Calls(run)
    held = c.op.summation
    assert held is not None
    if not held.holds(c.attrs) or getattr(c.attrs, "data_layout", "NCHW") != "NCHW":
        return
    terms = held.operands[:1] if held.products and len(c.args) > 1 else held.operands
    bias = (2,) if c.op.contraction is not None else ()
    args = [2 * a if k in (*terms, *bias) else a for k, a in enumerate(c.args)]
    np.testing.assert_allclose(c.of(*args), 2 * c.result, rtol=1e-5, atol=1e-6)
    if held.division is not None and c.args[0].ndim < 5:
        shapes = c.args[0].shape, c.result.shape
        sums = held.division.sums(c.attrs, *shapes)
        other = get_op(sums.op)
        given = [*c.args, *([np.ones(sums.ones, np.float32)] if sums.ones else [])]
        total = other.reference(arithmetic(F32), other.make_attrs(**sums.attrs), *given)
        assert c.op.terms is not None
        counts = held.division.counts
        n = c.op.terms(c.attrs, c.types) if counts is None else counts(c.attrs, *shapes)
        np.testing.assert_allclose(total / np.float32(n), c.result, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", runs(lambda op: op.blocked), ids=label)
def test_blocked(run: Run) -> None:
    """NCHW[2]c gives what NCHW does, in blocks."""
    c = Calls(run)
    if c.args[0].ndim != 4:
        return
    both = [np.concatenate([x, x], axis=1) for x in c.args]

    def blocks(a: Array) -> Array:
        n, channels, *size = a.shape
        return np.moveaxis(a.reshape(n, channels // 2, 2, *size), 2, -1)

    got, want = c.of(*map(blocks, both)), blocks(c.of(*both))
    assert same(np.ascontiguousarray(want), np.ascontiguousarray(got))


def missing() -> Iterator[str]:
    """Operators that say too little for what other fields of theirs say."""
    for name, op in all_ops().items():
        sums = "accumulate" in {f.name for f in fields(op.attrs)} and op.terms is not None
        # Three operands that it must have are data, weights and their scales: no bias is the third.
        scaled = op.arity is not None and op.arity[0] > 2
        if op.macs is not None and op.contraction is None and not scaled:
            yield f"{name} multiplies and accumulates, but says no contraction"
        if op.quantized is Quantized.WEIGHTED and (
            op.contraction is None or not op.contraction.by_rows
        ):
            yield f"{name} has weights, but says no contraction of rows"
        if sums and op.summation is None and op not in sums_inside():
            yield f"{name} adds up, but is no summation, nor can be taken apart into some"
        if op.summation is not None and op.terms is None:
            yield f"{name} is a summation, but does not say of how many terms"
        if op.function and op.fusion is not Fusion.ELEMENTWISE:
            yield f"{name} is a function of elements, but not elementwise"
        if op.average is not None and op.average.integer not in ("", *all_ops()):
            yield f"{name} is done on integers by an operator that there is not"


def test_facts_are_complete() -> None:
    assert list(missing()) == []
