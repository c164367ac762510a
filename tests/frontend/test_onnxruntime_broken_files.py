"""Broken files are refused in one sentence where onnxruntime may be handed parts of them, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_models import ENGINES, chosen_part, inverse_of_scores, model, words_classifier
from onnx import TensorProto as T
from onnx import helper
from onnx_mutations import MEMORY, _bytes, _field

from compiler.errors import DtypelabError, ModelError
from compiler.frontend.onnx_importer import from_onnx

pytest.importorskip("onnxruntime")


def broken(rng: np.random.Generator) -> bytes:
    """The bytes of a model with nodes of onnxruntime's, changed at random."""
    made = (words_classifier, inverse_of_scores, chosen_part)[rng.integers(3)]()
    for _ in range(int(rng.integers(1, 5))):
        _field(rng, made)
    data: bytes = made.SerializeToString()
    return _bytes(rng, data) if rng.random() < 0.3 and data else data


def imported(count: int, seed: int) -> dict[str, Any]:
    """What came of `count` broken files: "refused" and "imported", and others with what was said.
    In a process of its own, as native code reads them."""
    command = [sys.executable, "-W", "ignore", __file__, str(count), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))  # nothing else is printed


def main(count: int, seed: int) -> None:
    out: dict[str, int] = {}
    for k in range(count):
        data = broken(np.random.default_rng([seed, k]))
        try:
            from_onnx(data, memory_limit=MEMORY, engines=ENGINES)
            came = "imported"
        except DtypelabError as e:
            came = "refused" if "\n" not in str(e) else f"unclear: {e!r:.200}"
        except Exception as e:
            came = f"{k}: {type(e).__name__}: {e}"[:300]
        out[came] = out.get(came, 0) + 1
    print(json.dumps(out))


@pytest.mark.thorough
def test_broken_files_give_clean_errors() -> None:
    count = 1500
    found = imported(count, count)
    assert set(found) == {"refused", "imported"}
    assert found["refused"] > count // 2
    assert found["imported"] > count // 50


def test_files_beside_the_model_are_read_by_us_alone(tmp_path: Path) -> None:
    """Tensors in a region may lie in files; not in files outside of the model's folder."""
    held = np.arange(4, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(held.tobytes())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").write_bytes(held.tobytes())
    for place, fine in (("w.bin", True), ("../w.bin", False), ("/etc/passwd", False)):
        t = onnx.TensorProto(name="inside", data_type=T.FLOAT, dims=[4], data_location=1)
        for key, value in (("location", place), ("length", "16")):
            entry = t.external_data.add()
            entry.key, entry.value = key, value
        make = helper.make_node
        branches = [
            helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("o", 1, None)])
            for nodes in (
                [make("Constant", [], ["k"], value=t), make("Add", ["x", "k"], ["o"])],
                [make("Unsqueeze", ["x", "axes"], ["o"])],
            )
        ]
        branch = make("If", ["c"], ["i"], "pick", then_branch=branches[0], else_branch=branches[1])
        proto = model(
            [branch, make("ReduceSum", ["i"], ["y"], keepdims=0)],
            {"x": (T.FLOAT, [4]), "c": (T.BOOL, [])},
            {"y": (T.FLOAT, [])},
            [onnx.numpy_helper.from_array(np.array([0]), "axes")],
        )
        path = tmp_path / "model" / "m.onnx"
        path.write_bytes(proto.SerializeToString())
        if not fine:
            with pytest.raises(ModelError, match="outside the model's folder"):
                from_onnx(path, engines=ENGINES)
            continue
        from compiler.interpret.graph import evaluate

        mod = from_onnx(path, engines=ENGINES)
        x = np.ones(4, np.float32)
        assert evaluate(mod, x, np.array(True)) == 10
        assert evaluate(mod, x, np.array(False)) == 4


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
