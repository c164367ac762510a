"""Pictures of results as files of their own, and the one that README shows."""

import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from experiments.cli.main import run_command
from experiments.page.picture import COSTS
from experiments.page.sheet import sheet, sheet_svg
from experiments.results.row_names import system_names
from experiments.results.store import read_rows

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "results" / "recorded.csv"


def test_readme_shows_what_its_command_makes(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"!\[[^]]*\]\((results/\S+\.svg)\)", text)
    assert shown
    assert text.index(shown[0]) < text.index("## ")
    command = re.search(r"`dtypelab (report results/[^`]*)`", text)
    assert command
    words = shlex.split(command[1].replace("\n", " "))
    out = tmp_path / "picture.svg"
    assert run_command([str(out) if w == shown[1] else str(ROOT / w) if w.endswith(".csv") else w
                 for w in words]) == 0  # fmt: skip
    assert out.read_text("utf-8") == (ROOT / shown[1]).read_text("utf-8")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("cost", COSTS)
def test_every_mark_is_explained(cost: str) -> None:
    rows = read_rows(RECORDED)
    picture = ET.fromstring(sheet_svg(rows, cost))
    words = {t.text for t in picture.iter("{http://www.w3.org/2000/svg}title")}
    assert set(system_names(rows)) <= words
    assert {t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")} >= set(rows["model"])


def test_networks_are_chosen(tmp_path: Path) -> None:
    out = sheet(RECORDED, tmp_path / "x.svg", ["mnist_mlp"], "size_bytes")
    assert "mnist_mlp" in out.read_text()
    assert "ppocr" not in out.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["x.svg", "--model", "mnist_mpl"], "mnist_mlp"),
        (["x.svg", "--cost", "size"], "size_bytes"),
        (["x.svg", "--title", "t"], ".html"),
        (["x.html", "--model", "mnist_mlp"], ".svg"),
        ([str(RECORDED)], "recorded.csv"),
    ],
)
def test_what_makes_no_picture_is_refused(
    options: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = RECORDED.read_bytes()
    assert run_command(["report", str(RECORDED), "-o", *options]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert RECORDED.read_bytes() == before
