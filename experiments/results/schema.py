"""The columns of a results file: those of this schema version, and which earlier ones lack."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from compiler.errors import ConfigError

SCHEMA_VERSION = 10
RESULTS = 1 << 30
"""Bytes that a results file may have, see `compiler.files.reading`."""

Value: TypeAlias = str | int | float | None

TEXT_COLUMNS = (
    *("run_id", "config_hash", "status", "error", "model", "model_sha256", "dataset"),
    *("scheme", "dtype", "lowering", "accumulate", "granularity", "symmetry", "calibrator"),
    *("skipped", "target", "isa", "cpu", "os", "python", "numpy", "llvmlite", "dtypelab_version"),
    *("git_rev", "git_dirty", "started_utc", "config", "metric_name", "dataset_sha256"),
    *("latency_noise", "portable_bits", "notes", "cost_source", "accumulator_node"),
    *("machine", "emulated", "engine", "engine_nodes"),
)

COLUMNS = (
    *("run_id", "schema_version", "config_hash", "status", "error"),
    *("model", "model_sha256", "opset"),
    *("dataset", "n_eval", "n_calib", "seed"),
    *("scheme", "dtype", "lowering", "accumulate", "weight_bits", "activation_bits"),
    *("granularity", "symmetry", "calibrator", "skipped"),
    *("metric", "metric_fp32", "metric_drop", "sqnr_db", "cosine", "top1_agreement"),
    *("size_bytes", "macs"),
    *("batch", "threads", "warmup", "runs"),
    *("latency_ms_min", "latency_ms_median", "latency_ms_mean"),
    *("latency_ms_p90", "latency_ms_p99", "latency_ms_stdev", "speedup_vs_fp32"),
    *("target", "isa", "cpu", "cores", "os", "python", "numpy", "llvmlite", "dtypelab_version"),
    *("git_rev", "git_dirty"),
    *("started_utc", "duration_s"),
    # Version 2.
    *("metric_drop_low", "metric_drop_high", "p_value"),
    *("bit_operations", "activation_bytes", "energy_uj"),
    "config",
    # Version 3.
    *("metric_name", "dataset_sha256", "repeat"),
    # Version 4.
    *("latency_rounds", "speedup_low", "speedup_high"),
    *("latency_lost", "latency_load", "latency_noise"),
    # Version 5.
    *("traffic_bytes", "energy_memory_uj"),
    *("outputs_not_finite", "portable_bits", "detectable_drop"),
    # Version 6.
    "notes",
    # Version 7.
    *("metric_se", "tokens", "kl_float32", "kl_float32_se", "kl_float32_p99"),
    "top_token_agreement",
    # Version 8.
    *("cost_source", "mac_gates", "mac_area_um2", "energy_mac_uj", "energy_other_uj"),
    *("accumulator_bits", "accumulator_data_bits", "accumulator_node"),
    # Version 9.
    *("machine", "emulated", "instructions"),
    # Version 10.
    *("engine", "engine_nodes", "cycles", "utilization"),
)

#: What each version added at the end; files of earlier ones are read as if empty there.
_ADDED = {
    version: COLUMNS[COLUMNS.index(first) :]
    for version, first in (
        *((2, "metric_drop_low"), (3, "metric_name")),
        *((4, "latency_rounds"), (5, "traffic_bytes"), (6, "notes")),
        *((7, "metric_se"), (8, "cost_source"), (9, "machine"), (10, "engine")),
    )
}


#: Columns that may differ between two runs of the same specification on the same machine.
VOLATILE_COLUMNS = (
    *("run_id", "started_utc", "duration_s"),
    *(name for name in COLUMNS if name.startswith(("latency_", "speedup_"))),
)


def added_after(version: Value) -> tuple[str, ...]:
    """The columns that rows of a schema version do not have."""
    later = [v for v in _ADDED if isinstance(version, int | float) and v > version]
    return _ADDED[min(later)] if later else ()


def earlier() -> list[tuple[str, ...]]:
    """The columns of every earlier schema version."""
    return [COLUMNS[: COLUMNS.index(added[0])] for added in _ADDED.values()]


def check_columns(names: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Check that a table has the columns of this schema version or an earlier one, in any order.

    Raises:
        ConfigError: it lacks some.
    """
    missing = [name for name in COLUMNS if name not in names]
    if tuple(COLUMNS[: len(COLUMNS) - len(missing)]) in (COLUMNS, *earlier()) and set(
        missing
    ) == set(COLUMNS[len(COLUMNS) - len(missing) :]):
        return
    if not {"config_hash", "schema_version"} <= set(names):
        raise ConfigError(
            f"{path} is not a dtypelab results file; choose another name for the results"
        )
    if any(name not in COLUMNS for name in names):
        raise ConfigError(_newer(path))
    raise ConfigError(f"{path} lacks the columns {', '.join(missing)} of a results file")


def check_version(versions: Iterable[Value], path: str | os.PathLike[str]) -> None:
    """Raise ConfigError if a row is of a schema version that is newer than this one."""
    if any(isinstance(v, int | float) and v > SCHEMA_VERSION for v in versions):
        raise ConfigError(_newer(path))


def _newer(path: str | os.PathLike[str]) -> str:
    return (
        f"{path} has the columns of a schema version newer than {SCHEMA_VERSION}; "
        "choose another name for the results"
    )
