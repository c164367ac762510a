"""Rules of differentiation: of every operator against central differences in float64."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from op_case import F32, F64, Case, values
from op_cases import CASES
from op_harness import N, known
from test_every_op import label, types_of

import compiler
from compiler.errors import InputError, TypeInferenceError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.gradient import flat
from compiler.op.library import all_ops, get_op
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType

Run = tuple[Case, Any]
STEP = 1e-6
FIXED = {"image.resize2d"}
"""Operators whose gradients need to know the sizes of axes that they work on."""


STRAIGHT = {
    "qnn.simulated_quantize": "through steps flows what flows through a line",
    "qnn.straight_through": "one operand is the value, the other has the gradient",
}
"""Operators whose rules are no derivatives, and why; tests/op/test_gradients_torch.py has them."""


def test_every_operator_has_a_rule_or_says_why_not() -> None:
    silent = [name for name, op in all_ops().items() if not op.gradient]
    assert not silent, f"give these a rule (compiler/op/gradients), or a reason: {silent}"


def runs() -> list[Run]:
    """The cases in floats of operators that have a rule."""
    found = []
    for c in CASES:
        which = next((d for d in c.dtypes if F32 in c.operand_dtypes(d)), None)
        blocked = any(len(s) == 5 for s in c.shapes) and c.op.startswith("nn.")
        if which is not None and callable(get_op(c.op).gradient) and not blocked:
            found.append((c, which))
    return found


def alone(case: Case, types: list[TensorType]) -> tuple[IRModule, list[TensorType]]:
    """The operator in a module, and the types of its results."""
    b = FunctionBuilder()
    params = [b.param(f"p{k}", t.shape, t.dtype) for k, t in enumerate(types)]
    y = b.call(case.op, *params, **case.attrs)
    fields = y.type.fields if isinstance(y.type, TupleType) else (y.type,)
    outs = [b.get(y, k) for k in range(len(fields))] if isinstance(y.type, TupleType) else [y]
    flows = [k for k, t in enumerate(fields) if isinstance(t, TensorType) and t.dtype.is_float]
    results = [outs[k] for k in flows]
    kinds = [t for t in fields if isinstance(t, TensorType) and t.dtype.is_float]
    return IRModule({"main": b.finish(*results)}), kinds


def many(x: Any) -> list[Array]:
    return [np.asarray(a) for a in (x if isinstance(x, list | tuple) else [x])]


def refusal(case: Case) -> str:
    """Why a call has no gradient though its operator has a rule; empty: it has one."""
    attrs = case.attrs
    if attrs.get("padding_value") or attrs.get("out_layout", "NCHW") != "NCHW":
        return "channels in blocks"
    return ""


def test_every_rule_is_checked() -> None:
    """None is silently left out of what follows: each has a call of floats that flow through it."""
    checked = {c.op for c, which in runs() if not refusal(c) and alone(c, in_doubles(c, which))[1]}
    rules = {n for n, op in all_ops().items() if callable(op.gradient) and op.gradient is not flat}
    assert rules - set(STRAIGHT) <= checked, "add cases in float32 to tests/op/op_cases.py"


def in_doubles(case: Case, which: Any) -> list[TensorType]:
    """Types of the operands, those of float32 in float64."""
    return types_of(case, tuple(F64 if d == F32 else d for d in case.operand_dtypes(which)))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("run", runs(), ids=label)
def test_rules_agree_with_differences(run: Run) -> None:
    assert agrees(run, 2, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("run", [r for r in runs() if not refusal(r[0])], ids=label)
@settings(max_examples=3, deadline=None)
@given(n=st.integers(1, 4), seed=st.integers(0, 9999))
def test_rules_agree_with_differences_for_any_size(run: Run, n: int, seed: int) -> None:
    """Examples at kinks are drawn again, which hypothesis does not let happen often."""
    assume(fits(*run, n) and agrees(run, n, seed))


def fits(case: Case, which: Any, n: int) -> bool:
    """Whether the operator takes operands of such a size."""
    types = in_doubles(case, which)
    args = [np.ones(known(t, {N: n}), t.dtype.storage) for t in types]
    try:
        compiler.evaluate(alone(case, types)[0], *args)
    except (TypeInferenceError, InputError):
        return False
    return True


def agrees(run: Run, n: int, seed: int) -> bool:
    """Checks the rule of an operator at a place. False: that lies at a kink, where differences to
    both sides differ by more than a thousandth, or there would be nothing to check."""
    case, which = run
    dims = {N: n}
    types = in_doubles(case, which)
    known_types = [TensorType.of(known(t, dims), t.dtype) for t in types]
    if not alone(case, types)[1]:
        return True
    floats = [k for k, t in enumerate(types) if t.dtype == F64]
    if why := refusal(case):
        with pytest.raises(UnsupportedError, match=why):
            joint(case, types, floats)
        return True
    if case.op in FIXED and types != known_types:
        with contextlib.suppress(UnsupportedError):  # of axes that it works on
            joint(case, types, floats)
        types = known_types
    mod, both = joint(case, types, floats)
    rng = np.random.default_rng(seed)
    args = [values(rng, t, case.low, case.high) for t in known_types]
    args = [spread(rng, a) if a.dtype == np.float64 else a for a in args]
    results = alone(case, types)[1]
    back = [rng.uniform(0.5, 1.5, known(t, dims)) for t in results]
    got = many(compiler.evaluate(both, *args, *back))
    forward = many(compiler.evaluate(mod, *args))
    for a, b in zip(got, forward, strict=False):
        np.testing.assert_array_equal(a, b)
    for k, mine in zip(floats, got[len(results) :], strict=True):
        right, left = slopes(mod, args, k, back)
        want = (right + left) / 2
        if (abs(right - left) > 1e-3 * (1 + abs(want))).any():
            return False
        np.testing.assert_allclose(mine, want, rtol=2e-4, atol=2e-6, err_msg=f"operand {k}")
    return True


def joint(case: Case, types: list[TensorType], floats: list[int]) -> tuple[IRModule, IRModule]:
    """The operator in a module, and with its gradients."""
    mod, results = alone(case, types)
    names = [f"c{k}" for k in range(len(results))]
    return mod, compiler.gradient(mod, [f"p{k}" for k in floats], cotangent=names)


def spread(rng: np.random.Generator, a: Array) -> Array:
    """Numbers of which no two are so near that a step could change which is larger."""
    return np.asarray(a + rng.uniform(-1, 1, a.shape) * 1e-3)


def differences(mod: IRModule, args: list[Array], k: int, back: list[Array]) -> Array:
    """Central differences of the results, weighted by what flows back into them."""
    right, left = slopes(mod, args, k, back)
    return np.asarray((right + left) / 2)


def slopes(mod: IRModule, args: list[Array], k: int, back: list[Array]) -> tuple[Array, Array]:
    """Differences to the right and to the left."""

    def at(x: Array) -> float:
        results = many(compiler.evaluate(mod, *args[:k], x, *args[k + 1 :]))
        return sum(float((r * c).sum()) for r, c in zip(results, back, strict=True))

    here, out = at(args[k]), np.zeros((2, *args[k].shape))
    for place in np.ndindex(*args[k].shape):
        for side, sign in enumerate((1, -1)):
            moved = args[k].copy()
            moved[place] += sign * STEP
            out[(side, *place)] = sign * (at(moved) - here) / STEP
    return out[0], out[1]
