"""The recorded networks that were tuned: what results/README.md says of them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


MACHINES = pytest.mark.parametrize("name", ["tuned", "tuned_avx2"])


@MACHINES
def test_no_network_is_slower_and_all_keep_every_bit(name: str) -> None:
    for r in rows(f"{name}.csv"):
        assert float(r["ratio"]) >= 0.98
        assert r["same_bits"] == "True"
        assert int(r["measured"]) <= int(r["trials"]) * int(r["workloads"])


@MACHINES
def test_every_network_has_the_kernels_that_its_row_counts(name: str) -> None:
    kernels = rows(f"{name}_kernels.csv")
    for r in rows(f"{name}.csv"):
        mine = [k for k in kernels if k["network"] == r["network"]]
        assert len(mine) == int(r["ruled"]) + int(r["others"])
        gains = [float(k["gain"]) for k in mine if k["tuned"] == k["ruled"] == "True"]
        mean = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else 1.0
        assert math.isclose(mean, float(r["ruled_gain"]), rel_tol=1e-4)
