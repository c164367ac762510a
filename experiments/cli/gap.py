"""dtypelab gap."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.files import atomic_path, check_outputs
from experiments.zoo import model_files

from .common import (
    import_engine_option,
    json_option,
    model_argument,
    print_json,
    progress_bar,
    show,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


@click.command(short_help="Simulation of a format beside bit-exact execution, step by step.")
@model_argument
@click.option("--data", default="mnist1k", show_default=True, metavar="DATA",
              help="A data set: a shipped name, or an .npz file.")  # fmt: skip
@click.option("--scheme", "given", multiple=True, default=("posit8_es1",), show_default=True,
              metavar="S", help='A format, or {scheme = "scaled", ...}; repeatable.')  # fmt: skip
@click.option("--accumulate", metavar="MODE",
              help="How sums of formats are formed: sequential, exact, in any format, as a name "
              'of hardware or {format = "float16", chunk = 128} says.')  # fmt: skip
@click.option("--n-eval", type=click.IntRange(min=1), default=200, show_default=True, metavar="N")
@click.option("--n-calib", type=click.IntRange(min=1), default=32, show_default=True, metavar="N")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--metric", default="", metavar="NAME", help="What judges the results.")
@click.option("--output", "judged", default="", metavar="NAME", help="Which output is judged.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--csv", type=click.Path(path_type=Path), metavar="FILE",
              help="Save the tables, behind those of others if it exists.")  # fmt: skip
@import_engine_option
@json_option
def gap(
    model: str, data: str, given: Sequence[str], accumulate: str | None, n_eval: int, n_calib: int,
    seed: int, metric: str, judged: str, threads: int, csv: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what each ingredient of bit-exact execution costs, beside simulation in float32.

    A simulation rounds what convolutions, dense layers and products of matrices multiply, and
    computes in float32. One ingredient after the other becomes that of the network in the format,
    in two orders. A step's change of the metric has a 95 % interval.

    Example: dtypelab gap mnist_resnet8 --scheme posit8_es1 --scheme float8_e4m3fn_sat
    """
    import pandas as pd

    import experiments

    check_outputs([csv], [*model_files.files_of(model), data])
    before = _tables_before(csv)
    found: list[pd.DataFrame] = []
    for text in given:
        with progress_bar(f"{model} {text}", not as_json) as tell:
            table = experiments.gap(
                model, data, _scheme(text, accumulate), n_eval=n_eval, n_calib=n_calib, seed=seed,
                metric=metric, output=judged, threads=threads, progress=tell,
            )  # fmt: skip
        table.insert(0, "model", Path(model).stem)
        table.insert(1, "scheme", text if accumulate is None else f"{text} {accumulate}")
        table.insert(2, "n_eval", n_eval)
        found.append(table)
    rows = pd.concat(found, ignore_index=True)
    if csv is not None:
        with atomic_path(csv) as path:
            pd.concat([*before, rows], ignore_index=True).to_csv(path, index=False)
    if as_json:
        print_json({"rows": json.loads(rows.to_json(orient="records"))})
        return
    for table in found:
        show(_shown(table))


def _tables_before(csv: Path | None) -> list[pd.DataFrame]:
    """What the file holds already.

    Raises:
        ConfigError: it holds something else.
    """
    from experiments.gaps.measuring import COLUMNS, LATER
    from experiments.results.growing import table_before

    wanted = ["model", "scheme", "n_eval", *COLUMNS]
    found = table_before(csv, "gaps", wanted, wanted[: -len(LATER)])
    return [table.reindex(columns=wanted) for table in found]


def _scheme(text: str, accumulate: str | None) -> dict[str, Any]:
    from compiler.files.reading import parse_toml

    if not text.lstrip().startswith("{"):
        named: dict[str, Any] = {"scheme": text}
    else:
        table = parse_toml(f"scheme = {text}", f"--scheme {text}")["scheme"]
        named = dict(table)
    return named | ({} if accumulate is None else {"accumulate": accumulate})


def _shown(table: pd.DataFrame) -> Table:
    from rich.table import Table

    metric = table["metric"].iloc[0]
    title = f"{table['model'].iloc[0]} {table['scheme'].iloc[0]}"
    out = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("order", "ingredient"):
        out.add_column(name)
    for name in (f"{metric}: change", "95 %", "SQNR dB", "KL"):
        out.add_column(name, justify="right", no_wrap=True)
    for row in table.to_dict("records"):
        kl = "" if math.isnan(row["kl"]) else f"{row['kl']:.4g}"
        ends = "" if math.isnan(row["low"]) else f"[{row['low']:+.3f}, {row['high']:+.3f}]"
        out.add_row(
            row["order"], row["ingredient"], f"{row['delta']:+.4f}", ends,
            f"{row['sqnr_db']:.1f}", kl, style="bold" if row["order"] == "whole" else None,
        )  # fmt: skip
    return out
