"""The cheapest formats of layers: the integer program is optimal, and questions are understood."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import ConfigError, DtypelabError
from experiments.cheapest import assignment
from experiments.cheapest.bound import parse, told
from experiments.cheapest.candidate import Candidate, candidates
from experiments.cheapest.price import Layer, price_of
from experiments.cli.search import _names
from experiments.costs import circuits
from experiments.examples import approximate_multiplier


# ---- the integer program -------------------------------------------------------------------------
@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6), st.floats(-4, 1))
def test_no_assignment_is_cheaper_within_the_budget(
    layers: int, kinds: int, seed: int, magnitude: float
) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.integers(0, 50, (layers, kinds)).astype(np.float64)
    noises = 10 ** rng.uniform(-6, 1, (layers, kinds))
    noises[rng.random((layers, kinds)) < 0.1] = np.inf
    budget = 10**magnitude
    found = assignment.cheapest(costs, noises, budget)
    every = itertools.product(range(kinds), repeat=layers)
    # What is within rounding of the budget may be taken or not.
    surely = [c for c in every if assignment.of(noises, c) <= budget * (1 - 1e-5)]
    if found is None:
        assert not surely
        return
    assert assignment.of(noises, found) <= budget * (1 + 1e-5)
    least = min((assignment.of(costs, c) for c in surely), default=np.inf)
    assert assignment.of(costs, found) <= least + 1e-4


def test_of_equal_costs_the_one_with_less_noise_is_taken() -> None:
    costs, noises = np.ones((2, 2)), np.array([[0.3, 0.1], [0.2, 0.4]])
    assert assignment.cheapest(costs, noises, 1.0) == (1, 0)


def test_noise_may_be_as_different_as_numbers_are() -> None:
    costs = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    noises = np.array([[0.0, 1e-30, 1e6], [1e-14, 1e-3, 1e25]])
    assert assignment.cheapest(costs, noises, 1e-2) == (1, 1)
    assert assignment.cheapest(costs, noises, 1e7) == (2, 1)
    assert assignment.cheapest(costs, noises, 1e26) == (2, 2)
    assert assignment.cheapest(costs, noises, 1e-20) is None


# ---- what is asked -------------------------------------------------------------------------------
def test_bounds_are_read_and_contradictions_refused() -> None:
    assert [str(b) for b in parse("drop<=0.5, sqnr >= 3e1")] == ["drop<=0.5", "sqnr>=30"]
    (bound,) = parse("kl<=.01")
    assert bound.holds({"kl": 0.01})
    assert not bound.holds({"kl": 0.011})
    assert not bound.holds({"kl": float("nan")})
    # What is only just kept on these inputs is not kept.
    assert not bound.holds({"kl": 0.009, "kl_sure": 0.011})
    assert bound.best([{"kl": 0.02, "kl_sure": 0.03}, {"kl": 0.025}]) == 0.025
    assert told({"metric": 1.0, "sqnr": 20.71, "sqnr_sure": 19.98, "kl": 0.1}, "top1") == (
        "top1 1, sqnr 20.71 (surely 19.98), kl 0.1"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("drop>=0.5", "asks for a worse drop"),
        ("sqnr<=30", "write sqnr>=30"),
        ("sqnr>=30,sqnr>=20", "has two bounds"),
        ("sqn>=30", "did you mean 'sqnr'"),
        ("drop<0.5", "write a figure, <= or >=, and a number"),
        ("", "write a figure"),
        ("perplexity>=3", "asks for a worse perplexity"),
        ("top1>=0.9,drop<=1", "drop is of the metric"),
        ("top1>=90", "top1>=90 can never hold: top1 is a share, from 0 to 1"),
        ("kl<=-1", "can never hold: a divergence is at least 0"),
    ],
)
def test_what_is_no_bound_is_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_candidates_are_formats_with_the_accumulators_that_they_take() -> None:
    found = candidates(["int8", "posit8_es1", "mxfp4_e2m1"], ["exact", "sequential", "float32"])
    assert list(map(str, found)) == [
        *("int8", "posit8_es1 exact", "posit8_es1 sequential", "posit8_es1", "mxfp4_e2m1"),
    ]
    for formats, said in (
        ((), "nothing to choose from"),
        (("float32",), "nothing to choose from"),
        (("int8", "int8"), "named twice"),
        (("posit8_e1",), "unknown format"),
        ([f"fixed8_{k}" for k in range(8)] + [f"fixed16_{k}" for k in range(17)], "24 at most"),
    ):
        with pytest.raises(DtypelabError, match=said):
            candidates(formats, [])
    with pytest.raises(ConfigError, match="did you mean 'gates'"):
        price_of("gate", None)
    with pytest.raises(ConfigError, match="accumulators exact are for number formats"):
        candidates(["int8", "mxfp4_e2m1", "float32"], ["exact"])
    with pytest.raises(ConfigError, match="needs a table of picojoules"):
        price_of("energy", None)
    for prices, said in (
        ({"int8": float("nan")}, "picojoules of 'int8' must be a number of at least 0, not nan"),
        ({"int8": -1.0}, "at least 0, not -1"),
        ({"int9x": 1.0}, "unknown dtype 'int9x'"),
    ):
        with pytest.raises(DtypelabError, match=said):
            price_of("energy", prices)
    with pytest.raises(ConfigError, match="picojoules is for cost 'energy', not 'bits'"):
        price_of("bits", {"int8": 1.0})


def test_commas_within_descriptions_of_accumulators_separate_nothing() -> None:
    held = '{format = "float16", chunk = 4}'
    assert _names(f"exact, {held},,fma ,") == ("exact", held, "fma")
    assert _names(f"int8,posit8_es1 {held}") == ("int8", f"posit8_es1 {held}")


def test_approximate_multipliers_are_only_summed_in_sequence() -> None:
    approximate_multiplier.define()
    found = candidates(["int8", "mitchell0", "posit8_es0 exact"], ["float32", "exact"])
    assert [*map(str, found)] == ["int8", "mitchell0 sequential", "posit8_es0 exact"]
    for name, said in (
        ("mitchell0 exact", "only summed sequential"),
        ("int8 exact", "int8 takes no accumulator"),
    ):
        with pytest.raises(ConfigError, match=said):
            candidates([name], [])


def test_gates_are_those_of_the_circuits_that_were_recorded() -> None:
    recorded = Path(__file__).parents[2] / "results" / "hardware.csv"
    assert circuits.TABLE.read_text() == recorded.read_text()
    layer = Layer("y", 1000, ((1, 10), (100, 10)))
    charge = price_of("gates", None)
    assert charge is not None
    macs = circuits.table().mac
    assert charge(layer, Candidate("int8"), ()) == 1000 * macs("int8", "exact")
    assert charge(layer, Candidate("posit8_es2"), ()) == 1000 * macs("posit8_es2", "float32")
    exact = charge(layer, Candidate("posit8_es2", "exact"), ())
    assert exact == 1000 * macs("posit8_es2", "exact")
    with pytest.raises(ConfigError, match=r"no circuit of posit8_es2 with sums 'takum16'.*exact"):
        charge(layer, Candidate("posit8_es2", "takum16"), ())
    with pytest.raises(ConfigError, match=r"no circuit of fixed8_6.*posit8_es0"):
        charge(layer, Candidate("fixed8_6"), ())


def test_gates_of_blocks_are_the_share_of_a_product_in_their_circuits() -> None:
    layer, charge = Layer("y", 1000, ((1, 64), (100, 64))), price_of("gates", None)
    assert charge is not None
    with circuits.TABLE.open(newline="") as file:
        rows = {r["format"]: r for r in csv.DictReader(file) if r["module"] == "mac"}
    for name, block in (("mxfp4_e2m1", 32), ("nvfp4", 16)):
        assert int(rows[name]["terms"]) == block
        each = float(rows[name]["nand2"]) / block
        assert charge(layer, Candidate(name), ()) == 1000 * each


def test_circuits_of_ones_own_are_priced_beside_those_that_ship(tmp_path: Path) -> None:
    file, head = tmp_path / "c.csv", circuits.TABLE.read_text().splitlines()[0]
    tool = circuits.table().tool
    file.write_text(f"{head}\nmine7,7,exact,40,mac,2,10,19.0,3,{tool}\n")
    charge = price_of("gates", None, file)
    assert charge is not None
    layer = Layer("y", 10, ((1, 10), (1, 10)))
    assert charge(layer, Candidate("mine7", "exact"), ()) == 95
    assert charge(layer, Candidate("int8"), ()) == 10 * circuits.table().mac("int8", "exact")
    others, none = tmp_path / "d.csv", tmp_path / "e.csv"
    others.write_text(f"{head}\nmine7,7,exact,40,mac,,10,9.5,3,Another 1.0\n")
    none.write_text("a,b\n1,2\n")
    for cost, table, said in (
        ("gates", others, "circuits of two tools are not compared"),
        ("gates", none, "is no table of circuits"),
        ("gates", tmp_path / "missing.csv", "is no table of circuits"),
        ("bits", file, "is for cost 'gates'"),
    ):
        with pytest.raises(ConfigError, match=said):
            price_of(cost, None, table)
