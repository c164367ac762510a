"""The quickstart's emulated formats compute what calls of their C functions compute."""

from __future__ import annotations

import pytest

import compiler
import datatypes
from experiments import zoo
from experiments.data import datasets
from experiments.spec.specification import load_spec

IMAGES = 100


def agree(model: str, fmt: str, images: int) -> None:
    path = zoo.model_path(model)
    assert path is not None
    network = datatypes.change_dtype(compiler.from_onnx(path), "float32", fmt)
    x = datasets.load("mnist1k").x[:images]
    fast, calls = compiler.build(network), compiler.build(network, dtype_lowering="library")
    assert (fast.dtype_lowering, calls.dtype_lowering) == ("vector", "library")
    logits, expected = fast(x), calls(x)
    assert logits.tobytes() == expected.tobytes()
    assert logits.argmax(axis=1).tolist() == expected.argmax(axis=1).tolist()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("model", "fmt", "images"),
    [
        ("mnist_mlp", "posit16_es1", IMAGES),
        ("mnist_mlp", "posit8_es0", IMAGES),
        ("mnist_mlp", "bfloat16", IMAGES),
        ("mnist_dwsep", "posit16_es1", 20),
        ("mnist_resnet8", "posit16_es1", 2),
    ],
)
def test_logits_are_those_of_the_library(model: str, fmt: str, images: int) -> None:
    agree(model, fmt, images)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mnist_dwsep", "mnist_resnet8"])
@pytest.mark.parametrize("fmt", ["posit16_es1", "posit8_es0", "bfloat16"])
def test_logits_of_100_images_are_those_of_the_library(model: str, fmt: str) -> None:
    agree(model, fmt, IMAGES)


def test_every_emulated_format_of_the_specification_is_compared_here() -> None:
    cells = load_spec("quickstart").cells
    formats = {cell.scheme.dtype for cell in cells if cell.scheme.kind == "format"}
    assert formats == {"posit16_es1", "posit8_es0", "bfloat16"}
