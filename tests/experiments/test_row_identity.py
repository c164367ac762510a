"""`config_hash` covers everything that can change a result, and nothing else.

For every kind of definition: changing one field changes the hash of the cells that use it, and only
of those; the hash does not depend on the process, on where files lie, or on the order of keys.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from row_hashes import BASE, RESULTS, hash_in, hash_of

import compiler
import experiments
from compiler.errors import ConfigError
from compiler.scheduling import rules
from experiments import zoo
from experiments.spec.specification import load_spec
from experiments.user_code.fingerprints import Fingerprint

# ---- files ---------------------------------------------------------------------------------------

pytestmark = pytest.mark.usefixtures("forgotten")

ADAPTER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np
import beside
from package import part
import experiments
from experiments import zoo

def network():
    return zoo.FOLDER / "mnist_mlp.onnx"

def data():
    return {"x": np.zeros((20, 1, 28, 28), np.float32), "y": np.arange(20) % 10,
            "x_calib": np.ones((20, 1, 28, 28), np.float32)}

def score(outputs, labels):
    return outputs.mean(axis=1) * beside.FACTOR * part.FACTOR

experiments.register_metric("registered", score)
"""
USES: dict[str, dict[str, Any]] = {
    "model": {"models": ["mine.py:network"]},
    "dataset": {"dataset": "mine.py:data"},
    "metric": {"metric": "mine.py:score"},
    "adapters": {"adapters": ["mine.py"], "metric": "registered"},
}
FILES = {
    "mine.py": ADAPTER,
    "beside.py": "import deeper\nFACTOR = deeper.FACTOR\n",
    "deeper.py": "FACTOR = 2.0\n",
    "package/__init__.py": "",
    "package/part.py": "from .inner import FACTOR\n",
    "package/inner.py": "FACTOR = 3.0\n",
    "unused.py": "FACTOR = 5.0\n",
}


def write(folder: Path, **changed: str) -> None:
    for name, text in (FILES | changed).items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)


def hash_at(folder: Path, use: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return hash_of(schemes=["float32"], **USES[use])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("use", USES)
def test_adapters_count_with_the_modules_beside_them(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a")
    plain = hash_at(tmp_path / "a", use, monkeypatch)
    write(tmp_path / "b")
    assert hash_at(tmp_path / "b", use, monkeypatch) == plain
    write(tmp_path / "a", **{"unused.py": "FACTOR = 7.0\n"})
    assert hash_at(tmp_path / "a", use, monkeypatch) == plain
    changed = set()
    for name in ("mine.py", "beside.py", "deeper.py", "package/part.py", "package/inner.py"):
        write(tmp_path / "a", **{name: f"{FILES[name]}\n# changed\nOTHER = 1\n"})
        changed.add(hash_at(tmp_path / "a", use, monkeypatch))
    assert len(changed) == 5
    assert plain not in changed


@pytest.mark.thorough
def test_a_changed_module_is_run_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    for number, factor in enumerate(("2.0", "4.00")):
        write(tmp_path, **{"deeper.py": f"FACTOR = {factor}\n"})
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        spec = {**BASE, "schemes": ["float32"], **USES["metric"]}
        figures.append(experiments.sweep(spec, tmp_path / f"{number}.csv")["metric"][0])
    assert figures[1] == pytest.approx(2 * figures[0])


def model_with_weights_beside(folder: Path, factor: float) -> Path:
    weights = np.full((784, 10), factor, np.float32)
    tensor = numpy_helper.from_array(weights, "w")
    node = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        node,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save_model(
        model, folder / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0
    )
    return folder / "m.onnx"


def test_weights_beside_a_model_count_and_are_read_again(tmp_path: Path) -> None:
    figures, hashes = [], []
    for factor in (1.0, 2.0):
        path = model_with_weights_beside(tmp_path, factor)
        spec = {**BASE, "models": [str(path)], "schemes": ["bfloat16"], "dataset": "mnist1k"}
        table = experiments.sweep(spec, tmp_path / f"{factor}.csv")
        assert table["status"].tolist() == ["ok"]
        hashes.append(table["config_hash"][0])
        module = experiments.zoo.model_files.load_model(path)
        x = np.ones((1, 1, 28, 28), np.float32)
        figures.append(float(np.asarray(compiler.evaluate(module, x))[0, 0]))
    assert hashes[0] != hashes[1]
    assert figures[1] == 2 * figures[0]


# ---- how this process compiles -------------------------------------------------------------------
def test_contexts_logs_and_rules_of_the_compiler_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_registered", list(rules._registered))
    found = [hash_in("int8_channel")]
    for context in (
        compiler.PassContext(opt_level=0),
        compiler.PassContext(disabled_pass=["FuseOps"]),
    ):
        with context:
            found.append(hash_in("int8_channel"))
    assert hash_in("int8_channel") == found[0]
    compiler.register_schedule_rule(lambda *given: False, op="nn.conv2d")
    found.append(hash_in("int8_channel"))
    assert len(set(found)) == len(found)


def test_other_processes_do_not_know_a_pass_context(tmp_path: Path) -> None:
    with (
        compiler.PassContext(opt_level=0),
        pytest.raises(ConfigError, match="do not know this one's PassContext"),
    ):
        experiments.sweep({**BASE, "schemes": ["float32"]}, tmp_path / "r.csv", jobs=2)
    assert not (tmp_path / "r.csv").exists()


# ---- stability -----------------------------------------------------------------------------------
ELSEWHERE = """
import json, sys
import datatypes, experiments
from experiments.spec.specification import load_spec
from quantize import define_block_format
datatypes.define("mine8", exponent=4, mantissa=3)
define_block_format("mine_blocks", "mine8", block=16)
table = {name: k for k, name in enumerate("abcdef")}
names = {"x", "y", "zz", "w"}
def score(outputs, labels):
    return outputs[:, 0] * len(table) if "x" in {"x", "y", "zz"} else names
experiments.register_metric("here", score)
datatypes.register_op(lambda node: node.a + len(names), "Mul", "llvm", "posit9_es1")
spec = {"models": ["mnist_mlp"], "n_eval": 10, "n_calib": 10, "latency": {"runs": 0},
    "adapters": ["mine.py"], "metric": "here", "energy": {"int8": 0.2, "float32": 4.0},
    "schemes": ["mine8", "mine_blocks", "posit9_es1", "int8_channel"]}
print(json.dumps([cell.config_hash for cell in load_spec(spec).cells]))
"""


@pytest.mark.thorough
def test_the_hash_is_the_same_in_every_process_and_folder(tmp_path: Path) -> None:
    found = set()
    for seed in ("0", "1"):
        folder = tmp_path / f"folder{seed}"
        write(folder)
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE],
            cwd=folder,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        found.add(done.stdout)
    (hashes,) = found
    assert len(set(json.loads(hashes))) == 4


def test_the_order_of_keys_counts_only_where_it_decides() -> None:
    def with_overrides(*pairs: tuple[str, dict[str, Any]]) -> str:
        return hash_in({"scheme": "int8_channel", "overrides": dict(pairs)})

    one, two = ("l*", {"weight_bits": 4, "skip": False}), ("*s", {"weight_bits": 6})
    turned = ("l*", {"skip": False, "weight_bits": 4})
    assert with_overrides(one, two) == with_overrides(turned, two)
    assert with_overrides(one, two) != with_overrides(two, one)
    prices = {"int8": 0.2, "float32": 4.0}
    energy = [
        hash_of(schemes=["float32"], energy=e) for e in (prices, {**dict([*prices.items()][::-1])})
    ]
    assert energy[0] == energy[1]


@pytest.mark.thorough
def test_cells_without_definitions_keep_the_hash_of_recorded_rows() -> None:
    """All shipped networks' rows: they resume, and `reproduce` finds them."""
    for name in ("quickstart", "requantize"):
        rows = experiments.read_results(RESULTS / f"{name}.csv")
        configs = [json.loads(text) for text in rows["config"]]
        shipped = [k for k, c in enumerate(configs) if c["models"][0] in zoo.model_names()]
        assert len(shipped) == len(rows)
        for k in shipped:
            (cell,) = load_spec(configs[k]).cells
            assert cell.config_hash == rows["config_hash"][k], configs[k]


def test_fingerprints_are_of_what_runs_not_of_where_it_stands() -> None:
    def made(text: str) -> Any:
        names: dict[str, Any] = {"__name__": "user"}
        exec(compile(text, "somewhere.py", "exec"), names)
        return names["f"]

    def of(text: str) -> str:
        return Fingerprint().of(made(text))

    plain = of("def f(x):\n    return x + 1\n")
    assert of("# a comment\n\ndef f(x):\n    return x + 1  # more\n") == plain
    others = [
        "def f(x):\n    return x + 2\n",
        "def f(x):\n    return x - 1\n",
        "def f(x, y=1):\n    return x + 1\n",
        "def f(x, y=2):\n    return x + 1\n",
        "K = 1\ndef f(x):\n    return x + K\n",
        "K = 2\ndef f(x):\n    return x + K\n",
        "def g(x):\n    return x\ndef f(x):\n    return g(x)\n",
        "def g(x):\n    return -x\ndef f(x):\n    return g(x)\n",
        "class A:\n    def __call__(self, x):\n        return x\nf = A()\n",
        "class A:\n    def __call__(self, x):\n        return -x\nf = A()\n",
        "import numpy as np\nT = np.arange(3)\ndef f(x):\n    return T[x]\n",
        "import numpy as np\nT = np.arange(4)\ndef f(x):\n    return T[x]\n",
        "import pandas as pd\nT = pd.DataFrame({'a': [1, 2]})\ndef f(x):\n    return T\n",
        "import pandas as pd\nT = pd.DataFrame({'a': [1, 3]})\ndef f(x):\n    return T\n",
        "from functools import partial\nf = partial(max, 1)\n",
        "from functools import partial\nf = partial(max, 2)\n",
        "from functools import partial\nf = partial(min, 2)\n",
        "def f(x):\n    return f(x)\n",
    ]
    assert len({plain, *map(of, others)}) == len(others) + 1
