"""BERT from PyTorch: one layer under the microscope, the whole model beside PyTorch, and a layer
that trains through compiled programs.

    python -m experiments.examples.torch_bert

Needs torch and transformers. Weights are random; the model has BERT-base's sizes, but fewer layers.
"""

from __future__ import annotations

import copy
from typing import Any

import compiler
from experiments.examples.torch_resnet18 import beside_torch
from experiments.torch_backend import dtypelab

Tensor = Any


def model(layers: int, width: int) -> Any:
    """BERT as it evaluates: ids [batch, tokens] -> what its last layer gives of every token."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    config = BertConfig(vocab_size=2000, num_attention_heads=width // 64, **sizes)
    bert = BertModel(config).eval()
    module: Any = torch.nn.Module

    class Hidden(module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, ids: Tensor) -> Tensor:
            return self.bert(input_ids=ids).last_hidden_state

    return Hidden()


def one_layer(bert: Any, width: int) -> str:
    """The program of a layer alone, for texts of any length."""
    import torch

    lengths = ({1: torch.export.Dim("tokens")},)
    layer, x = bert.bert.encoder.layer[0].eval(), torch.zeros(1, 8, width)
    return str(compiler.from_torch(layer, (x,), dynamic_shapes=lengths))


def trained(bert: Any, width: int) -> float:
    """Three steps of training a layer in PyTorch, forward and backward compiled by us, and the same
    by PyTorch alone: the largest distance of a weight."""
    import torch

    ours = copy.deepcopy(bert.bert.encoder.layer[0]).eval()  # dropout is not for programs
    theirs = copy.deepcopy(ours)
    x = torch.randn(2, 16, width)
    for layer, run in ((ours, torch.compile(ours, backend=dtypelab)), (theirs, theirs)):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            found: Any = run(x)
            (found[0] if isinstance(found, tuple) else found).square().mean().backward()
            optimizer.step()
    both = zip(ours.parameters(), theirs.parameters(), strict=True)
    return max(float((a - b).abs().max()) for a, b in both)


def main(
    layers: int = 2, width: int = 768, tokens: int = 128, runs: int = 20, inductor: bool = True
) -> dict[str, float]:
    """Print a layer's program, run the model beside PyTorch, and train a layer."""
    import torch

    bert = model(layers, width)
    print(one_layer(bert, width))
    ids = torch.randint(0, 2000, (1, tokens))
    distances = beside_torch(bert, ids, runs, inductor)
    distances["trained"] = trained(bert, width)
    print(f"after three steps of training, weights differ by {distances['trained']:.1e}")
    return distances


if __name__ == "__main__":
    main()
