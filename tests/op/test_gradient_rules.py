"""Rules of differentiation: of every operator against central differences in float64."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from op_cases import CASES, F32, F64, Case, values
from op_harness import N, known
from test_every_op import label, types_of

import compiler
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import all_ops, get_op
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType, TupleType

Run = tuple[Case, Any]
STEP = 1e-6
I64 = DType("int", 64)
KINDS = ((F32, I64, F32),)
REPLACED = [
    Case("scatter_elements", [(4, 3), (3, 2), (3, 2)], {"reduction": "none"}, KINDS),
    Case("scatter_nd", [(4, 3, 2), (4, 1), (4, 3, 2)], {"reduction": "none"}, KINDS),
]
"""Updates that replace, at places that differ."""
FIXED = {"concatenate", "strided_slice", "nn.pad", "image.resize2d"}
"""Operators whose gradients need to know the sizes of axes that they work on."""


def test_every_operator_has_a_rule_or_says_why_not() -> None:
    silent = [name for name, op in all_ops().items() if not op.gradient]
    assert not silent, f"give these a rule (compiler/op/gradients), or a reason: {silent}"


def runs() -> list[Run]:
    """The cases in floats of operators that have a rule."""
    found = []
    for c in [*CASES, *REPLACED]:
        which = next((d for d in c.dtypes if F32 in c.operand_dtypes(d)), None)
        blocked = any(len(s) == 5 for s in c.shapes) and c.op.startswith("nn.")
        meets = c.attrs.get("reduction") == "none" and c not in REPLACED
        if which is not None and callable(get_op(c.op).gradient) and not (blocked or meets):
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
    if attrs.get("reduction") in ("mul", "max", "min"):
        return "updates by"
    if attrs.get("padding_value") or attrs.get("out_layout", "NCHW") != "NCHW":
        return "channels in blocks"
    if attrs.get("batch_dims"):
        return "share leading axes"
    equation = attrs.get("equation", "->")
    if "->" not in equation or "..." in equation or "ii" in equation:
        return "equations with a result"
    return ""


@pytest.mark.parametrize("run", runs(), ids=label)
def test_rules_agree_with_differences(run: Run) -> None:
    case, which = run
    dims = {N: 2}
    given = [F64 if d == F32 else d for d in case.operand_dtypes(which)]
    types = types_of(case, tuple(given))
    known_types = [TensorType.of(known(t, dims), t.dtype) for t in types]
    if not alone(case, types)[1]:
        return
    floats = [k for k, t in enumerate(types) if t.dtype == F64]
    if why := refusal(case):
        with pytest.raises(UnsupportedError, match=why):
            joint(case, types, floats)
        return
    if case.op in FIXED and types != known_types:
        with contextlib.suppress(UnsupportedError):  # of axes that it works on
            joint(case, types, floats)
        types = known_types
    mod, both = joint(case, types, floats)
    rng = np.random.default_rng(1)
    args = [values(rng, t, case.low, case.high) for t in known_types]
    args = [spread(rng, a) if a.dtype == np.float64 else a for a in args]
    if case.attrs.get("reduction") == "none":
        args[1] = distinct(args[1])
    results = alone(case, types)[1]
    back = [rng.uniform(0.5, 1.5, known(t, dims)) for t in results]
    got = many(compiler.evaluate(both, *args, *back))
    forward = many(compiler.evaluate(mod, *args))
    for a, b in zip(got, forward, strict=False):
        np.testing.assert_array_equal(a, b)
    for k, mine in zip(floats, got[len(results) :], strict=True):
        want = differences(mod, args, k, back)
        np.testing.assert_allclose(mine, want, rtol=2e-4, atol=2e-6, err_msg=f"operand {k}")


def joint(case: Case, types: list[TensorType], floats: list[int]) -> tuple[IRModule, IRModule]:
    """The operator in a module, and with its gradients."""
    mod, results = alone(case, types)
    names = [f"c{k}" for k in range(len(results))]
    return mod, compiler.gradient(mod, [f"p{k}" for k in floats], cotangent=names)


def distinct(indices: Array) -> Array:
    """Positions of which no two along the first axis are the same."""
    rows = np.arange(len(indices)).reshape(-1, *[1] * (indices.ndim - 1))
    return np.broadcast_to(rows, indices.shape).astype(indices.dtype)


def spread(rng: np.random.Generator, a: Array) -> Array:
    """Numbers of which no two are so near that a step could change which is larger."""
    return np.asarray(a + rng.uniform(-1, 1, a.shape) * 1e-3)


def differences(mod: IRModule, args: list[Array], k: int, back: list[Array]) -> Array:
    """Central differences of the results, weighted by what flows back into them."""
    out = np.zeros(args[k].shape)
    for at in np.ndindex(*args[k].shape):
        ends = []
        for sign in (1, -1):
            moved = args[k].copy()
            moved[at] += sign * STEP
            results = many(compiler.evaluate(mod, *args[:k], moved, *args[k + 1 :]))
            ends.append(sum(float((r * c).sum()) for r, c in zip(results, back, strict=True)))
        out[at] = (ends[0] - ends[1]) / (2 * STEP)
    return out
