import io
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from experiments.results.store import COLUMNS
from experiments.results.terminal import results_table
from experiments.running import provenance


def rows(*records: dict[str, Any]) -> pd.DataFrame:
    blank: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    numbers = dict.fromkeys(
        [*("n_eval", "metric", "metric_drop", "sqnr_db", "size_bytes"), "latency_ms_median"],
        math.nan,
    )
    fixed = {"target": "llvm", "threads": 1, "status": "ok", "speedup_vs_fp32": math.nan}
    return pd.DataFrame([{**blank, **numbers, **fixed, **record} for record in records])


def rendered(table: pd.DataFrame, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(results_table(table))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_figures_are_laid_out_in_their_units() -> None:
    good = {
        "model": "mnist_resnet8",
        "scheme": "int8_channel",
        "n_eval": 1000,
        "metric": 0.9871,
        "metric_drop": -0.001,
        "sqnr_db": 31.25,
        "size_bytes": 2048,
        "latency_ms_median": 126.12345,
        "speedup_vs_fp32": 12.345,
    }
    bad = {"model": "mnist_resnet8", "scheme": "posit8_es0", "status": "error", "n_eval": 10}
    header, model, first, second, message = rendered(rows(good, {**bad, "error": "no [such] op"}))
    assert header.split() == [
        "n_eval",
        "top-1%",
        "drop",
        "SQNR",
        "dB",
        "KiB",
        "ms",
        "vs",
        "fp32",
        "status",
    ]
    assert model == "mnist_resnet8"
    figures = ["1000", "98.71", "-0.10", "31.2", "2.0", "126.123", "12.35x"]
    assert first.split() == ["int8_channel", *figures, "ok"]
    assert "0.0012x" in rendered(rows({**good, "speedup_vs_fp32": 0.00118}))[2]
    assert second.split() == ["posit8_es0", "10", "error"]
    # Brackets in a message are not markup.
    assert message == "mnist_resnet8 posit8_es0: no [such] op"


def test_a_disturbed_measurement_has_a_star_and_its_reason_below() -> None:
    quiet = {"model": "a", "scheme": "float32", "speedup_vs_fp32": 1.0, "latency_noise": "none"}
    loud = {**quiet, "scheme": "int8", "speedup_vs_fp32": 2.5, "latency_noise": "loaded imprecise"}
    lines = rendered(rows(quiet, loud))
    assert lines[2].split() == ["float32", "1.00x", "ok"]
    assert lines[3].split() == ["int8", "2.50x*", "ok"]
    assert " ".join(lines[4:]) == (
        "* loaded: others kept processors busy beside it; "
        "imprecise: the speed-up's 95 % interval is wider than wanted"
    )
    assert "*" not in "".join(rendered(rows(quiet, {**loud, "latency_noise": ""})))


def test_what_tells_rows_apart_is_shown_only_where_it_differs() -> None:
    one = {"model": "a", "scheme": "int8", "calibrator": "kl"}
    float32 = {"model": "a", "scheme": "float32"}
    assert [line.split()[0] for line in rendered(rows(one, float32))[1:]] == [
        "a",
        "int8",
        "float32",
    ]
    assert "kl" not in "\n".join(rendered(rows(one, float32)))
    both = rendered(rows(one, {**one, "calibrator": "minmax", "threads": 2}), width=100)
    assert both[2].startswith("  int8 kl threads=1")
    assert both[3].startswith("  int8 minmax threads=2")


def test_provenance_describes_this_process() -> None:
    import platform

    import numpy as np

    found = provenance.collect()
    assert found.python == platform.python_version()
    assert found.numpy == np.__version__
    assert found.cores >= 1
    assert found.cpu
    assert found.dtypelab_version
    assert found.git_dirty in {"", "true", "false"}
    assert bool(found.git_rev) == bool(found.git_dirty)


def test_failed_cells_are_of_no_metric_by_themselves() -> None:
    """They name none: not top-1, which results of earlier versions did not name either."""
    failed = {"model": "m", "scheme": "int8", "status": "error", "error": "no"}
    header, model, *_ = rendered(rows(failed))
    assert "metric" in header
    assert "top-1" not in header
    assert model == "m"
    found = {"model": "m", "scheme": "float32", "metric_name": "sqnr", "metric": 30.0}
    for order in ([failed, found], [found, failed]):
        header, model, *more = rendered(rows(*order))
        assert "metric" in header
        assert model == "m (sqnr)"
        assert not any("(" in line for line in more)
    for top1 in ({"metric": 0.5}, {"metric": 0.5, "metric_name": "top1"}, {"metric_name": "top1"}):
        header, model, *_ = rendered(rows(failed, {**found, "metric_name": "", **top1}))
        assert "top-1%" in header
        assert model == "m"


def test_the_revision_is_ours_whatever_repository_git_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks of git run with variables that name the repository that they belong to."""
    if not shutil.which("git"):
        pytest.skip("no git")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
        for words in (["init", "-q"], ["add", "."], [*_AUTHOR, "commit", "-qm", folder.name]):
            subprocess.run(["git", *words], cwd=folder, check=True)
    found = provenance._git(ours)
    assert found[1] == "false"
    monkeypatch.setenv("GIT_DIR", str(theirs / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(theirs))
    assert provenance._git(ours) == found


_AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")
