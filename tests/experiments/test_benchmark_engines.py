"""What the benchmark of engines calls a failure; nothing here is timed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from experiments.benchmarks.__main__ import main
from experiments.benchmarks.handed_over import ENGINE, Row
from experiments.measure.latency import LatencyStats
from experiments.measure.speedup import Speedup


def speedup(ratio: float) -> Speedup:
    stats = LatencyStats.of([1.0, 1.0, 1.0])
    return Speedup(stats, ratio, ratio - 0.01, ratio + 0.01, 0.0, 0.0, ())


@pytest.mark.parametrize(
    ("ours", "theirs", "sqnr", "problem"),
    [
        (1.3, 1.0, 90.0, ""),
        (0.981, 0.981, 90.0, ""),
        (0.97, 1.2, 90.0, "slower than ours"),
        (1.2, 0.97, 90.0, "slower than onednn"),
        (1.2, 1.2, 79.9, "onednn has 79.9 dB"),
        (1.2, 1.2, float("nan"), "onednn has nan dB"),
    ],
)
def test_a_mixed_program_is_as_fast_as_either(
    ours: float, theirs: float, sqnr: float, problem: str
) -> None:
    over = {"ours": speedup(ours), ENGINE: speedup(theirs)}
    row = Row("net float32, 1 thread", over, {ENGINE: sqnr}, 80.0)
    assert row.problem == problem
    assert ("FAIL" in str(row)) == bool(problem)


def test_a_library_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.engines.onednn import library

    monkeypatch.setenv(library.PATH_VARIABLE, "/nowhere/libdnnl.so")
    library._search.cache_clear()
    try:
        out = CliRunner().invoke(main, ["engines"])
    finally:
        library._search.cache_clear()
    assert out.exit_code == 2
    assert "engine 'onednn' cannot run here" in out.output.replace("\n", " ")
