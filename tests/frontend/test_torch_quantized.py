"""Quantization that torch wrote becomes integers, torch's own where its arithmetic is exact.
Skipped where torch is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler

torch = pytest.importorskip("torch")
nn: Any = torch.nn

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Converted(nn.Module):
    """A convolution between quantize_per_tensor and its like, as torch's conversion writes it; all
    scales are powers of two."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        weight = torch.randint(-127, 128, (6, 4, 3, 3), dtype=torch.int8, generator=g)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", 2.0 ** torch.randint(-9, -6, (6,), generator=g).float())
        self.register_buffer("zeros", torch.zeros(6, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        q, whole = torch.ops.quantized_decomposed, (-128, 127, torch.int8)
        x = q.dequantize_per_tensor(q.quantize_per_tensor(x, 2**-5, 3, *whole), 2**-5, 3, *whole)
        w = q.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, *whole)
        y = nn.functional.conv2d(x, w, padding=1).relu()
        y = q.quantize_per_tensor(y, 2**-3, -128, *whole)
        return q.dequantize_per_tensor(y, 2**-3, -128, *whole)


def test_a_converted_module_is_computed_on_integers_bit_for_bit() -> None:
    pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines these operators
    module, x = Converted(), torch.randn(2, 4, 8, 8)
    mod = compiler.from_torch(module, (x,))
    text = str(mod)
    assert 'out_dtype="int32"' in text
    assert text.count("qnn.requantize(") == 1
    with torch.no_grad():
        want = module(x).numpy()
    np.testing.assert_array_equal(compiler.build(mod)(x.numpy()), want)


class Trained(nn.Module):
    """A layer between modules of torch.ao that simulate quantization."""

    def __init__(self) -> None:
        super().__init__()
        ao = pytest.importorskip("torch.ao.quantization")
        self.layer = nn.Linear(4, 5, bias=False)
        self.data = ao.FakeQuantize(quant_min=-128, quant_max=127, dtype=torch.qint8)
        self.weights = ao.FakeQuantize(
            observer=ao.MovingAveragePerChannelMinMaxObserver, quant_min=-127, quant_max=127,
            dtype=torch.qint8, qscheme=torch.per_channel_symmetric, ch_axis=0,
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(self.data(x), self.weights(self.layer.weight))


def trained() -> Any:
    torch.manual_seed(0)
    module = Trained()
    module(torch.randn(10, 4))
    return module.eval()


def test_fake_quantization_of_torch_becomes_integers() -> None:
    module, x = trained(), torch.randn(3, 4)
    module.apply(torch.ao.quantization.disable_observer)
    mod = compiler.from_torch(module, (x,))
    assert "nn.dense(%data_quantize" in str(mod)
    assert 'out_dtype="int32"' in str(mod)
    with torch.no_grad():
        want = module(x).numpy()
    np.testing.assert_allclose(compiler.build(mod)(x.numpy()), want, rtol=1e-5, atol=1e-6)
    module.apply(torch.ao.quantization.disable_fake_quant)
    with torch.no_grad():
        want = module(x).numpy()
    got = compiler.build(compiler.from_torch(module, (x,)))(x.numpy())
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_fake_quantization_that_observes_is_refused() -> None:
    with pytest.raises(compiler.UnsupportedError, match=r"'data' observes.*disable_observer"):
        compiler.from_torch(trained(), (torch.randn(3, 4),))


def test_integers_of_more_than_8_bits_are_refused() -> None:
    class Wide(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -2048, 2047)

    with pytest.raises(compiler.UnsupportedError, match="within 8 bits"):
        compiler.from_torch(Wide(), (torch.randn(3),))
