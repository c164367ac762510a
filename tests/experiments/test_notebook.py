"""What a notebook shows of programs, plans, sweeps and report pages."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import compiler
import experiments
import quantize
from experiments import zoo
from experiments.running.reproduction import Difference, Reproduction


class Shown(HTMLParser):
    """Checks that elements are closed in order; gathers the tags and the text."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_programs_and_plans_show_their_text() -> None:
    module = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    batch = np.random.default_rng(0).normal(size=(4, 1, 28, 28)).astype(np.float32)
    plan = quantize.calibrate(module, [batch])
    program, decisions = Shown(module._repr_html_()), Shown(plan._repr_html_())
    executable = compiler.build(module)
    compiled = Shown(executable._repr_html_())
    tags = program.tags + decisions.tags + compiled.tags
    assert [tag for tag, _ in tags] == ["pre", "pre", "pre"]
    assert compiled.text == f"{executable!r}\n{executable.stats()}"
    assert program.text == module.astext()
    assert decisions.text == plan.summary()
    assert "->" in program.text  # so that something had to be escaped


def test_reproductions_show_what_came_out() -> None:
    row = {"model": "<net>", "scheme": "int8", "n_eval": 7, "dataset": "d", "status": "ok"}
    changed = (Difference("metric", 0.5, 0.25),)
    found = Reproduction(row, row, changed, None, None, (), ("metric",))
    shown = Shown(found._repr_html_())
    assert shown.text == (
        "<net> in int8, 7 inputs of d\n  metric: recorded 0.5, now 0.25\n"
        "  compared exactly: metric\ndoes not match"
    )


@pytest.mark.usefixtures("fake")
def test_sweeps_and_reports_show_their_tables_and_pictures(tmp_path: Path) -> None:
    spec = {"models": ["mnist_mlp"], "schemes": ["float32", "bfloat16"], "latency": {"runs": 0}}
    rows = experiments.sweep(spec, tmp_path / "r.csv")
    assert "bfloat16" in Shown(re.sub(r"<style.*?</style>", "", rows._repr_html_())).text
    page = experiments.report(tmp_path / "r.csv", tmp_path / "r.html")
    assert page == tmp_path / "r.html"
    ((tag, attributes),) = Shown(page._repr_html_()).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == page.read_text()
    assert html.escape("<svg") not in attributes["srcdoc"]  # escaped once, not twice
