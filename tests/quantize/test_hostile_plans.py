"""Plans from elsewhere: whatever is changed in one, it works or is refused with a sentence."""

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import small_decoder
from plan_mutations import mutated
from quantize_nets import net

import quantize
from compiler.errors import ConfigError, DtypelabError
from compiler.ir.expr import IRModule
from quantize import Plan, QConfig
from quantize.onnx.export import to_model
from quantize.plan.diff import plan_diff

SCHEMES: tuple[dict[str, object], ...] = (
    {},
    {"weight_dtype": "float8_e4m3fn", "activation_dtype": "float8_e4m3fn"},
    {"activation_dtype": "float32", "weight_granularity": "group", "weight_bits": 4,
     "weight_rounding": "gptq"},
    {"weight_range": "asymmetric", "smoothing": 0.5, "accumulate": "int16_saturate"},
    {"weight_dtype": "int4", "activation_granularity": "token", "weight_granularity": "group",
     "weight_group_size": 48, "scale_dtype": "float8_e4m3fn"},
    {"weight_dtype": "nvfp4", "activation_dtype": "uint8", "weight_rounding": "gptq",
     "format_bias_correction": "analytic"},
    {"activation_dtype": "float32", "weight_range": "asymmetric", "weight_rounding": "hqq"},
)  # fmt: skip
SITES: tuple[dict[str, object], ...] = (
    {"weight_dtype": "int4", "rotate": True, "rotate_heads": True, "key_dtype": "int4",
     "key_granularity": "channel", "value_dtype": "uint4", "value_granularity": "token",
     "probability_dtype": "uint8", "embedding_dtype": "int8", "logit_dtype": "int8"},
    {"weight_dtype": "mxfp4_e2m1", "activation_granularity": "token", "key_dtype": "mxfp4_e2m1",
     "value_dtype": "int8", "value_granularity": "head", "softmax_dtype": "bfloat16",
     "norm_dtype": "bfloat16", "weight_rounding": "gptq"},
)  # fmt: skip


@cache
def plan_of(name: str, scheme: int) -> Plan:
    """The plan of a network in one of the schemes."""
    x = np.random.default_rng(0).normal(size=(4, 1, 28, 28)).astype(np.float32)
    config: Any = {"bias_correction": "analytic", **SCHEMES[scheme]}
    return quantize.calibrate(net(name), [x], QConfig(**config))


def meet(module: IRModule, plan: Plan, rng: random.Random) -> str:
    """How far a mutation gets; what is not refused is used in every way."""
    text = mutated(plan.to_dict(), rng)
    stage = "read"
    try:
        # What does not begin with a brace is the name of a file.
        changed = Plan.from_json(text if text.lstrip().startswith("{") else "{" + text)
        stage = "apply"
        changed.summary()
        plan_diff(plan, changed)
        assert Plan.from_json(changed.to_json()) == changed
        quantize.realize(module, changed)
        if not changed.formats:
            to_model(module, changed)
    except DtypelabError:
        return stage
    return "used"


def some(name: str, count: int, seed: int, schemes: int = len(SCHEMES)) -> set[str]:
    rng = random.Random(seed)
    return {meet(net(name), plan_of(name, k % schemes), rng) for k in range(count)}


def test_a_few_mutations() -> None:
    assert some("mlp", 40, 0, schemes=2) == {"read", "apply", "used"}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "seed"), [("mlp", 1), ("mlp", 2), ("resnet8", 3)])
def test_many_mutations(name: str, seed: int) -> None:
    some(name, 150 if name == "resnet8" else 600, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("sites", SITES)
def test_many_mutations_of_plans_with_sites(sites: Any) -> None:
    module, rng = small_decoder.decoder(layers=1), random.Random(4)
    plan = quantize.calibrate(module, [small_decoder.texts(3, 0)], QConfig(**sites))
    assert {meet(module, plan, rng) for _ in range(100)} == {"read", "apply", "used"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_mutations(seed: int) -> None:
    some("mlp", 1000, 100 + seed)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("nodes", "linear", "macs"), "many", "node 'linear': macs must be an integer"),
        (("nodes", "linear", "origins"), "ab", "node 'linear': origins must be a list of texts"),
        (("nodes", "linear", "op"), 3, "node 'linear': op must be text"),
        (("nodes", "linear", "accumulate"), [], "node 'linear': accumulate must be"),
        (("values", "input", "scale"), float("nan"), "value 'input': a scale must be"),
        (("values", "input", "bits"), True, "value 'input': bits must be an integer"),
        (("weights", "linear", "shift"), [1e300], "weights of 'linear': shift must be a list"),
        (("config", "weight_dtype"), 8, "weight_dtype must be the name of a format"),
        (("config", "skip"), None, "skip must be names or patterns"),
        (("prepare_version",), "2", "the plan's prepare_version must be an integer"),
        (("model",), None, "the plan's model must be text"),
        (("steps",), "abc", "the plan's steps must be a list of texts"),
    ],
)
def test_the_entry_is_named(where: tuple[str, ...], value: object, message: str) -> None:
    data = plan_of("mlp", 0).to_dict()
    held = data
    for key in where[:-1]:
        if key not in held:
            key = next(iter(held))
            message = message.replace(f"'{where[1]}'", f"'{key}'")
        held = held[key]
    held[where[-1]] = value
    with pytest.raises(ConfigError) as error:
        Plan.from_dict(data)
    assert str(error.value).startswith(message)


def test_a_key_that_is_there_twice_and_a_file_that_is_too_deep() -> None:
    text = plan_of("mlp", 0).to_json()
    with pytest.raises(ConfigError, match="the plan has the key 'version' twice"):
        Plan.from_json(text.replace('"version": 2', '"version": 2, "version": 2'))
    for depth in (60, 100_000):
        with pytest.raises(ConfigError, match="nested too deep"):
            Plan.from_json(text.replace('"version": 2', f'"version": {"[" * depth}{"]" * depth}'))
