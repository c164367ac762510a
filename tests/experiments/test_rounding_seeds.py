"""Formats that round at random take a cell's seed: plain ones, mixtures, scaled ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
import experiments
from datatypes.formats import catalogue
from experiments import zoo
from experiments.data import datasets
from experiments.results.store import VOLATILE_COLUMNS
from experiments.spec.specification import load_spec
from experiments.systems import rounding_seeds, schemes

SPEC: dict[str, Any] = {
    "models": ["mnist_mlp"],
    "n_eval": 20,
    "n_calib": 20,
    "latency": {"warmup": 0, "runs": 0},
    "seeds": [0, 3],
    "repeats": 2,
}
NATIVE = {"scheme": "scaled", "weight_dtype": "random8", "compute": "native"}
SCHEMES: dict[str, Any] = {
    "plain": "random8",
    "mixture": {"scheme": {"logits": "random8", "*": "bfloat16"}},
    "native": {**NATIVE, "accumulate": "fma"},
    "override": {
        "scheme": "scaled",
        "weight_dtype": "bfloat16",
        "overrides": {"logits": {"weight_dtype": "random8"}},
    },
}


@pytest.fixture(autouse=True)
def formats() -> Iterator[None]:
    known = dict(catalogue._known)
    datatypes.define("random8", like="float8_e4m3fn", rounding="stochastic")
    datatypes.define("other8", like="float8_e4m3fn", rounding="stochastic", seed=5)
    yield
    catalogue._known.clear()
    catalogue._known.update(known)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["plain", "mixture", "native"])
def test_seeds_give_other_bits_and_repeats_the_same(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    prices = {"random8": 1.0, "bfloat16": 2.0, "float32": 3.0}
    spec = {**SPEC, "schemes": [SCHEMES[kind]], "energy": prices}
    table = experiments.sweep(spec, out)
    assert table["status"].tolist() == ["ok"] * 4, table["error"].tolist()
    assert table[["seed", "repeat"]].to_numpy().tolist() == [[0, 0], [0, 1], [3, 0], [3, 1]]
    assert table["config_hash"].is_unique
    sqnr = table["sqnr_db"].tolist()
    assert sqnr[0] == sqnr[1] != sqnr[2] == sqnr[3]
    for name in ("scheme", "dtype", "energy_uj", "size_bytes", "weight_bits", "macs"):
        assert table[name].nunique() == 1, name
    assert table["energy_uj"].notna().all()
    assert experiments.reproduce(out, "3").matches
    again = experiments.sweep(json.loads(table["config"][2]), tmp_path / "again.csv")
    same = [c for c in table.columns if c not in VOLATILE_COLUMNS]
    assert again[same].iloc[0].to_dict() == pytest.approx(
        table[same].iloc[2].to_dict(), nan_ok=True
    )


@pytest.mark.thorough
def test_the_rows_are_those_of_a_format_that_was_defined_with_the_seed(tmp_path: Path) -> None:
    table = experiments.sweep({**SPEC, "repeats": 1, "schemes": ["random8"]}, tmp_path / "r.csv")
    net = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    x = datasets.load("mnist1k").x[:20]
    reference = compiler.build(net)(x)
    for seed, sqnr in zip((0, 3), table["sqnr_db"], strict=True):
        name = rounding_seeds.seeded(schemes.parse("random8"), seed).dtype
        assert datatypes.get(name).seed == seed
        found = compiler.build(datatypes.change_dtype(net, "float32", name))(x)
        assert experiments.measure.metrics.sqnr_db(np.asarray(found), reference) == sqnr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", SCHEMES)
def test_every_seed_is_a_cell_of_its_own(kind: str) -> None:
    cells = load_spec({**SPEC, "schemes": [SCHEMES[kind]]}).cells
    assert len({cell.config_hash for cell in cells}) == len(cells) == 4
    seeded = [rounding_seeds.seeded(cell.scheme, cell.seed) for cell in cells]
    assert seeded[0] == cells[0].scheme
    assert "random8_seed3" in repr(seeded[2])
    for cell in cells:
        (again,) = load_spec(cell.specification()).cells
        assert (again.config_hash, again.seed) == (cell.config_hash, cell.seed)


def test_formats_that_do_not_round_at_random_have_one_cell() -> None:
    assert (
        len(load_spec({**SPEC, "repeats": 1, "schemes": ["float8_e4m3fn", "float32"]}).cells) == 2
    )


def test_a_seed_that_the_format_has_anyway_changes_nothing() -> None:
    def cell(name: str, seed: int) -> Any:
        (found,) = load_spec({**SPEC, "seeds": [seed], "repeats": 1, "schemes": [name]}).cells
        return found

    assert rounding_seeds.seeded(cell("other8", 5).scheme, 5) == schemes.parse("other8")
    hashes = {cell(name, seed).config_hash for name in ("random8", "other8") for seed in (0, 3, 5)}
    assert len(hashes) == 6
