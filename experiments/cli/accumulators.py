"""The table of accumulators of dtypelab inspect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError
from experiments.systems import pipeline, schemes

from .common import load_feed

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize import Plan

HEADER = ("node", "operator", "factors", "terms", "bits", "each step", "data", "least", "largest")


def certificates_of(
    model: str,
    module: IRModule,
    plan_file: str | None,
    dtype: str,
    data: str | None,
    shapes: Sequence[str],
) -> list[dict[str, Any]]:
    """The certificates of a model as it is, in a number format, or as a plan makes it, as JSON.

    Args:
        data: inputs of which the sums are looked at too, as --input names them.

    Raises:
        DtypelabError: the plan, the format or the inputs do not fit.
    """
    import quantize

    if plan_file is not None and dtype != "float32":
        raise ConfigError("--plan and --dtype are two ways to compute: give one")
    plan: Plan | None = None
    if plan_file is not None:
        plan = quantize.Plan.from_json(plan_file)
    else:
        module = pipeline.retype(module, schemes.number_format(dtype, None, None))
    batches = None
    if data is not None:
        feed = load_feed(model, data, shapes)
        batches = [part.call() for part in feed.batches(pipeline.CALIBRATION_BATCH)]
    return [asdict(c) for c in quantize.certify(module, plan, batches)]


def table(rows: Sequence[dict[str, Any]], data: bool = False) -> list[str]:
    """Certificates as lines; of exact sums of formats, numbers are in units of a power of two.

    Args:
        data: whether sums of data were looked at too.
    """
    if not rows:
        return ["no sums of integers or of numbers of a format: give --plan or --dtype"]
    cells = [HEADER, *map(_cells, rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(HEADER))]
    texts = 3  # the others are numbers
    unseen = data and not all(row["data_bits"] or row["reason"] for row in rows)
    return [
        *("  ".join([
            *(c.ljust(w) for c, w in zip(row[:texts], widths, strict=False)),
            *(c.rjust(w) for c, w in zip(row[texts:], widths[texts:], strict=True)),
        ]) for row in cells),
        *(["data are looked at of whole sums alone, and not of groups"] if unseen else []),
    ]  # fmt: skip


def _brief(n: int) -> str:
    """An integer in a few digits, also one beyond the range of floats."""
    if n.bit_length() < 1000:
        return f"{n:.6g}"
    return f"{n >> (n.bit_length() - 20)} x 2^{n.bit_length() - 20}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    named = row["node"], row["op"], " x ".join(row["factors"])
    if row["reason"]:
        return (*named, *[""] * 5, row["reason"])
    unit = f" x 2^{row['unit']}" if row["unit"] else ""
    ends = (_brief(row[end]) + unit if unit else str(row[end]) for end in ("low", "high"))
    numbers = (row["terms"], row["bits"], row["step_bits"], row["data_bits"] or "")
    return (*named, *map(str, numbers), *ends)
