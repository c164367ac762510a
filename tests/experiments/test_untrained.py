"""Networks without weights, for training: the files in results/ are what the recipe gives."""

from pathlib import Path

import numpy as np
import pytest

import compiler
from experiments.training.network import network
from experiments.training.spec import load_training
from experiments.zoo.untrained import MODELS

RESULTS = Path(__file__).parents[2] / "results"
WEIGHTS = {"mnist_cnn": 9122, "mnist_vit_small": 19594}


@pytest.mark.parametrize("name", MODELS)
def test_files_are_those_of_the_recipe(name: str) -> None:
    assert (RESULTS / f"{name}.onnx").read_bytes() == MODELS[name]()


@pytest.mark.parametrize("name", MODELS)
def test_all_weights_are_parameters(name: str) -> None:
    module = compiler.from_onnx(RESULTS / f"{name}.onnx", shapes={"x": (2, 1, 28, 28)})
    found = network(module)
    assert sum(p.value.size for p in found.trained) == WEIGHTS[name]
    assert found.classes == 10
    assert all(np.unique(p.value).size == 1 for p in found.parameters)


@pytest.mark.parametrize(("name", "cells"), [("cnn", 25), ("vit", 5)])
def test_tables_are_of_many_formats_and_three_seeds(name: str, cells: int) -> None:
    runs = load_training(RESULTS / f"training_{name}.toml").runs
    assert len({(r.formats, r.rules.loss_scale) for r in runs}) * 3 == len(runs) >= cells * 3
    assert len({r.config_hash for r in runs}) == len(runs)
    assert {r.epochs for r in runs} == {10}
