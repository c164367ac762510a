"""The benchmark of tuning: its networks, the bounds of their kernels, and its rows. Nothing here is
timed."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.choices import Sketch
from compiler.scheduling.tuning_log import machine_cpu
from compiler.tensor.stmt import PrimFunc
from compiler.tuning.space import WHOLE
from compiler.tuning.trials import Trial
from experiments.benchmarks import tuned, tuned_networks
from experiments.benchmarks.__main__ import main
from experiments.benchmarks.bounds import Machine, lowered_operations, work_of
from experiments.benchmarks.row_files import read_rows
from experiments.benchmarks.tuned_kernels import KernelRow, scheduled_by_rules

HOST = compiler.Target.parse("llvm")
MACHINE = Machine(2e6, 8e6, ((1000, 4e6), (10**9, 1e6)))
ROW = tuned.NetworkRow(
    "tcn", 4, 1, 2, 8, 1.5, 2.0, 1.6, 1.25, 1.2, 1.3, "loaded,imprecise", "rules", True, 2,
    1.2, 0.5, 0, 1.0, "[[0, 2.0], [4, 1.6]]", "a cpu", "abc", "2026-01-01T00:00:00Z",
)  # fmt: skip
KERNEL = KernelRow("tcn", "k0", "dense(x, y)", 3, True, True, 0.2, 0.1, 2.0, 1.9, 2.1, 0.05)


def nests(mod: IRModule) -> list[PrimFunc]:
    """The unscheduled loop nests of a module's kernels."""
    values = [b.value for b in compiler.optimize(mod).main.bindings]
    return [
        legalize(v.op).func for v in values if isinstance(v, Call) and isinstance(v.op, Function)
    ]


def dense(rows: int, inputs: int, outputs: int, dtype: str = "float32") -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (rows, inputs), dtype)
    weight = b.const(np.ones((outputs, inputs), dtype))
    attrs = {"out_dtype": "int32"} if dtype == "int8" else {}
    return IRModule({"main": b.finish(b.call("nn.dense", x, weight, **attrs))})


def test_candidates_of_runs_before_count(tmp_path: Path) -> None:
    """Of the same kernels on the same CPU; the rules' own lines are none."""
    trial = Trial(
        "k0", "s", "p", str(HOST), HOST.isa, machine_cpu(), {WHOLE: Sketch()}, 0.2, 0.1, 0.4, 0.6,
        "", False, 0,
    )  # fmt: skip
    others = [replace(trial, choice={}), replace(trial, workload="?"), replace(trial, cpu="?")]
    log = tmp_path / "log.jsonl"
    assert tuned.logged(log, [KERNEL], HOST) == []
    log.write_text("".join(t.to_line() for t in [trial, *others, trial]))
    assert tuned.logged(log, [KERNEL], HOST) == [trial, trial]


def test_every_build_has_its_turn() -> None:
    seen: list[tuple[int, object]] = []
    builds = [Mock(side_effect=lambda x, k=k: seen.append((k, x))) for k in range(3)]
    call = tuned.by_turns(builds, ["x"])
    for _ in range(7):
        call()
    assert seen == [(k % 3, "x") for k in range(7)]


# ---- networks ------------------------------------------------------------------------------------
@pytest.mark.thorough
def test_a_temporal_convolution_net_is_causal() -> None:
    mod = compiler.from_onnx(tuned_networks.tcn(8, 32))
    x = np.random.default_rng(0).normal(size=(1, 16, 32)).astype(np.float32)
    later = x.copy()
    later[:, :, 20:] += 1
    exe = compiler.build(mod)
    np.testing.assert_allclose(exe(x), compiler.evaluate(mod, x), rtol=1e-4, atol=1e-4)
    assert np.array_equal(exe(x)[:, :, :20], exe(later)[:, :, :20])
    assert not np.array_equal(exe(x)[:, :, 20:], exe(later)[:, :, 20:])


@pytest.mark.thorough
@pytest.mark.parametrize("name", tuned_networks.GRAPHS)
def test_networks_made_here_compute_what_they_mean(name: str) -> None:
    mod = tuned_networks.NETWORKS[name]({})
    exe = compiler.build(mod)
    arrays = tuned.random_inputs(exe)
    got, want = exe(*arrays), compiler.evaluate(mod, *arrays)
    assert np.isfinite(want).all()
    assert want.std() > 0
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


# ---- bounds --------------------------------------------------------------------------------------
@pytest.mark.thorough
@given(*[st.integers(1, 40)] * 3)
def test_work_of_a_dense_layer(rows: int, inputs: int, outputs: int) -> None:
    (nest,) = nests(dense(rows, inputs, outputs))
    work = work_of(nest)
    sizes = rows * inputs + inputs * outputs + rows * outputs
    assert (work.float32, work.int8) == (2 * rows * inputs * outputs, 0)
    assert work.bytes == 4 * sizes


def test_products_of_bytes_go_by_the_dot_product() -> None:
    work = work_of(nests(dense(3, 8, 16, "int8"))[-1])
    assert work.int8 == 2 * 3 * 8 * 16
    assert work.float32 <= 2 * 3 * 16  # what makes signed bytes of unsigned ones is added once


def test_work_counts_no_taps_in_the_padding_and_no_rows_that_nobody_reads() -> None:
    b = FunctionBuilder()
    weight = b.const(np.ones((16, 1, 3, 3), np.float32))
    x = b.param("x", (1, 16, 14, 14))
    y = b.call("nn.conv2d", x, weight, padding=(1, 1, 1, 1), groups=16)
    most = max(work_of(n).float32 for n in nests(IRModule({"main": b.finish(y)})))
    assert most == 2 * 16 * (14 * 3 - 2) * 14 * 3  # rows above and below the image are no taps
    b = FunctionBuilder()
    table = b.const(np.ones((1000, 8), np.float32))
    taken = b.call("take", table, b.param("i", (2,), "int64"), axis=0)
    (nest,) = nests(IRModule({"main": b.finish(taken)}))
    assert work_of(nest).bytes <= 2 * 2 * 8 * 4 + 2 * 8 * 8


def test_functions_count_as_what_they_are_made_of() -> None:
    def operations(op: str) -> float:
        b = FunctionBuilder()
        (nest,) = nests(IRModule({"main": b.finish(b.call(op, b.param("x", (10,))))}))
        return work_of(nest).float32 / 20

    assert operations("nn.relu") == 1
    assert 10 < operations("exp") < operations("erf") < 60


def test_roundings_of_formats_count() -> None:
    mod = datatypes.change_dtype(dense(4, 32, 32), "float32", "posit16_es1", boundary=False)
    plain = max(work_of(n).float32 for n in nests(mod))
    call = compiler.optimize(mod).main.bindings[-1].value
    assert isinstance(call, Call)
    assert isinstance(call.op, Function)
    lowered = lowered_operations(compile_kernel(legalize(call.op), HOST).func)
    assert 5 * plain < lowered < 60 * plain


def test_the_bound_is_arithmetic_or_memory_whichever_takes_longer() -> None:
    (small,) = nests(dense(1, 10, 10))
    assert MACHINE.least_ms(work_of(small)) == pytest.approx(480 / 4e6)
    (large,) = nests(dense(1000, 100, 100))
    assert MACHINE.least_ms(work_of(large)) == pytest.approx(2e7 / 2e6)
    assert [MACHINE.rate(n) for n in (10, 1333, 1400, 10**12)] == [4e6, 4e6, 1e6, 1e6]


def test_which_kernels_have_rules() -> None:
    def ruled(mod: IRModule) -> bool:
        (call,) = [b.value for b in compiler.optimize(mod).main.bindings]
        assert isinstance(call, Call)
        assert isinstance(call.op, Function)
        return scheduled_by_rules(compile_kernel(legalize(call.op), HOST).func)

    assert ruled(dense(4, 32, 32))
    b = FunctionBuilder()
    running = b.call("cumsum", b.param("x", (7, 5)), axis=1)
    assert not ruled(IRModule({"main": b.finish(running)}))


# ---- rows ----------------------------------------------------------------------------------------
def test_the_curve_is_what_the_best_trials_so_far_gain() -> None:
    def trial(workload: str, ms: float | None) -> Any:
        return SimpleNamespace(workload=workload, default_ms=0.2, ms=ms)

    trials = [trial("k0", ms) for ms in (0.3, None, 0.1, 0.15)] + [trial("other", 0.1)]
    points = tuned.curve(trials, [KERNEL], 2.0)
    assert points == [(0, 2.0), (1, 2.0), (2, 2.0), (4, 1.7)]
    assert all(a >= b for (_, a), (_, b) in itertools.pairwise(points))


def test_figures_of_kernels() -> None:
    untuned = replace(KERNEL, tuned=False, gain=1.0, tuned_ms=0.2)
    at_bound = replace(KERNEL, gain=1.01, tuned_ms=0.2, bound_ms=0.19)
    assert tuned.mean_gain([untuned]) == 1.0
    assert tuned.mean_gain([KERNEL, replace(KERNEL, gain=8.0), untuned]) == pytest.approx(4.0)
    assert tuned.near([KERNEL, untuned]) == pytest.approx(0.5)
    assert tuned.near([at_bound]) == 1.0
    # A kernel at its bound had nothing to gain: it is not among those that must.
    assert all(r.least is None for r in tuned.summary_rows([], [at_bound]))


def test_gains_by_time_count_kernels_as_their_network_does() -> None:
    """A small kernel that gains eight times is no help to one that takes long."""
    small = replace(KERNEL, count=1, default_ms=0.08, tuned_ms=0.01, gain=8.0, bound_ms=0.001)
    large = replace(KERNEL, count=10, default_ms=1.0, tuned_ms=1.0, gain=1.0, bound_ms=0.95)
    still = replace(large, tuned=False, default_ms=7.0, tuned_ms=7.0)
    assert tuned.mean_gain([small, large, still]) == pytest.approx(8**0.5)
    assert tuned.time_gain([small, large, still]) == pytest.approx(10.08 / 10.01)
    assert tuned.time_gain([still]) == 1.0
    assert tuned.at_bound([small, large]) == pytest.approx(10 / 10.01)
    assert tuned.at_bound([]) == 1.0
    found = {r.title: r.value for r in tuned.summary_rows([ROW], [small, large])}
    assert found["  its tuned kernels, by time"] == pytest.approx(10.08 / 10.01)
    assert found["1 tuned kernels with rules, below the bound: by time"] == pytest.approx(8)
    assert found["time of 2 kernels in those at 90% of the bound"] == pytest.approx(1000 / 10.01)


def test_rows_fail_below_what_is_asked_for() -> None:
    slow = replace(ROW, ratio=0.97)
    weak = replace(KERNEL, gain=1.1, tuned_ms=0.18)
    passed = [r.passed for r in tuned.summary_rows([ROW, slow], [weak]) if r.least is not None]
    assert passed == [True, False, False]
    rows = tuned.summary_rows([], [replace(weak, ruled=False)])
    assert [r.passed for r in rows if r.least is not None] == [False]
    assert all(r.passed for r in tuned.summary_rows([ROW], [KERNEL]))


def test_rows_are_kept_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def network(name: str, *rest: Any) -> tuple[tuned.NetworkRow, list[KernelRow]]:
        measured.append(name)
        return replace(ROW, network=name, trials=rest[2]), [replace(KERNEL, network=name)]

    monkeypatch.setattr(tuned, "_network", network)
    monkeypatch.setattr(tuned.Machine, "measured", lambda target: MACHINE)
    out = tmp_path / "tuned.csv"
    args = ["tuned", "--only", "tcn", "--trials", "4", "-o", str(out)]
    first = CliRunner().invoke(main, args)
    assert first.exit_code == 0, first.output
    assert read_rows(out, tuned.NetworkRow) == [ROW]
    assert read_rows(tmp_path / "tuned_kernels.csv", KernelRow) == [KERNEL]
    more = CliRunner().invoke(main, [*args, "--only", "lstm"])
    assert measured == ["tcn", "lstm"]
    assert "measured before, 4 trials" in more.output
    CliRunner().invoke(main, [*args[:4], "8", *args[5:]])  # more trials than the row has
    assert measured == ["tcn", "lstm", "tcn"]
    rows = read_rows(out, tuned.NetworkRow)
    assert [(r.network, r.trials) for r in rows] == [("lstm", 4), ("tcn", 8)]
    assert json.loads(rows[0].curve) == [[0, 2.0], [4, 1.6]]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "tuned.csv"
    out.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="holds no rows of this benchmark"):
        tuned.run(["tcn"], 4, True, out, {})
    assert out.read_text() == "a,b\n1,2\n"
    wrong = CliRunner().invoke(main, ["tuned", "--only", "tcn", "-o", str(out)])
    assert wrong.exit_code == 2
    assert "Traceback" not in wrong.output


def test_networks_that_are_not_here_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DTYPELAB_BENCH_DIR", str(tmp_path))
    monkeypatch.setattr(tuned.Machine, "measured", lambda target: MACHINE)
    assert tuned.run(["efficientnet_lite0"], 4, True, None, {})
    assert "efficientnet_lite0: left out: efficientnet_lite0 is not here" in capsys.readouterr().out
