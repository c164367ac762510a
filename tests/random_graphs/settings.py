"""Random ways to compute a float32 graph: formats, accumulation, lowering, target, passes, threads;
and random schemes to quantize it by."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import compiler
import quantize
from compiler.errors import LoweringError, TypeInferenceError
from compiler.lowering.choose import LOWERINGS
from compiler.op.accumulate import MODES, check_mode
from compiler.op.accumulator_presets import PRESETS
from compiler.op.qnn.requantize import ROUNDINGS
from compiler.types.dtypes import DType
from datatypes.formats import Format, add, get, list_formats, minifloat
from quantize import QConfig

TARGETS = ("llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64")
FAMILIES = (
    "posit10_es1", "posit20_es2", "posit6_es1", "fixed12_6", "fixed24_8", "takum12", "takum24",
    "lns12_6", "float19_e8m10", "float12_e5m6", "float7_e3m3",
)  # fmt: skip


def own_formats() -> list[Format]:
    """Formats that the catalogue does not list: a user's, and those that round in other ways."""
    random = [
        replace(get(n), name=f"{n}_drawn{s}", rounding="stochastic", seed=s)
        for n, s in (("bfloat16", 1), ("posit16_es1", 2), ("posit8_es0", 3), ("fixed16_8", 4))
    ]
    rounded = [
        replace(get(n), name=f"{n}_{how}_drawn", rounding=how)
        for n, how in (("float8_e4m3fn", "zero"), ("posit8_es2", "up"), ("bfloat16", "down"))
    ]
    return [
        *random, *rounded,
        minifloat(4, 4, name="float9_e4m4_drawn"),
        minifloat(3, 4, "finite", name="float8_e3m4_drawn"),
        minifloat(5, 6, subnormals=False, rounding="zero", name="float12_flushed_drawn"),
    ]  # fmt: skip


OWN = {f.name: f for f in own_formats()}
ACCUMULATORS = (
    "float16", "bfloat16", "float22_e8m13", "float16_truncate", "posit16_es2", "posit32_es2",
    "fixed32_16", "float32_e8m23", *PRESETS,
    '{format = "float32", rounding = "truncate", chunk = 3}',
    '{format = "float16", chunk = 4, outer = "float32"}',
    '{format = "float22_e8m13", order = "tree4"}',
    '{format = "float64", order = "pairwise"}',
    '{format = "posit32_es2", products = "rounded"}',
    '{format = "float32", compensated = true}',
    '{format = "fixed32_16", compensated = true, chunk = 5}',
    '{format = "float22_e8m13", align_bits = 30, group = 4}',
)  # fmt: skip
"""What sums may be held in, and how; formats of few bits have all of them."""


def format_names() -> list[str]:
    """Every format that computes: listed ones, others of the families, and those of `OWN`."""
    for f in OWN.values():
        add(f)
    listed = [n for n in list_formats() if not get(n).storage_only]
    return list(dict.fromkeys([*listed, *FAMILIES, *OWN]))


@dataclass(frozen=True)
class Setting:
    """How a graph is computed. `format` is a format's name or float32."""

    format: str = "float32"
    accumulate: str = "sequential"
    lowering: str | None = None
    target: str = "llvm"
    opt_level: int = 2
    threads: int = 1
    scheme: QConfig | None = None
    batches: tuple[Any, ...] = field(default=(), repr=False)
    """What a scheme calibrates by."""

    def changed(self, mod: Any) -> Any:
        """The module in the format."""
        import datatypes

        if self.scheme is not None and self.batches:
            return quantize.quantize(mod, list(self.batches), self.scheme)
        if self.format == "float32":
            return mod
        return datatypes.change_dtype(mod, "float32", self.format, accumulate=self.accumulate)

    def build(self, mod: Any) -> Any:
        """The module compiled."""
        with compiler.PassContext(opt_level=self.opt_level):
            try:
                return compiler.build(mod, self.target, self.threads, self.lowering)
            except LoweringError as e:
                if self.lowering is None or f"has no {self.lowering} lowering" not in str(e):
                    raise
                return compiler.build(mod, self.target, self.threads)


def drawn_setting(rng: np.random.Generator, name: str | None = None) -> Setting:
    """A setting that the format has: of `name`, or of any."""
    name = name or str(rng.choice(format_names()))
    dtype = DType.parse(f"custom[{name}]{get(name).nbits}")
    lowerings = [None, None]
    if get(name).rounding != "stochastic":
        lowerings += [k for k in LOWERINGS if k != "table" or dtype.bits <= 8]
    (own,) = rng.spawn(1)  # so that what is drawn next is what it was without accumulators
    accumulators = [a for a in ACCUMULATORS if holds(a, dtype)]
    mode = str(rng.choice(MODES))
    return Setting(
        name,
        str(own.choice(accumulators)) if accumulators and own.random() < 0.4 else mode,
        lowerings[int(rng.integers(len(lowerings)))],
        str(rng.choice(TARGETS)),
        int(rng.integers(0, 4)),
        int(rng.integers(1, 3)),
    )


def holds(accumulator: str, dtype: DType) -> bool:
    """Whether sums of a dtype may be in an accumulator."""
    try:
        check_mode("sum", accumulator, dtype)
    except TypeInferenceError:
        return False
    return True


def drawn_config(rng: np.random.Generator) -> QConfig:
    """An integer scheme of up to 8 bits, or of up to 16."""

    def any_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    wide = bool(rng.random() < 0.25)
    weight_range = any_of("restricted", "full", "asymmetric")
    least = 9 - (weight_range == "asymmetric")
    return QConfig(
        functions=any_of("auto", "integer", "float"),
        softmax=any_of("float", "integer"),
        layer_norm=any_of("float", "integer"),
        calibrate=any_of("minmax", "percentile", "mse", "power_of_two"),
        weight_granularity=any_of("tensor", "channel"),
        activation_dtype=any_of("int8", "uint8"),
        activation_symmetric=bool(any_of(0, 1)),
        weight_range=weight_range,
        weight_bits=int(rng.integers(2, 16 if wide else least)),
        activation_bits=any_of(8, 9, 12, 16) if wide else any_of(2, 4, 8, 8),
        requantize=any_of("float32", "shift") if wide else any_of(*ROUNDINGS),
    )
