"""Examples: whole programs, run as a reader would, and what they find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from experiments.examples import pareto_sweep, quantize_and_export
from experiments.results import pareto

FOLDER = Path(__file__).parents[2] / "experiments" / "examples"
#: Run by the functions below, by the tests of READMEs, by tests/tensor/test_registered_rules.py
#: and by tests/experiments/test_torch_examples.py.
ELSEWHERE = {"mixed_formats", "pareto_sweep", "quantize_and_export"}
ELSEWHERE |= {"approximate_multiplier", "new_instruction", "torch_bert", "torch_resnet18"}
OTHERS = sorted({path.stem for path in FOLDER.glob("[a-z]*.py")} - ELSEWHERE)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERS)
def test_example_runs_without_a_warning_and_prints(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.thorough
def test_quantize_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exported file gives onnxruntime the top-1 that we have, within 0.2 points."""
    pytest.importorskip("onnxruntime")
    top1 = quantize_and_export.main(tmp_path)
    assert set(top1) == {"float32", "int8", "int8 in onnxruntime"}
    assert top1["int8"] > 0.985
    assert top1["int8 in onnxruntime"] == pytest.approx(top1["int8"], abs=0.002)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "quantized.onnx"}
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.thorough
def test_pareto_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = pareto_sweep.main(tmp_path)
    assert best["scheme"].tolist() == [
        "int8_channel[weight_bits=4,weight_rounding=gptq]",
        "int8_channel",
        "int8_channel[activation_bits=16]",
        "posit16_es1",
    ]
    assert best["bit_operations"].is_monotonic_increasing
    assert best["sqnr_db"].is_monotonic_increasing
    assert len(capsys.readouterr().out.splitlines()) == 5
    picture = ElementTree.parse(tmp_path / "pareto.svg").getroot()
    panel = picture.find("{*}g")
    assert panel is not None
    tips = [title.text or "" for title in panel.findall(".//{*}title")]
    assert len(tips) == len(pareto_sweep.STUDY["schemes"])
    (stairs,) = panel.findall(".//{*}polyline")
    assert len(stairs.attrib["points"].split()) == len(best)
    assert "bit operations" in "".join(panel.itertext())


def test_pareto_front_is_what_no_row_beats() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = pd.DataFrame(rng.integers(0, 6, (rng.integers(1, 12), 2)), columns=["cost", "worth"])
        pairs = list(rows.itertuples(index=False, name=None))
        wanted = {
            (c, w)
            for c, w in pairs
            if not any((a <= c and b >= w) and (a, b) != (c, w) for a, b in pairs)
        }
        found = [pairs[k] for k in pareto.front(-rows["cost"], rows["worth"])]
        assert sorted(found) == sorted(pair for pair in pairs if pair in wanted)
