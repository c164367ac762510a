"""What rows say of hardware: costs of small networks by hand, one source a row, certificates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import datatypes
import experiments
import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.transform.analysis import cost
from experiments.cli.main import run_command
from experiments.costs import circuits, gate_model, published
from experiments.spec.specification import load_spec
from experiments.systems.prices import OWN, SOURCES, Prices, costs_of, prices_of
from quantize.search.costs import plan_cost


def small_net() -> IRModule:
    """A convolution, two bounds, an average under windows, a sum of two values, a dense layer."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (1, 2, 6, 6))
    weight = b.const(rng.normal(size=(3, 2, 3, 3)).astype(np.float32))
    y = b.call("nn.conv2d", x, weight, b.const(np.ones(3, np.float32)))  # 3 x 4 x 4
    y = b.call("clip", y, a_min=0.0, a_max=6.0)
    z = b.call("nn.avg_pool2d", y, pool_size=(2, 2), strides=(2, 2))  # 3 x 2 x 2
    z = b.call("add", z, z)
    flat = b.call("flatten", b.call("nn.relu", z))
    out = b.call("nn.dense", flat, b.const(rng.normal(size=(5, 12)).astype(np.float32)))
    return IRModule({"main": b.finish(b.call("nn.softmax", out, axis=-1))})


def test_energies_of_a_small_network_are_those_by_hand() -> None:
    found = cost(small_net())
    prices = prices_of("horowitz45", found.macs_by_dtypes, "")
    costs = costs_of(found, prices)
    macs = 3 * 16 * 18 + 5 * 12
    assert found.macs_by_dtypes == {"float32 x float32": macs}
    assert costs.energy_mac_uj == pytest.approx(macs * (3.7 + 0.9) * 1e-6)
    # Two bounds of 48, four additions a window of 12, 12 sums, 12 bounds: all at an adder's price.
    assert costs.energy_other_uj == pytest.approx((2 * 48 + 4 * 12 + 12 + 12) * 0.9e-6)
    assert costs.energy_memory_uj == pytest.approx(found.traffic_bytes * 162.5e-6)
    parts = (costs.energy_mac_uj, costs.energy_other_uj, costs.energy_memory_uj)
    assert costs.energy_uj == pytest.approx(sum(p or 0.0 for p in parts))
    assert costs.notes == "horowitz45 has no price of nn.softmax float32"
    assert (costs.mac_gates, costs.mac_area_um2) == (None, None)


def test_traffic_is_that_of_kernels_by_hand() -> None:
    """The bounds are done by the convolution's kernel; sum and bound by the average's."""
    parameters = 3 * 18 + 3 + 60
    read = 72 + 48 + 12 + 5  # by the convolution, the average, the dense layer and the softmax
    written = 48 + 12 + 5 + 5
    assert cost(small_net()).traffic_bytes == 4 * (parameters + read + written)


@pytest.mark.thorough
def test_integers_are_added_up_in_32_bits_and_cost_what_their_widths_do() -> None:
    x = np.random.default_rng(1).normal(size=(4, 2, 6, 6)).astype(np.float32)
    b = FunctionBuilder()
    data = b.param("x", (1, 2, 6, 6))
    weight = b.const(np.random.default_rng(2).normal(size=(2, 2, 1, 1)).astype(np.float32))
    y = b.call("nn.conv2d", data, weight)
    y = b.call("nn.avg_pool2d", y, pool_size=(3, 3), strides=(3, 3))  # 2 x 2 x 2
    y = b.call("nn.conv2d", y, weight)
    mod = IRModule({"main": b.finish(y)})
    plan = quantize.calibrate(mod, [x[:1]], quantize.QConfig(weight_bits=4))
    found = plan_cost(mod, plan)
    (pair,) = found.macs_by_dtypes
    assert pair.endswith("x int4")
    costs = costs_of(found, prices_of("horowitz45", found.macs_by_dtypes, ""))
    source = published.SOURCES["horowitz45"]
    product = source.multiply("int8", "int4").energy_pj
    add = source.add("int32").energy_pj
    assert product is not None
    assert add is not None
    assert costs.energy_mac_uj == pytest.approx(2 * 2 * (36 + 4) * (product + add) * 1e-6)
    assert costs.energy_other_uj == pytest.approx(8 * 9 * add * 1e-6)  # the average's
    assert "has no price of qnn." in costs.notes


@pytest.mark.parametrize("source", SOURCES)
def test_no_source_takes_from_another(source: str) -> None:
    counted = cost(small_net())
    found = costs_of(counted, prices_of(source, counted.macs_by_dtypes, ""))
    assert found.cost_source == source
    energies = (found.energy_uj, found.energy_mac_uj, found.energy_other_uj)
    assert (energies == (None,) * 3) is (source in ("gate_model", "circuits"))
    assert (found.mac_gates is not None) is (source == "gate_model")  # no circuit of float32
    assert (found.mac_area_um2 is not None) is (source == "aladdin40")
    assert (found.energy_memory_uj is not None) is (source == "horowitz45")
    if source == "circuits":
        assert found.notes == ("circuits says nothing of multiply-accumulates of float32 x float32")


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_source_does_not_have_is_named_and_nothing_else(source: str) -> None:
    macs = {"uint8 x int8": 30, "posit10_es1 x posit10_es1": 10}
    counted = replace(cost(small_net()), macs_by_dtypes=macs)
    found = costs_of(counted, prices_of(source, macs, "exact"))
    assert "posit10_es1 x posit10_es1" in found.notes
    assert "int8" not in found.notes


def test_gates_are_the_mean_over_all_multiply_accumulates() -> None:
    macs = {"uint8 x int8": 30, "uint8 x int4": 10}

    done = SimpleNamespace(macs_by_dtypes=macs, elements={}, operations={}, traffic_bytes=100)
    model = costs_of(done, prices_of("gate_model", macs, ""))
    assert model.mac_gates == gate_model.gates("int8").total  # a pair costs what the wider does
    netlists = costs_of(done, prices_of("circuits", macs, "sequential"))
    assert netlists.mac_gates == circuits.table().mac("int8", "exact")
    own = Prices(OWN, gates={"int8": 400.0, "uint8 x int4": 200.0}, area={"int8": 90.0})
    costs = costs_of(done, own)
    assert (costs.mac_gates, costs.mac_area_um2) == (350.0, 90.0)
    assert (costs.energy_uj, costs.energy_memory_uj, costs.notes) == (None, None, "")


def spec(folder: Path, more: str, schemes: str = '["float32", "int8", "posit8_es0"]') -> Path:
    file = folder / "s.toml"
    file.write_text(
        f'certificates = true\nmodels = ["mnist_mlp"]\nschemes = {schemes}\nn_eval = 8\n'
        f"n_calib = 8\n[latency]\nruns = 0\n{more}\n"
    )
    return file


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('[energy]\nsource = "circuits"\n[gates]\nint8 = 3', "sources are not mixed"),
        ('[energy]\nsource = "circuit"', "did you mean 'circuits'"),
        ('[gates]\n"int8 x floaty8" = 3', "floaty8"),
        ("[area]\nmemory = 3", "unknown dtype 'memory'"),
        ("[gates]\nint8 = -1", "int8 must be a number of at least 0"),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_spec(str(spec(tmp_path, more)))


def test_tables_and_certificates_are_part_of_what_a_cell_means(tmp_path: Path) -> None:
    known = [
        load_spec(str(spec(tmp_path, more))).cells
        for more in ("", "[gates]\nint8 = 3", "[area]\nint8 = 3")
    ]
    plain = dict(json.loads(json.dumps(known[0][0].specification())))
    assert plain.pop("certificates") is True
    known.append(load_spec(plain).cells)
    assert len({cells[0].config_hash for cells in known}) == 4
    for cells in known:
        (again,) = load_spec(cells[0].specification()).cells
        assert again.config_hash == cells[0].config_hash


@pytest.mark.thorough
def test_rows_have_certificates_and_costs_of_one_source(tmp_path: Path) -> None:
    file = spec(tmp_path, '[energy]\nsource = "circuits"', '["float32", "int8", "posit8_es0"]')
    rows = experiments.sweep(str(file), out=tmp_path / "r.csv").set_index("dtype")
    assert set(rows["cost_source"]) == {"circuits"}
    assert set(rows["status"]) == {"ok"}
    int8, posit = rows.loc["int8"], rows.loc["posit8_es0"]
    assert int8["mac_gates"] == circuits.table().mac("int8", "exact")
    assert np.isnan(posit["mac_gates"])
    assert "posit8_es0 x posit8_es0 with sums sequential" in posit["notes"]
    assert rows["energy_uj"].isna().all()
    assert 2 <= int8["accumulator_data_bits"] <= int8["accumulator_bits"] < 32
    assert int8["accumulator_node"] in ("linear", "logits")
    assert posit["accumulator_bits"] > 24
    assert np.isnan(posit["accumulator_data_bits"])
    assert np.isnan(rows.loc["float32"]["accumulator_bits"])
    assert experiments.reproduce(tmp_path / "r.csv", "2").matches


@pytest.mark.thorough
def test_a_format_of_ones_own_has_costs_and_certificates(tmp_path: Path) -> None:
    (tmp_path / "formats.py").write_text(
        "import datatypes\n\n\ndef value(code: int) -> float:\n"
        "    size = (code & 127) / 32\n    return -size if code >> 7 else size\n\n\n"
        'datatypes.define("evenly8", nbits=8, negation="sign", decode=value)\n'
    )
    tables = (
        '[energy]\n"evenly8" = 0.5\n"nn.relu evenly8" = 0.25\nmemory = 2\n'
        "[gates]\nevenly8 = 700\n[area]\nevenly8 = 321.5"
    )
    file = spec(tmp_path, tables, '[{ scheme = "evenly8", accumulate = "exact" }]')
    text = file.read_text().replace("models =", 'adapters = ["formats.py"]\nmodels =')
    file.write_text(text)
    (row,) = experiments.sweep(str(file), out=tmp_path / "r.csv").to_dict("records")
    assert (row["status"], row["error"]) == ("ok", "")
    assert (row["cost_source"], row["mac_gates"], row["mac_area_um2"]) == (OWN, 700, 321.5)
    assert row["energy_mac_uj"] == pytest.approx(row["macs"] * 0.5e-6)
    assert row["energy_other_uj"] == pytest.approx(128 * 0.25e-6)
    # The numbers are n / 32 with n of at most 7 bits: products of 14 bits, 784 of them.
    assert 15 <= row["accumulator_bits"] <= 1 + 14 + 10


def test_operations_are_in_the_numbers_of_a_format() -> None:
    parts = cost(datatypes.change_dtype(small_net(), "float32", "posit8_es0")).operations
    assert parts["nn.avg_pool2d posit8_es0"] == {"add posit8_es0": 48}
    assert "nn.softmax posit8_es0" not in parts
    assert parts["flatten posit8_es0"] == {}


# ---- files of prices, and the verb ---------------------------------------------------------------
def prices_file(folder: Path, text: str = "") -> Path:
    file = folder / "ours.toml"
    file.write_text(
        text
        or "[energy]\nint8 = 0.5\nfloat32 = 2\nmemory = 10\n"
        "[gates]\nfloat32 = 900\n[area]\nint8 = 80\n"
    )
    return file


def test_a_specification_takes_its_prices_from_a_file(tmp_path: Path) -> None:
    prices_file(tmp_path)
    cells = load_spec(str(spec(tmp_path, '[energy]\nsource = "ours.toml"'))).cells
    assert dict(cells[0].energy) == {"int8": 0.5, "float32": 2.0, "memory": 10.0}
    assert (dict(cells[0].gates), dict(cells[0].area)) == ({"float32": 900.0}, {"int8": 80.0})
    (again,) = load_spec(cells[0].specification()).cells  # which needs no file
    assert again.config_hash == cells[0].config_hash
    prices_file(tmp_path, "[energy]\nint8 = 0.75\n")
    other = load_spec(str(spec(tmp_path, '[energy]\nsource = "ours.toml"'))).cells
    assert other[0].config_hash != cells[0].config_hash


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[energy]\nint9000 = 3\n", "ours.toml:2: unknown dtype 'int9000'"),
        ("[volume]\nint8 = 3\n", "ours.toml:1: unknown key 'volume'"),
        ("[energy]\n", "no prices: give at least one of the tables energy, gates, area"),
        ("[energy\n", "ours.toml"),
    ],
)
def test_wrong_files_of_prices_are_refused(tmp_path: Path, text: str, message: str) -> None:
    prices_file(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        load_spec(str(spec(tmp_path, '[energy]\nsource = "ours.toml"')))


def test_the_verb_shows_sources_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = ["--prices", str(prices_file(tmp_path))]
    assert run_command(["costs", "mnist_mlp", *prices, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    rows = {row["cost_source"]: row for row in shown["costs"]}
    assert [*rows] == [*SOURCES, prices[1]]
    (macs,) = shown["macs_by_dtypes"].values()
    assert rows["horowitz45"]["energy_mac_uj"] == pytest.approx(macs * 4.6e-6)
    assert rows["aladdin40"]["energy_mac_uj"] == pytest.approx(macs * 52e-6)  # they disagree
    assert rows[prices[1]]["energy_mac_uj"] == pytest.approx(macs * 2e-6)
    assert rows[prices[1]]["energy_memory_uj"] == pytest.approx(shown["traffic_bytes"] * 10e-6)
    assert rows[prices[1]]["mac_gates"] == 900
    assert (
        run_command(["costs", "mnist_mlp", "--dtype", "posit8_es2", "--accumulate", "exact"]) == 0
    )
    text = capsys.readouterr().out
    assert "gate_model says nothing of multiply-accumulates of posit8_es2" in text
    assert "101,632 of posit8_es2 x posit8_es2" in text
    assert run_command(["costs", "mnist_mlp", "--plan", "p.json", "--dtype", "bfloat16"]) == 2
    assert "two ways to compute: give one" in capsys.readouterr().err
    assert run_command(["costs", "mnist_mlp", "--prices", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
