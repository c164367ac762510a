"""`config_hash` of cells, for the tests of what it covers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datatypes import registry
from datatypes.formats import catalogue
from experiments import zoo
from experiments.data import datasets
from experiments.measure import scoring
from experiments.spec.specification import load_spec
from experiments.user_code import adapters
from quantize.formats import blocks

RESULTS = Path(__file__).resolve().parents[2] / "results"
BASE: dict[str, Any] = {
    "models": ["mnist_mlp"],
    "n_eval": 10,
    "n_calib": 10,
    "latency": {"runs": 0},
}


def forgetting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is defined meanwhile is gone afterwards."""
    for module, name in (
        *((catalogue, "_known"), (blocks, "_formats"), (registry, "_lowerings")),
        *((registry, "_minimums"), (scoring, "_METRICS"), (scoring, "_REGISTERED")),
        *((datasets, "_REGISTERED"), (zoo, "_REGISTERED"), (adapters, "_run")),
    ):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    yield
    for name in ("beside", "deeper", "package", "package.part", "package.inner"):
        sys.modules.pop(name, None)


def hash_of(**changes: Any) -> str:
    (cell,) = load_spec({**BASE, **changes}).cells
    return cell.config_hash


def hash_in(scheme: Any) -> str:
    return hash_of(schemes=[scheme])


SCALED = {"scheme": "scaled", "weight_dtype": "bfloat16"}
