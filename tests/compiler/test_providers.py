"""Number formats are found by name without importing the package that describes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compiler.types.providers import _of_checkout, providers

ROOT = Path(__file__).parents[2]

FIRST_USES = r"""
import json, os, sys, tempfile
import numpy as np
import compiler, quantize
from compiler.types.dtypes import custom
from onnx import TensorProto, helper

assert "datatypes" not in sys.modules
X = np.float32([[1, 2.3, 4.7, -9]])
TEXT = '''
def @main(%x: Tensor[(1, 4), float32]) -> Tensor[(1, 4), float32] {
  %a = cast(%x, dtype="posit16_es1"); /* ty=Tensor[(1, 4), posit16_es1] */
  %b = add(%a, %a);
  %y = cast(%b, dtype="float32");
  %y
}
'''
PROTO = helper.make_model(helper.make_graph(
    [helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT8E4M3FN),
     helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT)],
    "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
), opset_imports=[helper.make_opsetid("", 19)])
WEIGHTS = np.eye(4, 3, dtype="float32")
NET = compiler.function([x := compiler.var("x", ("n", 4))], compiler.call("nn.dense", x, WEIGHTS.T))
NET = compiler.IRModule({"main": NET})
exe, saved_plan = sys.argv[1:]

def quantized(name):
    config = quantize.QConfig(weight_dtype=name, activation_dtype=name)
    return compiler.build(quantize.quantize(NET, [X], config))(X)

USES = {
    "short": lambda: str(compiler.DType.parse("float8_e4m3fn")),
    "full": lambda: str(compiler.DType.parse("custom[posit8_es0]8")),
    "meaning": lambda: custom("takum16").name,
    "text": lambda: compiler.build(compiler.parse(TEXT))(X),
    "evaluate": lambda: compiler.evaluate(compiler.parse(TEXT), X),
    "onnx": lambda: compiler.build(compiler.from_onnx(PROTO))(X),
    "config": lambda: quantized("posit8_es0"),
    "blocks": lambda: quantized("mxfp8_e4m3"),
    "executable": lambda: compiler.load(exe)(X),
    "plan": lambda: compiler.build(quantize.realize(NET, quantize.Plan.from_json(saved_plan)))(X),
}
for name, use in USES.items():
    if os.fork() == 0:  # a process each, in which it is the first use
        try:
            assert "datatypes" not in sys.modules
            print(json.dumps([name, np.asarray(use()).tolist()]), flush=True)
        except Exception as e:
            print(json.dumps([name, f"{type(e).__name__}: {e}"]), flush=True)
        os._exit(0)
    os.wait()
"""


def run(code: str, *arguments: str, path: Path = ROOT) -> str:
    """What a new interpreter prints that finds packages in `path` too."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_the_first_use_of_a_format_finds_it(tmp_path: Path) -> None:
    import numpy as np

    import compiler
    import quantize

    x = compiler.var("x", ("n", 4))
    dense = compiler.call("nn.dense", x, np.eye(4, 3, dtype="float32").T)
    net = compiler.IRModule({"main": compiler.function([x], dense)})
    plan = quantize.calibrate(
        net,
        [np.float32([[1, 2.3, 4.7, -9]])],
        quantize.QConfig(weight_dtype="mxfp8_e4m3", activation_dtype="mxfp8_e4m3"),
    )
    plan.to_json(tmp_path / "plan.json")
    half = compiler.call("cast", x, dtype="posit16_es1")
    half = compiler.call("cast", half + half, dtype="float32")
    exe = compiler.build(compiler.IRModule({"main": compiler.function([x], half)}))
    exe.save(tmp_path / "net.exe")
    lines = run(FIRST_USES, str(tmp_path / "net.exe"), str(tmp_path / "plan.json")).splitlines()
    found = dict(json.loads(line) for line in lines)
    doubled = [[2.0, 4.599609375, 9.3984375, -18.0]]
    assert found.pop("short") == "custom[float8_e4m3fn]8"
    assert found.pop("full") == "custom[posit8_es0]8"
    assert found.pop("meaning") == "takum16"
    for name in ("text", "evaluate", "executable"):
        assert found.pop(name) == doubled
    assert found.pop("onnx") == [[1.0, 2.25, 4.5, -9.0]]
    assert found.pop("blocks") == found.pop("plan") == [[1.0, 2.25, 4.5]]
    posit = np.asarray(found.pop("config"))
    assert np.allclose(posit, [[1.0, 2.3, 4.7]], rtol=0.05)
    assert found == {}


def test_the_checkout_and_the_metadata_name_the_same_providers() -> None:
    assert _of_checkout(ROOT) == ["datatypes"]
    assert "datatypes" in providers()
    assert _of_checkout(ROOT / "tests") == []


def test_another_package_provides_formats_through_its_metadata(tmp_path: Path) -> None:
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dtypelab.formats]\nmine = mine_formats\n")
    (tmp_path / "mine_formats.py").write_text(
        "from compiler.types.dtypes import notations, resolvers\n"
        "import datatypes.custom.custom_type as r\n"
        "resolvers.append(lambda n: r.described('posit8_es1') if n == 'mine' else None)\n"
        "notations.append(lambda n: 'custom[mine]8' if n == 'mine' else None)\n"
    )
    code = "from compiler import DType; print(DType.parse('mine'), DType.parse('posit8_es0'))"
    assert run(code, path=tmp_path).split() == ["custom[mine]8", "custom[posit8_es0]8"]


def test_a_provider_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dtypelab.formats]\nmine = no_such_module\n")
    code = """
from compiler import DType, DtypelabError
try:
    DType.parse("never_heard_of")
except DtypelabError as e:
    print(e)
"""
    assert "'no_such_module' cannot be loaded" in run(code, path=tmp_path)


def test_names_that_need_no_provider_load_none() -> None:
    code = """
import sys, compiler
compiler.DType.parse("float32"), compiler.DType.parse("uint8")
print([m for m in ("datatypes", "importlib.metadata", "tomllib") if m in sys.modules])
"""
    assert run(code).strip() == "[]"
