"""Rotary embeddings that exporters have written as many operators become one again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Call, IRModule
from compiler.transform import InferType, PassContext, prepare
from compiler.transform.recover_rotary import RecoverRotary
from compiler.types.dtypes import Array


def written(
    shape: tuple[int, ...], *, split: bool = False, turned: bool = False, at: int = 0,
    axis: int = -1,
) -> IRModule:  # fmt: skip
    """x * cos + concatenate(-second, first) * sin. turned: factors and summands in the other order;
    at: where the halves are cut, if not in the middle."""
    b = FunctionBuilder()
    x = b.param("x", shape)
    cos, sin = (b.param(name, shape[-2:]) for name in ("cos", "sin"))
    size, last = shape[axis], axis % len(shape)
    half = at or size // 2

    def both(op: str, *args: Atom) -> Atom:
        return b.call(op, *(args[::-1] if turned else args))

    if split:
        parts = b.call("split", x, sizes=(half, size - half), axis=last)
        first, second = b.get(parts, 0), b.get(parts, 1)
    else:
        first = b.call("strided_slice", x, begin=(0,), end=(half,), axes=(last,))
        second = b.call("strided_slice", x, begin=(half,), end=(2**31,), axes=(last,))
    other = b.call("concatenate", b.call("negative", second), first, axis=axis)
    y = both("add", both("multiply", x, cos), both("multiply", other, sin))
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def operators(mod: IRModule) -> list[str]:
    return [str(b.value.op) for b in mod.main.bindings if isinstance(b.value, Call)]


def arrays(shape: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.normal(0, 1, s).astype(np.float32) for s in (shape, shape[-2:], shape[-2:])]


def left_as_written(mod: IRModule) -> IRModule:
    with PassContext(disabled_pass=["RecoverRotary"]):
        return prepare(mod)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 4), st.booleans(),
       st.booleans())  # fmt: skip
def test_every_spelling_becomes_one_operator(
    outer: list[int], half: int, split: bool, turned: bool
) -> None:
    shape = (*outer, 2 * half)
    mod = written(shape, split=split, turned=turned)
    found = prepare(mod)
    assert operators(found) == ["nn.rotary", "nn.relu"]
    given = arrays(shape)
    want = compiler.evaluate(left_as_written(mod), *given)
    np.testing.assert_array_equal(compiler.evaluate(found, *given), want)


@pytest.mark.parametrize("name", ["posit8_es0", "bfloat16", "fixed16_8"])
def test_number_formats_keep_every_bit(name: str) -> None:
    mod, given = written((2, 3, 8)), arrays((2, 3, 8))
    changed = datatypes.change_dtype(mod, "float32", name)
    assert "nn.rotary" in operators(changed)
    with PassContext(disabled_pass=["RecoverRotary"]):
        want = compiler.evaluate(datatypes.change_dtype(mod, "float32", name), *given)
    np.testing.assert_array_equal(compiler.evaluate(changed, *given), want)
    np.testing.assert_array_equal(compiler.build(changed)(*given), want)


@pytest.mark.parametrize(
    ("mod", "why"),
    [
        (written((2, 3, 8), at=2), "its second part is not that half of the last axis"),
        (written((2, 3, 8), at=2, split=True), "not split into the halves of the last axis"),
        (written((2, 4, 8), axis=1), "put together along axis 1, not the last"),
    ],
    ids=["uneven", "uneven split", "other axis"],
)
def test_what_only_looks_like_one_is_left_with_a_reason(mod: IRModule, why: str) -> None:
    assert "nn.rotary" not in operators(prepare(mod))
    assert why in "\n".join(map(str, RecoverRotary().explain(InferType()(mod))))


def test_it_is_exported_as_its_operations(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    b = FunctionBuilder()
    x = b.param("x", (3, 8))
    y = b.call("nn.dense", x, b.const(np.eye(8, dtype=np.float32)), name="layer")
    cos, sin = (b.const(a) for a in arrays((3, 8))[1:])
    mod = IRModule({"main": b.finish(b.call("nn.rotary", y, cos, sin, name="turned"))})
    (data, *_) = arrays((3, 8))
    plan = quantize.calibrate(mod, [data])
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    session = ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": data})
    want = compiler.evaluate(quantize.realize(mod, plan), data)
    np.testing.assert_allclose(got, want, atol=1e-5)
