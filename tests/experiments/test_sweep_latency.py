import gc
import time

import pytest

from compiler.errors import ConfigError
from experiments.measure.latency import LatencyStats, measure_interleaved


def test_statistics_of_known_times() -> None:
    stats = LatencyStats.of([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (stats.runs, stats.min, stats.median, stats.mean) == (5, 1.0, 3.0, 4.0)
    assert stats.p90 == pytest.approx(7.6)
    assert stats.p99 == pytest.approx(9.76)
    assert stats.stdev == pytest.approx(3.5355339)
    assert LatencyStats.of([2.5]).stdev == 0.0


def test_calls_take_turns_in_changing_order_after_their_warm_up() -> None:
    made: list[str] = []
    calls = [lambda name=name: made.append(name) for name in "abc"]
    stats = measure_interleaved(calls, warmup=2, runs=200)
    text = "".join(made)
    assert text[:6] == "aabbcc"
    rounds = [text[k : k + 3] for k in range(6, len(text), 3)]
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert len(set(rounds)) == 6
    assert [s.runs for s in stats] == [200] * 3


def test_a_sleep_is_measured_in_milliseconds() -> None:
    stats = measure_interleaved([lambda: time.sleep(0.01)], warmup=0, runs=3)[0]
    assert 10.0 <= stats.min < 1000.0


def test_garbage_collection_is_off_while_measuring_and_on_again_after() -> None:
    seen: list[bool] = []
    measure_interleaved([lambda: seen.append(gc.isenabled())], warmup=0, runs=2)
    assert seen == [False, False]
    assert gc.isenabled()


@pytest.mark.parametrize(("warmup", "runs"), [(-1, 1), (0, 0)])
def test_impossible_protocols_are_refused(warmup: int, runs: int) -> None:
    with pytest.raises(ConfigError, match="warmup"):
        measure_interleaved([lambda: None], warmup=warmup, runs=runs)
