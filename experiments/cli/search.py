"""dtypelab search."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compiler.errors import ConfigError
from experiments.files import atomic_path, check_outputs
from experiments.measure import scoring
from experiments.spec.overrides import value_of
from experiments.zoo import model_files

from .common import (
    cell,
    import_engine_option,
    json_option,
    model_argument,
    print_json,
    progress_bar,
    say,
    show,
)

if TYPE_CHECKING:
    from rich.table import Table

    from experiments.cheapest.searching import Found

_FILE = click.Path(path_type=Path)


@click.command(short_help="The cheapest formats for the layers of a network.")
@model_argument
@click.option("--data", default="mnist1k", show_default=True, metavar="DATA",
              help="A data set with calibration inputs: its name, or an .npz file.")  # fmt: skip
@click.option("--bound", default="drop<=0.5", show_default=True, metavar="FIGURE<=X",
              help="What must hold: drop (of the metric, shares in percentage points), sqnr, kl, "
              "agreement, or a metric; several with commas between.")  # fmt: skip
@click.option(
    "--cost",
    default="bits",
    show_default=True,
    metavar="COST",
    help="bits, gates, energy or latency.",
)
@click.option("--formats", default="int8,int4,float8_e4m3fn,posit8_es1,mxfp4_e2m1",
              show_default=True, metavar="F,G,...",
              help='What layers may be in; "F SUMS" has an accumulator of its own.')  # fmt: skip
@click.option("--accumulators", default="", metavar="A,B,...",
              help="How number formats are summed in the format; float32 by default.")  # fmt: skip
@click.option("--energy", multiple=True, metavar="KEY=PJ",
              help='Of --cost energy: picojoules, "int8 x int8=0.23"; repeatable.')  # fmt: skip
@click.option("--circuits", type=_FILE, metavar="FILE.csv",
              help="Of --cost gates: circuits of your own formats.")  # fmt: skip
@click.option("--n-calib", type=click.IntRange(min=1), default=64, show_default=True, metavar="N")
@click.option("--n-eval", type=click.IntRange(min=1), metavar="N",
              help="Test inputs at most; by default all.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--metric", default="", metavar="NAME", help="What drop is of.")
@click.option("--output", "judged", default="", metavar="NAME", help="Which output is judged.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Default: all.")
@click.option("-o", "--config", "config_file", type=_FILE, metavar="X.toml",
              help="Save the configuration, for --config of other verbs.")  # fmt: skip
@click.option("--front", "front_file", type=_FILE, metavar="FILE.csv",
              help="Save the assignments that no other beats.")  # fmt: skip
@click.option("--judge-front", is_flag=True, help="Judge those on the test data too.")
@click.option("--record", type=_FILE, metavar="FILE.csv",
              help="Save them, judged, beside uniform formats and what was asked, behind those of "
              "other searches if the file exists.")  # fmt: skip
@click.option("--picture", type=_FILE, metavar="FILE.svg", help="Draw the formats of the layers.")
@import_engine_option
@json_option
def search(
    model: str, data: str, bound: str, cost: str, formats: str, accumulators: str,
    energy: Sequence[str], circuits: Path | None, n_calib: int, n_eval: int | None, seed: int,
    metric: str, judged: str, threads: int | None, config_file: Path | None,
    front_file: Path | None, judge_front: bool, record: Path | None, picture: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Give every layer of MODEL the cheapest format with which the results keep a bound.

    Every layer is measured alone in every format, on calibration data. An integer program finds the
    cheapest assignments for budgets of noise, and these are measured; the cheapest that keeps the
    bound is the result, and is judged once on the test data.

    Example: dtypelab search mnist_resnet8 --bound "drop<=0.5" --formats int8,int4 -o x.toml
    """
    import pandas as pd

    import experiments
    from experiments.cheapest import bound as bounds
    from experiments.cheapest import recorded
    from experiments.cheapest.held_out import choices
    from experiments.cheapest.picture import svg
    from experiments.running import provenance
    from quantize.calibration.running import processors
    from quantize.config.file import write_toml

    check_outputs([config_file, front_file, record, picture], [*model_files.files_of(model), data])
    prices, before, start = dict(map(_price, energy)), recorded.before(record), time.monotonic()
    with progress_bar("", not as_json) as tell:
        found = experiments.search(
            model, data, bound, cost, _names(formats), _names(accumulators), n_calib=n_calib,
            n_eval=n_eval, seed=seed, metric=metric, output=judged, picojoules=prices,
            circuits=circuits, threads=threads, judge_front=judge_front or record is not None,
            progress=tell,
        )  # fmt: skip
    with ExitStack() as written:
        if config_file is not None:
            text = write_toml(choices(found.config))
            written.enter_context(atomic_path(config_file)).write_text(text, encoding="utf-8")
        if front_file is not None:
            path = written.enter_context(atomic_path(front_file))
            recorded.written(found.front, path)
        if record is not None:
            here = provenance.collect()
            asked = recorded.Asked(
                Path(model).stem, Path(data).stem, bound, n_calib, seed, threads or processors(),
                time.monotonic() - start, here.git_rev, here.git_dirty,
            )  # fmt: skip
            rows = pd.concat([*before, recorded.rows(found, asked)], ignore_index=True)
            path = written.enter_context(atomic_path(record))
            recorded.written(rows, path)
        if picture is not None:
            text = svg(found, f"{model}: {bound}")
            written.enter_context(atomic_path(picture)).write_text(text, encoding="utf-8")
    if as_json:
        print_json(_facts(found, model, bound))
        return
    show(_table(found))
    for line in _lines(found):
        say(line)
    if bounds.DROP in found.point.figures and scoring.is_share(found.test["metric_name"]):
        say(f"a drop has steps of {100 / n_calib:.2g} points on {n_calib} calibration inputs")


def _names(text: str) -> tuple[str, ...]:
    """What commas separate, but for those within braces, of descriptions of accumulators."""
    parts = re.findall(r"(?:\{[^{}]*\}|[^,])+", text)
    return tuple(part.strip() for part in parts if part.strip())


def _price(text: str) -> tuple[str, float]:
    key, _, value = text.rpartition("=")
    found = value_of(value)
    if not key or isinstance(found, bool) or not isinstance(found, int | float):
        raise ConfigError(f"--energy {text!r} is not KEY=PICOJOULES")
    return key.strip(), float(found)


def _facts(found: Found, model: str, bound: str) -> dict[str, object]:
    from experiments.cheapest.held_out import choices

    return {
        "model": model,
        "bound": bound,
        "cost": found.point.cost,
        "unit": found.unit,
        "figures": dict(found.point.figures),
        "predicted_db": found.point.predicted_db,
        "evaluations": found.evaluations,
        "additivity_db": {"mean": found.additivity[0], "largest": found.additivity[1]},
        "test": dict(found.test),
        "holds": found.holds,
        "surely_holds": found.surely_holds,
        "layers": found.layers.to_dict("records"),
        "config": choices(found.config),
        "front": found.front.to_dict("records"),
        "uniforms": found.uniforms.to_dict("records"),
    }


def _table(found: Found) -> Table:
    from rich.table import Table

    from quantize.search.energies import decibels

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("layer", overflow="fold")
    table.add_column("format")
    for column in ("MACs", f"cost ({found.unit})", "alone, dB"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in found.layers.to_dict("records"):
        db = "exact" if row["noise"] == 0 else f"{decibels(1.0, row['noise']):.1f}"
        kind = f"{row['format']} {row['accumulate']}".rstrip()
        table.add_row(cell(row["node"]), kind, f"{row['macs']:,}", f"{row['cost']:,.6g}", db)
    return table


def _lines(found: Found) -> list[str]:
    from experiments.cheapest import bound, price
    from experiments.cheapest.held_out import figures_of

    t = found.test
    figures = bound.told(found.point.figures, t["metric_name"])
    judged = bound.told(figures_of(t, found.point.figures), t["metric_name"])
    mean, largest = found.additivity
    sure = "holds there, also at the worse end of its 95 % interval"
    kept = sure if found.surely_holds else "holds there, but its 95 % interval reaches beyond"
    kept = kept if found.holds else "DOES NOT HOLD there"
    here = " on this machine, layers alone" if found.unit == price.UNITS[price.LATENCY] else ""
    return [
        "",
        f"cost {found.point.cost:,.6g} {found.unit}{here}; on calibration data {figures}; "
        f"sqnr {found.point.predicted_db:.4g} predicted",
        f"on {t['n_eval']} test inputs: {_merit(t)}{judged}; the bound {kept}",
        f"{found.evaluations} evaluations; predicted SQNR is {mean:+.2f} dB from the measured one, "
        f"{largest:.2f} at most; {len(found.front)} assignments on the front",
    ]


def _merit(test: Mapping[str, Any]) -> str:
    """What the metric lost on test data, with its interval; nothing where no loss is defined, as of
    metrics that are themselves distances from float32."""
    if math.isnan(test["metric_drop"]):
        return ""
    unit, of = (100.0, " points") if scoring.is_share(test["metric_name"]) else (1.0, "")
    lost, low, high = (unit * test[f"metric_drop{end}"] for end in ("", "_low", "_high"))
    return (
        f"{test['metric_name']} {test['metric']:.4g}, float32 {test['metric_fp32']:.4g}, lost "
        f"{lost:.3g}{of} [{low:.3g}, {high:.3g}], "
    )
