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


@pytest.mark.parametrize(
    ("name", "count", "near", "mean", "most"),
    [("tuned_long_avx2", 10, 3, 1.035, 1.12), ("tuned_long", 8, 6, 1.014, 1.07)],
)
def test_what_a_short_search_leaves_is_what_is_said_of_it(
    name: str, count: int, near: int, mean: float, most: float
) -> None:
    """results/README.md: of so many kernels, in how many, and how much in the mean and at most."""
    found = rows(f"{name}.csv")
    shares = [float(r["share"]) for r in found]
    assert len(found) == count
    assert all((r["first"], r["trials"]) == ("64", "2000") for r in found)
    assert all(int(r["measured"]) <= 2000 for r in found)
    assert sum(s >= 0.99 for s in shares) == near
    assert round(1 / math.exp(sum(map(math.log, shares)) / count), 3) == mean
    assert round(1 / min(shares), 2) == most


def test_where_rules_were_far_off_is_what_is_said_of_it() -> None:
    found = rows("tuned_long_avx2.csv")
    assert len({r["network"] for r in found}) == 10
    slower = [r for r in found if float(r["first_ms"]) > float(r["default_ms"])]
    assert len(slower) == 2
    gains = {r["kind"]: round(float(r["default_ms"]) / float(r["best_ms"]), 2) for r in found}
    assert gains["mean of float32"] == 1.96
    assert gains["take of float32"] == 2.45
    assert gains["concatenate of uint8"] == 1.39
    assert gains["max of uint8"] == 1.09
