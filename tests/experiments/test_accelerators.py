"""Accelerators on the command line, in a picture, and as an axis of sweeps."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import experiments
from compiler.codegen.accel.convolution import Finish, convolution
from compiler.codegen.accel.instructions import encoded
from compiler.runtime.accel.choosing import best_tile, places, timed
from compiler.runtime.accel.layer import LayerReport
from compiler.scheduling.accelerator_tiles import Convolution, Tile
from compiler.target.accelerator import Design
from experiments.cli.main import run_command
from experiments.page.timeline import KINDS, timeline_svg

CONVOLUTION = Convolution(2, 2, 8, 8, (3, 3), (1, 1), (1, 1, 1, 1))


def layer(
    name: str, design: Design, tile: Tile | None = None, c: Convolution = CONVOLUTION
) -> LayerReport:
    tile = tile or best_tile(c, design)[0]
    stream = encoded(convolution(c, tile, design, places(c, design)[0], Finish()))
    return LayerReport(name, c, tile, 1000, timed(c, tile, design), stream)


def bars(svg: str) -> list[dict[str, float | str]]:
    """The bars of a timeline's three lanes: the frame and the legend are taller or lower."""
    found = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")
    return [
        {"colour": r.attrib["fill"], **{k: float(r.attrib[k]) for k in ("x", "y", "width")}}
        for r in found
        if r.attrib["height"] == "20"
    ]


def test_timelines_show_what_the_units_do() -> None:
    design = Design.parse("accel -bandwidth=4")
    first = layer("<one>", design, Tile(4, 8, 1, 1))
    svg = timeline_svg(design, [first, layer("two", design)])
    assert "&lt;one&gt;" in svg
    drawn = bars(svg)
    assert {b["colour"] for b in drawn} == {colour for _, colour in KINDS.values()}
    for _, colour in KINDS.values():
        assert len({b["y"] for b in drawn if b["colour"] == colour}) == 1
    # What multiplies is as wide as its part of the time.
    red = sum(float(b["width"]) for b in drawn if b["colour"] == KINDS["multiply"][1])
    both = [first, layer("two", design)]
    total = sum(r.report.cycles for r in both)
    work = sum(r.report.gemm + design.fill * np.sum(r.stream[:, 0] == 1) for r in both)
    assert red / 1000 == pytest.approx(work / total, rel=0.02)


def test_sums_of_tensors_are_drawn_among_what_makes_results() -> None:
    design = Design()
    c = Convolution(2, 2, 8, 8, apart=True, pooled="sum")
    drawn = bars(timeline_svg(design, [layer("sum", design, c=c)]))
    colours = {KINDS[kind][1] for kind in ("data", "parameters", "results", "store")}
    assert {b["colour"] for b in drawn} == colours
    store = {b["y"] for b in drawn if b["colour"] == KINDS["store"][1]}
    assert store.isdisjoint(b["y"] for b in drawn if b["colour"] == KINDS["results"][1])
    red = sum(float(b["width"]) for b in drawn if b["colour"] == KINDS["results"][1])
    r = layer("sum", design, c=c).report
    assert red / 1000 > 0.95 * r.alu / r.cycles


@pytest.mark.thorough
def test_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "t.svg"
    given = ["cycles", "mnist_mlp", "--calib", "mnist1k", "--target", "accel -bandwidth=4"]
    assert run_command([*given, "--timeline", str(picture), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [line["layer"] for line in found["layers"]] == ["relu_q", "logits_acc"]
    assert found["cycles"] == sum(line["cycles"] for line in found["layers"])
    for line in found["layers"]:
        assert 0 < line["utilization"] <= line["busy"] < 1
        assert line["bytes"] / 4 <= line["cycles"]
    assert bars(picture.read_text())
    assert run_command(given) == 0
    assert "cycles of 2 layers" in capsys.readouterr().out


BAD = {
    "--target llvm": "--target is an accelerator",
    "--target 'accel -bandwidth=0'": "bandwidth must be from 1",
    "--target 'accel -blok=3'": "unknown option 'blok'",
    "--target 'accel -weight=64'": "the weight buffer of 64 bytes cannot hold one tile",
    "--target 'accel -format=posit9000'": "posit9000",
    "": "the core computes nothing of this program",
    "--layer relu_q": "--layer is what --timeline draws",
    "--calib mnist1k --dtype posit8_es0": "leave --dtype out",
    "--calib mnist1k --timeline {folder}/t.svg --layer nope": "unknown layer 'nope'",
}


@pytest.mark.thorough
@pytest.mark.parametrize("words", BAD)
def test_bad_input(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    given = ["cycles", "mnist_mlp", *shlex.split(words.format(folder=tmp_path))]
    assert run_command(given) == 2
    said = capsys.readouterr()
    assert BAD[words] in said.err
    assert said.err.count("\n") == 1
    assert not said.out
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_nothing_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["bench", "mnist_mlp", "--calib", "mnist1k", "--target", "accel"]
    assert run_command(given) == 2
    assert "count its cycles (dtypelab cycles)" in capsys.readouterr().err


SPEC = """
models = ["mnist_mlp"]
dataset = "mnist1k"
schemes = ["float32", "int8_channel"]
targets = ["llvm", "accel -block=8", "accel"]
n_eval = 20
n_calib = 20

[latency]
warmup = 0
runs = 1
"""


@pytest.mark.thorough
def test_designs_are_an_axis_of_sweeps(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SPEC)
    rows = experiments.sweep(tmp_path / "s.toml", out=tmp_path / "r.csv").to_dict("records")
    by = {(r["scheme"], r["target"]): r for r in rows}
    assert len(by) == 6
    here = by["int8_channel", "llvm"]
    assert math.isnan(here["cycles"])
    assert here["latency_ms_median"] > 0
    for target in ("accel -block=8", "accel"):
        row, plain = by["int8_channel", target], by["float32", target]
        assert row["status"] == "ok"
        assert (row["metric"], row["sqnr_db"]) == (here["metric"], here["sqnr_db"])
        assert (row["machine"], row["emulated"]) == ("simulator", "yes")
        assert 0 < row["utilization"] < 1
        assert math.isnan(row["latency_ms_median"])
        assert plain["status"] == "error"
        assert "the core computes nothing of this program" in plain["error"]
    small, large = (by["int8_channel", t]["cycles"] for t in ("accel -block=8", "accel"))
    assert small > large > 0


def test_what_the_benchmark_says_of_bytes() -> None:
    from experiments.benchmarks.accelerator import DESIGN, LAYERS, least_bytes, shape

    design = Design.parse(DESIGN)
    c = shape(design, 64, 64, 56, 3, 1)
    assert c.out_size == (56, 56)
    assert least_bytes(c, design) == 2 * 64 * 56 * 56 + 64 * 64 * 9 + 64 * 2 * 4
    assert len([k for *_, k, _ in LAYERS if k == 3]) == 7
    report = best_tile(c, design)[1]
    assert report.loaded + report.stored >= least_bytes(c, design)
