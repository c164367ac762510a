"""Random ONNX graphs in formats and quantized, on a GPU's grids of threads that this CPU runs, and
on several devices, such a GPU among them: the interpreter's bits.

`RANDOM_GRAPHS` as in test_random_graphs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.errors import DtypelabError
from random_graphs.comparing import identical, listed, stored
from random_graphs.drawing import drawn_graph
from random_graphs.running import Outcome, compare_formats, compare_quantized, first_seed
from random_graphs.settings import drawn_setting
from random_graphs.whole import computable, imported

GRIDS = (
    "cuda -arch=sm_80 -runner=simt",
    "cuda -arch=sm_75 -runner=simt",
    "cuda -arch=sm_90 -mattr=-mma -runner=simt",
)
PTX = ("cuda -arch=sm_80 -runner=ptx", "cuda -arch=sm_75 -runner=ptx")


@pytest.fixture(params=[GRIDS], autouse=True)
def _targets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn as the target of a setting."""
    monkeypatch.setattr("random_graphs.settings.TARGETS", request.param)
    monkeypatch.setattr("random_graphs.running.TARGETS", request.param)


def judge(outcome: Outcome, least: int) -> None:
    print(outcome)
    assert not outcome.faults, str(outcome)
    assert outcome.nodes >= least


@pytest.mark.thorough
def test_a_few_graphs(tmp_path: Path) -> None:
    start = first_seed(40_000)
    judge(compare_formats([start], 4, tmp_path), 2)
    judge(compare_quantized([start], 4, tmp_path), 2)


@pytest.mark.thorough
def test_graphs_in_formats(tmp_path: Path) -> None:
    start = first_seed(41_000)
    judge(compare_formats(range(start, start + 24), 8, tmp_path), 100)


@pytest.mark.thorough
def test_quantized_graphs(tmp_path: Path) -> None:
    start = first_seed(42_000)
    judge(compare_quantized(range(start, start + 8), 8, tmp_path), 30)


@pytest.mark.thorough
@pytest.mark.parametrize("_targets", [PTX], indirect=True, ids=["ptx"])
def test_small_graphs_in_ptx(tmp_path: Path) -> None:
    start = first_seed(43_000)
    judge(compare_formats(range(start, start + 6), 3, tmp_path), 6)
    judge(compare_quantized(range(start, start + 3), 3, tmp_path), 3)


def on_devices(seed: int, size: int) -> bool:
    """Compare a graph in a format whose nodes chance puts on two devices and the host; whether it
    was built, and had something on both."""
    drawn, _ = drawn_graph(seed, size, home=np.float32)
    rng = np.random.default_rng([seed, 4])
    setting = drawn_setting(rng)
    g = computable(drawn, setting, {})
    mod = imported(g, g.ends) if g.nodes else None
    if mod is None:
        return False
    mod = setting.changed(mod)
    nodes = sorted({node for b in mod.main.bindings for node in b.origins})
    where = {node: str(rng.choice(["grid", "old"])) for node in nodes if rng.random() < 0.7}
    feeds = {p.name: stored(g.arrays[p.name]) for p in mod.main.params}
    targets = {"host": "llvm", "grid": setting.target, "old": "llvm -mcpu=x86-64"}
    try:
        exe = compiler.build(compiler.place(mod, where), target=targets)
    except DtypelabError:  # views, and what data say the size of, have no place of their own
        return False
    with np.errstate(all="ignore"):
        want = listed(compiler.evaluate(mod, feeds))
    for name, got, wanted in zip(g.ends, listed(exe(**feeds)), want, strict=True):
        assert identical(got, wanted).all(), f"seed {seed}, {name} in {setting}"
    return len({p.device for p in exe.placements}) == 2


def test_a_graph_on_devices() -> None:
    start = first_seed(44_000)
    assert any(on_devices(seed, 5) for seed in range(start, start + 12))


@pytest.mark.thorough
def test_graphs_on_devices() -> None:
    start = first_seed(45_000)
    assert sum(on_devices(seed, 8) for seed in range(start, start + 12)) >= 3
