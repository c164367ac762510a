"""Every property of a format in one lowering, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from compiler.errors import InputError, LoweringError
from compiler.types.dtypes import Array
from datatypes.formats import Format, get
from datatypes.proof import elementwise, exhaustive, fused, integers, peers, samples, sums
from datatypes.proof.judge import Judge
from datatypes.proof.report import Report, Row
from datatypes.proof.subject import FUNCTIONS, OPERATORS, Subject, runnable_targets

EXHAUSTIVE_BITS = 16
EXHAUSTIVE = ("Add", "Mul")


@dataclass(frozen=True)
class Progress:
    """How far a check is: what runs now, steps done of how many, and the pairs done of this step
    (0 of 0 unless it is exhaustive)."""

    step: str
    done: int
    total: int
    pairs: int = 0
    of_pairs: int = 0


Watcher = Callable[[Progress], None]
Step = Callable[[Callable[[int], None]], Iterable[Row]]


def check_format(
    fmt: Format | str,
    lowering: str | None = None,
    exhaustive: bool = False,
    seed: int = 0,
    targets: Iterable[str] | None = None,
    watch: Watcher | None = None,
) -> Report:
    """Check that compiled code computes in a format what the format means.

    Args:
        fmt: the format or its name.
        lowering: as `compiler.build` takes it; None chooses.
        exhaustive: all 2**32 pairs of Add and Mul of a 16-bit format, on the first target.
        seed: of the samples.
        targets: what to compile for; without them, every instruction set this machine has.
        watch: called before every step, and while an exhaustive one runs.

    Raises:
        DtypelabError: no such format or target.
        InputError: no such lowering, a negative seed, or `exhaustive` for a format of other than 16
            bits.
        LoweringError: the format has no kernels in this lowering at all.
    """
    fmt = get(fmt)
    if exhaustive and fmt.nbits != EXHAUSTIVE_BITS:
        raise InputError(f"{fmt.name} has {fmt.nbits} bits; exhaustive checks are for 16 bits")
    if fmt.rounding == "stochastic":
        raise InputError(f"{fmt.name} rounds stochastically; check the format it is without that")
    if seed < 0:
        raise InputError(f"seed must not be negative, not {seed}")
    chosen = list(targets) if targets is not None else runnable_targets()
    subjects = [Subject(fmt, target, lowering) for target in chosen]
    return _Check(fmt, subjects, seed, exhaustive).run(watch or (lambda _: None))


class _Check:
    def __init__(self, fmt: Format, subjects: list[Subject], seed: int, exhaustive: bool):
        self.fmt, self.subjects, self.exhaustive = fmt, subjects, exhaustive
        self.judge = Judge(fmt)
        self.rng = np.random.default_rng(seed)
        self.missing: dict[str, str] = {}

    def run(self, watch: Watcher) -> Report:
        lowering = "none" if self.fmt.storage_only else self.subjects[0].chosen()
        steps, rows = list(self.steps()), list[Row]()
        for done, (label, step) in enumerate(steps):
            watch(Progress(label, done, len(steps)))
            pairs = 0

            def advance(count: int, label: str = label, done: int = done) -> None:
                nonlocal pairs
                pairs += count
                watch(Progress(label, done, len(steps), pairs, 1 << 2 * self.fmt.nbits))

            begun = time.perf_counter()
            try:
                for row in step(advance):
                    now = time.perf_counter()
                    rows.append(replace(row, seconds=now - begun))
                    begun = now
            except LoweringError as error:
                self.missing[label] = str(error)
        watch(Progress("", len(steps), len(steps)))
        return Report(self.fmt.name, lowering, tuple(rows), peers.excluded(self.fmt), self.missing)

    def steps(self) -> Iterator[tuple[str, Step]]:
        """Label and work of everything that is checked."""
        judge, rng = self.judge, self.rng
        codes = samples.codes(self.fmt, rng)
        numbers = samples.Numbers.of(self.fmt, rng)
        yield "codes", _quiet(elementwise.round_trips, judge, codes, rng)
        yield "array codec", _quiet(elementwise.array_codec, judge, codes, numbers)
        if self.fmt.storage_only:
            return
        # Tables and logarithms do not say what a fused operation is.
        has_fma = not self.fmt.tables and not self.fmt.logarithmic
        arithmetic = [op for op in integers.OPERATIONS if has_fma or op != "Fma"]
        for op in arithmetic:
            yield f"judge of {op}", _quiet(elementwise.judged, judge, op, rng)
        for fn in FUNCTIONS:
            if fn in elementwise.ENCLOSED:
                yield f"table of {fn}", _quiet(elementwise.functions_judged, judge, fn, rng)
        for op in (*arithmetic, "LT", "LE", "EQ", "sqrt"):
            yield f"peers' {op}", _quiet(self.peers, op)
        for op in OPERATORS:
            yield op, _quiet(self.pairs, op)
        for s in self.subjects:
            for fn in FUNCTIONS:
                yield fn, _quiet(elementwise.unary, s, judge, fn, codes)
            yield "casts from the format", _quiet(elementwise.casts_from, s, judge, codes)
            yield "casts to the format", _quiet(elementwise.casts_to, s, judge, numbers)
            yield "casts between formats", _quiet(fused.casts, s, judge, codes, rng)
            if has_fma:
                yield "Fma", _quiet(fused.fma, s, judge, rng)
                yield "fused nn.dense", _quiet(sums.dense, s, judge, rng, "fma")
            yield "nn.dense", _quiet(sums.dense, s, judge, rng)
            for conv in sums.CONVOLUTIONS:
                yield conv.name, _quiet(sums.convolution, conv, s, judge, rng)
        for op in EXHAUSTIVE if self.exhaustive else ():
            yield f"all pairs of {op}", partial(exhaustive.all_pairs, self.subjects[0], op)

    def peers(self, op: str) -> Iterator[Row]:
        """Other people's results on the same samples as ours."""
        columns: tuple[Array, ...]
        if op == "sqrt":
            columns = (samples.codes(self.fmt, self.rng),)
        else:
            columns = samples.pairs(self.fmt, op, self.rng)
        if op == "Fma":
            columns = (*columns, self.rng.permutation(columns[0]))
        yield from elementwise.peer(self.judge, op, columns)

    def pairs(self, op: str) -> Iterator[Row]:
        """An operation of two operands, for all targets."""
        a, b = samples.pairs(self.fmt, op, self.rng)
        want = elementwise.meaning(self.judge, op, (a, b))
        for subject in self.subjects:
            yield from elementwise.binary(subject, self.judge, op, a, b, want)


def _quiet(rows: Callable[..., Iterable[Row]], *args: Any) -> Step:
    """A step that has nothing to say while it runs."""
    return lambda _: rows(*args)
