import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import experiments
from compiler.errors import ConfigError
from experiments.results.store import COLUMNS, VOLATILE_COLUMNS, read_rows
from experiments.systems import pipeline

SPEC: dict[str, Any] = {
    "models": ["mnist_mlp", "mnist_resnet8"],
    "schemes": ["float32", "int8_tensor", "bfloat16", {"scheme": "posit16_es1", "n_eval": 130}],
    "calibrators": ["minmax"],
    "n_eval": 250,
    "n_calib": 20,
    "latency": {"warmup": 0, "runs": 3, "batch": 2},
}


def stable(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=list(VOLATILE_COLUMNS))


@pytest.mark.usefixtures("fake")
def test_every_cell_is_a_row(tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    table = experiments.sweep(SPEC, out)
    assert list(table.columns) == list(COLUMNS)
    pd.testing.assert_frame_equal(table, read_rows(out))
    schemes = ["float32", "int8_tensor", "bfloat16", "posit16_es1"]
    assert table["scheme"].tolist() == schemes * 2
    assert table["status"].tolist() == ["ok"] * 8
    assert table["n_eval"].tolist() == [250, 250, 250, 130] * 2
    assert table["n_calib"].tolist() == [0, 20, 0, 0] * 2
    assert table["config_hash"].nunique() == 8
    assert table["run_id"].nunique() == 1
    floats = table[table["scheme"] == "float32"]
    assert (floats["metric_drop"] == 0).all()
    assert (floats["top1_agreement"] == 1).all()
    assert (floats["speedup_vs_fp32"] == 1).all()
    rest = table[table["scheme"] != "float32"]
    assert rest["sqnr_db"].between(10, 80).all()
    assert (rest["metric_drop"] == rest["metric_fp32"] - rest["metric"]).all()
    ordered = ["latency_ms_min", "latency_ms_median", "latency_ms_p90", "latency_ms_p99"]
    assert (table[ordered].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    assert (table["latency_ms_min"] > 0).all()
    assert set(table["isa"]) == {"numpy"}


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_accuracy_is_that_of_exactly_the_first_images(tmp_path: Path) -> None:
    """n_eval = 130 is one and a third batches: the filling of the last one must not count."""
    from experiments.data import datasets
    from experiments.measure import metrics
    from experiments.systems.schemes import Scheme

    table = experiments.sweep({**SPEC, "models": ["mnist_mlp"]}, tmp_path / "r.csv")
    data = datasets.load("mnist1k")
    outputs = []
    for scheme in (Scheme("f", "float32", "float32"), Scheme("p", "format", "posit16_es1")):
        variant = pipeline.prepare(
            Path("mnist_mlp.onnx"),
            scheme,
            sample_shape=(1, 28, 28),
            calibration=data.calibration[:0],
            target="llvm",
            threads=1,
        )
        outputs.append(variant.compile(130).call(data.x[:130]))
    row = table.iloc[3]
    assert row["metric"] == metrics.top1(outputs[1], data.y[:130])
    assert row["metric_fp32"] == metrics.top1(outputs[0], data.y[:130])
    assert row["sqnr_db"] == pytest.approx(metrics.sqnr_db(outputs[1], outputs[0]), rel=1e-12)


@pytest.mark.usefixtures("fake")
def test_a_failing_cell_is_a_row(tmp_path: Path) -> None:
    spec = {
        "models": ["mnist_dwsep", "mnist_mlp"],
        "schemes": ["float32", "posit8_es0", "bfloat16"],
        "n_eval": 10,
        "latency": {"runs": 0},
    }
    table = experiments.sweep(spec, tmp_path / "r.csv")
    assert table["status"].tolist() == ["error"] * 3 + ["ok", "error", "ok"]
    assert table["error"].tolist() == [
        *["operator Frobnicate is not supported for this model"] * 3,
        "",
        "ZeroDivisionError: division by zero",
        "",
    ]
    assert table["metric"].notna().tolist() == [False] * 3 + [True, False, True]
    # What was asked for stands in the row even where it failed.
    assert set(table["n_eval"]) == {10}
    assert table["latency_ms_min"].isna().all()


@pytest.mark.usefixtures("fake")
def test_failed_cells_run_again_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.csv"
    spec = {"models": ["mnist_mlp"], "schemes": ["float32", "bfloat16"], "latency": {"runs": 0}}
    working = pipeline.prepare
    calls: list[str] = []

    def broken(path: Path, scheme: Any, **options: Any) -> pipeline.Variant:
        calls.append(scheme.label)
        if scheme.label == "bfloat16":
            raise ConfigError("no luck today")
        return working(path, scheme, **options)

    monkeypatch.setattr(pipeline, "prepare", broken)
    first = experiments.sweep(spec, out)
    assert first["error"].tolist() == ["", "no luck today"]
    calls.clear()
    pd.testing.assert_frame_equal(experiments.sweep(spec, out, resume=True), first)
    assert calls == []
    monkeypatch.setattr(pipeline, "prepare", working)
    again = experiments.sweep(spec, out, retry_failed=True)
    assert again["status"].tolist() == ["ok", "ok"]
    pd.testing.assert_frame_equal(again.iloc[:1], first.iloc[:1], check_dtype=False)


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_a_widened_specification_only_runs_what_is_new(tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    narrow = {**SPEC, "models": ["mnist_mlp"]}
    first = experiments.sweep(narrow, out)
    both = experiments.sweep(SPEC, out, resume=True)
    pd.testing.assert_frame_equal(both.iloc[:4], first)
    assert both["run_id"].nunique() == 2
    pd.testing.assert_frame_equal(experiments.sweep(narrow, out, resume=True), first)


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_nothing_is_written_when_the_specification_is_wrong(tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    with pytest.raises(ConfigError, match="unknown scheme"):
        experiments.sweep({**SPEC, "schemes": ["flot32"]}, out)
    with pytest.raises(ConfigError, match="jobs > 1 would measure latency on a loaded machine"):
        experiments.sweep(SPEC, out, jobs=2)
    assert list(tmp_path.iterdir()) == []
    experiments.sweep({**SPEC, "models": ["mnist_mlp"]}, out)
    before = out.read_bytes()
    with pytest.raises(ConfigError, match="--resume or choose another name"):
        experiments.sweep(SPEC, out)
    assert out.read_bytes() == before


@pytest.mark.usefixtures("fake")
def test_a_progress_bar_is_drawn_on_stderr_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiments.sweep({**SPEC, "models": ["mnist_mlp"]}, tmp_path / "r.csv", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "4/4" in captured.err


@pytest.mark.thorough
def test_two_jobs_find_what_one_does(tmp_path: Path) -> None:
    """On compiled networks: accuracy-only cells spread over processes."""
    spec = {
        "models": ["mnist_mlp", "mnist_dwsep"],
        "schemes": ["float32", "int8_channel"],
        "n_eval": 120,
        "latency": {"runs": 0},
    }
    one = experiments.sweep(spec, tmp_path / "one.csv")
    two = experiments.sweep(spec, tmp_path / "two.csv", jobs=2)
    assert one["status"].tolist() == ["ok"] * 4
    pd.testing.assert_frame_equal(stable(one), stable(two))


MANY_CELLS: dict[str, Any] = {
    "models": ["mnist_mlp"],
    "schemes": ["float32", "int8_tensor", "int8_channel", {"scheme": "bfloat16", "n_eval": 5}],
    "calibrators": ["minmax", "percentile"],
    "threads": [1, 2, 3, 4, 5, 6, 7, 8],
    "n_eval": 60,
    "n_calib": 20,
    "latency": {"warmup": 0, "runs": 1},
}


def start(out: Path) -> subprocess.Popen[bytes]:
    """A process that runs, or resumes, the sweep of MANY_CELLS on the compiled networks."""
    call = f"experiments.sweep({MANY_CELLS!r}, {str(out)!r}, resume=True, progress=False)"
    root = str(Path(__file__).parents[2])
    return subprocess.Popen([sys.executable, "-c", f"import experiments\n{call}"], cwd=root)


def wait_for_growth(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the process has written a row of its own, and so is past starting up, or has ended."""
    before = path.stat().st_size if path.exists() else 0
    while process.poll() is None:
        if path.exists() and path.stat().st_size > before:
            return
        time.sleep(0.001)


@pytest.mark.thorough
@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_sweep_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, times: int
) -> None:
    """SIGKILL at random moments of the sweep's work, resumed each time."""
    whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
    assert start(whole).wait(timeout=120) == 0
    expected = read_rows(whole)
    assert expected["status"].tolist() == ["ok"] * (8 * (1 + 2 + 2 + 1))
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    # The kills, each after a row and a small part of the work, leave some of it to resume; a
    # machine that has become faster meanwhile gets fewer.
    longest = expected["duration_s"].sum() / (2 * times)
    kept = kills = 0
    while kills < times and len(expected) - kept > 4:
        process = start(killed)
        wait_for_growth(killed, process)
        time.sleep(generator.uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        rows = len(read_rows(killed))
        assert rows >= kept
        kept, kills = rows, kills + 1
    assert kills >= times // 4, f"too few kills fell into the sweep's work (seed {seed})"
    assert start(killed).wait(timeout=120) == 0
    result = read_rows(killed)
    assert result["config_hash"].is_unique
    pd.testing.assert_frame_equal(stable(result), stable(expected))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.csv", "whole.csv"]
