"""Functions and layers of torch, with inputs that they take: what operators are tested with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (its usual name)

Case = tuple[Callable[..., Any], Sequence[torch.Tensor]]


class Wrapped(nn.Module):
    """A function as a module."""

    def __init__(self, f: Callable[..., Any]):
        super().__init__()
        self.f = f

    def forward(self, *xs: torch.Tensor) -> Any:
        return self.f(*xs)


def floats(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.rand(shape, generator=g) * (high - low) + low


def integers(*shape: int, low: int = -5, high: int = 6, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=g)


def flags(*shape: int, seed: int = 0) -> torch.Tensor:
    return floats(*shape, seed=seed) > 0


X, Y, POSITIVE = floats(2, 3, 4), floats(2, 3, 4, seed=1), floats(2, 3, 4, low=0.1)
IMAGE = floats(2, 4, 9, 8)
WHOLE, OTHER = integers(2, 3, 4), integers(2, 3, 4, low=1, seed=1)
AT = integers(5, low=-3, high=3)


def with_value(x: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """A copy of x, changed in place."""
    y = x.clone()
    change(y)
    return y


UNARY = (
    "abs", "neg", "exp", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "floor", "ceil", "round",
    "trunc", "sign", "relu", "atan", "sinh", "cosh", "asinh", "log1p", "expm1", "exp2", "frac",
    "isnan", "isinf", "logical_not", "square",
)  # fmt: skip
OF_POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")
BINARY = (
    "add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge",
    "remainder", "fmod", "atan2", "logical_and",
)  # fmt: skip
ACTIVATIONS = (
    "relu6", "silu", "gelu", "hardswish", "hardsigmoid", "hardtanh", "elu", "selu", "celu",
    "leaky_relu", "softplus", "mish", "logsigmoid", "softsign", "tanhshrink", "hardshrink",
    "softshrink",
)  # fmt: skip

CASES: dict[str, Case] = {
    **{name: (getattr(torch, name), [X * 1.7]) for name in UNARY},
    **{name: (getattr(torch, name), [POSITIVE]) for name in OF_POSITIVE},
    **{name: (getattr(torch, name), [X, Y]) for name in BINARY if name != "logical_and"},
    **{
        f"{name}_integers": (getattr(torch, name), [WHOLE, OTHER])
        for name in BINARY
        if name != "atan2"
    },
    **{name: (getattr(F, name), [X * 3]) for name in ACTIVATIONS},
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=2.5), [X, Y]),
    "rsub": (lambda x: 2 - x, [X]),
    "integer_plus_float": (lambda i: i + 1.5, [WHOLE]),
    "integer_over_integer": (lambda i, j: i / j, [WHOLE, OTHER]),
    "floor_divide": (lambda i, j: i // j, [WHOLE, OTHER]),
    "floor_divide_floats": (lambda x, y: torch.floor_divide(x * 9, y), [X, POSITIVE]),
    "div_trunc": (lambda x, y: torch.div(x * 9, y, rounding_mode="trunc"), [X, POSITIVE]),
    "div_trunc_integers": (lambda i, j: torch.div(i, j, rounding_mode="trunc"), [WHOLE, OTHER]),
    "compare_mixed": (lambda i, x: i < x, [WHOLE, X]),
    "pow_2": (lambda x: x**2, [X]),
    "pow_3": (lambda x: x**3, [X]),
    "pow_half": (lambda x: x**0.5, [POSITIVE]),
    "pow_minus_1": (lambda x: x**-1, [POSITIVE]),
    "pow_tensor": (torch.pow, [POSITIVE, X]),
    "pow_of_2": (lambda x: 2**x, [X]),
    "where": (torch.where, [flags(2, 3, 1), X, Y]),
    "where_number": (lambda c, x: torch.where(c, x, 0.5), [flags(2, 3, 4), X]),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), [X, flags(3, 4)]),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), [X]),
    "clamp_min": (lambda x: x.clamp(min=0.1), [X]),
    "clamp_integers": (lambda i: i.clamp(-1, 3), [WHOLE]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), [X, Y]),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5), [X, Y]),
    "bitwise": (lambda i, j: (i & j) | (i ^ 3), [WHOLE, OTHER]),
    "bitwise_not": (lambda i: ~i + (~(i > 1)).to(i.dtype), [WHOLE]),
    "shift": (lambda j: (j << 2) >> 1, [OTHER]),
    "to_float": (lambda i: i.float() * 0.5, [WHOLE]),
    "to_int": (lambda x: (x * 3).to(torch.int32), [X]),
    "to_bool": (lambda i: i.bool(), [WHOLE]),
    "prelu": (nn.PReLU(4), [IMAGE]),
    "glu": (F.glu, [X]),
    "threshold": (lambda x: F.threshold(x, 0.2, -3.0), [X]),
    "in_place": (lambda x: x.mul(2).add_(1).relu_(), [X]),
    "item_assignment": (
        lambda x: with_value(x, lambda y: y.__setitem__((0, slice(1, 3)), 5.0)),
        [X],
    ),
    "sum": (lambda x: x.sum(), [X]),
    "sum_dims": (lambda x: x.sum((0, 2)), [X]),
    "sum_integers": (lambda i: i.sum(1, keepdim=True), [WHOLE]),
    "sum_flags": (lambda c: c.sum(-1), [flags(3, 4)]),
    "mean": (lambda x: x.mean(-1, keepdim=True), [X]),
    "mean_all": (lambda x: x.mean(), [X]),
    "amax": (lambda x: x.amax((1, 2)), [X]),
    "amin": (lambda x: x.amin(0), [X]),
    "max_dim": (lambda x: torch.max(x, 1), [X]),
    "min_dim": (lambda x: torch.min(x, -1, keepdim=True), [X]),
    "max_all": (torch.max, [X]),
    "argmax": (lambda x: x.argmax(1), [X]),
    "argmax_all": (lambda x: x.argmax(), [X]),
    "argmin": (lambda x: x.argmin(-1, keepdim=True), [X]),
    "prod": (lambda x: x.prod(1), [X]),
    "any": (lambda c: c.any(), [flags(3, 4)]),
    "all_dim": (lambda c: c.all(1), [flags(3, 4)]),
    "var": (lambda x: x.var(-1), [X]),
    "var_biased": (lambda x: x.var(-1, unbiased=False, keepdim=True), [X]),
    "std": (lambda x: x.std((0, 1)), [X]),
    "var_mean": (lambda x: torch.var_mean(x, 1), [X]),
    "cumsum": (lambda x: x.cumsum(1), [X]),
    "cumprod": (lambda x: x.cumprod(-1), [X]),
    "logsumexp": (lambda x: x.logsumexp(1), [X]),
    "norm": (lambda x: x.norm(dim=1), [X]),
    "norm_1": (lambda x: x.norm(p=1, dim=(1, 2)), [X]),
    "normalize": (lambda x: F.normalize(x, dim=-1), [X]),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, dim=1), [X, Y]),
    "topk": (lambda x: torch.topk(x, 2), [X]),
    "topk_smallest": (lambda x: torch.topk(x, 2, dim=1, largest=False), [X]),
    "sort": (lambda x: torch.sort(x, 1, descending=True), [X]),
    "argsort": (lambda x: torch.argsort(x, -1), [X]),
    "linear": (nn.Linear(4, 5), [X]),
    "linear_no_bias": (nn.Linear(4, 5, bias=False), [X]),
    "bilinear_by_hand": (lambda x, y: x @ y.transpose(1, 2), [X, Y]),
    "matmul_vector": (lambda x: x @ torch.arange(4.0), [X]),
    "mm": (torch.mm, [floats(3, 4), floats(4, 2)]),
    "bmm": (torch.bmm, [X, floats(2, 4, 5)]),
    "addmm": (
        lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2),
        [floats(3, 2), floats(3, 4), floats(4, 2)],
    ),
    "baddbmm": (
        lambda b, x, y: torch.baddbmm(b, x, y, alpha=0.5),
        [floats(2, 3, 5), X, floats(2, 4, 5)],
    ),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), [X, Y]),
    "conv1d": (nn.Conv1d(3, 6, 3, stride=2, padding=1), [floats(2, 3, 9)]),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 2), dilation=(1, 2)), [IMAGE]),
    "conv2d_groups": (nn.Conv2d(4, 8, 3, groups=4, bias=False), [IMAGE]),
    "conv2d_same": (nn.Conv2d(4, 6, 3, padding="same"), [IMAGE]),
    "conv3d": (nn.Conv3d(2, 3, 2), [floats(1, 2, 4, 5, 4)]),
    "conv_transpose1d": (nn.ConvTranspose1d(3, 4, 3, stride=2), [floats(2, 3, 7)]),
    "conv_transpose2d": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        [IMAGE],
    ),
    "batch_norm": (nn.BatchNorm2d(4).eval(), [IMAGE]),
    "batch_norm_plain": (nn.BatchNorm1d(3, affine=False).eval(), [X]),
    "layer_norm": (nn.LayerNorm(4), [X]),
    "layer_norm_plain": (nn.LayerNorm((3, 4), elementwise_affine=False), [X]),
    "group_norm": (nn.GroupNorm(2, 4), [IMAGE]),
    "instance_norm": (nn.InstanceNorm2d(4, affine=True), [IMAGE]),
    "rms_norm": (nn.RMSNorm(4), [X]),
    "local_response_norm": (nn.LocalResponseNorm(3), [IMAGE]),
    "softmax": (lambda x: x.softmax(1), [X]),
    "log_softmax": (lambda x: x.log_softmax(-1), [X]),
    "dropout": (nn.Dropout().eval(), [X]),
    "embedding": (nn.Embedding(7, 5), [integers(2, 3, low=0, high=7)]),
    "embedding_padding": (nn.Embedding(7, 5, padding_idx=2), [integers(2, 3, low=0, high=7)]),
    "attention": (
        F.scaled_dot_product_attention,
        [floats(2, 3, 5, 4), floats(2, 3, 6, 4), floats(2, 3, 6, 4, seed=2)],
    ),
    "attention_causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        [floats(2, 3, 5, 4, seed=k) for k in range(3)],
    ),
    "attention_masked": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        [*(floats(2, 3, 5, 4, seed=k) for k in range(3)), flags(2, 1, 5, 5)],
    ),
    "attention_biased": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        [*(floats(2, 5, 4, seed=k) for k in range(3)), floats(5, 5)],
    ),
    "attention_grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [floats(2, 4, 5, 4), floats(2, 2, 5, 4), floats(2, 2, 5, 4, seed=3)],
    ),
    "multihead_attention": (nn.MultiheadAttention(4, 2, batch_first=True).eval(), [X, X, X]),
    "transformer_layer": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), [X]),
    "max_pool1d": (nn.MaxPool1d(2), [X]),
    "max_pool2d": (nn.MaxPool2d(3, 2, 1), [IMAGE]),
    "max_pool2d_ceil": (nn.MaxPool2d(2, 2, ceil_mode=True), [IMAGE]),
    "max_pool2d_positions": (lambda x: F.max_pool2d(x, 2, return_indices=True), [IMAGE]),
    "max_pool3d": (nn.MaxPool3d(2), [floats(1, 2, 4, 5, 4)]),
    "avg_pool1d": (nn.AvgPool1d(2), [X]),
    "avg_pool2d": (nn.AvgPool2d(3, 2, 1), [IMAGE]),
    "avg_pool2d_inside": (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), [IMAGE]),
    "adaptive_avg_pool2d_1": (nn.AdaptiveAvgPool2d(1), [IMAGE]),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d((3, 5)), [IMAGE]),
    "adaptive_avg_pool1d": (nn.AdaptiveAvgPool1d(2), [X]),
    "adaptive_max_pool2d": (nn.AdaptiveMaxPool2d((4, 3)), [IMAGE]),
    "pad_constant": (lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), [X]),
    "pad_reflect": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), [IMAGE]),
    "pad_replicate": (lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), [IMAGE]),
    "pad_circular": (lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), [IMAGE]),
    "pad_negative": (lambda x: F.pad(x, (-1, -1)), [IMAGE]),
    "upsample_nearest": (lambda x: F.interpolate(x, scale_factor=2), [IMAGE]),
    "upsample_nearest_size": (lambda x: F.interpolate(x, size=(5, 13)), [IMAGE]),
    "upsample_bilinear": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), [IMAGE]),
    "upsample_bilinear_size": (
        lambda x: F.interpolate(x, size=(13, 17), mode="bilinear", align_corners=True),
        [IMAGE],
    ),
    "upsample_bicubic": (lambda x: F.interpolate(x, size=(13, 17), mode="bicubic"), [IMAGE]),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        [IMAGE, floats(2, 3, 5, 2, low=-1.2, high=1.2)],
    ),
    "pixel_shuffle": (nn.PixelShuffle(2), [IMAGE]),
    "pixel_unshuffle": (nn.PixelUnshuffle(2), [floats(1, 2, 4, 6)]),
    "channel_shuffle": (nn.ChannelShuffle(2), [IMAGE]),
    "unfold_image": (nn.Unfold(3, padding=1), [IMAGE]),
    "view": (lambda x: x.view(6, -1), [X]),
    "reshape": (lambda x: x.transpose(1, 2).reshape(2, -1), [X]),
    "flatten": (lambda x: x.flatten(1), [X]),
    "permute": (lambda x: x.permute(2, 0, 1), [X]),
    "transpose": (lambda x: x.transpose(-1, 0), [X]),
    "t": (lambda x: x.t(), [floats(3, 4)]),
    "expand": (lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1), [X]),
    "squeeze": (lambda x: x.squeeze(1).unsqueeze(-1), [floats(2, 1, 3)]),
    "squeeze_all": (lambda x: x.squeeze(), [floats(2, 1, 3, 1)]),
    "cat": (lambda x, y: torch.cat([x, y, x], 1), [X, Y]),
    "cat_mixed": (lambda x, i: torch.cat([x, i], 1), [X, WHOLE]),
    "stack": (lambda x, y: torch.stack([x, y], -1), [X, Y]),
    "split": (lambda x: x.split(3, 2), [X]),
    "split_sizes": (lambda x: x.split([1, 3], 2)[1], [X]),
    "chunk": (lambda x: x.chunk(3, 1), [X]),
    "unbind": (lambda x: x.unbind(1), [X]),
    "slices": (lambda x: x[:, 1:, ::2], [X]),
    "slices_negative": (lambda x: x[..., -3:-1], [X]),
    "select": (lambda x: x[:, -1], [X]),
    "new_axis": (lambda x: x[:, None, 0], [X]),
    "narrow": (lambda x: x.narrow(2, 1, 2), [X]),
    "flip": (lambda x: x.flip(0, 2), [X]),
    "roll": (lambda x: x.roll((1, -2), (1, 2)), [X]),
    "roll_flat": (lambda x: x.roll(5), [X]),
    "repeat": (lambda x: x.repeat(2, 1, 1, 2), [X]),
    "as_strided": (lambda x: torch.as_strided(x, (4, 3), (2, 1)), [floats(3, 5)]),
    "as_strided_same": (lambda x: torch.as_strided(x, (5, 3), (3, 1)), [floats(3, 5)]),
    "as_strided_channels_last": (
        lambda x: torch.as_strided(
            x.contiguous(memory_format=torch.channels_last), (2, 7, 2, 11), (154, 1, 77, 7)
        ),
        [floats(2, 11, 2, 7)],
    ),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), [X]),
    "unfold": (lambda x: x.unfold(2, 2, 1), [X]),
    "tril": (lambda x: x.tril(1), [X]),
    "triu": (lambda x: x.triu(-1), [X]),
    "diagonal": (lambda x: x.diagonal(dim1=1, dim2=2), [X]),
    "meshgrid": (lambda a, b: torch.meshgrid(a, b, indexing="ij"), [floats(3), floats(4)]),
    "index_select": (lambda x, i: x.index_select(1, i), [X, integers(5, low=0, high=3)]),
    "gather": (lambda x, i: x.gather(2, i), [X, integers(2, 3, 6, low=0, high=4)]),
    "gather_part": (lambda x, i: x.gather(2, i), [X, integers(1, 2, 6, low=0, high=4)]),
    "index_1": (lambda x, i: x[:, i], [X, AT]),
    "index_2": (lambda x, i, j: x[i, j], [X, integers(5, low=-2, high=2), AT]),
    "index_behind": (lambda x, i, j: x[:, i, j], [X, AT, integers(5, low=-4, high=4)]),
    "index_apart": (
        lambda x, i, j: x[i, :, j],
        [X, integers(5, low=-2, high=2), integers(5, low=-4, high=4)],
    ),
    "index_broadcast": (lambda x, i, j: x[i, j], [X, integers(2, 1, low=0, high=2), AT]),
    "index_flags": (lambda x, m: x[m], [X, flags(2, 3)]),
    "nonzero": (torch.nonzero, [flags(2, 3)]),
    "index_put": (
        lambda x, i: with_value(x, lambda y: y.__setitem__((i,), 1.0)),
        [X, torch.tensor([0, 1])],
    ),
    "index_put_mask": (
        lambda x, m: with_value(x, lambda y: y.__setitem__(m, 1.0)),
        [X, flags(2, 3, 4)],
    ),
    "index_put_add": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        [floats(4, 3), torch.tensor([1, 1, 2]), floats(3, 3)],
    ),
    "index_put_column": (
        lambda x, i: with_value(x, lambda y: y.__setitem__((slice(None), i), 2.0)),
        [X, torch.tensor([0, 2])],
    ),
    "scatter": (
        lambda x, i, s: x.scatter(1, i, s),
        [X, torch.tensor([2, 0]).reshape(1, 2, 1).expand(2, 2, 4), Y],
    ),
    "scatter_value": (lambda x, i: x.scatter(2, i, 9.0), [X, integers(2, 3, 1, low=0, high=4)]),
    "scatter_add": (
        lambda x, i, s: x.scatter_add(1, i, s),
        [X, integers(2, 3, 4, low=0, high=3), Y],
    ),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 1, -1), [X, floats(2, 4)]),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), [X, floats(2, 2, 4)]),
    "one_hot": (lambda i: F.one_hot(i, 5), [integers(3, low=0, high=5)]),
    "zeros_like": (lambda x: torch.zeros_like(x) + torch.ones(4), [X]),
    "full": (lambda x: x + torch.full((3, 1), 2.5), [X]),
    "arange": (lambda x: x + torch.arange(1, 9, 2), [X]),
    "linspace": (lambda x: x + torch.linspace(0, 1, 4), [X]),
    "eye": (lambda x: x @ torch.eye(4), [X]),
    "lstm": (nn.LSTM(4, 5, 2, batch_first=True), [X]),
    "lstm_both": (nn.LSTM(4, 5, bidirectional=True), [X]),
    "gru": (nn.GRU(4, 5, 2, bidirectional=True, batch_first=True), [X]),
    "rnn": (nn.RNN(4, 5, bias=False), [X]),
    "rnn_relu": (nn.RNN(4, 5, nonlinearity="relu"), [X]),
    "lstm_cell": (nn.LSTMCell(4, 5), [floats(2, 4)]),
    "fake_quantize": (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.0625, 3, -128, 127),
        [X],
    ),
    "fake_quantize_narrow": (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, 0, -7, 7),
        [X],
    ),
    "fake_quantize_channels": (
        lambda x: torch.fake_quantize_per_channel_affine(
            x, torch.tensor([0.5, 0.25, 0.125]), torch.zeros(3, dtype=torch.int32), 1, -128, 127
        ),
        [X],
    ),
}
"""Name -> a function or layer, and inputs."""
