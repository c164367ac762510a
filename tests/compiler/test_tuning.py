"""The tuning log and the tuner."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import ConfigError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.scheduling.tile_config import TileChoice
from compiler.scheduling.tuning_log import Record, append_records, read_log
from compiler.target.registry import Target, host_cpu
from compiler.tuning.session import Progress
from compiler.tuning.subject import GAIN
from compiler.tuning.tasks import tasks_of
from compiler.tuning.trials import read_trials
from compiler.tuning.tuner import tune

ROOT = Path(__file__).parent.parent.parent
HOST = Target.parse("llvm")


@pytest.fixture(autouse=True)
def _networks_are_not_timed_by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks here are made up, and this one would be real."""
    monkeypatch.setattr("compiler.tuning.tuner.shares_in_network", lambda *given: {})


def net(seed: int = 0, layers: int = 2) -> IRModule:
    """Equal convolutions with other weights, and a smaller one."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()
    y = b.param("x", (1, 8, 10, 10))
    for _ in range(layers):
        weight = b.const(rng.normal(size=(8, 8, 3, 3)).astype(np.float32))
        y = b.call("nn.relu", b.call("nn.conv2d", y, weight, padding=(1, 1, 1, 1)))
    weight = b.const(rng.normal(size=(4, 8, 1, 1)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.conv2d", y, weight))})


X = np.random.default_rng(1).normal(size=(1, 8, 10, 10)).astype(np.float32)


def record(mod: IRModule, **change: Any) -> Record:
    """A handwritten record for the workload with most work, with another tile than the rule's."""
    task = tasks_of(compiler.optimize(mod), HOST)[0]
    where = {"target": "llvm", "isa": HOST.isa, "cpu": host_cpu()}
    made = Record(
        workload=task.key, text=task.text, choice=task.space.neighbours()[0], default_ms=2.0,
        best_ms=1.0, seed=0, date="2025-01-01T00:00:00+00:00", **where,
    )  # fmt: skip
    return replace(made, **change)


def test_the_log_round_trip(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    first = record(net())
    second = replace(first, seed=7, choice={"mac": TileChoice(8, 2, ((2, 3), (3, 4)), 0, 4, False)})
    append_records(log, [first])
    append_records(log, [second, first])
    assert read_log(log) == [first, second, first]
    assert all(json.loads(line)["tuning"] == 1 for line in log.read_text().splitlines())


def test_an_entry_changes_the_schedule_and_not_the_results(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    mod = net()
    append_records(log, [record(mod)])
    default = compiler.build(mod)
    with compiler.apply_history_best(log):
        tuned = compiler.build(mod)
        with compiler.PassContext(opt_level=2):  # says nothing about logs
            assert compiler.build(mod).tuned == 2
    with compiler.PassContext(config={"tune.log": str(log)}):
        assert compiler.build(mod).as_text() == tuned.as_text()
    # The two equal convolutions share the entry; the third has none.
    assert (default.tuned, tuned.tuned) == (0, 2)
    assert default.as_text() != tuned.as_text()
    assert default(X).tobytes() == tuned(X).tobytes()
    assert compiler.build(mod).as_text() == default.as_text()


def test_an_entry_is_for_any_weights_and_scales(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    append_records(log, [record(net())])
    with compiler.apply_history_best(log):
        assert compiler.build(net(seed=4)).tuned == 2
        assert compiler.build(net(seed=4, layers=1)).tuned == 1


@pytest.mark.parametrize("field", ["target", "isa", "workload"])
def test_entries_of_other_machines_are_not_applied(tmp_path: Path, field: str) -> None:
    log = tmp_path / "tune.jsonl"
    append_records(log, [record(net(), **{field: "another"})])
    with compiler.apply_history_best(log):
        assert compiler.build(net()).tuned == 0


def test_a_log_of_other_cpus_is_refused(tmp_path: Path) -> None:
    """Beside records of this CPU, those of others are passed over."""
    log = tmp_path / "tune.jsonl"
    append_records(log, [record(net(), cpu="another")])
    said = rf"tune\.jsonl was measured on another and says nothing of {host_cpu()}: .*--transfer"
    with compiler.apply_history_best(log), pytest.raises(ConfigError, match=said):
        compiler.build(net())
    append_records(log, [record(net())])
    with compiler.apply_history_best(log):
        assert compiler.build(net()).tuned == 2


def test_the_last_entry_counts(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    mod = net()
    task = tasks_of(compiler.optimize(mod), HOST)[0]
    texts = []
    for choice in task.space.neighbours()[:2]:
        append_records(log, [record(mod, choice=choice)])
        with compiler.apply_history_best(log):
            texts.append(compiler.build(mod).as_text())
    assert texts[0] != texts[1]


def test_other_lines_are_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    good = record(net()).to_line()
    later = json.dumps({"tuning": 2, "anything": []})
    half = good[: len(good) // 2]
    log.write_text(f"# by hand\n\n[1, 2]\n{{}}\n{later}\n{good}{half}")
    assert len(read_log(log)) == 1
    append_records(log, [record(net())])  # does not continue the half line
    assert len(read_log(log)) == 2
    log.write_text("")
    assert read_log(log) == []


Change = Callable[[dict[str, Any]], object]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("isa"), "line 2: fields missing or unknown: isa"),
        (lambda r: r.update(extra=1), "line 2: fields missing or unknown: extra"),
        (lambda r: r.update(best_ms="fast"), "line 2: best_ms must be a number"),
        (lambda r: r.update(target=3), "line 2: target must be a string"),
        (lambda r: r.update(choice=[]), "line 2: choice must be an object"),
        (lambda r: r["choice"]["mac"].pop("lanes"), "line 2: a tile choice has exactly"),
        (lambda r: r["choice"]["mac"].update(lanes="8"), "line 2: the numbers of a tile"),
        (lambda r: r["choice"]["mac"].update(widths=[1]), "line 2: a tile choice has widths"),
        (lambda r: r["choice"]["mac"].update(widths=[[1, True]]), "line 2: the numbers of a tile"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path: Path, change: Change, message: str) -> None:
    log = tmp_path / "tune.jsonl"
    content = json.loads(record(net()).to_line())
    change(content)
    log.write_text(record(net()).to_line() + json.dumps(content) + "\n")
    with pytest.raises(ConfigError, match=message), compiler.apply_history_best(log):
        pass


def test_a_file_that_is_no_log_is_an_error(tmp_path: Path) -> None:
    bad = tmp_path / "x"
    with pytest.raises(ConfigError, match="cannot read the tuning log"):
        read_log(bad)
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        read_log(bad)
    bad.write_text("name,age\nx,3\n")
    with pytest.raises(ConfigError, match="no line has a record"):
        read_log(bad)
    with (
        compiler.PassContext(config={"tune.log": bad}),
        pytest.raises(ConfigError, match="no line has a record"),
    ):
        compiler.build(net())


def test_a_tile_that_does_not_fit_names_the_log(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    good = record(net())
    ((stage, choice),) = good.choice.items()
    append_records(log, [replace(good, choice={stage: replace(choice, lanes=3)})])
    with (
        compiler.apply_history_best(log),
        pytest.raises(ConfigError, match=r"tune\.jsonl.*lanes must be"),
    ):
        compiler.build(net())


@pytest.mark.thorough
def test_the_tuner_visits_what_the_seed_and_the_clock_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process; of several, it depends on when they have compiled a candidate, too."""
    monkeypatch.setattr("compiler.tuning.processes.forks", lambda: False)
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.99))
    seen: list[Progress] = []
    first = tune(net(), HOST, 300, 3, tmp_path / "a.jsonl", seen.append, trials=2)
    again = tune(net(), HOST, 300, 3, tmp_path / "b.jsonl", trials=2)
    other = tune(net(), HOST, 300, 4, tmp_path / "c.jsonl", trials=2)
    assert first.workloads == 4  # the equal convolutions are one; beside them two change the layout
    assert len(first.trials) == 8
    visits = [[(t.workload, t.choice) for t in r.trials] for r in (first, again, other)]
    assert visits[0] == visits[1] != visits[2]
    assert len({w for w, _ in visits[0]}) == 4  # every workload has its turn
    assert len({str(v) for v in visits[0]}) == 8  # and every candidate one
    assert [p.tried for p in seen] == list(range(1, 9))
    assert {p.limit for p in seen} == {8}


def test_only_what_is_faster_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    first = tune(net(), HOST, 300, 3, log, trials=2)
    assert all(t.ms is not None for t in first.trials)
    assert first.tuned_ms <= first.default_ms
    assert all(r.best_ms < GAIN * r.default_ms for r in first.records)
    assert tuple(read_log(log)) == first.records
    with compiler.apply_history_best(log):
        assert (compiler.build(net()).tuned > 0) == bool(first.records)


@pytest.mark.thorough
def test_a_tiny_budget_ends_and_leaves_a_log_that_applies(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    done = tune(net(), budget_s=0.3, log=log)
    assert 0 < len(done.trials) < 300
    assert done.seconds < 30
    with compiler.apply_history_best(log):
        assert compiler.build(net())(X).tobytes() == compiler.build(net())(X).tobytes()


@pytest.mark.thorough
def test_something_is_tried_however_small_the_budget(tmp_path: Path) -> None:
    assert len(tune(net(), budget_s=1e-9, log=tmp_path / "tune.jsonl").trials) == 1


@pytest.mark.thorough
def test_what_is_faster_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that prefers every candidate, the first one is kept and written down."""
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    log = tmp_path / "tune.jsonl"
    done = tune(net(), budget_s=300, log=log, trials=1)
    kept = {r.workload: r for r in done.records}
    assert len(kept) == done.workloads == 4
    for t in reversed(done.trials):  # so that the first one is compared last
        last = t if kept[t.workload].choice == t.choice else None
    assert last is not None
    with compiler.apply_history_best(log):
        exe = compiler.build(net())
    assert exe.tuned == 5
    assert exe(X).tobytes() == compiler.build(net())(X).tobytes()


@pytest.mark.thorough
def test_what_a_network_would_not_notice_is_left_to_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five kernels that take as long as each other two are of one workload, which gains most."""
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    monkeypatch.setattr("compiler.tuning.tuner.LEAST_GAIN", 0.15)
    log = tmp_path / "tune.jsonl"
    done = tune(net(), budget_s=300, log=log, trials=1)
    kept = {r.workload for r in done.records}
    assert [t.count for t in done.tasks if t.workload in kept] == [2]
    assert done.workloads == 4


@pytest.mark.thorough
@pytest.mark.parametrize("network_ms", [1.5, 1.0, 0.996])
def test_a_network_that_is_hardly_faster_loses_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network_ms: float
) -> None:
    """Kernels alone seem faster, the network is not: nothing is kept."""

    def clock(a: object, b: object, rounds: int) -> tuple[float, float]:
        from compiler.tuning.kernel_run import KernelRun

        return (2.0, 1.0) if isinstance(a, KernelRun) else (1.0, network_ms)

    monkeypatch.setattr("compiler.tuning.tuner.in_turns", clock)
    done = tune(net(), budget_s=300, log=tmp_path / "tune.jsonl", trials=1)
    assert done.records == ()
    assert done.default_ms == done.tuned_ms == 1.0
    assert read_log(tmp_path / "tune.jsonl") == []


@pytest.mark.thorough
def test_a_network_that_may_be_as_quick_without_loses_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels alone seem faster; the network takes 2 % less on average, give or take a tenth."""
    from compiler.tuning.kernel_run import KernelRun

    networks = cycle([(1.0, 0.9), (1.0, 1.06)])

    def clock(a: object, b: object, rounds: int) -> tuple[float, float]:
        return (2.0, 1.0) if isinstance(a, KernelRun) else next(networks)

    monkeypatch.setattr("compiler.tuning.tuner.in_turns", clock)
    monkeypatch.setattr("compiler.tuning.tuner.NETWORK_LEAST_S", 0.0)
    assert tune(net(), budget_s=300, log=tmp_path / "tune.jsonl", trials=1).records == ()


@pytest.mark.thorough
def test_wrong_results_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.tuning.kernel_run import KernelRun

    results = iter(range(1000))
    monkeypatch.setattr(KernelRun, "result", lambda self: bytes([next(results)]))
    done = tune(net(), budget_s=300, log=tmp_path / "tune.jsonl", trials=2)
    assert [t.ms for t in done.trials] == [None] * 8
    assert {t.reason for t in done.trials} == {"its results differ"}
    assert done.records == ()


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="positive budget"):
        tune(net(), budget_s=0, log=tmp_path / "a")
    with pytest.raises(ConfigError, match="seed must not be negative, not -2"):
        tune(net(), log=tmp_path / "a", seed=-2)
    with pytest.raises(UnsupportedError, match="'c' cannot be timed one by one: name 'llvm'"):
        tune(net(), target="c", log=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"cannot write .*there is no folder"):
        tune(net(), log=tmp_path / "missing" / "a")
    other = tmp_path / "notes.txt"
    other.write_text("mine\n")
    with pytest.raises(ConfigError, match="is no tuning log"):
        tune(net(), log=other)
    assert other.read_text() == "mine\n"


@pytest.mark.thorough
def test_ctrl_c_ends_the_search_and_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    log, seen = tmp_path / "tune.jsonl", []

    def interrupted(p: Progress) -> None:
        seen.append(p)
        if len(seen) == 3:
            raise KeyboardInterrupt

    done = tune(net(), HOST, 300, log=log, trials=4, progress=interrupted)
    assert done.interrupted
    assert len(done.trials) == 3
    assert [t for t in read_trials(log) if t.choice] == list(done.trials)
    assert tuple(read_log(log)) == done.records
    assert len(done.records) == 1  # the others had no turn
    rest = tune(net(), HOST, 300, log=log, trials=4)
    assert (rest.resumed, len(rest.trials), rest.interrupted) == (3, 13, False)
    assert not {t.program for t in done.trials} & {t.program for t in rest.trials}


def test_a_failure_leaves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise ConfigError("of the callback")

    with pytest.raises(ConfigError, match="of the callback"):
        tune(net(), log=tmp_path / "tune.jsonl", trials=4, progress=fails)
    assert [p.name for p in tmp_path.iterdir()] == ["tune.jsonl"]
    assert len([t for t in read_trials(tmp_path / "tune.jsonl") if t.choice]) == 1


def test_a_log_applies_in_a_new_process(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    append_records(log, [record(net())])
    script = tmp_path / "apply.py"
    script.write_text(
        "import sys, compiler\n"
        "mod = compiler.parse(open(sys.argv[1]).read())\n"
        "with compiler.apply_history_best(sys.argv[2]):\n"
        "    print(compiler.build(mod).tuned)\n"
    )
    model = tmp_path / "model.txt"
    model.write_text(net().astext(show_meta_data=True))
    out = subprocess.run(
        [sys.executable, str(script), str(model), str(log)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert out.stdout.strip() == "2"
