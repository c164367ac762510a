"""Weights of 4 bits, activations of 8: what each way to choose the weights' integers gains, and
what 8 bits for the weights of sensitive nodes do.

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
from experiments import metrics
from experiments.accuracy import tasks
from experiments.accuracy.networks import merit, scores
from experiments.accuracy.share import integer_share
from experiments.accuracy.tasks import Task
from experiments.files import atomic_path, check_writable
from experiments.statistics import PairedDifference, paired_difference

if TYPE_CHECKING:
    from quantize import Plan

NETWORKS = ("mnist_mlp", "mnist_resnet8", "mnist_dwsep", "mnist_vit", "efficientnet_lite0")
Method: TypeAlias = "Callable[[IRModule, Sequence[Any]], Plan]"
"""Makes the plan of a network from calibration batches."""


def method(**fields: Any) -> Method:
    """The plan of 4-bit weights with these fields of the configuration."""

    def make(module: IRModule, batches: Sequence[Any]) -> Plan:
        import quantize

        return quantize.calibrate(module, batches, quantize.QConfig(weight_bits=4, **fields))

    return make


METHODS: Mapping[str, Method] = {
    "nearest, scales of the largest": method(),
    "nearest, scales of least error": method(weight_calibrate="mse"),
    "GPTQ": method(weight_calibrate="mse", weight_rounding="gptq"),
    "AdaRound": method(weight_calibrate="mse", weight_rounding="adaround"),
    "mixed precision, 5 bits": method(weight_calibrate="mse", mean_weight_bits=5.0),
    "mixed precision, GPTQ": method(
        weight_calibrate="mse", weight_rounding="gptq", mean_weight_bits=5.0
    ),
}


@dataclass(frozen=True)
class Line:
    """One method on one network.

    Attributes:
        weight_bits: on average, over all weights in integers.
        right: right answers on the data set aside, in percent; float32's are `float32`.
        agreement: share of answers that are float32's, in percent.
        db: SQNR of the results against float32's; `calibration_db` that on calibration data.
        share: of the multiply-accumulates in 8-bit (or narrower) integers, in percent.
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
    quick: bool = False,
    methods: Mapping[str, Method] = METHODS,
) -> list[Line]:
    """Measure `methods` on the named networks (all without names) and print the table.

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
    for name in names or NETWORKS:
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
                100 * integer_share(realized),
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
        f" {line.calibration_db:.1f})  {line.share:5.1f} % in int8  {line.seconds:.1f} s"
    )


def mean_bits(module: IRModule, plan: Plan) -> float:
    """Bits of a weight on average, over the weights that are integers."""
    from quantize.annotation import annotate
    from quantize.graph import Graph

    total = held = 0
    for b, call in Graph(annotate(module).module.main).calls():
        if b.var.name in plan.weights:
            (weight,) = (a for a in call.args[1:2] if isinstance(a, Constant))
            size = weight.data.size
            total, held = total + size, held + size * plan.weights[b.var.name].bits
    return held / total if total else 0.0
