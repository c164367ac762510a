"""Running one recorded row again, and saying whether it comes out the same."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.errors import ConfigError
from compiler.files.printable import printable
from compiler.types.names import identifier
from experiments.measure.disturbance import explained, read
from experiments.measure.scoring import beside_float32, is_share
from experiments.results.schema import added_after
from experiments.spec.recorded_config import code_files, config_of
from experiments.user_code import temporary

if TYPE_CHECKING:
    from experiments.results.schema import Value
    from experiments.spec.cells import Cell

#: What a network was seen to be faster or slower by from one process to the next, where its memory
#: lies elsewhere; the interval of one measurement knows nothing of it.
PLACEMENT = 0.05

#: What has fewer characters, all digits, is the number of a row and never the start of its hash.
_MOST_DIGITS = 64  # as many as a hash has
DIGITS = 6

#: Columns that must come out exactly, wherever a row runs.
EXACT = (
    *("status", "model_sha256"),
    *("macs", "weight_bits", "activation_bits", "skipped", "portable_bits"),
)
#: Figures of the network itself; and of it beside float32, whose bits are those of one instruction
#: set (`portable_bits`).
OWN, BESIDE_FLOAT32 = (
    ("metric", "outputs_not_finite"),
    ("metric_fp32", "metric_drop", "sqnr_db", "cosine", "top1_agreement"),
)
#: More of those of language models.
OF_TOKENS = ("kl_float32", "kl_float32_p99", "top_token_agreement")
#: How far figures may lie apart that float32 sums of another instruction set went into, which
#: differ by some 2**-22: shares of inputs whose answers were as good as ties (or one input), dB,
#: and other figures relative to float32's. SQNR above 100 dB is that of float32's own rounding.
SHARE, DECIBELS, RELATIVE, FLOAT32_DB = 0.005, 0.1, 1e-3, 100.0

#: Costs, which must come out exactly too.
COSTS = (
    *("size_bytes", "bit_operations", "activation_bytes", "traffic_bytes"),
    *("energy_uj", "energy_memory_uj", "energy_mac_uj", "energy_other_uj"),
    *("mac_gates", "mac_area_um2", "accumulator_bits"),
)
#: The first schema version that counts them as they are counted now. Before, memory was counted
#: ahead of fusion, and few bits by the types that hold them.
COSTS_SINCE = 5


@dataclass(frozen=True)
class Difference:
    """A column that came out otherwise."""

    column: str
    recorded: Value
    now: Value


@dataclass(frozen=True)
class Reproduction:
    """A row that was run again.

    Attributes:
        row: the recorded row.
        again: the row as it came out now.
        differences: columns that differ, by more than they may; empty if the row is reproduced.
        exact, tolerant: the columns of figures that were compared exactly, and within a tolerance.
        latency_ratio: recorded median latency over today's; None where the row has none.
        latency_within_noise: whether the 95 % intervals of the two speed-ups over float32 overlap,
            5 % wider for where memory lies (of float32 itself and where a row has no interval:
            the ranges from fastest call to 99th percentile); None where the row has no latency.
        environment: columns of the machine and versions that differ: they may explain a difference.
    """

    row: dict[str, Value]
    again: dict[str, Value]
    differences: tuple[Difference, ...]
    latency_ratio: float | None
    latency_within_noise: bool | None
    environment: tuple[Difference, ...]
    exact: tuple[str, ...] = (*OWN, *BESIDE_FLOAT32)
    tolerant: tuple[str, ...] = ()

    @property
    def matches(self) -> bool:
        """Whether costs and accuracy are as recorded: exactly what must be, the rest within its
        tolerance."""
        return not self.differences

    def compared(self) -> str:
        """How figures were compared, and why so, in a line for people."""
        said = [f"exactly: {', '.join(self.exact)}"] if self.exact else []
        if self.tolerant:
            said.append(
                f"within {100 * SHARE:g} % of inputs, {DECIBELS} dB or a relative {RELATIVE:g}, "
                f"as float32 sums of another processor went in: {', '.join(self.tolerant)}"
            )
        return "; ".join(said)

    def summary(self) -> str:
        """What came out, in a few lines for people."""
        row = self.row
        lines = [f"{row['model']} in {row['scheme']}, {row['n_eval']} inputs of {row['dataset']}"]
        for d in self.differences:
            lines.append(f"  {d.column}: recorded {d.recorded}, now {d.now}")
        if self.latency_ratio is not None:
            noise = "within" if self.latency_within_noise else "outside"
            lines.append(
                f"  latency: recorded {row['latency_ms_median']:.4f} ms, "
                f"now {self.again['latency_ms_median']:.4f} ms, {_speedups(row, self.again)}"
                f"{noise} the noise of the two runs"
            )
            for when, measured in (("recorded", row), ("now", self.again)):
                if reasons := read(measured["latency_noise"]):
                    lines.append(f"  latency {when} was disturbed: {explained(reasons)}")
        for d in self.environment:
            lines.append(f"  {d.column}: recorded {d.recorded}, now {d.now}")
        if self.again["status"] in ("error", "timeout"):
            lines.append(f"  now fails ({self.again['status']}): {self.again['error']}")
        else:
            lines.append(f"  compared {self.compared()}")
        return "\n".join(map(printable, [*lines, "matches" if self.matches else "does not match"]))

    def _repr_html_(self) -> str:
        from compiler._html import preformatted

        return preformatted(self.summary())


def _speedups(*rows: dict[str, Value]) -> str:
    """How many times as fast as float32 two rows are; empty where one has no interval."""
    said = [
        f"{r['speedup_vs_fp32']:.3g} ({interval[0]:.3g} to {interval[1]:.3g})"
        for r in rows
        if (interval := speedup_interval(r))
    ]
    return f"speed-up {said[0]}, now {said[1]}, " if len(said) == len(rows) else ""


def find_row(results: str | os.PathLike[str], row_id: str) -> dict[str, Value]:
    """The row of that number (1 is the first below the header), or, where there are not so many,
    the one whose `config_hash` starts with `row_id`: not with so few digits that they would be the
    number of a row that is not there.

    Raises:
        ConfigError: the file is none, or there is no such row, or several.
    """
    from experiments.results.store import read_rows

    rows = read_rows(results).to_dict("records")
    if not rows:
        raise ConfigError(f"{results} has no rows yet; run its sweep first")
    found = [row for row in rows if str(row["config_hash"]).startswith(row_id)]
    if row_id.isdecimal():
        number = int(row_id[:_MOST_DIGITS])  # of thousands of digits Python makes no number
        if 1 <= number <= len(rows):  # also where a hash starts so
            found = [rows[number - 1]]
        elif len(row_id) < DIGITS:
            found = []
    if len(found) != 1:
        what = f"{len(found)} rows" if found else "no row"
        raise ConfigError(
            f"{results} has {what} {row_id!r}; give the start of a config_hash, or a number "
            f"from 1 to {len(rows)}"
        )
    return {str(name): value for name, value in found[0].items()}


def code_of(results: str | os.PathLike[str], row_id: str) -> tuple[str, ...]:
    """The Python files that `reproduce` would run: adapters, models, data and metrics of a user.

    Raises:
        ConfigError: there is no such row, or its configuration is none.
    """
    return code_files(config_of(find_row(results, row_id)))


@temporary.shared()
def reproduce(
    results: str | os.PathLike[str], row_id: str, allow_code: bool = False
) -> Reproduction:
    """Run the cell of a recorded row again.

    Args:
        allow_code: run the Python files that the row names, too. They are whatever lies there, and
            whoever wrote the row chose which; those that this process has run are run anyway.

    Raises:
        ConfigError: there is no such row, it was written before rows held their configuration,
            its model, data set or format is not at hand or has changed, or it names Python files
            that are not allowed.
    """
    from experiments.spec.specification import load_apart

    from .runner import one_outcome

    row = find_row(results, row_id)
    if not row["config"]:
        raise ConfigError(
            f"row {row_id} was written by schema version {row['schema_version']}, which did not "
            "record configurations; run its sweep again"
        )
    config = config_of(row)
    if not allow_code and (files := code_files(config)):
        raise ConfigError(
            f"row {row_id} runs Python files: {', '.join(files)}; read them, and if you trust them "
            "give --allow-code (in Python allow_code=True)"
        )
    try:
        # A row that names no metric was judged by top1, whatever fits.
        spec, own_code = load_apart({"metric": "top1"} | config)
    except ConfigError as error:
        what = f"{row['model']} in {row['scheme']}"
        raise ConfigError(f"row {row_id} of {what} cannot be run again here: {error}") from error
    if len(spec.cells) != 1:
        raise ConfigError(f"row {row_id} has a configuration of {len(spec.cells)} cells, not one")
    (cell,) = spec.cells
    if cell.config_hash != row["config_hash"]:
        raise ConfigError(f"row {row_id} was made from other inputs: {_changed(row, cell)}")
    return compare(row, one_outcome(cell, spec, own_code).row)


def _changed(row: dict[str, Value], cell: Cell) -> str:
    """What the row was made of that its configuration no longer means."""
    changed = [
        f"{what} {row[column]!r} has changed since (was {str(row[f'{column}_sha256'])[:12]}, "
        f"is {now[:12]})"
        for what, column, now in (
            ("the model", "model", cell.model.sha256),
            ("the data set", "dataset", cell.dataset_sha256),
        )
        if row[f"{column}_sha256"] != now
    ]
    return " and ".join(changed) or (
        "a definition (of a format, a block format, a metric ...), an adapter or this program has "
        "changed since"
    )


def compare(row: dict[str, Value], again: dict[str, Value]) -> Reproduction:
    """What differs between a recorded row and the same one run again.

    All figures are compared exactly where both runs used the same instruction set and processor.
    Elsewhere only those of a network whose bits are the same everywhere are, if it was not
    calibrated either: ranges that set its scales are observed in float32.
    """
    environment = (
        *("isa", "cpu", "os", "python", "numpy", "llvmlite", "dtypelab_version"),
        "git_rev",
    )
    ratio = within = None
    if _has(row, "latency_ms_median") and _has(again, "latency_ms_median"):
        was, now = float(str(row["latency_ms_median"])), float(str(again["latency_ms_median"]))
        ratio = was / now
        within = _within_noise(row, again)
    earlier = _has(row, "schema_version") and int(str(row["schema_version"])) < COSTS_SINCE
    exact, tolerant = _figures(row, again)
    differences = (
        *_differences(row, again, (*EXACT, *(() if earlier else COSTS), *exact), _same),
        *_differences(row, again, tolerant, _close(row)),
    )
    return Reproduction(
        row, again, differences, ratio, within,
        _differences(row, again, environment, _same), exact, tolerant,
    )  # fmt: skip


def _figures(
    row: dict[str, Value], again: dict[str, Value]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The figures to compare exactly, and those within a tolerance."""
    beside = (*BESIDE_FLOAT32, *(OF_TOKENS if _has(row, "tokens") else ()))
    if all(row[name] == again[name] for name in ("isa", "cpu")):
        return (*OWN, *beside), ()
    calibrated = _has(row, "n_calib") and row["n_calib"] != 0
    judged_by_float32 = beside_float32(str(row["metric_name"]))
    # Rows of older schema versions do not say.
    portable = row["portable_bits"] or again["portable_bits"]
    if portable != "yes" or calibrated:
        return (), (*OWN, *beside)
    if judged_by_float32:
        return ("outputs_not_finite",), ("metric", *beside)
    return OWN, beside


def _close(row: dict[str, Value]) -> Callable[[str, Value, Value], bool]:
    """Whether two figures of a column, of the inputs of `row`, are within the tolerance."""
    n = float(str(row["n_eval"])) if _has(row, "n_eval") else 1.0
    one = max(SHARE, 1 / n)
    scale = abs(float(str(row["metric_fp32"]))) if _has(row, "metric_fp32") else 0.0

    def close(column: str, a: Value, b: Value) -> bool:
        if _same(column, a, b):
            return True
        if not (isinstance(a, int | float) and isinstance(b, int | float)):
            return False
        if column == "outputs_not_finite":
            return abs(a - b) <= one * n
        if column == "sqnr_db" or (column == "metric" and row["metric_name"] == "sqnr"):
            return abs(a - b) <= DECIBELS or min(a, b) > FLOAT32_DB
        if column == "top1_agreement" or is_share(str(row["metric_name"])):
            return abs(a - b) <= one * (1 + 1e-9)
        return abs(a - b) <= RELATIVE * max(scale, abs(a))

    return close


def speedup_interval(row: dict[str, Value]) -> tuple[float, float] | None:
    """The 95 % interval of a row's speed-up over float32; None of float32 itself, and where there
    is none."""
    if not _has(row, "speedup_low") or row["speedup_low"] == row["speedup_high"]:
        return None
    return float(str(row["speedup_low"])), float(str(row["speedup_high"]))


def _within_noise(row: dict[str, Value], again: dict[str, Value]) -> bool:
    intervals = [speedup_interval(r) for r in (row, again)]
    wider = 1 + PLACEMENT / 2
    if None in intervals:
        edges = ("latency_ms_min", "latency_ms_p99")
        intervals = [(float(str(r[edges[0]])), float(str(r[edges[1]]))) for r in (row, again)]
        wider = 1.0
    known = [interval for interval in intervals if interval]
    return max(low for low, _ in known) / wider <= min(high for _, high in known) * wider


def _differences(
    row: dict[str, Value],
    again: dict[str, Value],
    columns: tuple[str, ...],
    alike: Callable[[str, Value, Value], bool],
) -> tuple[Difference, ...]:
    return tuple(
        Difference(name, row[name], again[name])
        for name in columns
        if not (_unrecorded(row, name) or alike(name, row[name], again[name]))
    )


def _unrecorded(row: dict[str, Value], column: str) -> bool:
    """Whether the row is older than a column."""
    return column in added_after(row["schema_version"])


def _same(column: str, a: Value, b: Value) -> bool:
    missing = [v is None or v == "" or (isinstance(v, float) and math.isnan(v)) for v in (a, b)]
    if column == "skipped" and not any(missing):
        # Values had identifiers for names once, where models call them `conv/weight:0`.
        a, b = identifier(str(a)), identifier(str(b))
    return all(missing) or (not any(missing) and a == b)


def _has(row: dict[str, Value], column: str) -> bool:
    value = row[column]
    return isinstance(value, int | float) and not math.isnan(value)
