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

from compiler.ir.expr import Constant, IRModule
from experiments.accuracy import tasks
from experiments.accuracy.networks import merit, scores
from experiments.accuracy.share import integer_share
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
                mean_bits(module, plan),
                100 * float(right.mean()),
                100 * float(task.right(found).mean()),
                100 * task.agreement(found, reference),
                metrics.sqnr_db(found, reference),
                merit(task, scores(realized, task.calibration), calibrated)[1],
                100 * (plan.coverage if plan.formats else integer_share(realized)),
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


def mean_bits(module: IRModule, plan: Plan) -> float:
    """Bits of a weight on average, over the weights that are integers or numbers of formats."""
    from quantize.annotation.annotate import annotate
    from quantize.annotation.graph import Graph

    total, held = 0, 0.0
    for b, call in Graph(annotate(module).module.main).calls():
        bits = _weight_bits(plan, b.var.name)
        for weight in call.args[1:2]:
            if bits and isinstance(weight, Constant):
                total, held = total + weight.data.size, held + weight.data.size * bits
    return held / total if total else 0.0


def _weight_bits(plan: Plan, node: str) -> float:
    """Bits of a node's weights; 0 if the plan says nothing of them."""
    from quantize.formats.blocks import block_format
    from quantize.formats.storage import format_bits

    if node in plan.weights:
        return plan.weights[node].bits
    if node not in plan.formats:
        return 0
    name = plan.formats[node][1].format
    block = block_format(name)
    return format_bits(name) if block is None else block.bits
