import io
import math
from typing import Any

import pandas as pd
from rich.console import Console

from experiments import provenance
from experiments.store import COLUMNS
from experiments.table import results_table


def rows(*records: dict[str, Any]) -> pd.DataFrame:
    blank: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    numbers = dict.fromkeys(
        [*("n_eval", "metric", "metric_drop", "sqnr_db", "size_bytes"), "latency_ms_median"],
        math.nan,
    )
    fixed = {"target": "llvm", "threads": 1, "status": "ok", "speedup_vs_fp32": math.nan}
    return pd.DataFrame([{**blank, **numbers, **fixed, **record} for record in records])


def rendered(table: pd.DataFrame) -> list[str]:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(results_table(table))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_figures_are_laid_out_in_their_units() -> None:
    header, first, second = rendered(
        rows(
            {
                "model": "net",
                "scheme": "int8_channel",
                "calibrator": "kl",
                "n_eval": 1000,
                "metric": 0.9871,
                "metric_drop": -0.001,
                "sqnr_db": 31.25,
                "size_bytes": 2048,
                "latency_ms_median": 0.12345,
                "speedup_vs_fp32": 2.345,
            },
            {"model": "net", "scheme": "posit8_es0", "status": "error", "error": "no [such] op"},
        )
    )
    assert header.split() == (
        [
            "model",
            "scheme",
            "n_eval",
            "top-1",
            "%",
            "drop",
            "SQNR",
            "dB",
            "size",
            "KiB",
            "median",
            "ms",
            "speed-up",
            "status",
        ]
    )
    assert first.split() == [
        *("net", "int8_channel", "kl", "1000", "98.71", "-0.10", "31.2", "2.0"),
        *("0.123", "2.35x", "ok"),
    ]
    # The model's name is not repeated, and brackets in a message are not markup.
    assert second.split() == ["posit8_es0", "error:", "no", "[such]", "op"]


def test_targets_and_threads_have_columns_only_when_they_differ() -> None:
    one = rendered(rows({"model": "a", "threads": 1}))
    both = rendered(rows({"model": "a", "threads": 1}, {"model": "a", "threads": 2}))
    assert "threads" not in one[0]
    assert "threads" in both[0]
    assert "target" not in both[0]


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
