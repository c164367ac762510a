"""Tables of several methods of quantization side by side, on the same networks and data.

Everything is calibrated on calibration data. What is measured on the data set aside is measured
once for each method; the figures on calibration data are what a choice between methods is made by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from compiler.ir.expr import IRModule
from compiler.transform.analysis import cost
from experiments.accuracy import tasks
from experiments.accuracy.networks import merit, scores
from experiments.accuracy.tasks import Task
from experiments.files import atomic_path, check_writable
from experiments.measure import metrics
from experiments.measure.statistics import PairedDifference, paired_difference

if TYPE_CHECKING:
    from quantize import Plan

Method: TypeAlias = "Callable[[IRModule, Sequence[Any]], Plan]"
"""Makes the plan of a network from calibration batches."""


def configured(**fields: Any) -> Method:
    """The plan of these fields of the configuration."""

    def make(module: IRModule, batches: Sequence[Any]) -> Plan:
        import datatypes  # noqa: F401  (its formats may be named)
        import quantize

        return quantize.calibrate(module, batches, quantize.QConfig(**fields))

    return make


@dataclass(frozen=True)
class Line:
    """One method on one network.

    Attributes:
        weight_bits: on average, over all weights in integers and formats; blocks' scales included.
        right: right answers on the data set aside, in percent; float32's are `float32`.
        agreement: share of answers that are float32's, in percent.
        db: SQNR of the results against float32's; `calibration_db` that on calibration data.
        share: of the multiply-accumulates in 8-bit (or narrower) integers, or of factors in number
            formats, in percent.
        seconds: of calibration.
        change: what it loses to float32, input by input.
    """

    model: str
    method: str
    weight_bits: float
    float32: float
    right: float
    agreement: float
    db: float
    calibration_db: float
    share: float
    seconds: float
    change: PairedDifference


def run(
    names: Sequence[str],
    data: Path | None,
    given: Mapping[str, Path],
    csv: Path | None,
    methods: Mapping[str, Method],
    quick: bool = False,
) -> list[Line]:
    """Measure `methods` on the named networks and print the table.

    Networks whose files are not at hand are named and passed over.

    Args:
        data: folder of what is not shipped, see `tasks.load`.
        given: network -> its file.
        csv: where the table is written to.
        quick: few inputs and batches: rough figures.

    Raises:
        DtypelabError: a file is missing or does not fit.
    """
    import pandas as pd

    if csv is not None:
        check_writable(csv)
    lines: list[Line] = []
    for name in names:
        task = tasks.load(name, data, given)
        if isinstance(task, str):
            click.echo(f"{name}: {task}\n")
            continue
        lines += measure(task.shortened(40, 3) if quick else task, methods)
    if csv is not None:
        records = [{k: v for k, v in asdict(a).items() if k != "change"} for a in lines]
        changes = [{f"change_{k}": v for k, v in asdict(a.change).items()} for a in lines]
        with atomic_path(csv) as path:
            frame = pd.DataFrame([a | b for a, b in zip(records, changes, strict=True)])
            frame.to_csv(path, index=False)
    return lines


def measure(task: Task, methods: Mapping[str, Method]) -> list[Line]:
    """The lines of a network, printed as they are found."""
    import quantize
    from quantize.search.costs import mean_weight_bits

    module = task.module()
    reference, calibrated = (scores(module, x) for x in (task.batches, task.calibration))
    right = task.right(reference)
    lines = []
    click.echo(f"{task.name}, {task.metric} of {len(right)}: float32 {100 * right.mean():.2f} %")
    for name, make in methods.items():
        start = time.perf_counter()
        plan = make(module, task.calibration)
        seconds = time.perf_counter() - start
        realized = quantize.realize(module, plan)
        found = scores(realized, task.batches)
        lines.append(
            Line(
                task.name,
                name,
                mean_weight_bits(module, plan),
                100 * float(right.mean()),
                100 * float(task.right(found).mean()),
                100 * task.agreement(found, reference),
                metrics.sqnr_db(found, reference),
                merit(task, scores(realized, task.calibration), calibrated)[1],
                100 * (plan.coverage if plan.formats else cost(realized).integer_share),
                seconds,
                paired_difference(right, task.right(found)),
            )
        )
        click.echo(text(lines[-1]))
    click.echo()
    return lines


def text(line: Line) -> str:
    """A line as printed."""
    c = line.change
    return (
        f"  {line.method:<32} {line.weight_bits:4.1f} bits {line.right:6.2f} %"
        f" (loses {100 * c.drop:.2f} [{100 * c.low:.2f}, {100 * c.high:.2f}])"
        f"  agrees {line.agreement:6.2f} %  {line.db:5.1f} dB (calibration data"
        f" {line.calibration_db:.1f})  {line.share:5.1f} % covered  {line.seconds:.1f} s"
    )
