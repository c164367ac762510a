"""Results in a notebook: what is shown of whole rows, and that they are a pandas table."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_like import MODELS, recorded_like

import experiments
from compiler.errors import ConfigError
from experiments.page import picture
from experiments.page.notebook import Results
from experiments.page.picture import COSTS, pareto_svg
from experiments.results import export
from experiments.results.row_names import merits, system_names
from experiments.running import progress


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("recorded") / "big.csv"
    recorded_like(path)
    found = experiments.read_results(path)
    assert isinstance(found, Results)
    return found


@pytest.mark.thorough
def test_whole_rows_show_a_table_and_a_picture(rows: Results) -> None:
    page = rows[rows["model"].isin(["mnist_mlp", "my_reader", "light_resnet50"])]._repr_html_()
    assert page.count("<tr>") == 1 + 3 * (1 + 26)
    for text in (
        "mnist_mlp, 1000 inputs, judged by top-1",
        "my_reader, 1000 inputs, judged by character error rate",
        "light_resnet50, 1000 inputs, judged by agreement with float32 (top-1)",
        ">97.80 %<",
        ">0.021<",
        ">∞<",
        ">timeout: took more than 60 seconds<",
    ):
        assert text in page, text
    assert len(re.findall(r'class="c0 full".*?<title>float32:', page)) == 3, "float32 of each"
    assert page.count("<polyline") == 3
    assert not re.search(r"<script|src=|nan", page)


@pytest.mark.thorough
def test_a_reason_takes_the_place_of_all_figures(rows: Results) -> None:
    (failed,) = [line for line in rows._repr_html_().split("<tr>") if ">timeout: " in line]
    (whole, *_) = [line for line in rows._repr_html_().split("<tr>") if ">97.80 %<" in line]
    assert failed.count("<td") == 2
    assert f'colspan="{whole.count("<td") - 1}"' in failed
    partly = rows.head(1).assign(status="error", error="no labels", metric=math.nan)._repr_html_()
    assert ">∞<" in partly, "what there is"
    assert ">error: no labels<" in partly


def test_a_selection_of_columns_shows_as_pandas_does(rows: Results) -> None:
    chosen = rows[["model", "metric"]].head(3)
    assert isinstance(chosen, Results)
    assert chosen._repr_html_().count("<th>") == 3 + 3
    assert "mnist_mlp" in chosen._repr_html_()
    assert "0 rows" in rows.head(0)._repr_html_()


def test_they_are_a_pandas_table(rows: Results) -> None:
    assert isinstance(rows, pd.DataFrame)
    means = rows.groupby("model")["metric"].mean()
    assert means["my_reader"] > 0.021
    assert pd.concat([rows, rows]).shape == (2 * len(rows), rows.shape[1])
    pd.testing.assert_frame_equal(pd.DataFrame(rows), pd.DataFrame(rows.copy()))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("cost", COSTS)
def test_every_cost_can_be_across(rows: Results, cost: str) -> None:
    svg = pareto_svg(rows, cost)
    assert svg.count(COSTS[cost][0]) == len(MODELS)
    if cost == list(COSTS)[-1]:
        assert svg.count("<title>") == len(rows) - 1, "all but the cell that failed"


@pytest.mark.thorough
def test_costs_that_there_are_none_of(rows: Results) -> None:
    with pytest.raises(ConfigError, match="unknown cost 'size'"):
        pareto_svg(rows, "size")
    bytes_only = rows.assign(latency_ms_median=math.nan)
    assert pareto_svg(bytes_only).count("parameters, KiB") == 5
    assert pareto_svg(bytes_only).count("parameters, MiB") == 4
    assert pareto_svg(bytes_only, "latency_ms_median").count("no cell has both") == len(MODELS)


def test_one_cell_is_a_picture_too(rows: Results) -> None:
    svg = pareto_svg(rows.head(1))
    assert svg.count("<path") == 1
    assert "nan" not in svg


figures = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=12)


@settings(max_examples=30)
@given(figures)
def test_the_front_is_what_nothing_beats(cells: list[tuple[int, int]]) -> None:
    points = [picture._Point(str(k), "f", c, w, w, -c) for k, (c, w) in enumerate(cells)]
    best = picture.front(points)
    assert best, "there is always one"
    for p in points:
        beaten = any(
            (o.cost <= p.cost and o.worth > p.worth) or (o.cost < p.cost and o.worth >= p.worth)
            for o in points
        )
        assert (p in best) != beaten
    assert [p.cost for p in best] == sorted(p.cost for p in best)


def test_systems_of_one_scheme_have_names_of_their_own(rows: Results) -> None:
    names = set(system_names(rows))
    assert {"int8_channel kl", "int8_channel mse", "bfloat16 sequential", "takum16"} <= names
    assert "takum16 sequential" not in names, "there is only one"
    twice = pd.concat([rows.head(1), rows.head(1).assign(repeat=1)], ignore_index=True)
    assert system_names(twice) == ["float32 repeat=0", "float32 repeat=1"]


def test_how_sums_are_formed_is_in_the_name_of_a_number_system(rows: Results) -> None:
    """Wherever it is not as usual, also if no other row of that network says so."""
    mlp = rows[(rows["model"] == "mnist_mlp") & (rows["scheme"] == "takum16")].head(1)

    def named(*changes: dict[str, str]) -> tuple[list[str], list[str]]:
        several = pd.concat([mlp.assign(**c) for c in changes], ignore_index=True)
        wide = export.pivot(several.assign(metric=0.5), "scheme", "model", "metric")
        return system_names(several), wide["scheme"].tolist()

    for mode in ("exact", "fma", "float32"):
        alone = [f"takum16 {mode}"]
        assert named({"accumulate": mode}) == (alone, alone)
        both = ["takum16 sequential", *alone]
        assert named({"accumulate": "sequential"}, {"accumulate": mode}) == (both, both)
        # Of two networks, each in its own way.
        other = {"accumulate": mode, "model": "mnist_dwsep"}
        assert named({"accumulate": "sequential"}, other) == (both, both)
    seven = {"calibrator": "kl", "accumulate": "int7_wrap", "granularity": "channel"}
    assert named(seven)[0] == ["takum16 int7_wrap"]
    # What is stored with scales is computed with in float32: that is as usual.
    scaled = {"accumulate": "float32", "granularity": "tensor", "scheme": "scaled posit8_es0"}
    assert named(scaled)[0] == ["scaled posit8_es0"]
    native = scaled | {"scheme": "scaled posit8_es0[compute=native]"}
    assert named(native)[0] == ["scaled posit8_es0[compute=native] float32"]


def test_which_way_a_users_metric_is_better_shows_in_its_drops(rows: Results) -> None:
    cells = rows[rows["model"] == "mnist_mlp"].assign(metric_name="mine")
    assert merits(cells)["mine"].higher_is_better
    assert not merits(cells.assign(metric_drop=-cells["metric_drop"]))["mine"].higher_is_better
    assert merits(cells.head(1))["mine"].higher_is_better, "nothing tells: more is better"
    assert not merits(cells.head(1).assign(metric_name="ctc_cer"))["ctc_cer"].higher_is_better


@pytest.mark.usefixtures("fake")
def test_a_sweep_in_a_notebook_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)

    def display(html: str, display_id: bool) -> Handle:
        assert display_id
        shown.append(html)
        return Handle()

    ipython: Any = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(progress.sys.modules, "IPython", ipython)
    monkeypatch.setitem(
        progress.sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display)
    )
    spec = {"models": ["mnist_mlp"], "schemes": ["float32", "bfloat16"], "latency": {"runs": 0}}
    found = experiments.sweep(spec, tmp_path / "r.csv")
    assert isinstance(found, Results)
    assert [re.sub("<.*?> ?", "", text) for text in shown] == [
        "sweep 0 of 2 cells ",
        "sweep 1 of 2 cells mnist_mlp float32",
        "sweep 2 of 2 cells mnist_mlp bfloat16",
    ]
    shown.clear()
    experiments.sweep(spec, tmp_path / "r.csv", resume=True, progress=False)
    assert not shown
