"""dtypelab dtype show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compiler.errors import DtypelabError
from experiments.files import atomic_path, check_writable

from .common import json_option, print_json, say

if TYPE_CHECKING:
    from datatypes import Format

#: Formats up to this width have all their codes shown on request.
_MAX_CODES_BITS = 8
_WIDTH = 40


@click.command("show", short_help="One format.")
@click.argument("name", metavar="NAME")
@click.option("--codes", is_flag=True, help="List every code with its value (8 bits or fewer).")
@click.option(
    "--plot", metavar="FILE", help="Draw the precision over the range (needs matplotlib)."
)
@json_option
def show_format(name: str, codes: bool, plot: str | None, as_json: bool) -> None:
    """Show a format: width, range, rules, special values, kernels, precision by binade.

    Example: dtypelab dtype show posit8_es0 --codes
    """
    import datatypes

    fmt = datatypes.get(name)
    facts = describe(fmt)
    facts["special"] = _special(fmt)
    facts["lowering"], facts["lowering_reason"] = _lowering(fmt)
    facts["precision"] = _precision(fmt)
    if codes:
        if fmt.nbits > _MAX_CODES_BITS:
            raise click.UsageError(f"--codes lists formats of up to {_MAX_CODES_BITS} bits")
        bits = range(fmt.mask + 1)
        values = datatypes.decode(fmt, list(bits)).tolist()
        facts["codes"] = dict(zip(map(str, bits), values, strict=True))
    if plot is not None:
        check_writable(plot)
        _draw(fmt, facts["precision"], Path(plot))
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        if key not in ("codes", "precision", "special"):
            say(f"{key:<15} {value}")
    say(f"{'special':<15} {', '.join(f'{k} {v}' for k, v in facts['special'].items())}")
    for code, number in facts.get("codes", {}).items():
        say(f"{int(code):>5}  {int(code):0{fmt.nbits}b}  {number:.17g}")
    most = max(row["bits"] for row in facts["precision"])
    say("significant bits of the values from 2**e up to 2**(e+1):")
    for row in _shortened(facts["precision"]):
        bar = "#" * round(_WIDTH * row["bits"] / most)
        say(f"{row['exponents']:>12}  {row['bits']:5.2f}  {bar}".rstrip())


def describe(fmt: Format) -> dict[str, Any]:
    """Width, range and rules of a format, for people and for JSON."""
    return {
        "name": fmt.name,
        "nbits": fmt.nbits,
        "storage": fmt.storage.name,
        "minpos": float(fmt.minpos),
        "maxpos": float(fmt.maxpos),
        "rounding": fmt.rounding,
        "ties": fmt.ties,
        "overflow": fmt.overflow,
        "infinity": fmt.infinity,
        "underflow": fmt.underflow,
        "nan": fmt.has_nan,
        "signed_zero": fmt.signed_zero,
        "storage_only": fmt.storage_only,
        "tables": ", ".join(table.op for table in fmt.tables),
        "source": fmt.source,
    }


def _special(fmt: Format) -> dict[str, str]:
    """Codes that mean no number, and what stands for NaN where there is none."""
    digits = -(-fmt.nbits // 4)
    special = {"NaN becomes": f"{fmt.nan_code:#0{digits + 2}x}"}
    if fmt.has_inf:
        special["infinity is"] = f"{fmt.beyond('inf', False):#0{digits + 2}x}"
    if fmt.signed_zero:
        special["-0 is"] = f"{fmt.sign_bit:#0{digits + 2}x}"
    if not fmt.has_zero:
        special["zero becomes"] = f"{fmt.zero(False):#0{digits + 2}x}"
    return special


def _lowering(fmt: Format) -> tuple[str, str]:
    """How compiled code computes in the format, and why so."""
    from compiler.ir.builder import FunctionBuilder
    from compiler.ir.expr import IRModule
    from compiler.lowering.choose import choose_lowerings

    if fmt.storage_only:
        return "none", fmt.irregular
    b = FunctionBuilder()
    x = b.param("x", (1,), f"custom[{fmt.name}]{fmt.nbits}")
    (choice,) = choose_lowerings(IRModule({"main": b.finish(x)}))
    return choice.lowering, choice.reason


def _precision(fmt: Format) -> list[dict[str, Any]]:
    from datatypes.formats.profile import precision_profile

    return [
        {"exponent": binade.exponent, "values": binade.values, "bits": binade.bits}
        for binade in precision_profile(fmt)
    ]


def _shortened(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of equal precision as one row."""
    merged: list[dict[str, Any]] = []
    for row in rows:
        if merged and merged[-1]["bits"] == row["bits"]:
            merged[-1]["last"] = row["exponent"]
        else:
            merged.append({**row, "first": row["exponent"], "last": row["exponent"]})
    for row in merged:
        first, last = row["first"], row["last"]
        row["exponents"] = f"{first}" if first == last else f"{first} .. {last}"
    return merged


def _draw(fmt: Format, precision: list[dict[str, Any]], file: Path) -> None:
    """Write the precision profile as a picture."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DtypelabError(
            "--plot needs matplotlib; install dtypelab with its extra `plot`"
        ) from None
    figure = Figure(figsize=(8, 4))
    axes = figure.add_subplot()
    axes.step(
        [row["exponent"] for row in precision], [row["bits"] for row in precision], where="post"
    )
    axes.set(title=fmt.name, xlabel="binary exponent", ylabel="significant bits")
    axes.grid(alpha=0.3)
    with atomic_path(file) as temporary:
        try:
            figure.savefig(temporary)
        except ValueError as error:
            raise DtypelabError(f"cannot draw {file}: {error}") from None
