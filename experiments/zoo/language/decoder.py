"""The decoder in torch, for training: `decoder_graph.py` writes the same function as ONNX."""

from __future__ import annotations

from typing import Any

from .shape import Shape


def decoder(shape: Shape) -> Any:
    """A torch module: ids [batch, sequence] to logits [batch, sequence, vocabulary].

    Weights are normal with deviation 0.02, those that end a residual branch divided by the square
    root of twice the layers (as in GPT-2).
    """
    import torch
    from torch import nn
    from torch.nn import functional

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(shape.width))

        def forward(self, x: Any) -> Any:
            return functional.rms_norm(x, (shape.width,), self.weight, shape.epsilon)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
            self.before_attention, self.before_mlp = Norm(), Norm()
            self.query = nn.Linear(shape.width, queries, bias=False)
            self.key = nn.Linear(shape.width, keys, bias=False)
            self.value = nn.Linear(shape.width, keys, bias=False)
            self.out = nn.Linear(queries, shape.width, bias=False)
            self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
            self.up = nn.Linear(shape.width, shape.hidden, bias=False)
            self.down = nn.Linear(shape.hidden, shape.width, bias=False)

        def heads(self, x: Any) -> Any:
            return x.view(*x.shape[:2], -1, shape.head_size).transpose(1, 2)

        def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
            def turned(x: Any) -> Any:
                low, high = x.chunk(2, -1)
                return x * cosine + torch.cat((-high, low), -1) * sine

            h = self.before_attention(x)
            q, k = turned(self.heads(self.query(h))), turned(self.heads(self.key(h)))
            v, times = self.heads(self.value(h)), shape.heads // shape.kv_heads
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).flatten(2))
            h = self.before_mlp(x)
            return x + self.down(functional.silu(self.gate(h)) * self.up(h))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            self.blocks = nn.ModuleList(Layer() for _ in range(shape.layers))
            self.norm = Norm()
            self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)
            for name, weight in self.named_parameters():
                if weight.ndim > 1:
                    ends = name.endswith(("out.weight", "down.weight"))
                    deviation = 0.02 / (2 * shape.layers) ** 0.5 if ends else 0.02
                    nn.init.normal_(weight, std=deviation)
            cosine, sine = rotary_tables(shape)
            self.register_buffer("cosine", torch.from_numpy(cosine), persistent=False)
            self.register_buffer("sine", torch.from_numpy(sine), persistent=False)

        def forward(self, ids: Any) -> Any:
            x, length = self.embedding(ids), ids.shape[1]
            for block in self.blocks:
                x = block(x, self.cosine[:length], self.sine[:length])
            return self.logits(self.norm(x))

    return Decoder()


def rotary_tables(shape: Shape) -> tuple[Any, Any]:
    """Cosines and sines [positions, head size] float32, computed in float64 and rounded once.

    Source: Su et al. 2021, in the order of halves that Llama's exporters write.
    """
    import numpy as np

    powers = np.arange(0, shape.head_size, 2, dtype=np.float64) / shape.head_size
    angles = np.outer(np.arange(shape.positions, dtype=np.float64), shape.rotary_base**-powers)
    angles = np.concatenate((angles, angles), axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
