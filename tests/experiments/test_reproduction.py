"""A recorded row runs again from what the row itself holds."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import compiler
import datatypes
import experiments
from compiler.errors import ConfigError
from compiler.ir.expr import Call
from compiler.transform.analysis import cost
from compiler.transform.preparation import prepare
from experiments import zoo
from experiments.cli.main import cli, run_command
from experiments.results.store import COLUMNS, ResultsFile, Value
from experiments.running import reproduction
from experiments.systems import number_systems
from experiments.systems.energy import microjoules

SPEC: dict[str, Any] = {
    "models": ["mnist_mlp", "mnist_dwsep"],
    "schemes": [
        "float32",
        {"scheme": "int8_channel", "n_eval": 30},
        {"scheme": "posit16_es1", "accumulate": "fma"},
        {"scheme": {"*conv*": "posit8_es0", "*": "bfloat16"}},
    ],
    "calibrators": ["percentile"],
    "n_eval": 40,
    "n_calib": 20,
    "latency": {"warmup": 0, "runs": 3, "batch": 1, "budget_s": 0},
    "energy": {"float32": 4.6, "int8": 0.2, "posit16_es1 x posit16_es1": 1.5},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recorded") / "r.csv"
    table = experiments.sweep(SPEC, out)
    # The last scheme's pattern of layers matches nothing in the MLP: a failed row reproduces too.
    assert table["status"].tolist() == ["ok"] * 3 + ["error"] + ["ok"] * 4, table["error"].tolist()
    return out


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(1, 9))
def test_every_row_comes_out_the_same(recorded: Path, number: int) -> None:
    found = experiments.reproduce(recorded, str(number))
    assert found.matches, found.differences
    if found.row["status"] == "ok":
        assert found.latency_ratio is not None
        assert found.row["bit_operations"] == found.again["bit_operations"]
    assert found.environment == ()


@pytest.mark.thorough
def test_a_row_is_found_by_its_hash(recorded: Path) -> None:
    rows = experiments.read_results(recorded)
    key = rows["config_hash"][2]
    found = experiments.reproduce(recorded, key[:12])
    assert found.row["scheme"] == "posit16_es1"
    assert found.row["accumulate"] == "fma"


@pytest.mark.thorough
def test_costs_are_those_of_the_operand_widths(recorded: Path) -> None:
    rows = experiments.read_results(recorded)
    rows = rows[(rows["model"] == "mnist_dwsep") & (rows["status"] == "ok")].set_index("scheme")
    macs = rows["macs"]["float32"]
    assert rows["bit_operations"]["float32"] == macs * 32 * 32
    assert rows["bit_operations"]["int8_channel"] == macs * 8 * 8
    assert rows["bit_operations"]["posit16_es1"] == macs * 16 * 16
    assert rows["energy_uj"]["float32"] == pytest.approx(macs * 4.6e-6)
    assert rows["energy_uj"]["int8_channel"] == pytest.approx(macs * 0.2e-6)
    assert rows["energy_uj"]["posit16_es1"] == pytest.approx(macs * 1.5e-6)
    assert rows["activation_bytes"]["posit16_es1"] < rows["activation_bytes"]["float32"]
    drop = rows["metric_drop"]
    assert (rows["metric_drop_low"] <= drop).all()
    assert (drop <= rows["metric_drop_high"]).all()
    assert rows["p_value"]["float32"] == 1


@pytest.mark.thorough
def test_a_changed_row_is_told(recorded: Path, tmp_path: Path) -> None:
    rows = experiments.read_results(recorded).to_dict("records")
    altered = tmp_path / "altered.csv"
    ResultsFile(altered).append({**rows[0], "metric": 0.125, "numpy": "0.1"})
    done = CliRunner().invoke(cli, ["reproduce", str(altered), "--row", "1"], standalone_mode=False)
    assert done.return_value == 1
    assert "metric: recorded 0.125, now 1.0" in done.output
    assert "numpy: recorded 0.1" in done.output
    assert done.output.endswith("does not match\n")
    done = CliRunner().invoke(
        cli, ["reproduce", str(altered), "--row", "1", "--json"], standalone_mode=False
    )
    assert json.loads(done.output)["matches"] is False


#: What a row is, on two processors, and which of its figures must then be the same.
OTHER_CPU = {"cpu": "another", "isa": "another"}
FLOAT_FIGURES = ("metric_fp32", "metric_drop", "sqnr_db", "cosine", "top1_agreement")
KINDS: dict[str, tuple[dict[str, Value], tuple[str, ...]]] = {
    "format": ({"portable_bits": "yes"}, ("metric", "outputs_not_finite")),
    "calibrated": ({"portable_bits": "yes", "n_calib": 20}, ()),
    "float32": ({"portable_bits": "no"}, ()),
    "unlabelled": (
        {"portable_bits": "yes", "metric_name": "top1~float32"},
        ("outputs_not_finite",),
    ),
}
#: A figure, and by how much it may differ, and may not, where the bits of float32 went into it.
MOVED: dict[str, tuple[float, float, float]] = {
    "metric": (0.9, 0.9 + 1 / 300, 0.9 - 0.02),
    "metric_fp32": (0.95, 0.95 + 1 / 300, 0.97),
    "metric_drop": (0.05, 0.05 - 1 / 300, 0.07),
    "sqnr_db": (31.0, 31.09, 31.2),
    "cosine": (0.999, 0.9991, 0.99),
    "top1_agreement": (0.97, 0.97 - 1 / 300, 0.95),
    "outputs_not_finite": (3, 4, 9),
}


def figures(**more: Value) -> dict[str, Value]:
    row: dict[str, Value] = {
        **dict.fromkeys(COLUMNS),
        "metric_name": "top1",
        "n_eval": 300,
        "n_calib": 0,
        "schema_version": 5,
        "cpu": "one",
        "isa": "one",
        "portable_bits": "yes",
        "status": "ok",
        **{name: values[0] for name, values in MOVED.items()},
    }
    return row | more


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", MOVED)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_figures_are_compared_as_their_bits_allow(kind: str, column: str, elsewhere: bool) -> None:
    more, exact = KINDS[kind]
    row = figures(**more)
    here = OTHER_CPU if elsewhere else {}
    _, near, far = MOVED[column]
    same = reproduction.compare(row, {**row, **here})
    assert same.matches
    must = column in exact or not elsewhere
    assert (column in same.exact, column in same.tolerant) == (must, not must)
    assert reproduction.compare(row, {**row, **here, column: near}).matches is not must
    assert not reproduction.compare(row, {**row, **here, column: far}).matches
    assert not reproduction.compare(row, {**row, **here, column: None}).matches
    assert column in same.compared()
    assert ("float32 sums of another processor" in same.compared()) is elsewhere


def test_sizes_are_exact_everywhere_and_columns_of_later_versions_are_not_missed() -> None:
    row = figures(size_bytes=100)
    assert not reproduction.compare(row, {**row, **OTHER_CPU, "size_bytes": 101}).matches
    old = {**row, "schema_version": 4, "outputs_not_finite": None, "portable_bits": ""}
    assert reproduction.compare(old, row).matches
    assert reproduction.compare(old, {**row, **OTHER_CPU}).exact == ("metric", "outputs_not_finite")


def test_what_was_skipped_is_the_same_under_the_names_of_then() -> None:
    row = figures(skipped="scale_0_tmp_1 (its data is float); conv2 (by name)")
    renamed = {**row, "skipped": "scale_0.tmp_1 (its data is float); conv2 (by name)"}
    assert reproduction.compare(row, renamed).matches
    for other in ("scale_0.tmp_1 (its data is float)", "scale_0.tmp_1 (by name); conv2 (by name)"):
        assert not reproduction.compare(row, {**row, "skipped": other}).matches


def timed(low: float, high: float, median: float, **more: Value) -> dict[str, Value]:
    """A row whose speed-up is between `low` and `high`."""
    edges = {f"latency_ms_{name}": median * f for name, f in (("min", 0.9), ("p99", 1.2))}
    interval = {"speedup_vs_fp32": (low + high) / 2, "speedup_low": low, "speedup_high": high}
    return dict.fromkeys(COLUMNS) | edges | interval | {"latency_ms_median": median} | more


@pytest.mark.parametrize(
    ("row", "again", "within"),
    [
        # The intervals of the speed-ups decide, whatever the clock of the day.
        (timed(2.8, 2.9, 1.0), timed(2.85, 2.95, 3.0), True),
        (timed(2.8, 2.9, 1.0), timed(3.0, 3.1, 1.0), True),  # 5 % for where memory lies
        (timed(2.8, 2.9, 1.0), timed(3.1, 3.2, 1.0), False),
        (timed(3.1, 3.2, 1.0), timed(2.8, 2.9, 1.0), False),
        # Of float32 itself, and of rows without intervals, the ranges of the times do.
        (timed(1.0, 1.0, 1.0), timed(1.0, 1.0, 1.3), True),
        (timed(1.0, 1.0, 1.0), timed(1.0, 1.0, 1.5), False),
        (timed(2.8, 2.9, 1.0), timed(0.1, 0.2, 1.1, speedup_low=None), True),
        (timed(2.8, 2.9, 1.0, speedup_low=float("nan")), timed(2.8, 2.9, 1.5), False),
    ],
)
def test_latency_is_within_noise_if_the_intervals_of_the_speedups_meet(
    row: dict[str, Value], again: dict[str, Value], within: bool
) -> None:
    found = reproduction.compare(row, again)
    assert found.latency_within_noise is within


def test_a_row_tells_its_speedups_and_what_disturbed_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {"model": "m", "scheme": "int8", "n_eval": 3, "dataset": "d"}
    row = timed(2.8, 2.9, 1.0, **named, latency_noise="none")
    again = timed(2.7, 2.9, 1.0, **named, latency_noise="loaded")
    monkeypatch.setattr(reproduction, "reproduce", lambda *_: reproduction.compare(row, again))
    done = CliRunner().invoke(cli, ["reproduce", "r.csv", "--row", "1"])
    assert done.output.splitlines()[1:] == [
        "  latency: recorded 1.0000 ms, now 1.0000 ms, speed-up 2.85 (2.8 to 2.9), "
        "now 2.8 (2.7 to 2.9), within the noise of the two runs",
        "  latency now was disturbed: loaded: others kept processors busy beside it",
        f"  compared exactly: metric, outputs_not_finite, {', '.join(FLOAT_FIGURES)}",
        "matches",
    ]


def test_a_row_that_fails_again_says_why() -> None:
    row: dict[str, Value] = {"model": "m", "scheme": "int8", "n_eval": 3, "dataset": "d"}
    failed = timed(1, 1, 1, **row) | {"status": "error", "error": "out of memory"}
    told = reproduction.compare(failed, failed).summary().splitlines()
    assert told[-2:] == ["  now fails (error): out of memory", "matches"]


@pytest.mark.thorough
def test_a_file_without_rows_has_none_to_run(recorded: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text(recorded.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match="has no rows yet; run its sweep first"):
        experiments.reproduce(empty, "1")


@pytest.mark.thorough
def test_what_cannot_be_run_again_is_refused(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = experiments.read_results(recorded).to_dict("records")
    other = tmp_path / "other.csv"
    file = ResultsFile(other)
    file.append({**rows[0], "config": ""})
    file.append({**rows[1], "config_hash": "abc1"})
    file.append({**rows[2], "config_hash": "abc2"})
    file.append({**rows[4], "config_hash": "abd1", "model_sha256": "0123456789abcdef"})
    file.append({**rows[5], "config_hash": "6bd2", "dataset_sha256": "fedcba9876543210"})
    for row, message in (
        ("1", "did not record configurations"),
        ("2", "a definition .of a format, .*, an adapter or this program has changed since"),
        ("4", r"the model 'mnist_dwsep' has changed since \(was 0123456789ab, is [0-9a-f]{12}\)$"),
        ("5", r"the data set 'mnist1k' has changed since \(was fedcba987654, is [0-9a-f]{12}\)$"),
        ("abc", "has 2 rows 'abc'"),
        ("99", "has no row '99'"),
        ("6", "has no row '6'"),  # though a hash starts so
        ("", "has 5 rows ''"),
    ):
        with pytest.raises(ConfigError, match=message):
            experiments.reproduce(other, row)
        assert run_command(["reproduce", str(other), "--row", row]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def with_config(recorded: Path, folder: Path, changes: dict[str, Any]) -> Path:
    """A file with one row, whose configuration has these changes."""
    row = experiments.read_results(recorded).to_dict("records")[0]
    other = folder / "other.csv"
    ResultsFile(other).append({**row, "config": json.dumps(json.loads(row["config"]) | changes)})
    return other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ["gone/net.onnx"]}, "no model file gone.net.onnx"),
        ({"models": ["nobodys"]}, "unknown model 'nobodys'"),
        ({"dataset": "gone/digits.npz"}, "cannot read .*digits.npz"),
        ({"adapters": ["gone/mine.py"]}, "cannot read adapter .*mine.py"),
        ({"schemes": ["custom[bits]8"]}, "bits"),
        ({"schemes": [{"scheme": "int8", "of_tomorrow": 1}]}, "of_tomorrow"),
        ({"targets": ["llvm -mcpu=unheard-of"]}, "unheard-of"),
        ({"of_tomorrow": 1}, "unknown key 'of_tomorrow'"),
    ],
)
@pytest.mark.thorough
def test_what_a_row_lacks_here_is_named(
    recorded: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    other = with_config(recorded, tmp_path, changes)
    with pytest.raises(ConfigError, match=message) as error:
        experiments.reproduce(other, "1", allow_code=True)
    assert str(error.value).startswith("row 1 of mnist_mlp in float32 cannot be run again here: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("energy", "message"),
    [
        ({"int65": 1.0}, "unknown dtype 'int65'; did you mean 'int8'"),
        ({"mxfp4_e2m2": 1.0}, "unknown dtype 'mxfp4_e2m2'; did you mean 'mxfp4_e2m1'"),
        ({"memory x memory": 1.0}, "unknown dtype 'memory'"),
        ({"float32 x posit16_es9": -1}, "must be a number of at least 0"),
        ({"nn.relux float32": 1.0}, "unknown operator 'nn.relux'; did you mean 'nn.relu'"),
        ({"nn.relu float33": 1.0}, "unknown dtype 'float33'"),
        ({"float32": "much"}, "must be a number of at least 0"),
        ({"float32": True}, "must be a number of at least 0"),
    ],
)
def test_energy_tables_are_checked(energy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiments.load_spec({"models": ["mnist_mlp"], "schemes": ["float32"], "energy": energy})


def test_energy_by_hand() -> None:
    macs, elements = (
        {"uint8 x int8": 1000, "float32 x float32": 10},
        {"nn.relu int8": 50, "add x": 7},
    )
    prices = {"int8": 0.2, "float32": 4.6, "nn.relu int8": 0.1}
    assert microjoules(macs, elements, prices) == pytest.approx((200 + 46 + 5) * 1e-6)
    assert microjoules(macs, elements, prices | {"uint8 x int8": 0.5}) == pytest.approx(551e-6)
    assert microjoules(macs, elements, {"int8": 0.2}) is None


@pytest.mark.parametrize(
    ("pair", "prices", "expected"),
    [
        ("mxfp4_e2m1 x mxfp4_e2m1", {"mxfp4_e2m1": 1.0, "float4_e2m1fn": 2.0}, 1.0),
        ("mxfp4_e2m1 x mxfp4_e2m1", {"float4_e2m1fn": 2.0}, 2.0),
        ("mxfp8_e4m3 x mxfp4_e2m1", {"float8_e4m3fn x mxfp4_e2m1": 3.0, "float8_e4m3fn": 4.0}, 3.0),
        # The wider operand says what multiplying takes; of two alike, the weights.
        ("mxfp8_e4m3 x mxfp4_e2m1", {"mxfp4_e2m1": 1.0, "mxfp8_e4m3": 4.0}, 4.0),
        ("float32 x int8", {"float32": 4.6, "int8": 0.2}, 4.6),
        ("uint8 x int4", {"float32": 4.6, "int8": 0.2}, 0.2),
        # Integers are done by the narrowest that are wide enough.
        ("uint4 x int4", {"int16": 0.5, "int8": 0.2, "int2": 0.01}, 0.2),
        ("uint4 x int4", {"uint8 x int8": 0.3, "int8": 0.2}, 0.3),
        ("int12 x int8", {"int16": 0.5, "int8": 0.2}, 0.5),
        ("int16 x int16", {"int8": 0.2}, None),
        ("posit8_es0 x posit8_es0", {"int8": 0.2, "posit16_es1": 1.0}, None),
        ("posit8_es0 x posit8_es0", {"custom[posit8_es0]8": 0.7}, 0.7),
        ("custom[posit8_es0]9 x bfloat16", {"custom[posit8_es0]9": 0.7, "bfloat16": 0.9}, 0.9),
    ],
)
def test_what_a_pair_costs(pair: str, prices: dict[str, float], expected: float | None) -> None:
    found = microjoules({pair: 10**6}, {}, prices)
    assert found == (None if expected is None else pytest.approx(expected))


def test_elements_cost_what_their_numbers_do() -> None:
    elements = {"qnn.requantize uint4": 1000, "qnn.simulated_blocks mxfp4_e2m1": 10, "add x": 7}
    prices = {"qnn.requantize int8": 2.0, "qnn.simulated_blocks float4_e2m1fn": 5.0, "int8": 9.0}
    assert microjoules({}, elements, prices) == pytest.approx((2000 + 50) * 1e-6)


def test_memory_is_a_part_of_the_energy(tmp_path: Path) -> None:
    spec = {
        "models": ["mnist_mlp"], "schemes": ["float32", "mxfp4_e2m1"], "n_eval": 5, "n_calib": 5,
        "latency": {"runs": 0}, "energy": {"float32": 4.6, "mxfp4_e2m1": 0.1, "memory": 20.0},
    }  # fmt: skip
    rows = experiments.sweep(spec, tmp_path / "r.csv")
    moved = rows["traffic_bytes"] * 20.0 * 1e-6
    assert rows["energy_memory_uj"].tolist() == pytest.approx(moved.tolist())
    operations = rows["energy_uj"] - rows["energy_memory_uj"]
    assert operations.tolist() == pytest.approx([rows["macs"][0] * p * 1e-6 for p in (4.6, 0.1)])
    only = experiments.sweep(spec | {"energy": {"memory": 20.0}}, tmp_path / "m.csv")
    assert only["energy_memory_uj"].tolist() == rows["energy_memory_uj"].tolist()
    assert only["energy_uj"].isna().all()


def test_elements_of_operators_are_those_of_their_results() -> None:
    module = prepare(compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx", {"input": (1, 1, 28, 28)}))
    found = cost(module).elements
    relus = [
        b.var.type.shape
        for b in module.main.bindings
        if isinstance(b.value, Call) and getattr(b.value.op, "name", "") == "nn.relu"
    ]
    assert found["nn.relu float32"] == sum(math.prod(map(int, shape)) for shape in relus) > 0
    retyped = cost(prepare(datatypes.change_dtype(module, "float32", "posit8_es0"))).elements
    assert retyped["nn.relu posit8_es0"] == found["nn.relu float32"]


def test_dtypes_of_numbers() -> None:
    for name in ("float32", "uint8", "int4", "posit16_es1", "fixed8_4"):
        number_systems.check_number(name)


def test_a_number_is_that_of_a_row_whatever_a_hash_starts_with(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    results = ResultsFile(file)
    for key in ("9876543f", "2a", "1b"):
        results.append({**dict.fromkeys(COLUMNS, ""), "config_hash": key, "schema_version": 5})
    found = {
        row: reproduction.find_row(file, row)["config_hash"] for row in ("1", "2", "3", "987654")
    }
    assert list(found.values()) == ["9876543f", "2a", "1b", "9876543f"]
