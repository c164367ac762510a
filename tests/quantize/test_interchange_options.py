"""Every option of onnxruntime's quantization tool: its QDQ models have the same integers here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantize_nets import images

import compiler
from compiler.transform.analysis import cost

pytest.importorskip("onnxruntime")

from ort_models import activations, agreement, native_values, quantized, run, whole

OPTIONS: dict[str, dict[str, Any]] = {
    "tensor": {"channels": False},
    "channel": {},
    "reduced_range": {"reduce_range": True},
    "symmetric_activations": {"dtype": "int8", "ActivationSymmetric": True},
    "symmetric_uint8": {"ActivationSymmetric": True},
    "asymmetric_weights": {"channels": False, "WeightSymmetric": False},
    "u8u8": {"channels": False, "weights": "uint8"},
    "u8u8_channel": {"weights": "uint8"},
    "s8s8": {"dtype": "int8"},
    "float_bias": {"QuantizeBias": False},
    "pairs_at_weights": {"AddQDQPairToWeight": True},
    "dedicated_pairs": {"DedicatedQDQPair": True},
    "all_activations": {"QDQKeepRemovableActivations": True},
    "own_domain": {"UseQDQContribOps": True},
    "float_results": {"OpTypesToExcludeOutputQuantization": ["Conv", "Gemm"]},
    "int4_weights": {"channels": False, "weights": "int4"},
    "int4_weights_channel": {"weights": "int4"},
    "uint4_weights": {"channels": False, "weights": "uint4"},
}
WIDE: dict[str, dict[str, Any]] = {
    "uint16": {"dtype": "uint16"},
    "int16": {"dtype": "int16", "ActivationSymmetric": True},
    "uint16_own_domain": {"dtype": "uint16", "UseQDQContribOps": True},
    "int16_weights_too": {"dtype": "int16", "weights": "int16", "channels": False},
}
SAMPLE = {("resnet8", "pairs_at_weights"), ("dwsep", "int4_weights_channel")}


def made(name: str, given: dict[str, Any], folder: Path) -> Path:
    defaults = {"channels": True, "dtype": "uint8"}
    return quantized(name, "qdq", folder=folder, **(defaults | given))


def cases(options: dict[str, dict[str, Any]]) -> list[Any]:
    """All options of the dense network; those of the convolutional ones are slow, but a few."""
    return [
        pytest.param(
            n, o, marks=[] if n == "mlp" or (n, o) in SAMPLE else [pytest.mark.slow], id=f"{n}-{o}"
        )
        for n in ("mlp", "resnet8", "dwsep")
        for o in options
    ]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "option"), cases(OPTIONS))
def test_every_option_of_the_tool_gives_the_same_integers(
    name: str, option: str, tmp_path: Path
) -> None:
    """All multiply-accumulates in integers, at least 99 % of the elements equal, and the same
    classes to 0.2 points. Weights of 4 bits are held in 8, and a float bias is rounded to int32, as
    onnxruntime's optimizer does."""
    path = made(name, OPTIONS[option], tmp_path)
    mod, (_, x, labels) = compiler.from_onnx(path), images()
    assert cost(mod).integer_share == 1
    theirs = activations(path, x[:100])
    shares = agreement(native_values(mod, x[:100]), theirs)
    print(len(shares), len(theirs), sorted(shares.items(), key=lambda i: i[1])[:4])
    assert len(shares) >= 0.6 * len(theirs)
    assert whole(shares, theirs) >= 0.99
    (logits,) = run(path, x).values()
    right = [100 * float((y.argmax(1) == labels).mean()) for y in (compiler.build(mod)(x), logits)]
    assert abs(right[0] - right[1]) <= 0.2, right


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "option"), cases(WIDE))
def test_activations_of_16_bits_are_products_of_floats_a_step_apart(
    name: str, option: str, tmp_path: Path
) -> None:
    """They are not realized to integer kernels: the float operators of the file run."""
    path = made(name, WIDE[option], tmp_path)
    mod, x = compiler.from_onnx(path), images()[1][:100]
    assert cost(mod).integer_share == 0
    theirs, ours = activations(path, x), native_values(mod, x)
    shares = agreement(ours, theirs)
    print(len(shares), len(theirs), sorted(shares.items(), key=lambda i: i[1])[:4])
    assert len(shares) >= 0.6 * len(theirs)
    assert whole(shares, theirs) >= 0.9
    (want,) = run(path, x).values()
    np.testing.assert_allclose(compiler.build(mod)(x), want, atol=1e-3)
