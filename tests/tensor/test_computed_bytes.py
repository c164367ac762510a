"""Products of computed bytes on dot products, and rows reduced in lanes: the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import schedule_default, untiled
from compiler.target.registry import Target
from compiler.tensor.stmt import Intrin, PrimFunc, walk_stmts


def matmul(
    shape: tuple[int, ...], n: int, dtypes: tuple[str, str], zeros: tuple[int, int], shared: bool
) -> IRModule:
    """[..., m, k] x [..., k, n]; `shared`: the second operand has no leading axes."""
    *lead, _, k = shape
    b = FunctionBuilder()
    x = b.param("x", shape, dtypes[0])
    w = b.param("w", (*([] if shared else lead), k, n), dtypes[1])
    attrs = {"input_zero_point": zeros[0], "weight_zero_point": zeros[1]}
    return IRModule({"main": b.finish(b.call("nn.matmul", x, w, out_dtype="int32", **attrs))})


def nest(mod: IRModule) -> PrimFunc:
    """The loops of the only operator."""
    f = Function(mod.main.params, mod.main.bindings, mod.main.results, {"primitive": True})
    return legalize(f).func


def draws(dtype: str, shape: Any, rng: np.random.Generator) -> Any:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(
    lead=st.sampled_from([(), (1,), (3,), (1, 2)]),
    m=st.integers(1, 20),
    k=st.integers(1, 70),
    n=st.integers(1, 40),
    dtypes=st.tuples(*[st.sampled_from(["int8", "uint8"])] * 2),
    zeros=st.tuples(*[st.sampled_from([0, 1, 122])] * 2),
    shared=st.booleans(),
)
def test_products_of_computed_bytes_are_exact(
    lead: tuple[int, ...],
    m: int,
    k: int,
    n: int,
    dtypes: tuple[str, str],
    zeros: tuple[int, int],
    shared: bool,
) -> None:
    mod = matmul((*lead, m, k), n, dtypes, zeros, shared)
    rng = np.random.default_rng(m * k * n)
    x, w = (draws(d, p.type.shape, rng) for d, p in zip(dtypes, mod.main.params, strict=True))
    assert compiler.build(mod)(x, w).tobytes() == compiler.evaluate(mod, x, w).tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtypes", [("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8")])
@pytest.mark.parametrize("k", [16, 49])
def test_they_become_instructions_of_every_target(dtypes: tuple[str, str], k: int) -> None:
    """And no number is taken off an operand within the sum."""
    for text in ("llvm -mcpu=haswell", "llvm -mcpu=cascadelake"):
        f = nest(matmul((2, 12, k), 32, dtypes, (3, 120), False))
        schedule_default(f, Target.anywhere(text))
        found = [s for s, _, _ in walk_stmts(f.body) if isinstance(s, Intrin)]
        assert found, text


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("shape", [(3, 100), (1, 2, 33), (64,)])
def test_rows_in_lanes_find_the_same_number(op: str, shape: tuple[int, ...]) -> None:
    """NaN and the signs of zeros included."""
    b = FunctionBuilder()
    x = b.param("x", shape)
    mod = IRModule({"main": b.finish(b.call(op, x, axis=(-1,)))})
    assert f"{op}_s.lanes" in untiled(nest(mod), Target.parse("llvm")).stages()
    rng = np.random.default_rng(1)
    plain = rng.normal(size=shape).astype(np.float32)
    run = compiler.build(mod)
    for data in (plain, np.where(plain > 1, np.nan, plain), np.where(plain > 0, 0.0, -0.0)):
        given = np.asarray(data, np.float32)
        np.testing.assert_array_equal(run(given), compiler.evaluate(mod, given))
