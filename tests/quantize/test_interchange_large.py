"""efficientnet-lite0 and PP-OCRv4 go to onnxruntime and come from its tool, with the same integers.

$DTYPELAB_DATA is the folder with their data; $DTYPELAB_BENCH_DIR that with PP-OCRv4's file.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import compiler
import quantize
from compiler.ir.expr import IRModule
from compiler.transform.analysis import cost
from compiler.types.dtypes import Array
from experiments.benchmarks import accuracy_tasks as tasks
from experiments.benchmarks.accuracy_tasks import Task
from quantize import QConfig

pytest.importorskip("onnxruntime")

from ort_models import activations, agreement, native_values, run, static, whole

pytestmark = pytest.mark.slow


def task(name: str) -> Task:
    folder = os.environ.get("DTYPELAB_DATA")
    found = tasks.load(name, Path(folder) if folder else None, {})
    if isinstance(found, str):
        pytest.skip(f"{found}; the folder is taken from DTYPELAB_DATA")
    return found


def equal_elements(mod: IRModule, path: Path, batches: list[Array]) -> float:
    """The share of the elements of all 8-bit activations that onnxruntime has too."""
    shares = []
    for x in batches:
        theirs = activations(path, x)
        found = agreement(native_values(mod, x), theirs)
        assert len(found) >= 0.9 * len(theirs)
        shares.append(whole(found, theirs))
    return float(np.mean(shares))


def right_answers(t: Task, mod: IRModule, path: Path) -> tuple[float, float]:
    """Percent of right answers: ours, onnxruntime's."""
    ours = compiler.build(mod)
    pairs = [(ours(x), next(iter(run(path, x).values()))) for x in t.batches]
    a, b = (100 * float(t.right(np.concatenate(s)).mean()) for s in zip(*pairs, strict=True))
    return a, b


def exported(name: str, folder: Path, config: QConfig | None = None) -> tuple[Task, IRModule, Path]:
    t, path = task(name), folder / "q.onnx"
    mod = t.module()
    plan = quantize.calibrate(mod, list(t.calibration), config)
    quantize.export_onnx(mod, plan, path)
    return t, quantize.realize(mod, plan), path


def test_exported_efficientnet_has_the_same_integers_in_onnxruntime(tmp_path: Path) -> None:
    t, mod, path = exported("efficientnet_lite0", tmp_path)
    assert cost(mod).integer_share == 1
    share = equal_elements(mod, path, t.batches[:2])
    right = right_answers(t, mod, path)
    print(f"{100 * share:.3f} % of the elements are equal; right: {right}")
    assert share >= 0.99
    assert abs(right[0] - right[1]) <= 0.2


def test_an_exported_text_recognizer_all_in_integers_is_the_same_in_onnxruntime(
    tmp_path: Path,
) -> None:
    """With functions of integers, too, there is a pair between any two nodes of the file."""
    t, mod, path = exported("pp_ocrv4_rec", tmp_path, QConfig(functions="integer"))
    share = equal_elements(mod, path, t.batches[:4])
    right = right_answers(t, mod, path)
    print(f"{100 * share:.3f} % of the elements are equal; right: {right}")
    assert share >= 0.99
    assert abs(right[0] - right[1]) <= 0.2


def test_an_exported_text_recognizer_reads_the_same_words_in_onnxruntime(tmp_path: Path) -> None:
    """Its hard-swish is computed from int32 sums here. No pair stands between the two in the file,
    and there onnxruntime adds floats: the few halves that it rounds otherwise are 5 % of the
    elements some fifty layers later."""
    t, mod, path = exported("pp_ocrv4_rec", tmp_path)
    share = equal_elements(mod, path, t.batches[:4])
    right = right_answers(t, mod, path)
    print(f"{100 * share:.3f} % of the elements are equal; right: {right}")
    assert share >= 0.93
    assert abs(right[0] - right[1]) <= 0.5  # two words of 400


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_efficientnet_that_its_tool_quantized_has_the_same_integers_here(
    form: str, tmp_path: Path
) -> None:
    """All multiply-accumulates in integers. One photo is 0.27 points of the right answers."""
    t, path = task("efficientnet_lite0"), tmp_path / "q.onnx"
    static(t.path, path, t.calibration[:4], form)
    mod = compiler.from_onnx(path)
    assert cost(mod).integer_share == 1
    share = equal_elements(mod, path, t.batches[:2])
    right = right_answers(t, mod, path)
    print(f"{100 * share:.3f} % of the elements are equal; right: {right}")
    assert share >= 0.99
    assert abs(right[0] - right[1]) <= 100 / len(t.inputs) + 1e-9
