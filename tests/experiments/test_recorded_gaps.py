"""results/gap.csv and the steps beside it: whole, and what results/README.md says of them."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from test_recorded import assert_covers

import experiments
from experiments.layers.gaps import read_gaps
from experiments.page.gap_section import Cell, cells_of

RESULTS = Path(__file__).parents[2] / "results"
GAPS = "gap.csv"
KINDS = {
    "perceptron": ("mnist_mlp",),
    "convolutional": ("mnist_dwsep", "mnist_resnet8"),
    "transformers": ("mnist_vit", "stdlib_encoder", "stdlib_lm"),
    "text recognizer": ("ppocr_rec",),
}
INGREDIENTS = (
    *("other operators", "softmax and norms", "bias", "accumulator", "rounded products"),
)


@pytest.fixture(scope="module")
def gaps() -> dict[tuple[str, str, str], Cell]:
    """The cells of results/gap.gaps.csv by network, scheme and accumulation."""
    rows = experiments.read_results(RESULTS / GAPS)
    named = {row["config_hash"]: row for row in rows.to_dict("records")}
    cells = cells_of(read_gaps(RESULTS / "gap.gaps.csv"), {key: key for key in named})
    assert len(cells) == len(rows)
    return {(c.model, named[c.system]["scheme"], named[c.system]["accumulate"]): c for c in cells}


Gaps = dict[tuple[str, str, str], Cell]


def table_of_ingredients(gaps: Gaps) -> list[str]:
    """The lines of the table in results/README.md: medians of decibels, forward and in reverse, of
    formats that everything is in."""
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for (model, scheme, mode), cell in gaps.items():
        kind = next(kind for kind, models in KINDS.items() if model in models)
        if "[" in scheme or scheme.startswith("int"):
            continue
        bits = "16" if "16" in scheme else "8"
        found.setdefault((kind, bits, mode), []).append(cell)
    lines = []
    for kind, bits, mode in sorted(found, key=lambda k: ((*KINDS,).index(k[0]), k[1:])):
        cells = found[kind, bits, mode]
        figures = []
        for name in INGREDIENTS:
            lost = [
                [s["sqnr_delta"] for c in cells for s in c.orders[o] if s["ingredient"] == name]
                for o in ("forward", "reverse")
            ]
            known = [[v for v in values if math.isfinite(v)] for values in lost]
            figures.append(
                " / ".join(f"{round(statistics.median(v), 1) + 0.0:.1f}" for v in known if v)
            )
        lines.append(f"| {kind} | {bits} | {mode} | {len(cells)} | {' | '.join(figures)} |")
    return lines


def test_the_gap_table_covers_its_specification(gaps: Gaps) -> None:
    assert_covers(experiments.read_results(RESULTS / GAPS), "gap")
    formats: dict[str, set[str]] = {}
    for model, scheme, _ in gaps:
        formats.setdefault(model, set()).add(scheme)
    assert sum(len(found) >= 10 for found in formats.values()) == 7
    assert {"mnist_resnet8", "mnist_vit", "ppocr_rec", "stdlib_lm"} <= set(formats)


def test_the_steps_of_recorded_gaps_add_up(gaps: Gaps) -> None:
    for key, cell in gaps.items():
        for order, steps in cell.orders.items():
            assert steps[0]["ingredient"] == "simulation"
            for name in ("delta", "sqnr_delta", "kl_delta"):
                whole, own = cell.whole[name], [s[name] for s in steps[1:]]
                if math.isfinite(whole) and all(map(math.isfinite, own)):
                    assert sum(own) == pytest.approx(whole, rel=1e-6, abs=1e-6), (key, order)


def test_the_gap_table_shows_what_its_readme_says(gaps: Gaps) -> None:
    readme = (RESULTS / "README.md").read_text()
    for line in table_of_ingredients(gaps):
        assert f"  {line}\n" in readme
    wrong = {key for key, cell in gaps.items() if cell.outside}
    assert all(cell.outside is not None for cell in gaps.values())
    assert f"`gap.gaps.csv` ({len(gaps)} cells)" in readme
    assert f"That is so in {len(wrong)} cells" in readme
    lost = {
        key: tuple(round(-100 * v, 1) for v in (cell.first["delta"], cell.executed))
        for key, cell in gaps.items()
    }
    points = {
        ("mnist_mlp", "float8_e4m3fn_sat"): (0.3, 17.7),
        ("mnist_mlp", "float8_e5m2_sat"): (-0.3, 32.3),
        ("mnist_mlp", "takum8"): (-0.3, 26.3),
        ("mnist_mlp", "posit8_es2"): (0.3, 18.3),
        ("mnist_mlp", "posit8_es1"): (0, 10.0),
        ("mnist_mlp", "posit8_es0"): (-0.3, 5.7),
        ("mnist_resnet8", "float8_e5m2_sat"): (0, 93.3),
        ("mnist_resnet8", "takum8"): (0, 25.0),
        ("stdlib_encoder", "float8_e4m3fn_sat"): (-1.0, 75.0),
    }
    assert {key: lost[*key, "sequential"] for key in points} == points
    assert lost["stdlib_encoder", "float8_e4m3fn_sat", "float32"] == (-1.0, 66.0)
    perplexities = {
        "float8_e4m3fn_sat": (0.06, 459.77),
        "float8_e5m2_sat": (0.82, 4.96),
        "posit8_es1": (0.04, 3.04),
        "posit8_es2": (0.09, 1.74),
        "takum8": (1.53, 8.93),
    }
    for name, figures in perplexities.items():
        cell = gaps["stdlib_lm", name, "float32"]
        assert (round(cell.first["delta"], 2), round(cell.executed, 2)) == figures
    named = {(*key, "sequential") for key in points}
    named |= {("stdlib_lm", name, "float32") for name in perplexities}
    named |= {("ppocr_rec", name, "float32") for name in ("fixed16_8", "posit8_es1")}
    assert wrong == named | {("stdlib_encoder", "float8_e4m3fn_sat", "float32")}
    for (model, scheme, mode), cell in gaps.items():
        change = cell.whole["sqnr_delta"]
        if model == "ppocr_rec":
            continue  # below
        if scheme.startswith("int8"):
            assert abs(change) < 0.1
        elif scheme.startswith("scaled"):
            assert -4.0 < change < -1.4
        elif "16" in scheme:
            assert (-16 if mode == "float32" else -28.1) < change < -1, scheme
    (resnet,) = (c for k, c in gaps.items() if k[:2] == ("mnist_resnet8", "posit8_es1"))
    steps = {(o, s["ingredient"]): s["sqnr_delta"] for o, own in resnet.orders.items() for s in own}
    took = [
        round(-steps[order, name], 1)
        for order in ("forward", "reverse")
        for name in ("softmax and norms", "accumulator")
    ]
    assert took == [18.1, 0.8, 6.1, 13.9]


def test_the_recognizer_loses_what_its_readme_says(gaps: Gaps) -> None:
    """Words lost of 44 as simulated and as executed, and SQNR in dB."""
    found: dict[str, list[str]] = {}
    for (model, scheme, _), cell in gaps.items():
        if model == "ppocr_rec":
            lost = (round(-44 * v) for v in (cell.first["delta"], cell.executed))
            last = cell.orders["forward"][-1]
            decibels = [v["sqnr_db"] for v in (cell.first, last)]
            known = [f"{v:.1f}" if math.isfinite(v) else "not finite" for v in decibels]
            found[scheme] = [*map(str, lost), *known]
            assert cell.whole["inputs"] == 44
    readme = (RESULTS / "README.md").read_text()
    for scheme, figures in found.items():
        assert f"  | {' | '.join([scheme, *figures])} |\n" in readme
    integers = gaps["ppocr_rec", "int8_channel", "sequential"].whole
    assert integers["sqnr_low"] < 0 < integers["sqnr_high"]
    took = {
        (scheme, order): round(-step["sqnr_delta"], 1)
        for scheme, name in (("bfloat16", "other operators"), ("fixed16_8", "softmax and norms"))
        for order, steps in gaps["ppocr_rec", scheme, "float32"].orders.items()
        for step in steps
        if step["ingredient"] == name
    }
    assert list(took.values()) == [16.1, 20.6, 7.2, 10.7]
