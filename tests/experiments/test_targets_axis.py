"""Sweeps over targets: C, and machines elsewhere. What an emulator runs has no milliseconds, and
what cannot run here is a row that says what to install."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import compiler
import experiments
from compiler.runtime.machines.image import Image
from compiler.runtime.machines.registry import missing, register_machine, remove_machine
from compiler.target.registry import Target
from compiler.types.dtypes import Array
from experiments.results.terminal import results_table

PRETENDED = "llvm -mtriple=riscv64-linux -runner=pretend"
COUNT = 1_234_567


class Pretend:
    """An emulator that finds nothing but zeros, and counts."""

    name = "pretend"
    emulated = True

    def __init__(self, lacks: str = "") -> None:
        self.lacks = lacks

    def missing(self, target: Target) -> str:
        return self.lacks

    def load(self, image: Image) -> Pretend:
        return self

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> int:
        for a in outputs:
            a[...] = 0
        return COUNT


@pytest.fixture
def machine() -> Iterator[Pretend]:
    made = Pretend()
    register_machine("riscv64", "pretend", lambda: made)
    yield made
    remove_machine("riscv64", "pretend")


def swept(folder: Path, targets: Sequence[str], runs: int = 2) -> list[dict[str, Any]]:
    """The rows of a network in float32 and two number systems, for targets."""
    (folder / "s.toml").write_text(f"""
models = ["mnist_mlp"]
dataset = "mnist1k"
schemes = ["float32", "int8_channel", "posit8_es0"]
targets = {list(targets)}
n_eval = 8
n_calib = 16

[latency]
warmup = 0
runs = {runs}
batch = 1
""")
    rows = experiments.sweep(folder / "s.toml", out=folder / "s.csv")
    return [{str(k): v for k, v in row.items()} for row in rows.to_dict("records")]


def printed(folder: Path) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(results_table(experiments.read_results(folder / "s.csv")))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.thorough
def test_an_emulator_gives_instructions_and_no_milliseconds(
    tmp_path: Path, machine: Pretend
) -> None:
    rows = swept(tmp_path, ["llvm", PRETENDED])
    assert [r["status"] for r in rows] == ["ok"] * 6, [r["error"] for r in rows]
    for r in rows:
        elsewhere = r["target"] == PRETENDED
        times = [r[c] for c in r if c.startswith(("latency_ms", "speedup"))]
        assert len(times) == 9
        assert all(math.isnan(t) for t in times) if elsewhere else times[0] > 0
        assert (r["machine"], r["emulated"]) == (("pretend", "yes") if elsewhere else ("", "no"))
        assert r["instructions"] == COUNT if elsewhere else math.isnan(r["instructions"])
        assert math.isfinite(r["metric"])
    assert printed(tmp_path).count("1.23M ins") == 3


def test_without_a_request_for_latency_the_machine_is_named(
    tmp_path: Path, machine: Pretend
) -> None:
    for r in swept(tmp_path, [PRETENDED], runs=0):
        assert (r["machine"], r["emulated"]) == ("pretend", "yes")
        assert math.isnan(r["instructions"])


def test_a_machine_that_is_not_installed_is_a_row(tmp_path: Path, machine: Pretend) -> None:
    machine.lacks = "pretend is not installed: buy one"
    rows = swept(tmp_path, [PRETENDED, "llvm"], runs=0)
    assert [r["status"] for r in rows] == ["error"] * 3 + ["ok"] * 3
    for r in rows[:3]:
        assert r["error"].endswith("pretend is not installed: buy one")
        assert math.isnan(r["metric"])
        assert r["machine"] == ""


def test_what_is_no_target_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(compiler.DtypelabError, match=r"s\.toml:5: unknown target triple"):
        swept(tmp_path, ["llvm -mtriple=aarch64-linx"])
    assert not (tmp_path / "s.csv").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "target",
    [
        "c",
        "llvm -mtriple=wasm32 -runner=wasmtime",
        "llvm -mtriple=wasm32 -runner=node",
        "llvm -mtriple=aarch64-linux",
        "llvm -mtriple=riscv64-linux",
        "llvm -mtriple=thumbv7em",
        "llvm -mtriple=thumbv8.1m",
    ],
)
def test_accuracy_is_the_same_on_every_machine(tmp_path: Path, target: str) -> None:
    if target == "c" and shutil.which("cc") is None:
        pytest.skip("no C compiler is installed")
    if target != "c" and (why := missing(Target.anywhere(target))):
        pytest.skip(why)
    here, there = np.split(np.array(swept(tmp_path, ["llvm", target])), 2)
    for a, b in zip(here, there, strict=True):
        assert (a["status"], b["status"], b["error"]) == ("ok", "ok", "")
        assert a["metric"] == b["metric"]
        if a["scheme"] != "float32":
            assert a["sqnr_db"] == pytest.approx(b["sqnr_db"], rel=1e-5)  # float32 beside it
        assert (b["emulated"] == "yes") == math.isnan(b["latency_ms_median"])
        assert (b["emulated"] == "yes") >= math.isfinite(b["instructions"])
