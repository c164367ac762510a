"""Values may be observed in the order in which they are computed: no plan depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_nets import images, net
from random_nets import images_of, networks

import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.passes.manager import PassContext
from compiler.types.tensor_types import TensorType
from quantize import QConfig
from quantize.annotation.annotate import prepared
from quantize.calibration import calibrate
from quantize.calibration.observers import (
    MeanSigma,
    MinMax,
    MovingAverage,
    Percentile,
    PerChannel,
    Several,
)
from quantize.calibration.running import Runner


def observed(module: IRModule) -> list[Var]:
    """Every tensor that a node computes."""
    return [b.var for b in module.main.bindings if isinstance(b.var.type, TensorType)]


@settings(max_examples=2, deadline=None)
@given(module=networks(), block=st.sampled_from([2, 4]), seed=st.integers(0, 99))
def test_values_in_any_order_are_the_same_values(module: IRModule, block: int, seed: int) -> None:
    module = prepared(module)
    with PassContext(config={"AlterOpLayout.block": block}):
        in_order, in_any = (Runner(module, observed(module), 1, k) for k in ([], observed(module)))
    x = {module.main.params[0].name: images_of(seed)}
    for v, a, b in zip(observed(module), in_order(x), in_any(x), strict=True):
        assert np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None), equal_nan=True), v


def test_full_blocks_stay_blocks_and_filled_up_ones_do_not() -> None:
    b, rng = FunctionBuilder(), np.random.default_rng(0)
    x = b.param("x", (2, 3, 6, 6))
    w = [rng.normal(size=s).astype(np.float32) for s in ((8, 3, 3, 3), (6, 8, 1, 1))]
    full = b.call("nn.conv2d", x, b.const(w[0]))
    module = IRModule({"main": b.finish(b.call("nn.conv2d", full, b.const(w[1])))})
    given = {"x": rng.normal(size=(2, 3, 6, 6)).astype(np.float32)}

    def shapes(wanted: list[Var], any_order: list[Var]) -> list[tuple[int, ...]]:
        with PassContext(config={"AlterOpLayout.block": 4}):
            run = Runner(module, wanted, 1, any_order)
        return [a.shape for a in run(given)]

    blocked, plain, other = (2, 2, 4, 4, 4), (2, 8, 4, 4), (2, 6, 4, 4)
    first, second = observed(module)
    assert shapes([first, second], [first, second]) == [blocked, other]
    assert shapes([first, second], []) == [plain, other]
    assert shapes([second, first], [first]) == [other, blocked]
    assert shapes([first, second], [second]) == [plain, other]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["resnet8", "dwsep"])
@pytest.mark.parametrize("how", ["minmax", "moving_average", "percentile", "kl", "mse", "sigma"])
def test_plans_do_not_depend_on_the_order(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = images()[0][:40]
    config = QConfig(calibrate=how)
    asked: list[bool] = []

    class InOrder(Runner):
        def __init__(
            self, module: IRModule, wanted: Sequence[Var], threads: int, any_order: set[Var]
        ):
            asked.append(bool(any_order))
            super().__init__(module, wanted, threads)

    plan = quantize.calibrate(net(name), [x[:25], x[25:]], config)
    monkeypatch.setattr(calibrate, "Runner", InOrder)
    assert quantize.calibrate(net(name), [x[:25], x[25:]], config) == plan
    assert asked == [how != "sigma"]  # whose sums are rounded


@pytest.mark.parametrize(
    ("observer", "any_order"),
    [
        (MinMax(), True),
        (MovingAverage(0.9), True),
        (Percentile(99.0), True),
        (MeanSigma(3.0), False),
        (PerChannel(MinMax, 1), False),
        (Several([MinMax(), Percentile(99.0)]), True),
        (Several([MinMax(), PerChannel(MinMax, 1)]), False),
    ],
)
def test_observers_for_which_order_counts_say_so(observer: Any, any_order: bool) -> None:
    assert observer.any_order == any_order


def test_what_is_prepared_is_not_prepared_again() -> None:
    once = prepared(net("mlp"))
    assert prepared(once) is once
