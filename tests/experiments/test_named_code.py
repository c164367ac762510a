"""Python files that a row of results names are run where somebody says so, and nowhere else."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

import experiments
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.results.store import COLUMNS, SCHEMA_VERSION, ResultsFile

CODE = """from pathlib import Path
Path(__file__).with_name("ran").touch()
def data():
    import numpy as np
    return {{"x": np.zeros((2, 1, 28, 28), np.float32), "y": np.zeros(2, np.int64)}}
# {}
"""
SPEC: dict[str, Any] = {
    "models": ["mnist_mlp"],
    "schemes": ["float32"],
    "n_eval": 2,
    "latency": {"runs": 0},
}


ROW: dict[str, Any] = {
    **dict.fromkeys(COLUMNS),
    "schema_version": SCHEMA_VERSION,
    "config_hash": "abc",
    "status": "ok",
    "error": "",
    "model": "mnist_mlp",
    "scheme": "float32",
    "dataset": "mnist1k",
    "n_eval": 2,
    "metric": 0.5,
    "metric_name": "top1",
    "dtype": "float32",
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "changes",
    [
        {"adapters": ["mine.py"]},
        {"dataset": "mine.py:data"},
        {"models": ["mine.py:model"]},
        {"metric": "mine.py:metric"},
        {"include": [{"model": "mine.py:model", "scheme": "float32"}]},
    ],
)
def test_they_are_listed_and_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    # A file that this process has run already is no question.
    (tmp_path / "mine.py").write_text(CODE.format(tmp_path))
    named = tmp_path / "named.csv"
    ResultsFile(named).append({**ROW, "config": json.dumps(SPEC | changes)})
    with pytest.raises(ConfigError, match=r"Python files: mine\.py; .* --allow-code"):
        experiments.reproduce(named, "1")
    # A report shows the ranges of a network for data at hand, and runs nothing for that either.
    assert run_command(["report", str(named), "-o", "r.html"]) == 0
    terminal = io.StringIO("n\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert run_command(["reproduce", str(named), "--row", "1"]) == 1  # nobody says yes
    assert "mine.py" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    run_command(["reproduce", str(named), "--row", "1", "--allow-code"])
    assert (tmp_path / "ran").exists()
