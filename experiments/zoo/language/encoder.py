"""The encoder in torch, for training: `encoder_graph.py` writes the same function as ONNX."""

from __future__ import annotations

from typing import Any

from .shape import EncoderShape


def encoder(shape: EncoderShape) -> Any:
    """A torch module as BERT's, small: ids and mask [batch, sequence] to scores [batch, classes].

    Norms stand after the sums (Devlin et al. 2018); the first position is what is classified.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = shape.width
            self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
            self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, shape.hidden), nn.Linear(shape.hidden, width)
            self.after_attention, self.after_mlp = norm(), norm()

        def heads(self, x: Any) -> Any:
            return x.view(*x.shape[:2], shape.heads, -1).transpose(1, 2)

        def forward(self, x: Any, seen: Any) -> Any:
            q, k, v = (self.heads(f(x)) for f in (self.query, self.key, self.value))
            a = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = self.after_attention(x + self.out(a.transpose(1, 2).flatten(2)))
            return self.after_mlp(x + self.down(functional.gelu(self.up(x))))

    def norm() -> Any:
        return nn.LayerNorm(shape.width, eps=shape.epsilon)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            self.positions = nn.Embedding(shape.positions, shape.width)
            self.norm = norm()
            self.blocks = nn.ModuleList(Layer() for _ in range(shape.layers))
            self.pooler = nn.Linear(shape.width, shape.width)
            self.scores = nn.Linear(shape.width, shape.classes)
            for name, weight in self.named_parameters():
                if weight.ndim > 1:
                    nn.init.normal_(weight, std=0.05)
                elif name.endswith("bias"):
                    nn.init.zeros_(weight)

        def forward(self, ids: Any, mask: Any) -> Any:
            at = torch.arange(ids.shape[1])
            x = self.norm(self.embedding(ids) + self.positions(at))
            seen = mask.bool()[:, None, None, :]
            for block in self.blocks:
                x = block(x, seen)
            return self.scores(torch.tanh(self.pooler(x[:, 0])))

    return Encoder()
