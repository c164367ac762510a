"""results/search.csv: what searches of whole networks found, as results/README.md says it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

import quantize
from compiler.files.reading import parse_toml
from experiments.cheapest import recorded
from experiments.cheapest.exploring import MOST_MEASURED
from experiments.costs import circuits

FILE = Path(__file__).parents[2] / "results" / "search.csv"
NETWORKS = ("mnist_vit", "efficientnet_lite0", "ppocr_rec")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    assert len(recorded.before(FILE)) == 1
    return pd.read_csv(FILE)


def test_the_networks_are_there_within_their_evaluations(table: pd.DataFrame) -> None:
    assert [*table["model"].unique()] == [*NETWORKS]
    assert set(table["unit"]) == {"NAND2"}
    assert (table["evaluations"] <= table["layers"] * table["candidates"] + MOST_MEASURED).all()
    assert (table.groupby("model")["layers"].first() >= 20).all()


def test_no_point_is_worse_than_greedy_or_a_uniform_format(table: pd.DataFrame) -> None:
    for _, rows in table.groupby("model"):
        front = rows[rows["kind"] == recorded.FRONT]
        assert len(front) >= 10
        assert front["cost"].is_monotonic_increasing
        assert front["sqnr_db"].is_monotonic_increasing
        assert (front["greedy_sqnr_db"] <= front["sqnr_db"]).all()
        assert (front["greedy_cost"] <= front["cost"]).all()
        uniform = rows[rows["kind"] == recorded.UNIFORM]
        assert len(uniform) >= 5
        for other in uniform.to_dict("records"):
            as_cheap = front[front["cost"] <= other["cost"]]
            if math.isnan(other["sqnr_db"]):  # results of the format everywhere are NaN
                assert other["metric"] == 0
                continue
            assert as_cheap["sqnr_db"].max() >= other["sqnr_db"]


def test_bounds_hold_on_data_that_the_searches_had_not_seen(table: pd.DataFrame) -> None:
    chosen = table[table["kind"] == recorded.CHOSEN]
    assert (*chosen["model"],) == NETWORKS
    assert chosen["test_holds"].astype(bool).all()
    least = chosen["bound"].str.removeprefix("sqnr>=").astype(float)
    assert (chosen["test_sqnr_db"] >= least).all()


def test_costs_are_those_of_the_circuits_that_ship(table: pd.DataFrame) -> None:
    areas = circuits.table()
    for _, rows in table[table["kind"] == recorded.UNIFORM].groupby("model"):
        cost = {r["format"]: (r["cost"], r["accumulate"]) for r in rows.to_dict("records")}
        macs = cost["int8"][0] / areas.mac("int8", "exact")
        for name in ("float6_e3m2fn", "posit8_es0"):
            spent, accumulate = cost[name]
            assert spent == pytest.approx(macs * areas.mac(name, accumulate))
        assert cost["float16"][0] == pytest.approx(macs * areas.mac("float16", "float32"))


def test_configurations_are_read(table: pd.DataFrame) -> None:
    for text in table["config"].dropna():
        config = quantize.QConfig(**parse_toml(text, "the configuration"))
        assert json.dumps(config.to_dict())
