"""Train what ships: `python -m experiments.zoo.language.train lm --work FOLDER`.

Needs torch (`pip install dtypelab[train]`). A run that was stopped goes on from its checkpoint when
the same command is given again. Ends with `state.npz`, the weights as arrays.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from . import corpus, learning_merges, pieces, tokenizer
from .decoder import decoder
from .encoder import encoder
from .shape import EncoderShape, Shape
from .training import Recipe, train

#: About an hour on one core of a server processor.
DECODER = Recipe(steps=11000, batch=8, rate=3e-3, rise=200, fall=3300)
#: Some minutes.
ENCODER = Recipe(steps=6000, batch=32, rate=1e-3, rise=200, fall=3000)


def tokens_of(folder: Path) -> tokenizer.Tokenizer:
    """The tokenizer in `folder`, learnt from the training modules if it is not there yet."""
    path = folder / "tokenizer.json"
    if not path.exists():
        texts = (module.text for module in corpus.modules() if module.part == "train")
        learnt = learning_merges.learn(texts, Shape().vocabulary)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(learnt.to_json(), encoding="utf-8")
    return tokenizer.read(path)


def train_decoder(folder: Path, recipe: Recipe) -> Any:
    """The language model, trained on windows that start anywhere in the training modules."""
    import torch
    from torch.nn import functional

    tokens = tokens_of(folder)
    parts = {
        part: corpus.stream([m for m in corpus.modules() if m.part == part], tokens)
        for part in ("train", "calibration")
    }
    text = torch.from_numpy(parts["train"])
    watched = [torch.from_numpy(array[:64]) for array in corpus.windows(parts["calibration"])]

    def cross_entropy(network: Any, x: Any, y: Any) -> Any:
        return functional.cross_entropy(network(x).flatten(0, 1), y.flatten())

    def loss_of(network: Any, random: np.random.Generator) -> Any:
        begins = random.integers(0, len(text) - corpus.WINDOW - 1, recipe.batch)
        rows = torch.stack([text[at : at + corpus.WINDOW + 1] for at in begins.tolist()])
        return cross_entropy(network, rows[:, :-1], rows[:, 1:])

    def evaluate(network: Any) -> dict[str, float]:
        network.eval()
        with torch.no_grad():
            losses = [
                float(cross_entropy(network, watched[0][at : at + 8], watched[1][at : at + 8]))
                for at in range(0, len(watched[0]), 8)
            ]
        return {"calibration_loss": float(np.mean(losses))}

    torch.manual_seed(recipe.seed)
    return train(decoder(Shape()), loss_of, recipe, folder, evaluate)


def train_encoder(folder: Path, recipe: Recipe) -> Any:
    """The classifier, trained on pieces drawn anew for every batch."""
    import torch
    from torch.nn import functional

    tokens = tokens_of(folder)
    parts = pieces.stretches(corpus.modules(), tokens)
    start = tokens.start or 0

    def batch(part: str, count: int, random: np.random.Generator) -> list[Any]:
        return [torch.from_numpy(a) for a in pieces.drawn(parts[part], start, count, random)]

    def loss_of(network: Any, random: np.random.Generator) -> Any:
        x, mask, y = batch("train", recipe.batch, random)
        return functional.cross_entropy(network(x, mask), y)

    watched = batch("calibration", 512, np.random.default_rng(0))

    def evaluate(network: Any) -> dict[str, float]:
        network.eval()
        with torch.no_grad():
            scores = network(*watched[:2])
        loss = float(functional.cross_entropy(scores, watched[2]))
        right = float((scores.argmax(1) == watched[2]).float().mean())
        return {"calibration_loss": loss, "calibration_top1": right}

    torch.manual_seed(recipe.seed)
    return train(encoder(EncoderShape()), loss_of, recipe, folder, evaluate)


def main() -> None:
    """Train the network named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=["lm", "encoder"])
    parser.add_argument("--work", type=Path, required=True, help="folder of checkpoints and log")
    parser.add_argument("--steps", type=int, help="fewer or more than the recipe says")
    arguments = parser.parse_args()
    function, recipe = {"lm": (train_decoder, DECODER), "encoder": (train_encoder, ENCODER)}[
        arguments.network
    ]
    if arguments.steps:
        recipe = replace(recipe, steps=arguments.steps)
    network = function(arguments.work, recipe)
    weights = {name: value.detach().numpy() for name, value in network.state_dict().items()}
    np.savez(arguments.work / "state.npz", **weights)


if __name__ == "__main__":
    main()
