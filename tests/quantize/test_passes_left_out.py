"""Quantized graphs build and have the same bits at every level, whichever pass is left out."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from random_nets import Net, images_of

import compiler
import quantize
from compiler.ir.expr import IRModule
from compiler.passes.manager import Pass, PassContext, PassInstrument
from compiler.types.dtypes import Array
from quantize import QConfig

SCHEMES: dict[str, dict[str, Any]] = {
    "default": {},
    "int8": {"activation_dtype": "int8"},
    "symmetric": {"activation_dtype": "int8", "activation_symmetric": True},
    "asymmetric weights": {"weight_range": "asymmetric"},
    "asymmetric int8": {"weight_range": "asymmetric", "activation_dtype": "int8"},
    "4 bits": {"weight_bits": 4, "activation_bits": 6},
    "16 bits": {"weight_bits": 15, "activation_bits": 16},
    "wraps": {"accumulate": "int12_wrap", "activation_dtype": "int8"},
    "saturates": {"accumulate": "int16_saturate"},
    "gemmlowp": {"requantize": "gemmlowp"},
    "shift": {"requantize": "shift", "functions": "integer", "arithmetic": "integer"},
    "all integers": {"softmax": "integer", "layer_norm": "integer", "functions": "integer"},
}
NETS = {
    "residual": (3, ("relu", "residual", "avg_pool", "conv"), "classifier"),
    "branches": (5, ("gate", "pad", "branches"), "classifier"),
    "attention": (7, ("norm",), "attention"),
}
WHOLE = [
    (net, scheme)
    for net in NETS
    for scheme in SCHEMES
    # Of the default run: zero points behind borders of padding, and in products of attention.
    if not (net == "branches" and scheme in ("default", "asymmetric weights", "16 bits"))
]
SAMPLE = [(n, s) for n in NETS for s in SCHEMES if (n, s) not in WHOLE]


@cache
def network(name: str) -> IRModule:
    seed, steps, end = NETS[name]
    grown = Net(seed, symbolic=False)
    for kind in ("conv", *steps):
        grown.step(kind)
    return grown.finish(end)


@cache
def quantized(name: str, scheme: str) -> tuple[IRModule, Array]:
    """The integer graph, and what it gives."""
    q = quantize.quantize(network(name), [images_of(1)], QConfig(**SCHEMES[scheme]))
    return q, compiler.evaluate(q, images_of(9))


class _Names(PassInstrument):
    def __init__(self) -> None:
        self.seen: dict[str, None] = {}

    def before(self, mod: IRModule, pass_: Pass) -> None:
        self.seen[pass_.name] = None


@cache
def left_out() -> list[str]:
    """Names of the passes of a build; but those that others require, and groups of passes."""
    names = _Names()
    with PassContext(opt_level=4, instruments=[names]):
        compiler.build(quantized("residual", "default")[0])
    groups = {"", "prepare", "layouts", "InferType"}
    return [n for n in names.seen if n not in groups]


def check(name: str, scheme: str, contexts: list[dict[str, Any]]) -> None:
    """Compiled in every context, the bits are those of the interpreter."""
    q, want = quantized(name, scheme)
    for context in contexts:
        with PassContext(**context):
            got = compiler.build(q)(images_of(9))
        np.testing.assert_array_equal(got, want, err_msg=str(context))


def test_the_passes_are_those_of_a_build() -> None:
    assert {"FoldZeroPoint", "AlterOpLayout", "FoldConstant", "FuseOps", "SplitExact"} <= set(
        left_out()
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "scheme"), SAMPLE)
def test_levels_and_zero_points_that_are_not_folded(name: str, scheme: str) -> None:
    without = [{"disabled_pass": ["FoldZeroPoint"]}, {"disabled_pass": ["AlterOpLayout"]}]
    check(name, scheme, [{"opt_level": 0}, {"opt_level": 1}, *without])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scheme"), [*SAMPLE, *WHOLE])
def test_every_level_and_every_pass(name: str, scheme: str) -> None:
    contexts = [{"opt_level": level} for level in range(5)]
    check(name, scheme, [*contexts, *({"disabled_pass": [p]} for p in left_out())])
