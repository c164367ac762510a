"""Emulated formats: what a multiply-accumulate costs in each lowering, against native float32.

The case is a matrix product of 512 x 512 x 512 on one core, products and sums rounded (the library
lowering does some rows of it only). Its figures count only where the run itself is in order: our
float32 product comes near the measured peak of multiply-adds, and the library lowering is not
slower than a C loop over the same functions. Whole networks follow (`emulated_networks`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from compiler import Executable, build
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.target.registry import Target
from datatypes import change_dtype
from experiments.benchmarks import c_loop, emulated_networks
from experiments.benchmarks.peak import peak_float32
from experiments.benchmarks.report import Row
from experiments.benchmarks.turns import Effort, always, medians
from experiments.measure.disturbance import pinned

SIZE = 512
LIBRARY_ROWS = 8
"""Rows of the product that the library lowering computes."""
PEAK_SHARE = 0.85
LOOP_RATIO = 1.2
NATIVE = "float32"
HASWELL = "llvm -mcpu=haswell"

FASTER_THAN_LIBRARY = {"posit16_es1": 300, "posit8_es0": 250, "posit32_es2": 35}
SLOWER_THAN_NATIVE = {
    "posit16_es1": 11, "posit16_es2": 10, "posit8_es0": 8, "bfloat16": 7.5,
    "float8_e4m3fn": 13, "float8_e5m2": 18,
}  # fmt: skip
ON_AVX2 = {"posit16_es1": 30}
TABLE_NS = {"posit8_es0": 0.66}
"""Nanoseconds a multiply-accumulate by table: 1.1 times what the same two look-ups take in a C loop
on a Zen 4 (0.597), which the 64 KiB table of sums keeps out of reach of the nearest cache."""
CHOSEN = {"posit8_es2": "vector", "posit8_es0": "table"}
"""The lowering that the automatic choice must not be slower than."""


EXACT = {"posit16_es1": 500, "posit8_es0": 1000}
"""Exact sums, against the library's quires."""


FULL_RANGE = 100
"""The same on weights of any magnitude that the format has."""


IN_FLOAT32, IN_FLOAT64, ALIGNED = 20, 100, 40
"""What sums in float32 lanes, in float64 lanes, and in aligned groups may cost, in float32's."""
ACCUMULATORS = {
    ("float8_e4m3fn", "float16"): IN_FLOAT32,
    ("float8_e4m3fn", "bfloat16"): IN_FLOAT32,
    ("float8_e4m3fn", '{format = "float16", chunk = 64, outer = "float32"}'): IN_FLOAT32,
    ("float16", "float16"): IN_FLOAT32,
    ("float8_e4m3fn", '{format = "float32", compensated = true}'): IN_FLOAT32,
    ("float8_e4m3fn", "float22_e8m13"): IN_FLOAT64,
    ("bfloat16", "bfloat16"): IN_FLOAT64,
    ("float32", "float16"): IN_FLOAT64,
    ("bfloat16", '{format = "bfloat16", order = "tree8"}'): IN_FLOAT64,
    ("bfloat16", '{format = "bfloat16", order = "pairwise"}'): IN_FLOAT64,
    ("float16", '{format = "float16", compensated = true}'): IN_FLOAT64,
    ("float8_e4m3fn", '{format = "float22_e8m13", compensated = true}'): IN_FLOAT64,
    ("posit16_es1", '{format = "posit16_es1", chunk = 64}'): IN_FLOAT64,
    ("posit8_es2", "posit16_es2"): IN_FLOAT64,
    ("float8_e4m3fn", "h100_fp8"): ALIGNED,
    ("float16", "v100_fp16"): ALIGNED,
    ("float16", "a100_fp16"): ALIGNED,
    ("float16", "h100_fp16"): ALIGNED,
}
"""(Format of data, accumulator) -> the most that it may cost."""


def product(
    rows: int, dtype: str = "", seed: int = 0, accumulate: str = "sequential", full: bool = False
) -> IRModule:
    """A dense layer of `rows` x SIZE x SIZE on normal data, in a format; with `full`, the weights
    are of any magnitude that the format has."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()
    x = b.param("x", (rows, SIZE))
    weights = rng.normal(size=(SIZE, SIZE)) / np.sqrt(SIZE)
    if full:
        weights *= 2.0 ** rng.uniform(-28, 28, weights.shape)
    w = b.const(weights.astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", x, w))})
    return change_dtype(mod, NATIVE, dtype, accumulate=accumulate) if dtype else mod


@dataclass(frozen=True)
class Case:
    """A matrix product to measure."""

    format: str
    lowering: str
    target: str = "llvm"
    accumulate: str = "sequential"
    full: bool = False

    @property
    def name(self) -> str:
        """What the case is called."""
        where = " on AVX2" if self.target == HASWELL else ""
        mode = f" {self.accumulate}" if self.accumulate != "sequential" else ""
        data = ", any magnitude" if self.full else ""
        return f"{self.format} {self.lowering}{mode}{data}{where}".strip()

    @property
    def rows(self) -> int:
        """Rows that are computed."""
        return LIBRARY_ROWS if self.lowering == "library" else SIZE

    def call(self) -> Callable[[], object]:
        """What is timed."""
        name = "" if self.format == NATIVE and self.accumulate == "sequential" else self.format
        mod = product(self.rows, name, accumulate=self.accumulate, full=self.full)
        exe = build(mod, target=self.target, dtype_lowering=self.lowering or None)
        x = np.random.default_rng(1).normal(size=(self.rows, SIZE)).astype(np.float32)
        return _bound(exe, x)


def cases() -> list[Case]:
    """Every product that the rows compare."""
    vector = dict.fromkeys([*SLOWER_THAN_NATIVE, *FASTER_THAN_LIBRARY])
    out = [Case(NATIVE, ""), *(Case(f, "vector") for f in vector)]
    out += [Case(f, "library") for f in FASTER_THAN_LIBRARY]
    out += [Case(f, "table") for f in TABLE_NS]
    out += [Case(f, lowering) for f, other in CHOSEN.items() for lowering in ("", other)]
    out += [_exact(f, full) for f in EXACT for full in (False, True)]
    out += [_accumulated(f, mode) for f, mode in ACCUMULATORS]
    if Target.anywhere(HASWELL).runnable:
        out += [Case(f, "vector", HASWELL) for f in ON_AVX2]
    return out


def run(effort: Effort) -> bool:
    """Measure and print all rows; whether every one passed."""
    with pinned(1):
        ns = costs(effort)
    every = [*validity(ns), *rows(ns)]
    click.echo(f"emulation, dense {SIZE}x{SIZE}x{SIZE}, one core")
    for name, value in ns.items():
        click.echo(f"  {name:<52} {value:9.4f} ns/MAC {value / ns[NATIVE]:8.1f} x float32")
    every += emulated_networks.rows(effort)
    for row in every:
        click.echo(str(row))
    return all(row.passed for row in every)


def costs(effort: Effort) -> dict[str, float]:
    """Nanoseconds per multiply-accumulate of every case, of the peak and of the loop in C."""
    peak = peak_float32(Target.parse("llvm"))
    calls = {c.name: c.call() for c in cases()}
    macs = {c.name: c.rows * SIZE * SIZE for c in cases()}
    calls["peak"], macs["peak"] = peak.call, peak.operations // 2
    loop = c_loop.posit16(LIBRARY_ROWS, SIZE)
    if loop is not None:
        calls["loop in C"], macs["loop in C"] = loop, LIBRARY_ROWS * SIZE * SIZE
    for f in EXACT:
        quire = c_loop.exact(f, LIBRARY_ROWS, SIZE)
        if quire is not None:
            name = f"{f} quire in C"
            calls[name], macs[name] = quire, LIBRARY_ROWS * SIZE * SIZE
    times = medians({name: always(call) for name, call in calls.items()}, effort)
    return {name: times[name] * 1e6 / macs[name] for name in calls}


def validity(ns: dict[str, float]) -> list[Row]:
    """Whether the run is in order."""
    share = ns["peak"] / ns[NATIVE]
    out = [Row("float32, share of the peak of multiply-adds", share, "", least=PEAK_SHARE)]
    if "loop in C" in ns:
        ratio = ns["posit16_es1 library"] / ns["loop in C"]
        out.append(Row("posit16_es1 library / the same loop in C", ratio, "", most=LOOP_RATIO))
    return out


def rows(ns: dict[str, float]) -> list[Row]:
    """The figures that have bounds."""
    out = [
        Row(f"{f}: library / vector", ns[f"{f} library"] / ns[f"{f} vector"], "x", least=n)
        for f, n in FASTER_THAN_LIBRARY.items()
    ]
    out += [
        Row(f"{f}: vector / float32", ns[f"{f} vector"] / ns[NATIVE], "x", most=n)
        for f, n in SLOWER_THAN_NATIVE.items()
    ]
    out += [Row(f"{f}: table", ns[f"{f} table"], "ns/MAC", most=n) for f, n in TABLE_NS.items()]
    out += [
        Row(f"{f}: {other} / automatic", ns[f"{f} {other}"] / ns[f], "x", least=1)
        for f, other in CHOSEN.items()
    ]
    for f, n in EXACT.items():
        for full, bound in ((False, n), (True, FULL_RANGE)):
            name = _exact(f, full).name
            if f"{f} quire in C" in ns:
                ratio = ns[f"{f} quire in C"] / ns[name]
                out.append(Row(f"{name}: quire / vector", ratio, "x", least=bound))
    for (f, mode), n in ACCUMULATORS.items():
        name = _accumulated(f, mode).name
        out.append(Row(f"{name}: / float32", ns[name] / ns[NATIVE], "x", most=n))
    for f, n in ON_AVX2.items():
        name = Case(f, "vector", HASWELL).name
        if name in ns:
            out.append(Row(f"{f} on AVX2: library / vector", ns[f"{f} library"] / ns[name], "x", n))
    return out


def _accumulated(fmt: str, mode: str) -> Case:
    return Case(fmt, "" if fmt == NATIVE else "vector", accumulate=mode)


def _exact(fmt: str, full: bool) -> Case:
    return Case(fmt, "vector", accumulate="exact", full=full)


def _bound(exe: Executable, x: NDArray[Any]) -> Callable[[], object]:
    return lambda: exe(x)
