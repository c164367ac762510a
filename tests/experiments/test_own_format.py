"""`dtypelab --adapter`: verbs know the formats, models and data that a file defines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import experiments
from datatypes.formats import catalogue
from experiments import zoo
from experiments.cli.main import run_command
from experiments.layers.gaps import gaps_path, read_gaps

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[str]:
    """An adapter that defines the format own8, for this test alone."""
    known = dict(catalogue._known)
    path = tmp_path / "formats.py"
    path.write_text("import datatypes\ndatatypes.define('own8', exponent=3, mantissa=4)\n")
    yield str(path)
    catalogue._known.clear()
    catalogue._known.update(known)


def test_a_format_of_the_file_is_known_by_every_verb(file: str, capsys: Capture) -> None:
    own = ["--adapter", file]
    assert run_command(["dtype", "show", "own8"]) == 2
    assert "unknown format 'own8'" in capsys.readouterr().err
    assert run_command([*own, "dtype", "show", "own8"]) == 0
    assert capsys.readouterr().out.startswith("name            own8\n")
    compare = ["compare", "mnist_mlp", "--input", "mnist1k", "--images", "1", "--dtype", "own8"]
    assert run_command([*own, *compare]) == 0
    assert "nn.dense" in capsys.readouterr().out


def test_sweeps_name_their_adapters_themselves(file: str, capsys: Capture) -> None:
    arguments = ["--adapter", file, "sweep", "quickstart", "--dry-run"]
    assert run_command(arguments) == 2
    assert 'adapters = ["FILE.py"]' in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "1 / 0\n"])
def test_a_file_that_fails_is_one_sentence(
    text: str | None, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    assert run_command(["--adapter", str(path), "zoo"]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert error.count("\n") == 1


def test_a_network_of_the_zoo_becomes_a_file(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "my.onnx"
    assert run_command(["zoo", "mnist_mlp", "-o", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: mnist_mlp, ")
    assert out.read_bytes() == (zoo.FOLDER / "mnist_mlp.onnx").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist_mlp"], "together"),
        (["-o", "x.onnx"], "together"),
        (["mnist_mpl", "-o", "x.onnx"], "did you mean 'mnist_mlp'"),
    ],
)
def test_wrong_uses_of_zoo(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run_command(["zoo", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_certificates_and_costs_take_it(file: str, tmp_path: Path, capsys: Capture) -> None:
    shown = ["inspect", "mnist_mlp", "--accumulators", "--dtype", "own8", "--json"]
    assert run_command(["--adapter", file, *shown]) == 0
    found = json.loads(capsys.readouterr().out)["accumulators"]
    assert all(row["bits"] > 8 for row in found if not row["reason"])
    assert any(not row["reason"] for row in found)
    prices = tmp_path / "prices.toml"
    prices.write_text("[energy]\nown8 = 0.5\n[gates]\nown8 = 640\n")
    costs = ["costs", "mnist_mlp", "--dtype", "own8", "--json"]
    assert run_command(["--adapter", file, *costs, "--prices", str(prices)]) == 0
    rows = {row["cost_source"]: row for row in json.loads(capsys.readouterr().out)["costs"]}
    assert rows[str(prices)]["mac_gates"] == 640
    assert rows[str(prices)]["energy_mac_uj"] > 0
    assert "own8" in rows["circuits"]["notes"]


@pytest.mark.thorough
def test_gaps_take_it(file: str, tmp_path: Path, capsys: Capture) -> None:
    csv = tmp_path / "g.csv"
    gap = ["gap", "mnist_mlp", "--scheme", "own8", "--n-eval", "3", "--csv", str(csv)]
    assert run_command(gap) == 2
    assert "own8" in capsys.readouterr().err
    assert run_command(["--adapter", file, *gap]) == 0
    assert "own8" in capsys.readouterr().out
    assert csv.read_text().count("mnist_mlp,own8,3,") == 13


@pytest.mark.thorough
def test_so_do_gaps_of_sweeps(file: str, tmp_path: Path) -> None:
    spec = {
        "models": ["mnist_mlp"], "schemes": ["own8"], "adapters": [file], "n_eval": 3,
        "latency": {"runs": 0, "warmup": 0}, "gap": {"inputs": 3},
    }  # fmt: skip
    rows = experiments.sweep(spec, tmp_path / "r.csv")
    assert rows["status"].tolist() == ["ok"], rows["error"].tolist()
    lines = read_gaps(gaps_path(tmp_path / "r.csv"))
    assert set(lines["scheme"]) == {"own8"}
    assert set(lines["order"]) == {"forward", "reverse", "whole"}
