"""The shipped language model in the number systems of its sweep: a text read whole, and step by
step, gives the same bits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import compiler
import quantize
from compiler.errors import LoweringError
from compiler.ir.expr import IRModule
from experiments import zoo
from experiments.spec.specification import load_spec
from experiments.systems import number_systems, pipeline
from experiments.systems.schemes import Scheme, thaw

CHOICES = ("weight_rounding", "activation_aware", "seed")
"""Fields that choose the numbers of weights, and nothing else of a network."""
IDS = np.random.default_rng(5).integers(0, 1024, (1, 14))
PARTS = (5, 1, 1, 4, 1, 1, 1)
TOO_WIDE = ("bfloat16", "exact")
"""Exact sums of an open number of its products are refused."""


def systems() -> dict[str, Scheme]:
    """Label -> those of `language.toml` that are different in more than their weights; formats that
    keep a share of what is masked are read id by id (see `number_systems.masks`)."""
    found: dict[Any, tuple[str, Scheme]] = {}
    for s in (cell.scheme for cell in load_spec("language").cells):
        if s.kind == "format" and not number_systems.masks(s.dtype):
            continue
        fields = tuple((k, v) for k, v in s.options if k not in CHOICES)
        found.setdefault((s.kind, s.dtype, fields), (s.label, s))
    return dict(found.values())


@cache
def model() -> IRModule:
    return compiler.from_onnx(zoo.FOLDER / "stdlib_lm.onnx")


def in_system(scheme: Scheme) -> IRModule:
    """The model in a system; weights to nearest."""
    if scheme.kind in ("float32", "format"):
        return pipeline.retype(model(), scheme)
    fields = {k: thaw(v) for k, v in scheme.options if k not in CHOICES}
    rng = np.random.default_rng(6)
    pasts = {p.name: np.zeros((2, 2, 0, 32), np.float32) for p in model().main.params[1:]}
    batch = {"input_ids": rng.integers(0, 1024, (2, 16)), **pasts}
    plan = quantize.calibrate(model(), [batch], number_systems.qconfig(fields))
    return quantize.realize(model(), plan)


def check(scheme: Scheme) -> None:
    decoder = compiler.decoder(in_system(scheme))
    whole, session, at = decoder.session(14)(IDS), decoder.session(14), 0
    assert np.isfinite(whole).all()
    for size in PARTS:
        found = session(IDS[:, at : at + size])
        np.testing.assert_array_equal(found, whole[:, at : at + size])
        at += size
    assert at == 14


@pytest.mark.slow
def test_every_system_gives_the_same_bits_whole_and_in_steps() -> None:
    """One test, since what there is to try takes a while to find."""
    found = systems()
    assert len(found) >= 100
    for label, scheme in found.items():
        if (scheme.dtype, scheme.option("accumulate")) == TOO_WIDE:
            with pytest.raises(LoweringError, match="more than 256 products of parts"):
                check(scheme)
            continue
        try:
            check(scheme)
        except AssertionError as error:
            raise AssertionError(label) from error


@pytest.mark.thorough
def test_exact_sums_over_an_open_past_do() -> None:
    named = {(s.dtype, s.option("accumulate")): s for s in systems().values()}
    check(named["float8_e5m2_sat", "exact"])


@pytest.mark.thorough
def test_integers_and_tokens_do() -> None:
    named = systems()
    check(named["int8[activation_dtype=int8]"])
    check(named["int8[activation_dtype=int8,activation_granularity=token]"])
