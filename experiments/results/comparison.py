"""What changed between two results files, and whether that is more than chance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError
from experiments.measure import disturbance
from experiments.measure.statistics import SIGNIFICANT, Z95, holm

from .row_names import OUTPUT, Merit, judged_outputs, merits, system_names
from .schema import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

#: What a row is, as opposed to what came out: rows of two files that agree here are compared.
KEYS = (
    *("model", "model_sha256", "dataset", "n_eval", "n_calib", "seed", "scheme", "dtype"),
    *("accumulate", "weight_bits", "activation_bits", "granularity", "symmetry", "calibrator"),
    *("target", "engine", "threads", "batch", "repeat"),
)


def compare(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """What changed between two results: a line for every cell of either.

    Columns: model, scheme (with what else tells its cells apart), metric_before, metric_after,
    change, p_value (two-sided, as if the two runs had seen different inputs, which is cautious: of
    shares by a z test, of other metrics by the two intervals of their drops), sqnr_change_db, speed
    (median latency before over after), slower_or_faster ("noise" where the ranges from fastest to
    90th percentile overlap, or others used the machine meanwhile) and accuracy: "better" or "worse"
    where that is significant at 5 % for all cells together (by Holm's method), "same" where the
    figure is the very same, else "noise"; or that only one file has the cell, or that it failed.

    Raises:
        ConfigError: the two have no cell in common, or one has several rows of the same cell.
    """
    import pandas as pd

    pairs = _pairs(before, after)
    known = merits(pd.concat([before, after], ignore_index=True))
    lines = [_line(name, was, now, known) for name, was, now in pairs]
    tested = [k for k, line in enumerate(lines) if not math.isnan(line["p_value"])]
    adjusted = holm([lines[k]["p_value"] for k in tested])
    for k, p in zip(tested, adjusted, strict=True):
        if p < SIGNIFICANT and lines[k]["accuracy"] == "noise":
            merit = known[pairs[k][2]["metric_name"]]
            rose = lines[k]["change"] > 0
            lines[k]["accuracy"] = "better" if rose == merit.higher_is_better else "worse"
    return pd.DataFrame(lines)


_Row = dict[Any, Any]


def _pairs(before: pd.DataFrame, after: pd.DataFrame) -> list[tuple[str, _Row, _Row]]:
    """Name, row before and row after of every cell; a row that a file does not have is empty."""
    rows = [_cells(table, which) for table, which in ((before, "first"), (after, "second"))]
    if not rows[0].keys() & rows[1].keys():
        raise ConfigError("the two files have no cell in common: nothing to compare")
    names = {
        key: name
        for cells, table in zip(rows, (before, after), strict=True)
        for key, name in zip(cells, system_names(table), strict=True)
    }
    every = dict.fromkeys([*rows[0], *rows[1]])
    return [(names[key], rows[0].get(key, {}), rows[1].get(key, {})) for key in every]


def _cells(table: pd.DataFrame, which: str) -> dict[tuple[Any, ...], _Row]:
    """Rows by what they are."""
    keyed = table[list(KEYS)].astype(object)
    keyed["repeat"] = keyed["repeat"].map(lambda r: 0 if _missing(r) else r)  # earlier versions
    keyed[OUTPUT] = judged_outputs(table)
    keys = list(keyed.where(keyed.notna(), None).itertuples(index=False, name=None))
    cells = dict(zip(keys, table.to_dict("records"), strict=True))
    if len(cells) < len(keys):
        model, scheme = next((k[0], k[6]) for n, k in enumerate(keys) if k in keys[:n])
        raise ConfigError(
            f"the {which} file has several rows of {model} in {scheme} that only differ in how "
            "they were measured: leave some out with --where"
        )
    return cells


def _line(name: str, was: _Row, now: _Row, known: dict[str, Merit]) -> dict[str, Any]:
    blank = dict.fromkeys(COLUMNS, math.nan)
    a, b = blank | was, blank | now
    one = now or was
    share = known[one["metric_name"]].share
    change = _difference(b["metric"], a["metric"])
    return {
        "model": one["model"],
        "scheme": name,
        "metric_before": a["metric"],
        "metric_after": b["metric"],
        "change": change,
        "p_value": two_shares(a["metric"], b["metric"], b["n_eval"]) if share else two_drops(a, b),
        "sqnr_change_db": _difference(b["sqnr_db"], a["sqnr_db"]),
        "speed": a["latency_ms_median"] / b["latency_ms_median"],
        "slower_or_faster": _speed(a, b),
        "accuracy": _presence(was, now) or ("same" if change == 0 else "noise"),
    }


def _presence(was: _Row, now: _Row) -> str:
    """What there is to say about a cell that does not have two figures."""
    if not was or not now:
        return "only in the second" if now else "only in the first"
    failed = [row["status"] != "ok" for row in (was, now)]
    return {(True, True): "failed", (False, True): "fails now", (True, False): "works now"}.get(
        (failed[0], failed[1]), ""
    )


def two_shares(was: float, now: float, n: float) -> float:
    """Two-sided p-value of a z test with pooled variance for two shares of n; NaN without
    both, or of what are no shares."""
    if any(map(math.isnan, (was, now, n))):
        return math.nan
    pooled = (was + now) / 2
    if not (0 <= pooled <= 1 and n > 0):  # figures of a damaged file are no shares
        return math.nan
    return _two_sided(now - was, math.sqrt(2 * pooled * (1 - pooled) / n))


def two_drops(was: _Row, now: _Row) -> float:
    """Two-sided p-value of a z test for two figures, their standard errors taken from the 95 %
    intervals of the drops (the float32 figure is the same on both sides); NaN without both."""
    errors = [(row["metric_drop_high"] - row["metric_drop_low"]) / (2 * Z95) for row in (was, now)]
    change = now["metric"] - was["metric"]
    if any(map(math.isnan, (change, *errors))):
        return math.nan
    return _two_sided(change, math.hypot(*errors))


def _two_sided(change: float, spread: float) -> float:
    if change == 0:
        return 1.0
    return math.erfc(abs(change) / spread / math.sqrt(2)) if spread else 0.0


def _difference(a: float, b: float) -> float:
    return 0.0 if a == b else a - b


def _speed(was: _Row, now: _Row) -> str:
    fastest, slowest = (
        [row[f"latency_ms_{edge}"] for row in (was, now)] for edge in ("min", "p90")
    )
    if any(map(math.isnan, (*fastest, *slowest))):
        return ""
    disturbed = {reason for row in (was, now) for reason in disturbance.read(row["latency_noise"])}
    if max(fastest) <= min(slowest) or disturbed & {disturbance.PREEMPTED, disturbance.LOADED}:
        return "noise"
    return "faster" if fastest[1] < fastest[0] else "slower"


def _missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
