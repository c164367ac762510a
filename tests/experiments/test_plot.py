"""dtype show --plot: the precision profile as a picture, where matplotlib is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from datatypes.formats import get
from datatypes.formats.profile import precision_profile
from experiments.cli.main import run_command

Capture = pytest.CaptureFixture[str]


def show(name: str, file: Path) -> int:
    return run_command(["dtype", "show", name, "--plot", str(file)])


def test_without_matplotlib_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert show("posit8_es0", tmp_path / "profile.png") == 2
    captured = capsys.readouterr()
    assert "install dtypelab with its extra `plot`" in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["posit16_es1", "float8_e4m3fn", "takum16", "lns8_3"])
def test_what_is_drawn_is_the_precision_of_every_binade(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: dict[str, Any] = {}

    class Axes:
        def step(self, x: list[int], y: list[float], where: str) -> None:
            drawn.update(x=x, y=y, where=where)

        def set(self, **words: str) -> None:
            drawn.update(words)

        def grid(self, **_: Any) -> None:
            pass

    class Figure:
        def __init__(self, **_: Any) -> None:
            pass

        def add_subplot(self) -> Axes:
            return Axes()

        def savefig(self, file: Path) -> None:
            file.write_text("drawn")

    stand_in: Any = ModuleType("matplotlib.figure")
    vars(stand_in).update(vars(SimpleNamespace(Figure=Figure)))
    monkeypatch.setitem(sys.modules, "matplotlib", ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", stand_in)
    assert show(name, tmp_path / "profile.svg") == 0
    profile = precision_profile(get(name))
    assert drawn["x"] == [binade.exponent for binade in profile]
    assert drawn["y"] == [binade.bits for binade in profile]
    assert len(profile) > 3
    assert drawn["where"] == "post"
    assert drawn["title"] == name
    assert (tmp_path / "profile.svg").read_text() == "drawn"


def test_with_matplotlib_it_writes_pictures(capsys: Capture, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        file = tmp_path / f"profile{suffix}"
        assert show("posit8_es0", file) == 0
        assert file.read_bytes().startswith(start)
    capsys.readouterr()
    for bad in (tmp_path / "profile.xyz", tmp_path / "nowhere" / "profile.png"):
        assert show("posit8_es0", bad) == 2
        assert "cannot draw" in capsys.readouterr().err
        assert not bad.exists()
