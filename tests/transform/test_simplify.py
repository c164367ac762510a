"""FoldConstant, SimplifyInference, DeadCodeElimination, prepare, and the cost of a module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simplify_cases import Net, apply, conv, f, ops, origins, same_results, stats

from compiler.interpret.graph import evaluate
from compiler.ir.expr import Constant, IRModule, TupleGetItem, Var, operands
from compiler.passes.instruments import VerifyInstrument
from compiler.passes.manager import PassContext, find_pass
from compiler.symbolic import Var as Dimension
from compiler.transform import fold_constant
from compiler.transform.analysis import cost
from compiler.transform.dead_code import DeadCodeElimination
from compiler.transform.fold_constant import FoldConstant
from compiler.transform.preparation import PREPARE_VERSION, prepare
from compiler.transform.simplify_inference import SimplifyInference

N = Dimension("n")


@pytest.mark.parametrize(
    "name",
    ["InferType", "FoldConstant", "FoldBatchNorm", "SimplifyInference", "DeadCodeElimination"],
)
def test_passes_are_registered(name: str) -> None:
    assert find_pass(name).name == name


# ---- dead code -----------------------------------------------------------------------------------
def test_dead_code_goes_in_chains() -> None:
    net = Net()
    x = net.param("x", (N, 4))
    dead = net.op("nn.relu", x, name="dead")
    net.op("negative", dead, name="dead_too")
    y = net.op("abs", x, name="y")
    out = apply(DeadCodeElimination(), net.module(y))
    assert list(origins(out)) == ["y"]


def test_live_code_is_left_alone() -> None:
    net = Net()
    mod = net.module(net.op("nn.relu", net.param("x", (N, 4)), name="y"))
    assert apply(DeadCodeElimination(), mod).main is mod.main


# ---- constants -----------------------------------------------------------------------------------
def test_calls_on_constants_fold_through() -> None:
    net = Net()
    x = net.param("x", (N, 4))
    a = net.op("add", f(4, 1), f(1, 4), name="a")
    b = net.op("transpose", a, name="b", axes=(1, 0))
    mod = net.module(net.op("nn.dense", x, b, name="y"))
    out = apply(FoldConstant(), mod)
    assert ops(out) == ["nn.dense"]
    same_results(out, mod, f(3, 4), tolerance=0)


def test_tuples_fold_field_by_field() -> None:
    net = Net()
    x = net.param("x", (N, 4))
    parts = net.op("split", f(2, 4), name="parts", sizes=(1, 1), axis=0)
    first, second = net.get(parts, 0), net.get(parts, 1)
    s = net.op("add", x, first, name="s")
    mod = net.module(net.op("multiply", s, second, name="y"))
    out = apply(FoldConstant(), mod)
    assert ops(out) == ["add", "multiply"]
    assert not any(isinstance(b.value, TupleGetItem) for b in out.main.bindings)
    same_results(out, mod, f(3, 4), tolerance=0)


def test_the_shape_of_a_known_type_folds() -> None:
    net = Net()
    shape = net.op("shape_of", net.param("x", (2, 3)), name="s")
    mod = net.module(net.op("add", shape, np.array([1, 1]), name="y"))
    assert ops(apply(FoldConstant(), mod)) == ["add"]
    net = Net()
    shape = net.op("shape_of", net.param("x", (N, 3)), name="s")
    mod = net.module(net.op("add", shape, np.array([1, 1]), name="y"))
    assert ops(apply(FoldConstant(), mod)) == ["shape_of", "add"]


def test_a_constant_result_keeps_its_name() -> None:
    net = Net()
    mod = net.module(net.op("add", f(3), f(3), name="y"))
    out = apply(FoldConstant(), mod)
    assert [r.name for r in out.main.results if isinstance(r, Var)] == ["y"]
    same_results(out, mod)


def test_large_growth_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def module() -> IRModule:
        net = Net()
        wide = net.op("broadcast_to", f(1, 4), name="wide", shape=(64, 4))
        return net.module(net.op("add", net.param("x", (64, 4)), wide, name="y"))

    monkeypatch.setattr(fold_constant, "LARGEST_GROWTH", 63 * 16 - 1)
    assert ops(apply(FoldConstant(), module())) == ["broadcast_to", "add"]
    monkeypatch.setattr(fold_constant, "LARGEST_GROWTH", 63 * 16)
    assert ops(apply(FoldConstant(), module())) == ["add"]


# ---- identities ----------------------------------------------------------------------------------
IDENTITIES: dict[str, dict[str, Any]] = {
    "nn.dropout": {},
    "cast": {"dtype": "float32"},
    "reshape": {"newshape": (N, 3, 4)},
    "transpose": {"axes": (0, -2, 2)},
    "broadcast_to": {"shape": (N, 3, 4)},
    "concatenate": {"axis": 1},
    "nn.pad": {"pad_width": ((0, 0), (0, 0), (0, 0))},
}


@pytest.mark.parametrize("op", IDENTITIES)
def test_identities_go(op: str) -> None:
    net = Net()
    a = net.op("nn.relu", net.param("x", (N, 3, 4)), name="a")
    same = net.op(op, a, name="same", **IDENTITIES[op])
    mod = net.module(net.op("negative", same, name="y"))
    out = apply(SimplifyInference(), mod)
    assert origins(out) == {"a": ("a", "same"), "y": ("y",)}
    same_results(out, mod, f(2, 3, 4), tolerance=0)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("transpose", {"axes": (0, 2, 1)}),
        ("cast", {"dtype": "float64"}),
        ("reshape", {"newshape": (N, 4, 4, 1)}),
        ("nn.pad", {"pad_width": ((0, 0), (0, 0), (1, 0))}),
    ],
)
def test_what_changes_something_stays(op: str, attrs: dict[str, Any]) -> None:
    net = Net()
    mod = net.module(net.op(op, net.param("x", (N, 4, 4)), name="y", **attrs))
    assert apply(SimplifyInference(), mod).main is mod.main


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 3), (5,), ()])
def test_axes_are_reversed_where_none_are_named(shape: tuple[int, ...]) -> None:
    """Which changes nothing only with less than two of them."""
    net = Net()
    turned = net.op("transpose", net.op("abs", net.param("x", shape), name="a"), name="t")
    mod = net.module(net.op("negative", turned, name="y"))
    out = apply(SimplifyInference(), mod)
    assert ("transpose" in ops(out)) == (len(shape) > 1)
    same_results(out, mod, f(*shape), tolerance=0)


def test_a_result_that_is_an_identity_gives_its_name_to_the_producer() -> None:
    net = Net()
    a = net.op("nn.relu", net.param("x", (N, 4)), name="a")
    b = net.op("negative", a, name="b")
    y = net.op("nn.dropout", a, name="y")
    mod = net.module(y, net.op("abs", b, name="z"))
    out = apply(SimplifyInference(), mod)
    assert origins(out) == {"y": ("a", "y"), "b": ("b",), "z": ("z",)}
    same_results(out, mod, f(2, 4), tolerance=0)


def test_results_that_cannot_give_way_stay() -> None:
    net = Net()
    x = net.param("x", (N, 4))
    a = net.op("nn.relu", x, name="a")
    mod = net.module(a, net.op("nn.dropout", a, name="b"), net.op("nn.dropout", x, name="c"))
    assert apply(SimplifyInference(), mod).main is mod.main


def test_chains_of_identities_ending_in_a_result() -> None:
    net = Net()
    x = net.param("x", (N, 4))
    one = net.op("nn.dropout", x, name="one")
    a = net.op("nn.relu", one, name="a")
    two = net.op("nn.dropout", a, name="two")
    y = net.op("reshape", two, name="y", newshape=(N, 4))
    mod = net.module(y, net.op("negative", two, name="z"))
    out = apply(SimplifyInference(), mod)
    assert origins(out) == {"y": ("a", "two", "y"), "z": ("z",)}
    same_results(out, mod, f(2, 4), tolerance=0)


# ---- batch_norm ----------------------------------------------------------------------------------
def test_lone_batch_norm_becomes_scale_and_shift() -> None:
    net = Net()
    x = net.param("x", (N, 4, 5, 5))
    mod = net.module(net.op("nn.batch_norm", x, *stats(4), name="bn", epsilon=1e-3))
    out = apply(SimplifyInference(), mod)
    assert ops(out) == ["multiply", "add"]
    assert origins(out) == {"bn_scale": ("bn",), "bn": ("bn",)}
    same_results(out, mod, f(2, 4, 5, 5))


def test_batch_norm_that_folds_is_left_to_fold_batch_norm() -> None:
    net = Net()
    c = conv(net, net.param("x", (N, 4, 5, 5)), 6)
    mod = net.module(net.op("nn.batch_norm", c, *stats(6), name="bn"))
    assert apply(SimplifyInference(), mod).main is mod.main


def test_batch_norm_of_run_time_statistics_stays() -> None:
    net = Net()
    x, mean = net.param("x", (N, 4, 5, 5)), net.param("mean", (4,))
    gamma, beta, _, var = stats(4)
    mod = net.module(net.op("nn.batch_norm", x, gamma, beta, mean, var, name="bn"))
    assert apply(SimplifyInference(), mod).main is mod.main


# ---- prepare -------------------------------------------------------------------------------------
def small_net() -> IRModule:
    """Dropout between layers, batch_norm after, before and away from convolutions."""
    net = Net()
    x = net.param("x", (N, 4, 6, 6))
    pre = net.op("nn.batch_norm", x, *stats(4), name="pre")
    a = conv(net, pre, 6, name="a")
    bn = net.op("nn.batch_norm", a, *stats(6), name="a_bn")
    act = net.op("nn.relu", bn, name="act")
    drop = net.op("nn.dropout", act, name="drop")
    kernel = net.op("transpose", f(6, 6, 3, 3), name="kernel", axes=(1, 0, 2, 3))
    b = net.op("nn.conv2d", drop, kernel, name="b", padding=(1, 1, 1, 1))
    b_bn = net.op("nn.batch_norm", b, *stats(6), name="b_bn")
    joined = net.op("add", b_bn, drop, name="joined")
    pooled = net.op("nn.global_avg_pool2d", joined, name="pooled")
    flat = net.op("reshape", pooled, name="flat", newshape=(N, 6))
    d = net.op("nn.dense", flat, f(10, 6), name="fc")
    logits = net.op("add", f(10), d, name="logits")
    net.op("nn.relu", logits, name="unused")
    return net.module(net.op("nn.dropout", logits, name="out"))


def test_prepare() -> None:
    mod = small_net()
    with PassContext(instruments=[VerifyInstrument()]):
        out = prepare(mod)
    assert ops(out) == [
        "multiply", "add", "nn.conv2d", "nn.relu", "nn.conv2d", "add", "nn.global_avg_pool2d",
        "reshape", "nn.dense",
    ]  # fmt: skip
    assert origins(out) == {
        "pre_scale": ("pre",),
        "pre": ("pre",),
        "a_bn": ("a", "a_bn"),
        "act": ("act", "drop"),
        "b_bn": ("b", "b_bn"),
        "joined": ("joined",),
        "pooled": ("pooled",),
        "flat": ("flat",),
        "out": ("fc", "logits", "out"),
    }
    assert out.attrs["prepared"] == PREPARE_VERSION
    same_results(out, mod, f(2, 4, 6, 6))


def test_prepare_again_changes_nothing() -> None:
    out = prepare(small_net())
    assert prepare(out).main is out.main


def test_prepare_obeys_the_context() -> None:
    mod = small_net()
    x = f(2, 4, 6, 6)
    with PassContext(disabled_pass=["FoldBatchNorm"]):
        without = prepare(mod)
    assert "nn.batch_norm" in ops(without)
    same_results(without, mod, x)
    with PassContext(opt_level=0):
        least = prepare(mod)
    assert "nn.dropout" not in ops(least)
    assert "transpose" in ops(least)
    same_results(least, mod, x)


# ---- cost ----------------------------------------------------------------------------------------
def test_cost() -> None:
    net = Net()
    x = net.param("x", (N, 4, 5, 5))
    c = conv(net, x, 6, groups=2)
    p = net.op("nn.global_avg_pool2d", c, name="p")
    flat = net.op("reshape", p, name="flat", newshape=(N, 6))
    shared = net.const(f(6, 6))
    a = net.op("nn.dense", flat, shared, name="a")
    mod = net.module(net.op("nn.dense", a, shared, name="b"))
    found = cost(mod)
    assert found.macs == 6 * 2 * 9 * 25 + 2 * 36
    assert found.parameters == 6 * 2 * 9 + 6 + 36
    assert found.parameter_bytes == 4 * found.parameters
    assert found.operators == {
        "nn.conv2d": 1, "nn.dense": 2, "nn.global_avg_pool2d": 1, "reshape": 1,
    }  # fmt: skip


def test_cost_counts_bits_of_narrow_types() -> None:
    from compiler.types.dtypes import DType

    net = Net()
    narrow = DType("custom", 6, "six")
    weight = Constant(np.zeros((3, 7), np.uint8), narrow)
    mod = IRModule({"main": net.finish(weight)})
    assert cost(mod).parameters == 21
    assert cost(mod).parameter_bytes == 16  # 126 bits


def test_every_operand_of_a_prepared_net_is_defined() -> None:
    main = prepare(small_net()).main
    known = set(main.params)
    for b in main.bindings:
        assert {a for a in operands(b.value) if isinstance(a, Var)} <= known
        known.add(b.var)
    assert evaluate(IRModule({"main": main}), f(1, 4, 6, 6)).shape == (1, 10)


def test_folded_scalars_stay_scalars() -> None:
    net = Net()
    x = net.param("x", (3,))
    two = net.op("add", Constant.of(np.float32(1)), Constant.of(np.float32(1)), name="two")
    out = apply(FoldConstant(), net.module(net.op("multiply", x, two, name="y")))
    (binding,) = out.main.bindings
    assert operands(binding.value)[1].type.shape == ()
