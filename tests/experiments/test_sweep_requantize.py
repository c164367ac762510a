"""The shipped sweep over arithmetics of requantize and widths of accumulators."""

from pathlib import Path

import pytest

import experiments
from compiler.op.qnn.requantize import ROUNDINGS
from experiments.spec.specification import load_spec


def test_the_sweep_crosses_requantize_with_accumulators_of_16_20_and_24_bits() -> None:
    cells = load_spec("requantize").cells
    modes = {f"int{b}_{how}" for b in (16, 20, 24) for how in ("wrap", "saturate")}
    assert len(cells) == 3 * len(ROUNDINGS) * (1 + len(modes))
    assert {c.scheme.option("accumulate") for c in cells} == {"sequential", *modes}
    assert {c.scheme.option("requantize") or "float32" for c in cells} == set(ROUNDINGS)


@pytest.mark.thorough
def test_a_part_of_it_runs_and_says_what_each_costs(tmp_path: Path) -> None:
    small = [
        'models=["mnist_mlp"]', 'accumulations=["sequential", "int16_wrap", "int16_saturate"]',
        "n_eval=40", "n_calib=20",
    ]  # fmt: skip
    table = experiments.sweep(load_spec("requantize", small), tmp_path / "r.csv")
    assert table["status"].tolist() == ["ok"] * 3 * len(ROUNDINGS), table["error"].tolist()
    sqnr = dict(
        zip(zip(table["scheme"], table["accumulate"], strict=True), table["sqnr_db"], strict=True)
    )
    exact = sqnr["int8_channel", "sequential"]
    for mode in ("fixed_upward", "fixed_tonearest_even", "gemmlowp", "float64"):
        assert abs(sqnr[f"int8_channel[requantize={mode}]", "sequential"] - exact) < 0.5
    assert sqnr["int8_channel[requantize=shift]", "sequential"] != exact  # other scales
    assert sqnr["int8_channel", "int16_wrap"] < sqnr["int8_channel", "int16_saturate"]
