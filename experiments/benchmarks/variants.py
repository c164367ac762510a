"""An int8 network compiled in other ways than this machine's best: blocks of four channels forced,
AVX2 without the dot product instructions. Times on one thread, against our own by dot products:
instructions on matrices, where there are any, are no part of this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError
from experiments.benchmarks.turns import Effort, always, medians
from experiments.measure.disturbance import pinned

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule

MODEL = "resnet50"
AVX2 = "llvm -mcpu=haswell"
FOUR_CHANNELS = 1 / 1.08
"""Least speed with NCHW4c forced, relative to the layout that is chosen for dot products."""
AVX2_SHARE = 0.17
"""Least speed of int8 with AVX2 alone, relative to this machine's dot product instructions."""
DEFAULT, NCHW4C = "int8 by dot products", "int8 NCHW4c"
AVX2_INT8, AVX2_FLOAT = "int8 AVX2", "float32 AVX2"


@dataclass(frozen=True)
class Claim:
    """A ratio of speeds and the least that it may be."""

    title: str
    ratio: float
    target: float


def run(
    int8: IRModule, floating: IRModule, x: NDArray[Any], effort: Effort
) -> tuple[list[Claim], str]:
    """Measure, print times, and give the claims, with what is wrong with the results (or '')."""
    import compiler
    from compiler.passes.manager import PassContext
    from compiler.target.registry import Target

    dots = Target.parse("llvm").unasked
    click.echo(f"{MODEL}, other layouts and instruction sets, 1 thread")
    made: dict[str, Executable] = {DEFAULT: compiler.build(int8, dots)}
    with PassContext(config={"AlterOpLayout.block": 4}):
        made[NCHW4C] = compiler.build(int8, dots)
    try:
        made[AVX2_INT8] = compiler.build(int8, target=AVX2)
        made[AVX2_FLOAT] = compiler.build(floating, target=AVX2)
    except UnsupportedError as error:
        click.echo(f"  {error}")
    with pinned(1):
        outputs = {name: np.asarray(e(x)) for name, e in made.items() if name != AVX2_FLOAT}
        times = medians({name: always(partial(e, x)) for name, e in made.items()}, effort)
    for name, value in times.items():
        click.echo(f"  {name:<22} {value:9.3f} ms")
    same = all(y.tobytes() == outputs[DEFAULT].tobytes() for y in outputs.values())
    return claims(times), "" if same else "the results differ"


def claims(times: Mapping[str, float]) -> list[Claim]:
    """What is claimed of these times (milliseconds by name; AVX2 may be missing)."""
    found = [
        Claim(f"{MODEL} NCHW4c vs chosen layout", times[DEFAULT] / times[NCHW4C], FOUR_CHANNELS)
    ]
    if AVX2_INT8 in times:
        of_vnni = times[DEFAULT] / times[AVX2_INT8]
        of_float = times[AVX2_FLOAT] / times[AVX2_INT8]
        found.append(Claim(f"{MODEL} AVX2 int8 vs int8", of_vnni, AVX2_SHARE))
        found.append(Claim(f"{MODEL} AVX2 int8 vs AVX2 float32", of_float, 1.0))
    return found
