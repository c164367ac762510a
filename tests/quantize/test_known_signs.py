"""The harness on networks made so that the better setting is known beforehand: each comparison by
the paired interval of the divergence from float32, example by example."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from experiments.measure.statistics import ratio_of_sums
from quantize import QConfig

sys.path.insert(0, str(Path(__file__).parent))

from small_decoder import decoder, texts


def divergence(mod: IRModule, fit: Array, x: Array, fields: dict[str, Any]) -> Array:
    """For every example: the sum over its tokens of KL(float32 | quantized)."""
    config = QConfig(**{"bias_correction": "none", "smoothing": 0.0, **fields})
    qmod = quantize.realize(mod, quantize.calibrate(mod, [fit], config))
    p, q = (logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)) for logits in
            (compiler.build(m)(x).astype(np.float64) for m in (mod, qmod)))  # fmt: skip
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1).reshape(len(x), -1).sum(axis=1))


def interval(better: Array, worse: Array, tokens: int) -> tuple[float, float, float]:
    """The difference of mean divergences of a token, and its paired 95 % interval."""
    return ratio_of_sums(better - worse, np.full(len(better), float(tokens)))


def check(mod: IRModule, fit: Array, x: Array, fields: tuple[dict[str, Any], ...]) -> None:
    """The first setting diverges less than the second, which the interval tells; with themselves,
    neither does."""
    first, second = (divergence(mod, fit, x, f) for f in fields)
    difference, low, high = interval(first, second, 12)
    assert low <= difference <= high < 0, (first.mean(), second.mean())
    assert interval(first, first, 12) == (0.0, 0.0, 0.0)


@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "helps"), [("int4", True), ("nvint4", True), ("nvfp4", False)])
def test_rotation_helps_integers_and_hurts_nvfp4_where_channels_are_outliers(
    dtype: str, helps: bool
) -> None:
    """Equal steps lose the small channels beside large ones. NVFP4 has finer steps near 0, so that
    it keeps them, and its steps at the largest numbers are coarser than those of integers: where
    all channels are alike, more numbers lie there."""
    mod = decoder(outlier=12.0)
    fields = {"weight_dtype": dtype, "activation_dtype": dtype}
    both = ({**fields, "rotate": True}, fields)
    check(mod, texts(20, 0), texts(60, 1), both if helps else both[::-1])


def test_scales_of_tokens_beat_static_ones_where_tokens_are_outliers() -> None:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    weight = rng.normal(0, 0.4, (10, 32)).astype(np.float32)
    b.call("nn.dense", b.param("x", (Var("n"), 12, 32)), b.const(weight), name="scores")
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})

    def data(count: int) -> Array:
        sizes = np.where(rng.uniform(size=(count, 12, 1)) < 0.1, 60.0, 1.0)
        return (sizes * rng.normal(size=(count, 12, 32))).astype(np.float32)

    static = {"weight_dtype": "int8", "activation_dtype": "int8", "weight_granularity": "group",
              "weight_group_size": 32}  # fmt: skip
    check(mod, data(60), data(60), ({**static, "activation_granularity": "token"}, static))


@pytest.mark.parametrize(
    "fields", [{"weight_bits": 4}, {"weight_dtype": "nvfp4"}, {"weight_dtype": "mxfp4_e2m1"}],
    ids=str,
)  # fmt: skip
def test_gptq_beats_nearest_where_inputs_are_correlated(fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    weight = rng.normal(0, 0.2, (10, 64)).astype(np.float32)
    mix = rng.normal(size=(64, 64)) * 0.9 ** np.arange(64)
    b = FunctionBuilder()
    b.call("nn.dense", b.param("x", (Var("n"), 12, 64)), b.const(weight), name="scores")
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})
    fit, x = ((rng.normal(size=(n, 12, 64)) @ mix.T / 3).astype(np.float32) for n in (60, 60))
    plain = {"activation_dtype": "float32", **fields}
    check(mod, fit, x, ({**plain, "weight_rounding": "gptq"}, plain))
