"""What flows back through relu is told by its result: its operand need not be kept."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.expr import Call, IRModule
from compiler.passes.rewrite import op_of


def joint() -> IRModule:
    x, b = compiler.var("x", (4, 6)), compiler.var("b", (6,))
    relu = compiler.call("nn.relu", compiler.call("add", x, b))
    mod = IRModule({"main": compiler.function([x, b], compiler.call("multiply", relu, relu))})
    return compiler.gradient(mod, ["x", "b"], cotangent=["dy"])


def test_nothing_else_reads_the_operand() -> None:
    bindings = joint().main.bindings
    (relu,) = (b for b in bindings if getattr(op_of(b.value), "name", "") == "nn.relu")
    assert isinstance(relu.value, Call)
    (operand,) = relu.value.args
    readers = [b for b in bindings if isinstance(b.value, Call) and operand in b.value.args]
    assert readers == [relu]


@pytest.mark.parametrize("name", ["float32", "float8_e4m3fn", "posit8_es1", "fixed8_4"])
def test_every_number_of_a_format(name: str) -> None:
    x = compiler.var("x", (256,))
    mod = IRModule({"main": compiler.function([x], compiler.call("nn.relu", x))})
    both = compiler.gradient(mod, ["x"], cotangent=["dy"])
    codes = np.arange(256, dtype=np.uint8)
    numbers = np.linspace(-2, 2, 256, dtype=np.float32)
    if name != "float32":
        both = datatypes.change_dtype(both, "float32", name)
        numbers = datatypes.decode(name, codes).astype(np.float32)
    numbers[:3] = (0.0, -0.0, np.nan if name != "fixed8_4" else 1)
    dy = np.ones(256, np.float32)
    want = np.where(numbers > 0, np.float32(1), np.float32(0))
    for found in (compiler.build(both)(numbers, dy), compiler.evaluate(both, numbers, dy)):
        np.testing.assert_array_equal(found[1], want)
