"""The report page: what it holds, and (where Chromium is installed) how it behaves."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_like import FEW_INPUTS, MODELS, recorded_like
from recorded_like import SCHEMES as RECORDED_SCHEMES

import compiler
import experiments
from compiler.errors import ConfigError
from compiler.interpret.graph import trace
from compiler.transform.preparation import prepare
from experiments import zoo
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.files import sha256
from experiments.layers.table import EVENTS, LAYER_COLUMNS, LayersFile, layers_path
from experiments.page import writing
from experiments.page.ranges import Ranges, ranges_at_hand, value_ranges
from experiments.page.writing import page_data
from experiments.results.column_meanings import COMPUTED, MEANINGS
from experiments.results.store import COLUMNS, ResultsFile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=4000"),
]
NASTY = 'a <b>&"net"</script>{{data}}<!--<script>'
WHY = "it broke: " + 8 * "a node has a shape that nobody thought of, " + "alas"
SCHEMES = {"float32": "float32", "int8_channel": "int8", "posit8_es0": "posit8_es0"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of networks are other tests' concern, and take seconds."""
    monkeypatch.setattr(writing, "ranges_at_hand", lambda *_: "not here")


def results(folder: Path) -> Path:
    path = folder / "r.csv"
    file = ResultsFile(path)
    for m, model in enumerate(("mnist_mlp", "mnist_dwsep", NASTY)):
        for k, (scheme, dtype) in enumerate(SCHEMES.items()):
            file.append(
                dict.fromkeys(COLUMNS)
                | {"config_hash": f"{m}{k}" * 20, "model": model, "scheme": scheme, "dtype": dtype}
                | {"status": "ok", "error": "", "dataset": "mnist1k", "metric": 0.98 - 0.01 * k}
                | {
                    "latency_ms_median": 2.0 - 0.5 * k + m,
                    "sqnr_db": 30.0 / k if k else float("inf"),
                }
                | {
                    "size_bytes": 4000 >> k,
                    "threads": 1,
                    "energy_uj": 5.0 - k,
                    "metric_fp32": 0.98,
                    "n_eval": 10,
                    "cpu": "a processor",
                }
                | {"speedup_vs_fp32": 1 + k / 4, "speedup_low": 1 + k / 5}
                | {"speedup_high": 1 + 3 * k / 10}
                | {"latency_noise": "loaded imprecise" if (m, k) == (0, 1) else "none"}
            )
    file.append(
        dict.fromkeys(COLUMNS)
        | {"config_hash": "f" * 40, "model": "mnist_mlp", "scheme": "fixed8_4", "dtype": "fixed8_4"}
        | {"status": "error", "error": WHY, "dataset": "mnist1k", "threads": 1}
    )
    layers = LayersFile(layers_path(path), resume=True)
    key = "02" * 20
    about = {"run_id": "r", "config_hash": key, "model": "mnist_mlp", "scheme": "posit8_es0"}
    lines = [
        {**dict.fromkeys(LAYER_COLUMNS), **about, "value": f"v{k}", "operator": "nn.dense"}
        | {"sqnr_db": sqnr, "cosine": 1.0, **dict.fromkeys(EVENTS, 3 if k else None)}
        for k, sqnr in enumerate((float("inf"), 21.5))
    ]
    layers.put(key, lines)
    return path


@pytest.mark.thorough
def test_the_page_holds_every_row_and_needs_nothing_else(tmp_path: Path) -> None:
    page = experiments.report(results(tmp_path), tmp_path / "r.html", title="R & <D>")
    text = page.read_text()
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert found is not None
    data = json.loads(found[1])
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    assert [row["status"] for row in rows] == ["ok"] * 9 + ["error"]
    assert rows[0]["sqnr_db"] == "inf"
    assert rows[9]["metric"] is None
    (cell,) = data["layers"]
    assert cell["config_hash"] == rows[2]["config_hash"]
    assert [v["sqnr_db"] for v in cell["values"]] == ["inf", 21.5]
    assert cell["values"][1]["events"] == dict.fromkeys(EVENTS, 3)
    assert data["command"].startswith("dtypelab reproduce ")
    assert ">10 cells: 3 networks in 4 number systems; 1 failed<" in text
    assert set(data["ranges"]) == {"mnist_mlp", "mnist_dwsep"}
    for kind in ("first", "second"):
        assert text.count(f'<path class="{kind}" d="M') == 2, "without script too"
    assert text.count('<path class="profile c') == 2 * 2
    assert set(data["ranges_missing"]) == {NASTY}
    assert re.findall(r"<tr><td class=\"text\">(?:<div>)?(.*?)<", lines(text, "networks")) == [
        *("mnist_mlp", "mnist_dwsep", html.escape(NASTY))
    ]
    assert set(data["profiles"]) == {"posit8_es0", "fixed8_4"}
    assert re.search(r"<dt [^>]*>processor</dt><dd>a processor</dd>", text)
    assert "<title>R &amp; &lt;D&gt;</title>" in text
    assert "{{" not in text.replace(found[1], "").replace(html.escape(NASTY), "")
    assert not re.search(r"(src|href)=\"(?!data:|#)|@import|url\(|https?://(?!www\.w3\.org)", text)


def test_the_same_rows_are_the_same_bytes(tmp_path: Path, quick: None) -> None:
    pages = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        page = experiments.report(results(folder), folder / "r.html")
        pages.append(page.read_bytes().replace(bytes(folder), b""))
    assert pages[0] == pages[1]


def lines(page: str, name: str) -> str:
    """The lines of a table of a page."""
    found = re.search(rf'<table id="{name}">.*?<tbody>(.*?)</tbody>', page, re.S)
    assert found is not None
    return found[1]


def test_without_script_tables_and_pictures_are_there(tmp_path: Path, quick: None) -> None:
    page = experiments.report(results(tmp_path), tmp_path / "r.html").read_text()
    still = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    cells = lines(still, "table").split("<tr>")[1:]
    assert len(cells) == 10
    assert len(set(map(columns_of, cells))) == 1, "failed rows are as wide as the others"
    assert re.search(
        r'<td colspan="\d+" class="text failed"><div>error: it broke: a node', cells[9]
    )
    assert html.escape(NASTY) in cells[6]
    assert NASTY not in still
    assert still.count("<figure>") == 3 + 1, "networks, and the cell with layers"
    assert still.count("<polyline") == 3
    assert re.findall(r'<rect [^>]*class="bar c2"><title>(.*?)</title>', still) == [
        *("v0 (nn.dense)", "v1 (nn.dense)")
    ]
    assert "Not at hand when this page was written: mnist_mlp: not here; " in still
    assert len(re.findall(r'<path class="c\d \w+" transform', still)) == 9
    assert still.count("<div><dt><code>") == len(MEANINGS) + len(COMPUTED)


def columns_of(line: str) -> int:
    spans = re.findall(r'<td(?: colspan="(\d+)")?', line)
    return sum(int(span or 1) for span in spans)


def test_nothing_but_the_digests_own_scripts_and_styles_is_allowed(
    tmp_path: Path, quick: None
) -> None:
    page = experiments.report(results(tmp_path), tmp_path / "r.html", title="<x onclick=alert(1)>")
    text = page.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "unsafe" not in policy[1]
    for kind in ("script", "style"):
        (inner,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]
    still = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)
    assert not re.search(r"<[^>]*\s(on\w+|style)\s*=", still), "refused by that policy"


def test_a_cell_that_fails_in_part_shows_what_there_is(tmp_path: Path, quick: None) -> None:
    row = dict.fromkeys(COLUMNS) | {"config_hash": "a" * 40, "model": "m", "scheme": "float32"}
    row |= {"status": "error", "error": "no labels", "dtype": "float32", "size_bytes": 2048}
    ResultsFile(tmp_path / "h.csv").append(row | {"notes": "a sum is left out"})
    text = experiments.report(tmp_path / "h.csv", tmp_path / "h.html").read_text()
    (line,) = lines(text, "table").split("<tr>")[1:]
    assert "<td>2 KiB</td>" in line
    assert '<span class="failed">error: no labels</span>' in line
    assert "a sum is left out" in line
    assert "colspan" not in line
    assert ">1 cell: 1 network in 1 number system; 1 failed<" in text


def test_hostile_names_are_only_text(tmp_path: Path, quick: None) -> None:
    hostile = "\x1b[31m</script><script>alert(1)</script>\u202e' onload='x"
    row = dict.fromkeys(COLUMNS) | {"config_hash": "a" * 40, "status": "error", "n_eval": 1}
    row |= dict.fromkeys(("model", "scheme", "dtype", "error", "cpu", "dataset"), hostile)
    ResultsFile(tmp_path / "h.csv").append(row)
    text = experiments.report(tmp_path / "h.csv", tmp_path / "h.html", title=hostile).read_text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("<script") == 2, "data and script"
    assert "\\x1b[31m&lt;/script&gt;" in text


def test_ranges_are_shares_of_all_values() -> None:
    data = datasets.load("mnist1k")
    found = value_ranges(zoo.FOLDER / "mnist_mlp.onnx", data.x[:4])
    weights, activations = found.weights, found.activations
    assert 0.99 < sum(weights.shares) <= 1.001
    assert 0.3 < sum(activations.shares) < 1, "ReLU makes zeros, which have no place"
    peak = weights.first + max(range(len(weights.shares)), key=weights.shares.__getitem__)
    assert -8 <= peak <= -3
    relu = next(t for t in found.tensors if t.name.endswith("(nn.relu): result"))
    assert sum(relu.shares) < 0.9
    assert max(t.most for t in found.tensors) == max(weights.most, activations.most)


@pytest.mark.thorough
def test_ranges_are_those_of_the_oracle() -> None:
    x = datasets.load("mnist1k").x[:2]
    found = value_ranges(zoo.FOLDER / "mnist_dwsep.onnx", x)
    module = prepare(compiler.from_onnx(zoo.FOLDER / "mnist_dwsep.onnx", {"input": x.shape}))
    results = [t for t in found.tensors if t.name.endswith(": result")]
    values = [v for _, v in trace(module, x) if v.dtype.kind == "f"]
    assert len(results) == len(values)
    for histogram, value in zip(results, values, strict=True):
        assert histogram.most == pytest.approx(abs(value).max(), rel=1e-3)
        assert sum(histogram.shares) == pytest.approx(np.mean(value != 0), abs=1e-3)


def test_networks_that_are_not_at_hand_are_named_with_the_reason(tmp_path: Path) -> None:
    mine = tmp_path / "mine.onnx"
    mine.write_bytes((zoo.FOLDER / "mnist_mlp.onnx").read_bytes())
    good = ranges_at_hand(str(mine), "mnist1k", sha256(mine), 2, 10_000)
    assert isinstance(good, Ranges), "a user's own network, by its path"
    for model, dataset, digest, reason in (
        (str(mine), "mnist1k", "0" * 64, "has changed since"),
        (str(tmp_path / "gone.onnx"), "mnist1k", "", "there is no model file"),
        (str(mine), "no_such_data", "", "data set"),
        (str(tmp_path), "mnist1k", "", ""),
    ):
        found = ranges_at_hand(model, dataset, digest, 2, 10_000)
        assert isinstance(found, str)
        assert reason in found


def test_what_is_no_results_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ResultsFile(tmp_path / "empty.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    good = results(tmp_path)
    for source, out, message in (
        ("empty.csv", "x.html", "has no rows yet"),
        ("other.csv", "x.html", "is not a dtypelab results file"),
        ("missing.csv", "x.html", "cannot read results"),
        (good.name, "nowhere/x.html", "there is no folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            experiments.report(tmp_path / source, tmp_path / out)
        assert run_command(["report", str(tmp_path / source), "-o", str(tmp_path / out)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["empty.csv", "other.csv", "r.csv", "r.layers.csv"]


def test_the_verb_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.html"
    assert run_command(["report", str(results(tmp_path)), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "bytes": out.stat().st_size}


ACTIONS = (Path(__file__).parent / "page_actions.js").read_text()


def browse(page: Path, folder: Path, width: int) -> dict[str, Any]:
    """Run the actions in a window that wide; fails on anything that the console complains about."""
    assert CHROMIUM is not None
    acted = folder / "acted.html"
    text = page.read_text().replace("</body>", f"<script>{ACTIONS}</script></body>")
    # The page's policy stays in force: it is told of this script too.
    digest = base64.b64encode(hashlib.sha256(ACTIONS.encode()).digest()).decode()
    acted.write_text(text.replace("script-src ", f"script-src 'sha256-{digest}' ", 1))
    if width < LEAST_WINDOW:
        # Windows are no narrower than this: a phone is a frame inside one.
        around = folder / "around.html"
        around.write_text(FRAME.format(width=width, source=acted.name))
        acted = around
    done = subprocess.run(
        [
            *(CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}"),
            *(f"--window-size={max(width, LEAST_WINDOW)},900", "--dump-dom", acted.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, done.stderr
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


LEAST_WINDOW = 500
FRAME = """<!doctype html><meta charset=utf-8>
<iframe src="{source}" style="width:{width}px;height:800px;border:0"></iframe>
<script>addEventListener("message", (event) => {{
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = event.data;
  document.body.append(out);
}});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [1200, 360])
def test_in_a_browser(tmp_path: Path, width: int) -> None:
    page = experiments.report(results(tmp_path), tmp_path / "r.html")
    seen = browse(page, tmp_path, width)
    assert seen["width"] == width
    assert seen["start"] == {"marks": 9, "lines": 10, "ranges": 2, "bars": 2}
    assert seen["without_mlp"] == {"marks": 6, "lines": 6, "panels": 2}
    assert seen["without_int8"] == {"marks": 4, "lines": 4}
    assert seen["found"] == ["posit8_es0"]
    # Marks are in order of latency: float32 is the slowest, int8 before it.
    assert seen["stops"] == 3, "one stop of the tabulator key a panel"
    assert seen["tip"].startswith("mnist_mlp, int8_channel\ntop-1: 97.00 %\n")
    assert seen["tip"].endswith(
        "speed-up, ×: 1.25\n95 % interval: 1.2 to 1.3\n"
        "latency disturbed: loaded: others kept processors busy beside it; "
        "imprecise: the speed-up's 95 % interval is wider than wanted\nthreads: 1"
    )
    assert seen["disturbed"] == ["int8_channel"]
    assert seen["linked"] == ["int8_channel"] * 3
    assert seen["chosen"] == {
        "lines": 1,
        "command": f"dtypelab reproduce {tmp_path / 'r.csv'} --row 010101010101",
        "focused": True,
        "status": "1 of 10 cells, one chosen",
    }
    assert seen["escaped"] == 10
    assert seen["by_table"] == {"lines": 1, "focused": f"row {'00' * 20}"}
    assert seen["sorted"] == ["98.00 %"] * 3 + ["97.00 %"] * 3 + ["96.00 %"] * 3 + [f"error: {WHY}"]
    assert seen["reason_fits"], "without scrolling"
    assert seen["sorted_back"] == seen["sorted"][8::-1] + seen["sorted"][9:], (
        "what is missing: last"
    )
    assert seen["aria_sort"] == ["descending", "ascending", "none"]
    assert seen["explained"] == MEANINGS["metric"].text
    assert seen["exact"] == ["figure: 0.96", "parameters: 1000 B"]
    assert seen["crowded"] == 0, "names on each other or on marks"
    assert seen["sqnr"] == {"marks": 9, "label": "SQNR, dB over energy, µJ for mnist_mlp"}
    assert seen["labels"]["mnist_mlp"] == "top-1, % over median latency, ms for mnist_mlp"
    assert seen["tensor"]["label"].startswith("Values of ")
    assert seen["tensor"]["grid"] == 1
    assert seen["theme_changes"]
    assert seen["requests"] == []
    assert NASTY in seen["names"]
    assert not seen["wider_than_window"]
    assert seen["too_small"] == 0
    assert seen["copied"] == "Copied"
    assert seen["clipboard"].startswith("dtypelab reproduce ")
    assert seen["not_copied"].endswith(f"The command: {seen['clipboard']}")


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_hundreds_of_cells_with_many_metrics(tmp_path: Path, quick: None) -> None:
    cells = recorded_like(tmp_path / "big.csv")
    assert cells >= 200
    page = experiments.report(tmp_path / "big.csv", tmp_path / "big.html")
    seen = browse(page, tmp_path, 1200)
    assert seen["start"]["lines"] == cells
    assert seen["start"]["marks"] == cells - 1, "all but the cell that failed"
    assert seen["stops"] == len(MODELS)
    labels = seen["labels"]
    assert labels["ppocr_rec"].startswith("texts read exactly, % over")
    assert labels["my_reader"].startswith("character error rate over")
    assert labels["my_regressor"].startswith("RMSE over")
    assert labels["light_resnet50"].startswith("agreement with float32 (top-1), % over")
    assert {"latency_ms_median", "size_bytes", "bit_operations", "energy_uj", "macs"} <= set(
        seen["axes"]
    )
    for (model, *_), front in zip(MODELS, seen["fronts"].values(), strict=True):
        assert "float32" in front, f"{model}: nothing is more accurate"
        assert FEW_INPUTS not in front, f"{model}: judged by other inputs"
        assert any("weight_bits=4" in name for name in front), f"{model}: nothing is smaller"
        assert not any(name.startswith("fixed8_4") for name in front), f"{model}: the worst"
    names = page_data(tmp_path / "big.csv")["rows"]
    assert len({row["system"] for row in names}) == len(RECORDED_SCHEMES), "no two systems share"
    assert {row["system"] for row in names if row["disturbed"]} == {"takum8"}
    assert not seen["wider_than_window"]
