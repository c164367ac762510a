"""Names that would command a terminal, begin a line, or be a formula, markup or LaTeX: they are
shown as what they are, in every output."""

import csv
import io
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
import quantize
from compiler.files.printable import printable, printable_lines
from experiments.cli.main import run_command
from experiments.page.notebook import read_results
from experiments.results import export
from experiments.results.store import COLUMNS, SCHEMA_VERSION, ResultsFile

NAME = "=x\x1b[31m\nFORGED line\r\u202e[/]<b>|&{%\\"


def model(path: Path) -> str:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(4, 3)).astype(np.float32), f"w{NAME}")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [f"in{NAME}", f"w{NAME}"], [f"v{NAME}"], name=f"n{NAME}"),
            helper.make_node("Sin", [f"v{NAME}"], [f"out{NAME}"], name=f"s{NAME}"),
        ],
        f"g{NAME}",
        [value(f"in{NAME}", TensorProto.FLOAT, [f"b{NAME}", 4])],
        [value(f"out{NAME}", TensorProto.FLOAT, None)],
        [weight],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return str(path)


def clean(text: str) -> None:
    """Lines that only our own text begins, without anything that is no visible character."""
    for line in text.split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("FORGED"), text


@pytest.mark.thorough
def test_every_verb_shows_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    net = model(tmp_path / "net.onnx")
    x = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    np.savez("x.npz", x=x)
    config = quantize.QConfig(bias_correction="none", smoothing=0.0)
    quantize.calibrate(compiler.from_onnx(net), [x], config).to_json("p.json")
    for line, code in (
        (["inspect", net, "--text", "--graph", "g.svg"], 0),
        (["run", net, "--input", "x.npz", "--output", "y.npz"], 0),
        (["plan", "show", "p.json"], 0),
        (["compare", net, "--input", "x.npz", "--plan", "p.json", "--csv", "c.csv"], 0),
        (["compare", net, "--input", "x.npz", "--plan", "p.json", "--picture", "c.svg"], 0),
        (["bench", net, "--runs", "1", "--warmup", "0"], 0),
        (["run", net, "--input", "x.npz", "--dtype", NAME], 2),
        (["run", NAME, "--input", "x.npz"], 2),
        (["bench", net, "--shape", f"in{NAME}=1,5"], 2),
        (["quantize", net, "--calib", "x.npz", "--set", f"skip={NAME}", "-o", "q.onnx"], 2),
    ):
        assert run_command(line) == code, capsys.readouterr().err
        said = capsys.readouterr()
        clean(said.out)
        clean(said.err)
    for picture in ("g.svg", "c.svg"):
        ElementTree.fromstring(Path(picture).read_text())
        clean(Path(picture).read_text())
    with open("c.csv", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]
    clean(Path("c.csv").read_text())


def results(path: Path, name: str = NAME) -> Path:
    row: dict[str, Any] = {**dict.fromkeys(COLUMNS), "schema_version": SCHEMA_VERSION}
    row |= {"config_hash": "a", "status": "error", "error": name, "model": name, "scheme": name}
    row |= {"dataset": name, "metric_name": "top1"}
    ResultsFile(path).append(row)
    return path


def test_results_show_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = results(tmp_path / "r.csv")
    clean(path.read_text())
    columns = ["--columns", "model,scheme,error,dataset"]
    for line in (
        *(["table", str(path), *columns, "--format", form] for form in export.FORMATS),
        ["report", str(path), "-o", "r.html", "--title", NAME],
    ):
        assert run_command(line) == 0
        clean(capsys.readouterr().out)
    clean(
        re.sub(r"<script.*?</script>|<style.*?</style>", "", Path("r.html").read_text(), flags=re.S)
    )
    html = read_results(path)._repr_html_()
    clean(html)
    assert "<b>|" not in html


@pytest.mark.parametrize(
    "text", ["=1+1", "+x", "-cmd|' /C calc'!A0", "@SUM(1)", "=HYPERLINK(1)", "=\x1b[2J"]
)
def test_exports_hold_no_formulas(tmp_path: Path, text: str) -> None:
    """What the results file itself holds is not changed."""
    path = results(tmp_path / "r.csv", text)
    read = read_results(path)
    assert read["model"].tolist() == [printable(text)]
    export.write(read, tmp_path / "e.csv")
    for out in ((tmp_path / "e.csv").read_text(), export.export(read, "csv")):
        cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
        assert f"'{printable(text)}" in cells
        assert not [c for c in cells if c.startswith(("=", "+", "-", "@"))]


def test_numbers_are_no_formulas() -> None:
    table = pd.DataFrame({"-a": [-1.5, math.nan], "b": ["-1.5", "+2"], "c": [-3, 4]})
    out = list(csv.reader(io.StringIO(export.export(table, "csv"))))
    assert out == [["'-a", "b", "c"], ["-1.5", "-1.5", "-3"], ["", "+2", "4"]]


@pytest.mark.parametrize("first", ["[x]", "*", "[", "x"])
def test_a_row_of_latex_is_no_argument_of_the_one_before(first: str) -> None:
    lines = export.export(pd.DataFrame({first: [first], "b": ["[y]"]}), "latex").splitlines()
    for line in (lines[2], lines[4]):
        assert line.startswith(f"{{{first[0]}}}{first[1:]} &" if first[0] in "[*" else f"{first} &")


def test_printable() -> None:
    assert printable("é ∞ 漢 a") == "é ∞ 漢 a"
    assert printable("\x1b[0m\n\t\u2028\ud800") == "\\x1b[0m\\n\\t\\u2028\\ud800"
    assert printable_lines("a\x07\nb\n") == "a\\x07\nb\n"
