"""`config_hash` covers everything that can change a result, and nothing else.

For every kind of definition: changing one field changes the hash of the cells that use it, and only
of those; the hash does not depend on the process, on where files lie, or on the order of keys.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
import datatypes
import experiments
from compiler.errors import ConfigError
from compiler.tensor.expr import Expr
from compiler.tensor.schedule import rules
from datatypes import registry
from datatypes.formats import catalogue
from datatypes.formats.hashing import digest
from experiments import adapters, datasets, identity, schemes, scoring, zoo
from experiments.fingerprints import Fingerprint
from experiments.spec import load_spec
from quantize.scaled import blocks

RESULTS = Path(__file__).resolve().parents[2] / "results"
BASE: dict[str, Any] = {
    "models": ["mnist_mlp"],
    "n_eval": 10,
    "n_calib": 10,
    "latency": {"runs": 0},
}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test defines is gone after it."""
    for module, name in (
        *((catalogue, "_known"), (blocks, "_formats"), (registry, "_lowerings")),
        *((registry, "_minimums"), (scoring, "_METRICS"), (scoring, "_REGISTERED")),
        *((datasets, "_REGISTERED"), (zoo, "_REGISTERED"), (adapters, "_run")),
    ):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    yield
    for name in ("beside", "deeper", "package", "package.part", "package.inner"):
        sys.modules.pop(name, None)


def hash_of(**changes: Any) -> str:
    (cell,) = load_spec({**BASE, **changes}).cells
    return cell.config_hash


def hash_in(scheme: Any) -> str:
    return hash_of(schemes=[scheme])


SCALED = {"scheme": "scaled", "weight_dtype": "bfloat16"}


# ---- formats -------------------------------------------------------------------------------------
FLOAT = {"exponent": 4, "mantissa": 3}
MUL = np.arange(1 << 16, dtype=np.uint32).reshape(256, 256) % 256


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changed",
    [
        *({"exponent": 3, "mantissa": 4}, {"bias": 9}, {"nan": False}, {"subnormals": False}),
        *({"infinities": False}, {"rounding": "zero"}, {"rounding": "stochastic"}),
        *({"overflow": "saturate"}, {"infinity": "saturate"}, {"underflow": "minpos"}),
        *({"tables": {"Mul": MUL}}, {"tables": {"Mul": MUL[::-1]}}, {"tables": {"Add": MUL}}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "use",
    [
        lambda name: name,
        lambda name: {"scheme": {"*": name}},
        lambda name: {**SCALED, "weight_dtype": name, "activation_dtype": "float32"},
        lambda name: {**SCALED, "overrides": {"logits": {"weight_dtype": name}}},
        lambda name: {"scheme": "int8", "weight_dtype": name, "activation_dtype": name},
    ],
    ids=["plain", "mixture", "scaled", "override", "int8"],
)
def test_any_field_of_a_format_counts_wherever_it_is_named(
    changed: dict[str, Any], use: Callable[[str], Any]
) -> None:
    datatypes.define("mine8", **FLOAT)
    plain, other = hash_in(use("mine8")), hash_in("bfloat16")
    del catalogue._known["mine8"]
    datatypes.define("mine8", **(FLOAT | changed))
    assert hash_in(use("mine8")) != plain
    assert hash_in("bfloat16") == other


WIDE = {"exponent": 8, "mantissa": 11, "storage_only": True}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("one", "two"),
    [
        (WIDE, {**WIDE, "subnormals": False}),
        (WIDE, {**WIDE, "bias": 126}),
        (WIDE, {**WIDE, "mantissa": 12, "exponent": 7}),
        (WIDE, {"like": "posit20_es1", "storage_only": True}),
        ({**WIDE, "mantissa": 23}, {**WIDE, "mantissa": 23, "subnormals": False}),
        ({"values": [-1.0, 0.0, 0.5, 1.0]}, {"values": [-1.0, 0.0, 0.25, 1.0]}),
        ({"nbits": 4, "decode": lambda c: c}, {"nbits": 4, "decode": lambda c: c * 2}),
    ],
)
def test_values_of_formats_count_however_they_are_described(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    first = digest(datatypes.define("one", **one))
    assert digest(datatypes.define("same", **one)) == first
    assert digest(datatypes.define("two", **two)) != first


@pytest.mark.parametrize(
    "changed", [{"block": 128}, {"element": "float8_e5m2"}, {"scale": "float8_e4m3fn"}]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda name: name,
        lambda name: {**SCALED, "weight_dtype": name, "activation_dtype": "float32"},
        lambda name: {**SCALED, "overrides": {"logits": {"weight_dtype": name}}},
    ],
)
def test_any_field_of_a_block_format_counts(
    changed: dict[str, Any], use: Callable[[str], Any]
) -> None:
    fields: dict[str, Any] = {"element": "float8_e4m3fn", "block": 8}
    blocks.define_block_format("mine_blocks", **fields)
    plain, other = hash_in(use("mine_blocks")), hash_in("mxfp8_e4m3")
    del blocks._formats["mine_blocks"]
    blocks.define_block_format("mine_blocks", **(fields | changed))
    assert hash_in(use("mine_blocks")) != plain
    assert hash_in("mxfp8_e4m3") == other


def test_resuming_with_another_block_size_computes_another_row(tmp_path: Path) -> None:
    out, rows = tmp_path / "r.csv", {}
    for block in (8, 128):
        blocks._formats.pop("mine_blocks", None)
        blocks.define_block_format("mine_blocks", "float4_e2m1fn", block=block)
        table = experiments.sweep({**BASE, "schemes": ["mine_blocks"]}, out, resume=True)
        rows[block] = table.iloc[0]
    assert rows[8]["granularity"] == "block of 8"
    assert rows[128]["granularity"] == "block of 128"
    assert rows[8]["sqnr_db"] != rows[128]["sqnr_db"]


# ---- registered functions ------------------------------------------------------------------------
def twice(node: Any) -> Expr:
    return node.a + node.a


def thrice(node: Any) -> Expr:
    return node.a + node.a + node.a


def helper_of(node: Any) -> Expr:
    return HELPERS[0](node)


HELPERS: list[Callable[[Any], Expr]] = [twice]


def shifted(by: int) -> Callable[[Any], Expr]:
    return lambda node: node.a + by


@pytest.mark.parametrize("name", ["posit9_es1", "custom[lowered_mine]8"])
def test_lowering_functions_count_with_all_that_they_read(name: str) -> None:
    kind = "lowered_mine" if "mine" in name else name
    if kind == "lowered_mine" and kind not in registry.registered_types():
        datatypes.register("lowered_mine")
    without = hash_in(name)
    other = hash_in("posit8_es0")
    found = [without]
    for function in (twice, thrice, shifted(1), shifted(2), helper_of):
        datatypes.register_op(function, "Mul", "llvm", kind)
        found.append(hash_in(name))
        assert hash_in(name) == found[-1]
    HELPERS[0] = thrice
    found.append(hash_in(name))
    HELPERS[0] = twice
    assert hash_in(name) == found[-2]
    datatypes.register_op(twice, "Add", "llvm", kind)
    found.append(hash_in(name))
    datatypes.register_min_func(lambda bits: -1.0, kind)
    found.append(hash_in(name))
    datatypes.register_min_func(lambda bits: -2.0, kind)
    found.append(hash_in(name))
    datatypes.register_op(twice, "Cast", "llvm", "float", kind)
    found.append(hash_in(name))
    assert len(set(found)) == len(found)
    assert hash_in("posit8_es0") == other


def library(folder: Path, body: str) -> Path:
    """A C library whose `mine_mul` does `body`; each under a path of its own."""
    folder.mkdir()
    source, made = folder / "mine.c", folder / "libmine.so"
    source.write_text(f"unsigned char mine_mul_{folder.name}(unsigned char a) {{ return {body}; }}")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True, timeout=60)
    return made


def test_c_libraries_count_with_their_bytes(tmp_path: Path) -> None:
    """Of the libraries that are loaded, those whose functions are called."""
    made = library(tmp_path / "own", "a")
    datatypes.load_library(library(tmp_path / "unused", "a"))
    datatypes.load_library(made)
    lower = datatypes.create_lower_func({9: "mine_mul_own"})
    datatypes.register_op(lower, "Mul", "llvm", "posit9_es1")
    found = identity.definitions(schemes.parse("posit9_es1"))
    assert found["libraries"] == [experiments.files.sha256(made)]
    before = hash_in("posit9_es1")
    # A library of the same functions that does something else.
    with made.open("ab") as file:
        file.write(b"changed")
    assert hash_in("posit9_es1") != before

    def by_name(node: Any) -> Expr:
        return datatypes.call_pure_extern("uint16", "mine_mul_own", node.a)

    datatypes.register_op(by_name, "Mul", "llvm", "posit9_es1")
    found = identity.definitions(schemes.parse("posit9_es1"))
    assert found["libraries"] == [experiments.files.sha256(made)]


def test_metrics_that_were_registered_count_with_what_they_do() -> None:
    def register(score: Callable[..., Any], higher: bool = True) -> str:
        scoring.register_metric("mine", score, higher_is_better=higher)
        return hash_of(schemes=["float32"], metric="mine")

    def scaled(by: float) -> Callable[..., Any]:
        return lambda outputs, labels: by * outputs[:, 0]

    found = [
        register(lambda outputs, labels: outputs.max(axis=1)),
        register(lambda outputs, labels: outputs.min(axis=1)),
        register(lambda outputs, labels: outputs.min(axis=1), False),
        *(register(scaled(1.0)), register(scaled(2.0))),
    ]
    assert len(set(found)) == len(found)
    assert register(scaled(2.0)) == found[-1]


def test_a_data_set_made_of_another_one_is_another_one() -> None:
    digits = datasets.load("mnist1k")
    keys = set()
    for changed in (
        *({}, {"x": digits.x * 2}, {"y": digits.y + 1}, {"calibration": digits.calibration + 1}),
        {"classes": ("a",)},
    ):
        datasets.register_dataset("mine", lambda c=changed: replace(digits, **c))
        keys.add(hash_of(schemes=["int8_channel"], dataset="mine"))
    assert len(keys) == 5


# ---- files ---------------------------------------------------------------------------------------
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
        module = experiments.model_files.load_model(path)
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
from experiments.spec import load_spec
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
