"""The example of a datatype that no library has, against an emulation of it in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.expr import Call, IRModule, Var
from compiler.transform.preparation import prepare
from compiler.types.dtypes import Array, DType
from experiments import zoo
from experiments.data import datasets
from experiments.examples import custom_datatype


class Chop:
    """Floats cut to their upper 20 bits, as operator references compute (codes in uint32)."""

    def __init__(self) -> None:
        self.dtype = DType("custom", 20, "chop")

    def of(self, dtype: Any) -> Chop:
        return self

    def at(self, index: Any) -> Chop:
        return self

    def code(self, values: Any) -> Array:
        return np.asarray(values, np.float32).view(np.uint32) >> 12

    def value(self, codes: Any) -> Array:
        return (np.asarray(codes, np.uint32) << 12).view(np.float32)

    def add(self, a: Array, b: Array) -> Array:
        return self.code(self.value(a) + self.value(b))

    def mul(self, a: Array, b: Array) -> Array:
        return self.code(self.value(a) * self.value(b))

    def div(self, a: Array, b: Array) -> Array:
        return self.code(self.value(a) / self.value(b))

    def maximum(self, a: Array, b: Array) -> Array:
        return np.where(self.value(a) < self.value(b), b, a)

    def const(self, value: float) -> Array:
        return self.code(value)

    def cast(self, a: Array, source: DType) -> Array:
        return self.code(a)


def emulate(mod: IRModule, x: Array) -> Array:
    """The float32 module, prepared, with every number cut: binding by binding, in numpy."""
    chop = Chop()
    f = prepare(mod).main
    values: dict[Var, Array] = {f.params[0]: chop.code(x)}
    for b in f.bindings:
        assert isinstance(b.value, Call)
        args = [values[a] if isinstance(a, Var) else a.data for a in b.value.args]
        args = [chop.code(a) if a.dtype == np.float32 else a for a in args]
        op: Any = b.value.op
        values[b.var] = op.reference(chop, b.value.attrs, *args)
    result = f.results[0]
    assert isinstance(result, Var)
    return chop.value(values[result])


@pytest.fixture(scope="module")
def resnet() -> IRModule:
    custom_datatype.register_chop()
    shapes = {"input": (3, 1, 28, 28)}
    return compiler.from_onnx(zoo.FOLDER / "mnist_resnet8.onnx", shapes=shapes)


def test_example_is_short() -> None:
    assert len(Path(custom_datatype.__file__).read_text().splitlines()) <= 40


@pytest.mark.thorough
def test_logits_of_a_residual_network(resnet: IRModule) -> None:
    images = datasets.load("mnist1k").x[:3]
    changed = datatypes.change_dtype(resnet, "float32", "custom[chop]20")
    compiler.verify(changed)
    logits = compiler.build(changed)(images)
    np.testing.assert_array_equal(logits.view(np.uint32), emulate(resnet, images).view(np.uint32))
    exact = compiler.build(resnet)(images)
    assert not np.array_equal(logits, exact)
    np.testing.assert_allclose(logits, exact, atol=1.0)
    # evaluate knows the datatype by its C functions alone
    np.testing.assert_array_equal(compiler.evaluate(changed, images), logits)


def test_what_it_lacks_is_named(resnet: IRModule) -> None:
    b = compiler.FunctionBuilder()
    mod = IRModule({"main": b.finish(b.call("exp", b.param("x", (2,))))})
    changed = datatypes.change_dtype(mod, "float32", "custom[chop]20")
    with pytest.raises(
        compiler.LoweringError,
        match=r'exp of custom\[chop\]20 .*"Call", "llvm", "chop", intrinsic_name="exp"',
    ):
        compiler.build(changed)
