"""The report page: what it holds, and (where Chromium is installed) how it behaves."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import experiments
from compiler.errors import ConfigError
from experiments import datasets
from experiments.cli.main import run_command
from experiments.layer_table import EVENTS, LAYER_COLUMNS, LayersFile, layers_path
from experiments.page.ranges import value_ranges
from experiments.store import COLUMNS, ResultsFile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=4000"),
]
SCHEMES = {"float32": "float32", "int8_channel": "int8", "posit8_es0": "posit8_es0"}


def results(folder: Path) -> Path:
    path = folder / "r.csv"
    file = ResultsFile(path)
    for m, model in enumerate(("mnist_mlp", "mnist_dwsep", 'a <b>&"net"</script>')):
        for k, (scheme, dtype) in enumerate(SCHEMES.items()):
            file.append(
                dict.fromkeys(COLUMNS)
                | {"config_hash": f"{m}{k}" * 20, "model": model, "scheme": scheme, "dtype": dtype}
                | {"status": "ok", "error": "", "dataset": "mnist1k", "metric": 0.98 - 0.01 * k}
                | {
                    "latency_ms_median": 2.0 - 0.5 * k + m,
                    "sqnr_db": 30.0 / k if k else float("inf"),
                }
                | {"size_bytes": 4000 >> k, "threads": 1, "n_eval": 10, "cpu": "a processor"}
            )
    file.append(
        dict.fromkeys(COLUMNS)
        | {"config_hash": "f" * 40, "model": "mnist_mlp", "scheme": "fixed8_4", "dtype": "fixed8_4"}
        | {"status": "error", "error": "it broke", "dataset": "mnist1k", "threads": 1}
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


def test_the_page_holds_every_row_and_needs_nothing_else(tmp_path: Path) -> None:
    page = experiments.report(results(tmp_path), tmp_path / "r.html", title="R & <D>")
    text = page.read_text()
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert [row["status"] for row in data["rows"]] == ["ok"] * 9 + ["error"]
    assert data["rows"][0]["sqnr_db"] == "inf"
    assert data["rows"][9]["metric"] is None
    (cell,) = data["layers"]
    assert cell["config_hash"] == data["rows"][2]["config_hash"]
    assert [v["sqnr_db"] for v in cell["values"]] == ["inf", 21.5]
    assert cell["values"][1]["events"] == dict.fromkeys(EVENTS, 3)
    assert data["rows"][1]["command"].startswith("dtypelab reproduce ")
    assert data["summary"] == "10 cells: 3 networks in 4 number systems; 1 failed"
    assert set(data["ranges"]) == {"mnist_mlp", "mnist_dwsep"}
    assert set(data["profiles"]) == {"posit8_es0", "fixed8_4"}
    assert data["provenance"]["processor"] == ["a processor"]
    assert "<title>R &amp; &lt;D&gt;</title>" in text
    assert "{{" not in text
    assert not re.search(r"(src|href)=\"(?!data:|#)|@import|url\(|https?://(?!www\.w3\.org)", text)


def test_ranges_are_shares_of_all_values() -> None:
    data = datasets.load("mnist1k")
    found = value_ranges("mnist_mlp", data.x[:4])
    assert 0.99 < sum(found.weights) <= 1
    assert 0.3 < sum(found.activations) < 1, "ReLU makes zeros, which have no place"
    peak = found.first + max(range(len(found.weights)), key=found.weights.__getitem__)
    assert -8 <= peak <= -3


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
    acted.write_text(page.read_text().replace("</body>", f"<script>{ACTIONS}</script></body>"))
    done = subprocess.run(
        [
            *(CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}"),
            *(f"--window-size={width},900", "--dump-dom", acted.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, done.stderr
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1200, 500])
def test_in_a_browser(tmp_path: Path, width: int) -> None:
    page = experiments.report(results(tmp_path), tmp_path / "r.html")
    seen = browse(page, tmp_path, width)
    assert seen["start"] == {"marks": 9, "lines": 10, "ranges": 2, "bars": 2}
    assert seen["without_mlp"] == {"marks": 6, "lines": 6, "panels": 2}
    assert seen["without_int8"] == {"marks": 4, "lines": 4}
    assert seen["tip"].startswith("mnist_mlp, float32\nmetric: 0.98\n")
    assert seen["chosen"]["lines"] == 1
    assert seen["chosen"]["command"].endswith("--row 000000000000")
    assert seen["chosen"]["focused"]
    assert seen["chosen"]["status"] == "1 of 10 cells, one chosen"
    assert seen["sorted"] == ["0.98"] * 3 + ["0.97"] * 3 + ["0.96"] * 3 + [""]
    assert seen["sqnr"] == {"marks": 9, "label": "SQNR, dB over latency, ms for mnist_mlp"}
    assert seen["theme_changes"]
    assert seen["requests"] == []
    assert 'a <b>&"net"</script>' in seen["names"]
    assert not seen["wider_than_window"]
