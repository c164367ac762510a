"""Rounding to the nearest integer on processors without an instruction for it: the functions that
LLVM calls instead, which are young, so that few C libraries have them.

Adding and taking off 2^23 (2^52 of float64) leaves no place for a fraction: the sum is rounded to
nearest, ties to even.
"""

from __future__ import annotations

SYMBOLS = ("roundevenf", "roundeven")
"""Of float32 and float64."""


def _function(name: str, t: str, suffix: str, limit: str) -> str:
    return f"""declare {t} @llvm.fabs.{suffix}({t})
declare {t} @llvm.copysign.{suffix}({t}, {t})
define {t} @{name}({t} %x) nounwind {{
  %size = call {t} @llvm.fabs.{suffix}({t} %x)
  %up = fadd {t} %size, {limit}
  %whole = fsub {t} %up, {limit}
  %signed = call {t} @llvm.copysign.{suffix}({t} %whole, {t} %x)
  %fraction = fcmp olt {t} %size, {limit}
  %out = select i1 %fraction, {t} %signed, {t} %x
  ret {t} %out
}}
"""


TEXT = _function("roundevenf", "float", "f32", "0x4160000000000000") + _function(
    "roundeven", "double", "f64", "0x4330000000000000"
)
