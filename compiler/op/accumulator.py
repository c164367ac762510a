"""Accumulators as data: the format that a sum is held in between its steps, and how it is added up.

The accumulation of an operator (its attribute `accumulate`, a text) may be the name of a format,
`float22_e8m13`: every product is exact, acc = rnd(acc + x * w) in the sequential order, the bias
is the last term, and one final rounding makes a number of the result's datatype. It may be the
name of published hardware, `h100_fp8` (`compiler.op.accumulator_presets`). Or it is a description,
an inline table of TOML whose keys are the fields of `Accumulator`:

    {format = "float16", chunk = 128, outer = "float32", order = "tree8"}

What is left out is at its default. Its text is canonical: keys in the order of the fields, and none
that is at its default, so that what hashes the text hashes the accumulator.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from compiler.arithmetic.stochastic import random_dtype
from compiler.errors import DtypelabError, UnsupportedError
from compiler.op.accumulator_width import width
from compiler.types.dtypes import FLOAT32, FLOAT64, DType, format_dtype, span

MODES = ("sequential", "fma", "exact", "float32", "float64")
"""Accumulations that are no formats; see `compiler.op.accumulate`."""
FLOATS = {"float32": FLOAT32, "float64": FLOAT64}
"""Names of formats that are built-in dtypes."""
TRUNCATED = "_truncate"
"""What the name of a format is continued by, rounding toward zero."""
ORDERS = "sequential, pairwise, tree<W> (W a power of two from 2 to 32)"
LITERAL = '{"format": "float16", "chunk": 128, "outer": "float32", "order": "tree8"}'
_SUM_BITS = 53
"""Of exact sums of aligned terms: products have a bit more than is kept, and carries are added."""
_TREE = re.compile(r"tree(2|4|8|16|32)")
_CHOICES = {"rounding": ("nearest", "truncate"), "products": ("exact", "rounded")}


@dataclass(frozen=True)
class Accumulator:
    """How a sum is formed. Terms are products, or what an operator adds up, in the sequential
    order; where windows are padded, a term that reads padding is +0 and has its place.

    Attributes:
        format: name of the format of (partial) sums, `float32` and `float64` included.
        chunk: so many neighbouring terms are added up in `format`, from +0 on, and then to what
            `outer` holds, in order; 0: all terms are one chunk.
        outer: name of the format that sums of chunks are added in; empty: `format`.
        order: of a chunk: `sequential`; `pairwise` (neighbours are added, then their sums, level by
            level; an odd last one goes up as it is); `tree<W>` (W neighbours so, and each such sum
            to acc).
        rounding: to `format`: `nearest` (what the format says), or `truncate` (toward zero).
        products: `exact`, or `rounded` to the format before they are added.
        compensated: with Kahan's compensation, all of whose steps are rounded to the format (W.
            Kahan, "Further remarks on reducing truncation errors", 1965).
        align_bits: what tensor cores do: `group` terms and acc are shifted to the largest of their
            exponents (of a product that is the sum of its factors' exponents; subnormal numbers of
            a float have that of the least normal one), cut off toward zero to so many bits, the
            leading one included, and added exactly; that is rounded. 0: not so. At most as many as
            float64 adds exactly: 47 of 16 terms.
        group: terms that are added at once, if they are aligned.
    """

    format: str
    chunk: int = 0
    outer: str = ""
    order: str = "sequential"
    rounding: str = "nearest"
    products: str = "exact"
    compensated: bool = False
    align_bits: int = 0
    group: int = 16

    def __post_init__(self) -> None:
        for f in fields(self):
            value, default = getattr(self, f.name), f.default
            kind = type(default) if isinstance(default, str | int) else str
            if type(value) is not kind:
                raise UnsupportedError(f"accumulate: {f.name} must be {kind.__name__}: {value!r}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise UnsupportedError(
                    f"accumulate: {name} is {' or '.join(known)}, not {getattr(self, name)!r}"
                )
        if self.order not in ("sequential", "pairwise") and not _TREE.fullmatch(self.order):
            raise UnsupportedError(f"accumulate: order is one of {ORDERS}, not {self.order!r}")
        if self.chunk < 0 or not 1 <= self.group <= 64 or self.align_bits < 0:
            raise UnsupportedError(
                "accumulate: chunk and align_bits are at least 0, group is 1 to 64"
            )
        if self.outer and not self.chunk:
            raise UnsupportedError(
                f"accumulate: outer = {self.outer!r} needs chunk, how many terms are added before"
            )
        if self.compensated and (self.order != "sequential" or self.align_bits):
            raise UnsupportedError("accumulate: compensated sums are sequential, and not aligned")
        if self.align_bits and (self.order != "sequential" or self.products != "exact"):
            raise UnsupportedError(
                "accumulate: aligned terms are exact, and have no order within their group: leave "
                "out order and products"
            )
        if self.align_bits > (most := _SUM_BITS - 1 - self.group.bit_length()):
            raise UnsupportedError(
                f"accumulate: sums of {self.group} terms with align_bits = {self.align_bits} may "
                f"have more than the {_SUM_BITS} bits of float64, in which groups are added; keep "
                f"at most {most}"
            )

    def __str__(self) -> str:
        changed = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {f.name: changed[f.name] for f in fields(self) if changed[f.name] != f.default}
        if list(changed) == ["format"]:
            return self.format
        return f"{{{', '.join(f'{k} = {_toml(v)}' for k, v in changed.items())}}}"

    @property
    def tree(self) -> int:
        """How many terms a tree adds; 0: there is none."""
        found = _TREE.fullmatch(self.order)
        return int(found[1]) if found else 0

    @property
    def stepwise(self) -> bool:
        """Whether it is acc = rnd(acc + x * w) at every step, in a custom datatype, and nothing
        else."""
        plain = Accumulator(self.format, rounding=self.rounding)
        return self.format not in FLOATS and self == plain

    @property
    def dtype(self) -> DType:
        """Of the (partial) sums.

        Raises:
            DtypelabError: there is no such format, or sums cannot be in it.
        """
        return _summed_in(self.format, self.rounding == "truncate")

    @property
    def outer_dtype(self) -> DType:
        """Of the sum of chunks.

        Raises:
            DtypelabError: as `dtype`.
        """
        inner = not self.outer
        return _summed_in(self.outer or self.format, inner and self.rounding == "truncate")


def _toml(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, int) else f'"{value}"'


def _summed_in(name: str, truncated: bool) -> DType:
    if name in FLOATS and not truncated:
        return FLOATS[name]
    base = {"float32": "float32_e8m23"}.get(name, name)
    if base == "float64":
        raise UnsupportedError("accumulate: float64 rounds to nearest; truncate a shorter format")
    dtype = format_dtype(base + TRUNCATED if truncated else base)
    if span(dtype) is None:
        raise UnsupportedError(
            f"accumulate: sums in {name} have no meaning, because its values are not those of "
            "known numbers; choose a described format"
        )
    if random_dtype(dtype) is not None:
        stem, chance, _ = name.partition("_stochastic")
        nearest = stem if chance else "a format that rounds to nearest"
        raise UnsupportedError(
            f"accumulate: sums in {name} would round stochastically; choose {nearest}"
        )
    return dtype


def accumulator(mode: str) -> Accumulator | None:
    """What an accumulation says that is the name of a format or of published hardware
    (`compiler.op.accumulator_presets`), or a description in TOML; None of other texts.

    Raises:
        UnsupportedError: it is a description, and does not hold together.
    """
    from compiler.op.accumulator_presets import PRESETS

    if mode in PRESETS:
        return PRESETS[mode]
    if mode.startswith("{"):
        return _described(mode)
    # Not remembered: what is no format may be defined as one later.
    return Accumulator(mode) if _is_format(mode) else None


@lru_cache(maxsize=512)
def _described(text: str) -> Accumulator:
    try:
        table = tomllib.loads(f"accumulate = {text}")["accumulate"]
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnsupportedError(f"accumulate {text} is no inline table: {error}") from None
    return of_table(table)


def _is_format(name: str) -> bool:
    if name in MODES or width(name) is not None or not re.fullmatch(r"[A-Za-z_]\w*", name):
        return False
    try:
        format_dtype(name)
    except DtypelabError:
        return False
    return True


def of_table(table: Mapping[str, Any]) -> Accumulator:
    """The accumulator that a mapping describes.

    Raises:
        UnsupportedError: a key or a value does not fit.
    """
    known = [f.name for f in fields(Accumulator)]
    if more := next((key for key in table if key not in known), None):
        raise UnsupportedError(f"accumulate has no {more!r}; its keys are {', '.join(known)}")
    if "format" not in table:
        raise UnsupportedError(f"accumulate needs a format, as in {LITERAL}")
    return Accumulator(**table)


__all__ = ["FLOATS", "LITERAL", "MODES", "TRUNCATED", "Accumulator", "accumulator", "of_table"]
