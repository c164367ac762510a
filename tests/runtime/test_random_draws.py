"""A parameter of draws: other random bits for each number, the same in every way of running."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.errors import InputError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.draws import DRAW
from compiler.ir.expr import Constant, IRModule
from compiler.transform import LegalizeOps, Sequential
from compiler.types.dtypes import INT64, DType

FORMATS = ("float8_e4m3fn_stochastic", "posit8_es1_stochastic_seed3", "bfloat16_stochastic")


def network(fmt: str, accumulate: str = "sequential", rows: int = 3) -> IRModule:
    """Two dense layers, with what is computed by elements between them, in a format."""
    random = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (rows, 5))
    b.param(DRAW, (), INT64)
    w = b.const(random.normal(0, 1, (4, 5)).astype(np.float32))
    v = b.const(random.normal(0, 1, (2, 4)).astype(np.float32))
    y = b.call("nn.relu", b.call("nn.dense", x, w, name="first"), name="relu")
    y = b.call("multiply", y, b.call("sigmoid", y, name="gate"), name="gated")
    z = b.call("nn.dense", y, v, name="second")
    module = IRModule({"main": b.finish(z, b.call("mean", y, axis=-1), attrs={DRAW: DRAW})})
    return datatypes.change_dtype(module, "float32", fmt, accumulate=accumulate)


def inputs(seed: int, rows: int = 3) -> Any:
    return np.random.default_rng(seed).normal(0, 1, (rows, 5)).astype(np.float32)


def same(found: Any, wanted: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("accumulate", ["sequential", "float32"])
def test_compiled_is_interpreted(fmt: str, accumulate: str) -> None:
    module = network(fmt, accumulate)
    run = compiler.build(module)
    found = [run(x=inputs(0), draw=np.int64(k)) for k in range(4)]
    for k, out in enumerate(found):
        assert same(out, compiler.evaluate(module, x=inputs(0), draw=np.int64(k)))
    assert not all(same(out, found[0]) for out in found)


RUN = {threads: compiler.build(network(FORMATS[0], rows=40), threads=threads) for threads in (1, 2)}


@pytest.mark.thorough
@given(st.integers(-(2**63), 2**63 - 1))
def test_any_draw_in_any_number_of_threads(draw: int) -> None:
    x = inputs(1, 40)
    one, two = (RUN[threads](x=x, draw=np.int64(draw)) for threads in (1, 2))
    assert same(one, two)
    wanted = compiler.evaluate(network(FORMATS[0], rows=40), x=x, draw=np.int64(draw))
    assert same(one, wanted)


def test_zero_is_the_draw_of_a_function_without() -> None:
    module = network(FORMATS[0])
    without = module.with_function("main", replace(module.main, attrs={}))
    x = inputs(2)
    assert same(
        compiler.evaluate(module, x=x, draw=np.int64(0)),
        compiler.evaluate(without, x=x, draw=np.int64(7)),
    )


def test_draws_are_kept_in_text() -> None:
    module = network(FORMATS[0])
    read = compiler.parse(module.astext(show_meta_data=True))
    assert read.main.attrs == module.main.attrs
    x, draw = inputs(3), np.int64(11)
    assert same(compiler.evaluate(read, x=x, draw=draw), compiler.evaluate(module, x=x, draw=draw))


def test_roundings_are_fair() -> None:
    """The mean over draws of what lies between two values is that."""
    b = FunctionBuilder()
    x = b.param("x", (64,))
    b.param(DRAW, (), INT64)
    doubled = b.call("add", x, x, name="sum")
    module = IRModule({"main": b.finish(doubled, attrs={DRAW: DRAW})})
    run = compiler.build(datatypes.change_dtype(module, {"sum": "float8_e4m3fn_stochastic"}))
    given = np.full(64, 0.3, np.float32)  # between 0.28125 and 0.3125; its double is exact
    found = np.array([run(x=given, draw=np.int64(k)) for k in range(200)])
    assert {*np.unique(found)} == {0.5625, 0.625}
    assert abs(found.mean() - 0.6) < 5 * found.std() / np.sqrt(found.size)


def test_sums_of_constants_are_drawn_too() -> None:
    dtype = DType.parse("custom[bfloat16_stochastic]16")
    random = np.random.default_rng(0).normal(0, 1, (2, 32))
    first, second = (Constant(datatypes.encode("bfloat16", x), dtype) for x in random)
    b = FunctionBuilder()
    b.param(DRAW, (), INT64)
    module = IRModule({"main": b.finish(b.call("add", first, second), attrs={DRAW: DRAW})})
    run = compiler.build(module)
    found = [run(draw=np.int64(k)) for k in range(3)]
    wanted = [compiler.evaluate(module, draw=np.int64(k)) for k in range(3)]
    assert [x.tobytes() for x in found] == [x.tobytes() for x in wanted]
    assert len({x.tobytes() for x in found}) == 3


def test_what_is_no_parameter_of_draws() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2,))
    f = b.finish(b.call("nn.relu", x), attrs={DRAW: "x"})
    with pytest.raises(InputError, match="int64"):
        compiler.build(IRModule({"main": f}))


def test_the_virtual_machine_gets_no_draws() -> None:
    with pytest.raises(UnsupportedError, match="random draws"):
        compiler.create_executor("vm", network(FORMATS[0])).evaluate()


def test_programs_of_loops_get_no_draws() -> None:
    with pytest.raises(UnsupportedError, match="random draws"):
        Sequential([LegalizeOps()])(network(FORMATS[0]))
