"""Caches of the integers that readers make of keys and values: the same bits, a quarter of the
memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoders import VOCABULARY, WIDTH, past_names, tiny

import compiler
import datatypes
import quantize
from compiler.decoding.rounded import rounded_first
from compiler.ir.expr import Call, IRModule
from compiler.transform.preparation import prepare

IDS = np.random.default_rng(0).integers(0, VOCABULARY, (2, 10))
PARTS = ((0, 4), (4, 5), (5, 6), (6, 9), (9, 10))
SITES: dict[str, Any] = {
    "activation_dtype": "int8", "activation_granularity": "token", "key_dtype": "int8",
    "value_dtype": "int8", "probability_dtype": "int8", "smoothing": 0.0, "bias_correction": "none",
}  # fmt: skip


def batch(kv_heads: int, past: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    caches = {
        n: rng.standard_normal((2, kv_heads, past, WIDTH)).astype(np.float32)
        for n in past_names(1)
    }  # fmt: skip
    return {"input_ids": rng.integers(0, VOCABULARY, (2, 6)), **caches}


@cache
def plan_of(heads: int, kv_heads: int, config: quantize.QConfig) -> IRModule:
    mod = tiny(1, heads, kv_heads)
    return quantize.realize(mod, quantize.calibrate(mod, [batch(kv_heads)], config))


def check(mod: IRModule, kv_heads: int, held: tuple[str, str]) -> None:
    """Steps in place give what the module gives that is built as it is, and whole."""
    decoder = compiler.decoder(mod)
    assert tuple(str(c.held) for c in decoder.caches) == held
    session, plain = decoder.session(10, batch=2), compiler.build(mod)
    past = {n: np.zeros((2, kv_heads, 0, WIDTH), np.float32) for n in past_names(1)}
    whole, *_ = plain(input_ids=IDS, **past)
    for low, high in PARTS:
        found = session(IDS[:, low:high])
        want, *presents = plain(input_ids=IDS[:, low:high], **past)
        np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(found, whole[:, low:high])
        past = dict(zip(past_names(1), presents, strict=True))


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        pytest.param({}, ("int8", "int8"), marks=pytest.mark.thorough),
        pytest.param(
            {"key_granularity": "head", "value_granularity": "channel", "value_dtype": "int4"},
            ("int8", "int8"), marks=pytest.mark.thorough,
        ),
        # Scales that are found when the program runs, and numbers of formats, stay float32.
        pytest.param(
            {"key_granularity": "token", "value_dtype": "float8_e4m3fn"}, ("float32", "float32"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"key_dtype": "mxint8", "value_granularity": "head"}, ("float32", "int8"),
            marks=pytest.mark.thorough,
        ),
    ],
)  # fmt: skip
def test_static_scales_of_keys_and_values_are_held_as_integers(
    fields: dict[str, Any], held: tuple[str, str]
) -> None:
    check(plan_of(4, 2, quantize.QConfig(**(SITES | fields))), 2, held)


@pytest.mark.thorough
def test_networks_in_integers_hold_integers() -> None:
    mod = plan_of(4, 2, quantize.QConfig())
    check(mod, 2, ("uint8", "uint8"))
    float32 = compiler.decoder(tiny(1, 4, 2)).session(10)._memory
    integers = compiler.decoder(mod).session(10)._memory
    assert all(4 * integers[n].nbytes == a.nbytes for n, a in float32.items())


@pytest.mark.thorough
@settings(max_examples=4)
@given(
    st.sampled_from(("int8", "int4")), st.sampled_from(("tensor", "head", "channel")),
    st.sampled_from(("int8", "int5")), st.sampled_from(("tensor", "head", "channel")),
    st.sampled_from(((2, 2), (4, 2), (4, 1))),
)  # fmt: skip
def test_all_granularities_and_groups_of_heads(
    key: str, by_key: str, value: str, by_value: str, heads: tuple[int, int]
) -> None:
    given = {
        "key_dtype": key, "key_granularity": by_key, "value_dtype": value,
        "value_granularity": by_value,
    }  # fmt: skip
    # Keys with scales for the channels, which products are summed along, are decoded to float32.
    held = ("float32" if by_key == "channel" else "int8", "int8")
    check(plan_of(*heads, quantize.QConfig(**(SITES | given))), heads[1], held)


def test_rounding_in_front_of_repetition_changes_no_bit() -> None:
    mod = prepare(plan_of(4, 2, quantize.QConfig(**(SITES | {"key_granularity": "head"}))))
    first = rounded_first(mod)
    joined = {
        b.var for b in first.main.bindings if str(getattr(b.value, "op", "")) == "concatenate"
    }
    rounded = [
        b for b in first.main.bindings
        if isinstance(b.value, Call) and str(b.value.op) == "qnn.quantize"
        and b.value.args[0] in joined
    ]  # fmt: skip
    assert len(rounded) == 2
    for found, want in zip(
        compiler.evaluate(first, **batch(2)), compiler.evaluate(mod, **batch(2)), strict=True
    ):
        np.testing.assert_array_equal(found, want)


def test_a_module_without_roundings_stays_as_it_is() -> None:
    mod = prepare(tiny(1, 4, 2))
    assert rounded_first(mod) is mod


def test_numbers_that_are_rounded_at_random_are_rounded_where_they_were() -> None:
    fmt = datatypes.define("fp8_kept", like="float8_e4m3fn", rounding="stochastic")
    for name, moved in (("float8_e4m3fn", True), (fmt.name, False)):
        config = quantize.QConfig(**(SITES | {"key_dtype": name, "value_dtype": name}))
        mod = prepare(plan_of(4, 2, config))
        assert (rounded_first(mod) is not mod) is moved
