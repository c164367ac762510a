"""A recurrent tagger of sentences, exported by torch with open batch and length; run as a program.

python torch_tagger.py LSTM|GRU FILE
"""

from __future__ import annotations

import sys
import warnings

import torch
from torch import nn


class Tagger(nn.Module):
    """Words [batch, length] -> scores of 5 labels [batch, length, 5]."""

    def __init__(self, kind: str):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        layer = getattr(nn, kind)
        self.layers = layer(16, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(24, 5)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.layers(self.embedding(words))
        return self.scores(states).log_softmax(-1)


def main() -> None:
    kind, path = sys.argv[1:]
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    open_sizes = {0: "batch", 1: "length"}
    torch.onnx.export(
        Tagger(kind).eval(),
        (torch.randint(50, (2, 7)),),
        path,
        dynamo=False,  # the other exporter writes loops out, for one length
        input_names=["words"],
        output_names=["labels"],
        dynamic_axes={"words": open_sizes, "labels": open_sizes},
    )


if __name__ == "__main__":
    main()
