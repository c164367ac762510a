"""Elementwise functions as tables; products, differences and constants in integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_checks import check_plan

import compiler
import quantize
from compiler.arithmetic.scalar_functions import UNARY
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Call, IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from experiments.measure import metrics
from quantize import Plan, QConfig
from quantize.annotation.functions import table
from quantize.annotation.graph import Graph
from quantize.plan.params import ValueParams

INTEGER = QConfig(functions="integer", arithmetic="integer")
FUNCTIONS = (
    *UNARY, "abs", "negative", "nn.gelu", "nn.hard_swish", "nn.hard_sigmoid", "nn.leaky_relu",
)  # fmt: skip
SHAPE = (2, 3, 9, 8)
Build = Callable[[FunctionBuilder, Atom], Atom]


def weights(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)


def between(f: Build, pooled: bool = False, batch: Any = 2) -> IRModule:
    """`f` between two convolutions, behind pooling if `pooled`."""
    rng, b = np.random.default_rng(3), FunctionBuilder()
    x = b.param("image", (batch, *SHAPE[1:]))
    y = b.call("nn.conv2d", x, b.const(weights(rng, 16, 3, 3, 3)), name="first")
    if pooled:
        y = b.call("nn.avg_pool2d", y, pool_size=(2, 2))
    z = b.call("nn.conv2d", f(b, y), b.const(weights(rng, 5, 16, 1, 1)))
    return IRModule({"main": b.finish(z)})


def data(count: int = 6) -> list[Array]:
    rng = np.random.default_rng(4)
    return [rng.normal(size=SHAPE).astype(np.float32) for _ in range(count)]


def swish(b: FunctionBuilder, x: Atom) -> Atom:
    return b.call("multiply", x, b.call("sigmoid", x, name="gate"), name="swish")


def gelu(b: FunctionBuilder, x: Atom) -> Atom:
    root = b.const(np.float32(2**0.5))
    bent = b.call("add", b.call("erf", b.call("divide", x, root)), b.const(np.float32(1)))
    half = b.call("multiply", x, b.const(np.full((1, 1, 1, 1), 0.5, np.float32)))
    return b.call("multiply", half, bent)


def chosen(b: FunctionBuilder, x: Atom) -> Atom:
    above = b.call("greater", x, b.const(np.float32(0)))
    return b.call("where", above, x, b.call("multiply", x, b.const(np.float32(0.1))))


def squeeze_excite(b: FunctionBuilder, x: Atom) -> Atom:
    rng = np.random.default_rng(5)
    mean = b.call("nn.global_avg_pool2d", x)
    few = b.call("nn.relu", b.call("nn.conv2d", mean, b.const(weights(rng, 4, 16, 1, 1))))
    gate = b.call("sigmoid", b.call("nn.conv2d", few, b.const(weights(rng, 16, 4, 1, 1))))
    return b.call("multiply", x, gate, name="gated")


def ops(mod: IRModule) -> list[str]:
    return [str(b.value.op) for b in mod.main.bindings if isinstance(b.value, Call)]


def decisions(plan: Plan) -> list[str]:
    return [n.decision for n in plan.nodes.values()]


# ---- tables --------------------------------------------------------------------------------------
@pytest.mark.sampled(9)
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_table_holds_the_function_of_every_integer(op: str, dtype: str) -> None:
    b = FunctionBuilder()
    x = b.param("x", (3, 4))
    y = b.call(op, x)
    graph = Graph(b.finish(y))
    given = ValueParams(0.0625, 3 if dtype == "int8" else 131, dtype)
    out = ValueParams(0.03125, 100, "uint8")
    entries = table(graph, y, x, given, out)
    alone = FunctionBuilder()
    one = alone.param("x", (1,))
    module = IRModule({"main": alone.finish(alone.call(op, one))})
    for q in range(given.qmin, given.qmax + 1):
        real = np.float32((q - given.zero_point) * given.scale)
        with np.errstate(all="ignore"):
            value = float(compiler.evaluate(module, real.reshape(1))[0])
        want = 0 if np.isnan(value) else out.clipped(value)
        assert entries[q % 256] == want, (q, value)


@pytest.mark.thorough
@pytest.mark.parametrize("f", [swish, gelu, chosen])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_what_depends_on_one_value_becomes_one_table(f: Build, dtype: str) -> None:
    mod = between(f, pooled=True)
    plan = quantize.calibrate(mod, data(), QConfig(activation_dtype=dtype))
    assert set(decisions(plan)) == {"integer", "tabled"}
    assert plan.node_coverage == 1.0
    q = quantize.realize(mod, plan)
    assert ops(q).count("qnn.lookup") == 1
    assert not {"sigmoid", "erf", "multiply", "where"} & set(ops(q))
    check_plan(mod, plan, data()[0])
    got, want = compiler.build(q)(data()[0]), compiler.evaluate(mod, data()[0])
    assert metrics.sqnr_db(got, want) > 28
    simulated = compiler.evaluate(quantize.simulate(mod, plan), data()[0])
    assert metrics.sqnr_db(got, simulated) > 60


@pytest.mark.thorough
def test_a_function_of_an_accumulator_is_left_to_its_kernel() -> None:
    mod = between(swish)
    plan = quantize.calibrate(mod, data())
    reason = "it is computed from the accumulator of %first, which saves a rounding"
    assert [plan.nodes[n].reason for n in ("gate", "swish")] == [reason] * 2
    table_plan = quantize.calibrate(mod, data(), INTEGER)
    assert decisions(table_plan) == ["integer", "tabled", "integer", "integer"]
    assert table_plan.nodes["swish"].function_of == "first"
    want = compiler.evaluate(mod, data()[0])
    floats, tables = (
        metrics.sqnr_db(compiler.build(quantize.realize(mod, p))(data()[0]), want)
        for p in (plan, table_plan)
    )
    assert floats > tables > 28
    kept = quantize.annotate(between(swish, pooled=True), QConfig(functions="float"))
    assert kept.nodes["gate"].reason == "functions='float' leaves it in float"


def test_a_skipped_node_is_in_no_table() -> None:
    mod = between(swish, pooled=True)
    plan = quantize.calibrate(mod, data(), QConfig(skip="gate"))
    assert (plan.nodes["gate"].decision, plan.nodes["swish"].decision) == ("float", "float")
    check_plan(mod, plan, data()[0])


@pytest.mark.thorough
def test_an_inner_value_that_integers_are_wanted_of_has_a_table_too() -> None:
    def both(b: FunctionBuilder, x: Atom) -> Atom:
        gate = b.call("sigmoid", x)
        return b.call("concatenate", gate, b.call("multiply", x, gate), axis=1)

    rng, b = np.random.default_rng(3), FunctionBuilder()
    x = b.param("image", SHAPE)
    y = b.call("nn.conv2d", x, b.const(weights(rng, 8, 3, 3, 3)))
    y = both(b, b.call("nn.avg_pool2d", y, pool_size=(2, 2)))
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", y, b.const(weights(rng, 5, 16, 1, 1))))})
    plan = quantize.calibrate(mod, data())
    assert plan.node_coverage == 1.0
    assert ops(quantize.realize(mod, plan)).count("qnn.lookup") == 2
    check_plan(mod, plan, data()[0])


# ---- plans ---------------------------------------------------------------------------------------
def test_plans_of_tables_are_saved_and_checked() -> None:
    mod = between(swish, pooled=True)
    plan = quantize.calibrate(mod, data())
    assert Plan.from_json(plan.to_json()) == plan
    assert "a table of" in plan.summary()
    wrong = {**plan.nodes, "swish": replace(plan.nodes["swish"], function_of="image")}
    with pytest.raises(ConfigError, match="'swish' is a function of 'image', but it depends"):
        quantize.realize(mod, replace(plan, nodes=wrong))
    wrong["swish"] = replace(plan.nodes["swish"], function_of="imag")
    with pytest.raises(ConfigError, match="did you mean 'image'"):
        quantize.realize(mod, replace(plan, nodes=wrong))


# ---- products, differences, constants ------------------------------------------------------------
@pytest.mark.thorough
@pytest.mark.parametrize("batch", [2, Var("n")])
def test_squeeze_and_excitation_stays_in_integers(batch: Any) -> None:
    mod = between(squeeze_excite, pooled=True, batch=batch)
    plan = quantize.calibrate(mod, data(), INTEGER)
    assert plan.node_coverage == 1.0
    q = quantize.realize(mod, plan)
    assert ops(q).count("qnn.multiply") == 1
    check_plan(mod, plan, data()[0])
    got, want = compiler.build(q)(data()[0]), compiler.evaluate(mod, data()[0])
    assert metrics.sqnr_db(got, want) > 30


@pytest.mark.thorough
@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(["add", "subtract", "multiply"]),
    st.sampled_from([(16, 1, 1), (1, 16, 7, 6), (1, 1, 1, 6), (2, 1, 1, 1)]),
    st.booleans(),
    st.floats(1e-3, 1e3),
)
def test_constants_keep_their_precision(
    op: str, shape: tuple[int, ...], first: bool, size: float
) -> None:
    constant = np.random.default_rng(6).normal(0, size, shape).astype(np.float32)

    def f(b: FunctionBuilder, x: Atom) -> Atom:
        pooled = b.call("nn.max_pool2d", x, pool_size=(1, 1))
        return b.call(op, *[b.const(constant), pooled][:: 1 if first else -1], name="y")

    mod = between(f)
    plan = quantize.calibrate(mod, data(), INTEGER)
    assert plan.node_coverage == 1.0
    check_plan(mod, plan, data()[0])
    # The step of the result is all that is lost: its operands' integers are exact to 2^-14.
    from quantize.reference.trace import trace_plan

    traced = trace_plan(mod, plan, data()[0])
    pool = next(t for n, t in traced.items() if t.kind == "integer" and n != "y")
    assert pool.params is not None
    real = (pool.values - pool.params.zero_point) * pool.params.scale
    operands = [constant.astype(np.float64), real][:: 1 if first else -1]
    want = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[op](*operands)
    out = plan.values["y"]
    got = (traced["y"].values - out.zero_point) * out.scale
    inside = np.clip(
        want, (out.qmin - out.zero_point) * out.scale, (out.qmax - out.zero_point) * out.scale
    )
    assert np.abs(got - inside).max() <= out.scale * 0.51


def test_a_normalization_is_left_in_float() -> None:
    rng, b = np.random.default_rng(3), FunctionBuilder()
    x = b.param("image", SHAPE)
    y = b.call("nn.avg_pool2d", b.call("nn.conv2d", x, b.const(weights(rng, 8, 3, 3, 3))),
               pool_size=(2, 2))  # fmt: skip
    d = b.call("subtract", y, b.call("mean", y, axis=(3,), keepdims=True), name="centred")
    square = b.call("multiply", d, d)
    var = b.call("add", b.call("mean", square, axis=(3,), keepdims=True), b.const(np.float32(1e-5)))
    z = b.call("multiply", d, b.call("rsqrt", var))
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", z, b.const(weights(rng, 5, 8, 1, 1))))})
    nodes = quantize.annotate(mod).nodes
    assert nodes["centred"].reason == (
        "it takes a mean off its data: normalizations are better left in float"
    )
    left = {n.op for n in nodes.values() if n.decision == "float"}
    assert {"subtract", "rsqrt", "multiply"} <= left


def test_other_runtimes_agree(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    mod = between(lambda b, x: swish(b, squeeze_excite(b, x)), pooled=True)
    plan = quantize.calibrate(mod, data(), INTEGER)
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    session = ort.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"image": data()[0]})[0]
    ours = compiler.build(quantize.realize(mod, plan))(data()[0])
    assert metrics.sqnr_db(ours, theirs) > 35


@pytest.mark.sampled(6)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("ends", [False, True])
def test_rows_of_relus_fold_into_what_they_follow(count: int, ends: bool) -> None:
    """A third relu was a table of the first, whose integers nothing makes."""

    def relus(b: FunctionBuilder, x: Atom) -> Atom:
        for _ in range(count):
            x = b.call("nn.relu", x)
        return b.call("sigmoid", x) if ends else x

    mod = between(relus)
    plan = quantize.calibrate(mod, data(2), INTEGER)
    made = [n.decision for n in plan.nodes.values() if n.op == "nn.relu"]
    assert made == ["folded"] * count
    check_plan(mod, plan, data(1)[0])
