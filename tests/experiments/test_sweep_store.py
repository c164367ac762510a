import csv
import io
import math
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import ConfigError
from experiments.results.store import COLUMNS, ResultsFile, read_rows


def row(key: str, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "config_hash": key, "status": "ok", "error": "", **values}


def test_columns_are_those_of_the_contract() -> None:
    contract = """
    run_id schema_version config_hash status error model model_sha256 opset dataset n_eval n_calib
    seed scheme dtype lowering accumulate weight_bits activation_bits granularity symmetry
    calibrator skipped metric metric_fp32 metric_drop sqnr_db cosine top1_agreement size_bytes macs
    batch threads warmup runs latency_ms_min latency_ms_median latency_ms_mean latency_ms_p90
    latency_ms_p99 latency_ms_stdev speedup_vs_fp32 target isa cpu cores os python numpy llvmlite
    dtypelab_version git_rev git_dirty started_utc duration_s
    """
    added = """
    metric_drop_low metric_drop_high p_value bit_operations activation_bytes energy_uj config
    metric_name dataset_sha256 repeat
    latency_rounds speedup_low speedup_high latency_lost latency_load latency_noise
    traffic_bytes energy_memory_uj
    outputs_not_finite portable_bits detectable_drop
    notes
    metric_se tokens kl_float32 kl_float32_se kl_float32_p99 top_token_agreement
    cost_source mac_gates mac_area_um2 energy_mac_uj energy_other_uj
    accumulator_bits accumulator_data_bits accumulator_node
    machine emulated instructions
    engine engine_nodes cycles utilization
    """
    assert list(COLUMNS) == contract.split() + added.split()


#: The first column that each version added.
ADDED = {
    2: "metric_drop_low",
    3: "metric_name",
    4: "latency_rounds",
    5: "traffic_bytes",
    6: "notes",
    7: "metric_se",
    8: "cost_source",
    9: "machine",
    10: "engine",
}


def as_version(version: int, path: Path) -> bytes:
    """Rewrite a file as an earlier schema version would have written it."""
    with path.open(newline="") as source:
        lines = list(csv.reader(source))
    text = io.StringIO()
    width = lines[0].index(ADDED[version + 1])
    csv.writer(text, lineterminator="\n").writerows(line[:width] for line in lines)
    path.write_text(text.getvalue())
    return path.read_bytes()


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_files_of_an_earlier_version_are_read_and_continued(version: int, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    ResultsFile(path).append(row("a", metric=0.5, error='with, "quotes"'))
    new = path.read_bytes()
    old = as_version(version, path)
    table = read_rows(path)
    assert list(table.columns) == list(COLUMNS)
    assert (table["metric"][0], table["config"][0]) == (0.5, "")
    assert math.isnan(table["p_value"][0])
    assert math.isnan(table["speedup_low"][0])
    assert math.isnan(table["traffic_bytes"][0])
    assert table["latency_noise"][0] == ""  # unknown, which is not "none"
    assert path.read_bytes() == old
    # A last line without a newline is what a killed writer left, of any version.
    path.write_bytes(old + b"torn,row")
    again = ResultsFile(path, resume=True)
    assert path.read_bytes() == new
    assert again.append(row("b", config="{}"))
    assert dict(again.status) == {"a": "ok", "b": "ok"}
    assert again.read()["config"].tolist() == ["", "{}"]


def test_values_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    results = ResultsFile(path)
    nasty = 'a, "quoted"\nerror\r\nwith lines'
    third = 1 / 3
    results.append(
        row("a", metric=third, sqnr_db=math.inf, n_eval=7, error=nasty, git_dirty="true")
    )
    results.append(row("b", sqnr_db=math.nan, isa="", python="3.11"))
    table = results.read()
    assert list(table.columns) == list(COLUMNS)
    assert table["metric"][0] == third
    assert table["sqnr_db"][0] == math.inf
    assert math.isnan(table["sqnr_db"][1])
    assert math.isnan(table["metric"][1])
    assert table["n_eval"][0] == 7
    assert table["error"].tolist() == ['a, "quoted" error with lines', ""]
    assert table["python"][1] == "3.11"
    assert table["git_dirty"].tolist() == ["true", ""]
    assert len(path.read_text().splitlines()) == 3


def test_one_row_per_configuration(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "r.csv")
    assert results.append(row("a", metric=1.0))
    assert not results.append(row("a", metric=0.5))
    assert results.read()["metric"].tolist() == [1.0]


def test_an_existing_file_needs_resume(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    ResultsFile(path).append(row("a", status="error"))
    with pytest.raises(ConfigError, match="--resume or choose another name"):
        ResultsFile(path)
    assert dict(ResultsFile(path, resume=True).status) == {"a": "error"}


@pytest.mark.thorough
def test_a_row_torn_at_any_byte_is_dropped_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    results = ResultsFile(path)
    results.append(row("a", error='quoted "text", with commas'))
    kept = path.read_bytes()
    results.append(row("b", error='torn, "here'))
    whole = path.read_bytes()
    for length in range(len(kept), len(whole)):
        path.write_bytes(whole[:length])
        assert read_rows(path)["config_hash"].tolist() == ["a"], length
        again = ResultsFile(path, resume=True)
        assert path.read_bytes() == kept, length
        again.append(row("c"))
        assert list(ResultsFile(path, resume=True).status) == ["a", "c"], length


@pytest.mark.thorough
def test_a_header_torn_at_any_byte_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    ResultsFile(path)
    header = path.read_bytes()
    for length in range(len(header)):
        path.write_bytes(header[:length])
        ResultsFile(path, resume=True)
        assert path.read_bytes() == header


def test_a_row_torn_while_the_sweep_runs_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    results = ResultsFile(path)
    with path.open("ab") as other:
        other.write(b"half,a,row")
    results.append(row("a"))
    assert list(ResultsFile(path, resume=True).status) == ["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3\n", "is not a dtypelab results file"),
        ("run_id,schema_version,config_hash,newer\n", "a schema version newer than 10"),
        ("\x00\xff", "is not a dtypelab results file"),
    ],
)
def test_foreign_files_are_left_alone(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.csv"
    path.write_text(text, encoding="latin-1")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=message):
        ResultsFile(path, resume=True)
    with pytest.raises(ConfigError, match=message):
        read_rows(path)
    assert path.read_bytes() == before


def test_a_row_with_missing_fields_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    ResultsFile(path).append(row("a"))
    with path.open("a") as edited:
        edited.write("only,three,fields\n")
    with pytest.raises(ConfigError, match="row 3 has 3 fields instead of"):
        ResultsFile(path, resume=True)


def test_replace_keeps_the_place_and_the_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    results = ResultsFile(path)
    for key in "abc":
        results.append(row(key, status="error", error="bad, luck"))
    results.replace(row("b", metric=0.25))
    assert list(results.status.items()) == [("a", "error"), ("b", "ok"), ("c", "error")]
    assert [p.name for p in tmp_path.iterdir()] == ["r.csv"]
    results.append(row("d"))
    with path.open(newline="") as source:
        rows = list(csv.DictReader(source))
    assert [r["config_hash"] for r in rows] == list("abcd")
    assert [r["error"] for r in rows] == ["bad, luck", "", "bad, luck", ""]


def test_columns_must_be_exact(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "r.csv")
    values = row("a", metrics=1)
    del values["metric"]
    with pytest.raises(ConfigError, match=r"missing \['metric'\], extra \['metrics'\]"):
        results.append(values)


def test_unwritable_places_are_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "missing" / "r.csv", tmp_path):
        with pytest.raises(ConfigError, match=r"there is no folder|it is a folder"):
            ResultsFile(place)
    with pytest.raises(ConfigError, match="it is a folder"):
        ResultsFile(tmp_path, resume=True)
    assert list(tmp_path.iterdir()) == []


def _append_many(path: str, name: str, count: int) -> None:
    results = ResultsFile(path, resume=True)
    for i in range(count):
        results.append(row(f"{name}{i}", error="x" * 300))
        results.append(row(f"shared{i}", error="y" * 300))
        if i % 10 == 9:
            results.replace(row(f"{name}{i}", error="z" * 500))


def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    workers = [context.Process(target=_append_many, args=(str(path), n, 30)) for n in "pqr"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    with path.open(newline="") as source:
        records = list(csv.reader(io.StringIO(source.read())))
    keys = [record[COLUMNS.index("config_hash")] for record in records[1:]]
    expected = {f"{n}{i}" for n in [*"pqr", "shared"] for i in range(30)}
    assert len(keys) == len(expected)
    assert set(keys) == expected
    assert {len(record) for record in records} == {len(COLUMNS)}
