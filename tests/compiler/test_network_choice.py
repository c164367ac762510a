"""Choices for whole networks: as data, in the log, applied by builds, and searched. Times are given
by the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.network_choice import (
    NetworkChoice,
    NetworkRecord,
    append_networks,
    module_key,
    read_networks,
)
from compiler.scheduling.tuning_log import active_digest, read_log
from compiler.target.registry import Target, host_cpu
from compiler.tuning import network
from compiler.tuning.network import alternatives, choose_network, only_floats

HOST = Target.parse("llvm")
BLOCKS = NetworkChoice({"AlterOpLayout.block": 4})
APART = NetworkChoice({"FuseOps.max_depth": 1})
X = np.random.default_rng(1).normal(size=(1, 8, 12, 12)).astype(np.float32)


def net(seed: int = 0) -> IRModule:
    rng, b = np.random.default_rng(seed), FunctionBuilder()
    y = b.param("x", X.shape)
    for outputs in (8, 16):
        inputs = 8
        weight = b.const(rng.normal(size=(outputs, inputs, 3, 3)).astype(np.float32))
        y = b.call("nn.relu", b.call("nn.conv2d", y, weight, padding=(1, 1, 1, 1)))
    return IRModule({"main": b.finish(y)})


def record(mod: IRModule, choice: NetworkChoice, **change: Any) -> NetworkRecord:
    where = {"target": str(HOST), "isa": HOST.isa, "cpu": host_cpu(), "threads": 1}
    made = NetworkRecord(
        module_key(mod), "main(x)", choice=choice, default_ms=2.0, best_ms=1.0, seed=0,
        date="2026-01-01T00:00:00+00:00", **where,
    )  # fmt: skip
    return replace(made, **change)


def kernels(mod: IRModule) -> int:
    return len(compiler.optimize(mod).main.bindings)


# ---- as data -------------------------------------------------------------------------------------
choices = st.builds(
    NetworkChoice,
    st.dictionaries(
        st.sampled_from(["AlterOpLayout.block", "FuseOps.max_depth", "padding.least_skipped"]),
        st.integers(2, 64),
    ),
    st.sampled_from([(), ("CombineParallelDense",)]),
    st.sampled_from([(), ("FuseAttention",), ("AlterOpLayout", "FuseAttention")]),
)


@given(choices)
def test_json_and_back(choice: NetworkChoice) -> None:
    assert NetworkChoice.from_json(json.loads(json.dumps(choice.to_json()))) == choice
    made = record(net(), choice)
    assert NetworkRecord.from_json(json.loads(made.to_line())) == made


@given(choices, choices)
def test_the_later_of_two_choices_wins(first: NetworkChoice, second: NetworkChoice) -> None:
    both = first | second
    assert {**first.config, **second.config} == both.config
    assert set(second.required) <= set(both.required)
    assert set(second.disabled) <= set(both.disabled)
    assert not set(both.required) & set(both.disabled)
    assert (first | NetworkChoice()).to_json() == replace(first, disabled=tuple(
        sorted(first.disabled))).to_json()  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"config": {}}, "config, required and disabled"),
        ({"config": {"FuseOps.max_depth": "4"}, "required": [], "disabled": []}, "whole number"),
        ({"config": {}, "required": "Inline", "disabled": []}, "lists of passes"),
        ({"config": {}, "required": [], "disabled": ["FuseOp"]}, "FuseOps"),
        ({"config": {"FuseOps.depth": 4}, "required": [], "disabled": []}, "FuseOps.max_depth"),
    ],
)
def test_damaged_choices_are_named(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        NetworkChoice.from_json(content)
    log = tmp_path / "log.jsonl"
    line = json.loads(record(net(), APART).to_line()) | {"choice": content}
    log.write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match=f"log.jsonl, line 1: .*{message}.*correct or delete"):
        read_networks(log)


@pytest.mark.parametrize("name", ["module", "threads", "best_ms"])
def test_records_with_wrong_fields_are_refused(name: str) -> None:
    plain = json.loads(record(net(), APART).to_line())
    with pytest.raises(ConfigError, match=f"{name} must be"):
        NetworkRecord.from_json({**plain, name: None})
    del plain[name]
    with pytest.raises(ConfigError, match=f"missing or unknown: {name}"):
        NetworkRecord.from_json(plain)


def test_modules_are_known_by_what_they_do_and_not_by_their_weights() -> None:
    assert module_key(net(0)) == module_key(net(1))
    other = datatypes.change_dtype(net(0), "float32", "bfloat16")
    assert module_key(net(0)) != module_key(other)


# ---- in the log ----------------------------------------------------------------------------------
def test_builds_with_the_log_do_as_it_says(tmp_path: Path) -> None:
    log, mod = tmp_path / "log.jsonl", net()
    append_networks(log, [record(mod, BLOCKS), record(mod, APART)])  # the last one counts
    assert read_log(log) == []
    fused, want = kernels(mod), compiler.build(mod)(X)
    with compiler.apply_history_best(log):
        assert kernels(mod) > fused
        np.testing.assert_array_equal(compiler.build(mod)(X), want)
        # What a caller asks for comes first; another module is left alone.
        with compiler.PassContext(config={"FuseOps.max_depth": 32}):
            assert kernels(mod) == fused
        with compiler.PassContext(config={"tune.network": False}):
            assert kernels(mod) == fused
        retyped = datatypes.change_dtype(mod, "float32", "bfloat16")
        others = kernels(retyped)
    with compiler.PassContext(config={"tune.log": str(log)}):
        assert kernels(mod) > fused
    assert kernels(mod) == fused
    assert kernels(retyped) == others


@pytest.mark.parametrize("change", [{"cpu": "another"}, {"threads": 2}, {"target": "llvm -mcpu=x"}])
def test_records_of_elsewhere_do_not_hold(change: dict[str, Any], tmp_path: Path) -> None:
    log, mod = tmp_path / "log.jsonl", net()
    append_networks(log, [record(mod, APART, **change)])
    fused = kernels(mod)
    with compiler.apply_history_best(log):
        assert kernels(mod) == fused


def test_the_digest_of_what_is_in_use_covers_networks(tmp_path: Path) -> None:
    seen = set()
    for name, choice in (("a", BLOCKS), ("b", APART)):
        append_networks(tmp_path / name, [record(net(), choice)])
        with compiler.apply_history_best(tmp_path / name):
            seen.add(active_digest())
    assert len(seen) == 2


# ---- padding -------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "posit16_es1"])
def test_padding_is_copied_or_skipped_with_the_same_bits(dtype: str) -> None:
    rng, b = np.random.default_rng(0), FunctionBuilder()
    weight = b.const(rng.normal(size=(8, 1, 3, 3)).astype(np.float32))
    y = b.call("nn.conv2d", b.param("x", X.shape), weight, padding=(1, 1, 1, 1), groups=8)
    mod = IRModule({"main": b.finish(y)})
    mod = mod if dtype == "float32" else datatypes.change_dtype(mod, "float32", dtype)
    results, copies = [], []
    for least in (0, 1000):
        with compiler.PassContext(config={"padding.least_skipped": least}):
            calls = [b.value for b in compiler.optimize(mod).main.bindings]
            copies.append(sum("pad_copy" in str(legalize(c.op).func) for c in calls))  # type: ignore[union-attr, arg-type]
            results.append(compiler.build(mod)(X).tobytes())
    assert results[0] == results[1]
    assert copies[1] == 1
    assert copies[0] <= copies[1]


def test_padding_takes_a_number() -> None:
    with (
        compiler.PassContext(config={"padding.least_skipped": "all"}),
        pytest.raises(ConfigError, match="number of columns"),
    ):
        compiler.build(net())


# ---- searched ------------------------------------------------------------------------------------
def timed(monkeypatch: pytest.MonkeyPatch, ms: Callable[[Any], float]) -> None:
    """Let the time of an executable be what `ms` says."""

    def in_turns(first: Any, second: Any, rounds: int) -> tuple[float, float]:
        return ms(first), ms(second)

    monkeypatch.setattr(network, "in_turns", in_turns)
    monkeypatch.setattr(network, "repeated", lambda exe, arrays: exe)


@pytest.mark.thorough
def test_what_is_faster_is_kept_and_applied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log, mod = tmp_path / "log.jsonl", net()
    timed(monkeypatch, lambda exe: 10.0 / len(exe.kernels))  # the more kernels, the better
    tuning = choose_network(mod, log=log)
    assert tuning.choice.config["FuseOps.max_depth"] == 1
    assert tuning.tuned_ms < tuning.default_ms
    (found,) = read_networks(log)
    assert found.choice == tuning.choice
    assert any(t.faster for t in tuning.trials)
    fused = kernels(mod)
    with compiler.apply_history_best(log):
        assert kernels(mod) > fused
        np.testing.assert_allclose(compiler.build(mod)(X), compiler.build(mod)(X), rtol=1e-5)


@pytest.mark.thorough
def test_rules_stay_where_nothing_is_faster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    timed(monkeypatch, lambda exe: 1.0)
    tuning = choose_network(net(), log=log)
    assert tuning.choice == NetworkChoice()
    assert tuning.tuned_ms == tuning.default_ms
    assert not log.exists()
    every = sum(len(more) for _, more in alternatives(HOST))
    assert 3 <= len(tuning.trials) < every  # those that change no kernel are not tried


@pytest.mark.thorough
def test_what_is_faster_for_a_moment_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first batches of every comparison flatter what is new by a tenth."""
    batches = 0

    def in_turns(first: Any, second: Any, rounds: int) -> tuple[float, float]:
        nonlocal batches
        batches += 1
        return 1.0, {1: 0.89, 2: 0.91, 3: 0.9}.get(batches, 1.0)

    def repeated(exe: Any, arrays: Any) -> Any:
        nonlocal batches
        batches = 0
        return exe

    monkeypatch.setattr(network, "in_turns", in_turns)
    monkeypatch.setattr(network, "repeated", repeated)
    monkeypatch.setattr(network, "END_S", 0.02)
    tuning = choose_network(net(), log=tmp_path / "log.jsonl")
    assert any(t.faster for t in tuning.trials)
    assert tuning.choice == NetworkChoice()
    assert not (tmp_path / "log.jsonl").exists()


def test_ctrl_c_ends_the_search_and_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stopped(trial: network.NetworkTrial) -> None:
        if trial.choice != APART:
            raise KeyboardInterrupt

    log = tmp_path / "log.jsonl"
    timed(monkeypatch, lambda exe: 10.0 / len(exe.kernels))
    groups = [("fusion", [APART]), ("layouts", [BLOCKS, NetworkChoice({"FuseOps.max_depth": 2})])]
    monkeypatch.setattr(network, "alternatives", lambda target: iter(groups))
    done = choose_network(net(), log=log, progress=stopped)
    assert done.interrupted
    assert [t.choice for t in done.trials] == [APART, APART | BLOCKS]
    assert done.choice == APART
    assert [r.choice for r in read_networks(log)] == [APART]


def test_other_results_are_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However fast they are."""
    results, first = network._results, []

    def wrong(exe: Any, arrays: Any) -> Any:
        first.append(exe)
        return [x + (exe is not first[0]) for x in results(exe, arrays)]

    timed(monkeypatch, lambda exe: 10.0 / len(exe.kernels))
    monkeypatch.setattr(network, "_results", wrong)
    tuning = choose_network(net(), log=tmp_path / "log.jsonl")
    rejected = [t for t in tuning.trials if t.reason and not t.faster]
    assert rejected
    assert rejected == list(tuning.trials)
    assert {t.reason for t in rejected} == {"gives other results"}
    assert tuning.choice == NetworkChoice()


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed must not be negative, not -1"):
        choose_network(net(), log=tmp_path / "log.jsonl", seed=-1)
    assert list(tmp_path.iterdir()) == []


def test_only_networks_of_floats_may_move() -> None:
    assert only_floats(net())
    assert not only_floats(datatypes.change_dtype(net(), "float32", "posit16_es1"))
    near, off = np.float32([1.0, 2.0]), np.float32([1.0, 2.0001])
    assert network._agree(near, off, nearly=True)
    assert not network._agree(near, off, nearly=False)
    assert not network._agree(near, np.float32([1.0, 3.0]), nearly=True)
    assert not network._agree(np.int32([1]), np.int32([2]), nearly=True)
