"""Pages that run a network: what is in the file, what is refused, and its programs in Node."""

from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_programs import HOSTILE, blob, facts, npy, parts, relu, sum_and_product, unchanged

import compiler
from compiler import Pictures
from compiler.codegen import linking
from compiler.errors import ConfigError, DtypelabError
from compiler.exporting import page as pages
from compiler.ir.expr import IRModule, tensor_type
from compiler.symbolic import Index
from compiler.target.registry import Target
from compiler.transform.instantiate import with_sizes
from experiments import zoo
from experiments.cli.main import run_command
from experiments.data import datasets

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from test_c_networks import FORMATS, images, network

WHY = linking.missing(Target.anywhere("wasm32"))
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY or "it links")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
Capture = pytest.CaptureFixture[str]
SHAPE = (1, 3, 4, 5)
VOID = {"meta", "input", "br", "link", "img"}


class Outline(html.parser.HTMLParser):
    """The elements of a page, of which all are closed."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def test_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    mod, x = relu(SHAPE), np.arange(60, dtype=np.float32).reshape(SHAPE) - 30
    out = tmp_path / "page.html"
    made = compiler.export_page({"a": mod, "b": mod}, out, title="T & <i>", examples=[{"x": x}])
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    assert made.bytes == out.stat().st_size
    text = out.read_text()
    outline = Outline(text)
    assert outline.open == []
    assert "T & <i>" in outline.texts
    assert not any({"src", "href", "style"} & {*a} or any(k[:2] == "on" for k in a)
                   for _, a in outline.found)  # fmt: skip
    assert not re.search(r"@import|url\(|https?:|fetch\(|XMLHttpRequest|eval\(|innerHTML", text)
    assert "{{" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe-inline" not in policy[1]
    for kind in ("script", "style"):
        (inner,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]
    assert blob(out, "wasm0")[:8] == b"\0asm\1\0\0\0"
    assert len(blob(out, "wasm0")) == made.programs[0].code_bytes
    assert blob(out, "example0_0") == x.tobytes()
    said = facts(out)
    (given,) = said["inputs"]
    assert given == {"name": "x", "dtype": "float32", "shape": [*SHAPE], "bytes": 240}
    assert [p["name"] for p in said["programs"]] == ["a", "b"]


def test_the_same_programs_are_the_same_bytes(tmp_path: Path) -> None:
    mod = relu(SHAPE)
    for name in ("a.html", "b.html"):
        compiler.export_page({"net": mod}, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_names_of_others_are_only_text(tmp_path: Path) -> None:
    mod, out = relu((1, 3), name=HOSTILE), tmp_path / "page.html"
    seen = f"{HOSTILE}\x1b\u202e"
    compiler.export_page({seen: mod}, out, title=seen, labels=[seen, "b", "c"])
    text = out.read_text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    outline = Outline(text)
    kinds = [attrs.get("id") for tag, attrs in outline.found if tag == "script"]
    assert kinds == ["data", "machine", "wasm0", "weights0", None]
    assert not any("onload" in attrs for _, attrs in outline.found)
    said = facts(out)
    assert said["inputs"][0]["name"] == HOSTILE
    assert said["labels"][0] == f"{HOSTILE}\\x1b\\u202e"
    assert f"{HOSTILE}\\x1b\\u202e" in outline.texts


def control_flow() -> IRModule:
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "b", [], [value])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    given = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
    ]
    graph = helper.make_graph([node], "g", given, [value])
    opsets = [helper.make_opsetid("", 17)]
    return compiler.from_onnx(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))


X = {"x": np.zeros(SHAPE, np.float32)}
REFUSED: dict[str, tuple[Callable[[], IRModule], dict[str, Any], str]] = {
    "another target": (lambda: relu(SHAPE), {"target": "llvm"}, "pages run WebAssembly: give"),
    "no such target": (lambda: relu(SHAPE), {"target": "wasm23"}, "unknown target 'wasm23'"),
    "open sizes": (lambda: network("mnist_mlp", "float32"), {}, "N may be anything: give all"),
    "control flow": (control_flow, {}, "runs on the virtual machine, which is not exported"),
    "codes": (
        lambda: relu(SHAPE, "posit8_es0"), {},
        "input 'x' is of custom[posit8_es0]8, which pages do not show",
    ),
    "nothing": (lambda: relu((0, 3)), {}, "input 'x' is empty"),
    "labels": (lambda: relu((1, 9)), {"labels": ["a", "b"]}, "2 labels fit no output with classes"),
    "example": (
        lambda: relu(SHAPE), {"examples": [X, {"x": np.zeros((1, 3), np.float32)}]}, "example 2: "
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_page_can_be_made_of(tmp_path: Path, case: str) -> None:
    made, options, message = REFUSED[case]
    with pytest.raises(DtypelabError, match=re.escape(message)):
        compiler.export_page({"net": made()}, tmp_path / "page.html", **options)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_side_by_side(tmp_path: Path) -> None:
    mod, out = relu(SHAPE), tmp_path / "page.html"
    with pytest.raises(ConfigError, match="b has other inputs or outputs than a: x: Tensor"):
        compiler.export_page({"a": mod, "b": relu((1, 3))}, out)
    with pytest.raises(ConfigError, match="one program or two, not 3"):
        compiler.export_page({"a": mod, "b": mod, "c": mod}, out)
    assert not out.exists()


def test_what_is_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="is there already: give force=True"):
        compiler.export_page({"net": relu(SHAPE)}, out)
    monkeypatch.setattr(pages, "LARGEST", 100)
    with pytest.raises(ConfigError, match="browsers take pages of 0 MiB"):
        compiler.export_page({"net": relu(SHAPE)}, out, force=True)
    assert out.read_text() == "mine"
    monkeypatch.undo()
    compiler.export_page({"net": relu(SHAPE)}, out, force=True)
    assert out.read_text().startswith("<!doctype html>")
    with pytest.raises(ConfigError, match="it is a folder"):
        compiler.export_page({"net": relu(SHAPE)}, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [{"std": (0.0,)}, {"mean": (1.0, 2.0)}, {"divide": 0.0}, {"mean": (np.inf,)}, {"order": "rbg"}],
)
def test_rules_for_pixels_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Pictures(**wrong)


# Programs, in Node.


def in_node(page: Path) -> list[dict[str, Any]]:
    """What the programs of a page give for its first example."""
    host = Path(__file__).parent / "page_host.js"
    done = subprocess.run(
        ["node", str(host), str(page)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def expected(mod: IRModule, x: dict[str, Any]) -> list[str]:
    """The bits of `compiler.build`, in hexadecimal."""
    found = compiler.build(mod, target="wasm32")(x)
    return [a.tobytes().hex() for a in (found if isinstance(found, list) else [found])]


def network_of(name: str, fmt: str) -> IRModule:
    """A network of digits for one at a time."""
    mod = network(name, fmt)
    shapes = [tensor_type(p).shape for p in mod.main.params]
    return with_sizes(mod, {v: 1 for shape in shapes for d in shape for v in Index.of(d).vars()})


@needs_node
@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(n, f, marks=() if (n, f) == ("mnist_mlp", "int8") else pytest.mark.thorough)
        for n in ("mnist_mlp", "mnist_dwsep")
        for f in FORMATS
    ],
)
def test_bits_of_networks_in_node(tmp_path: Path, name: str, fmt: str) -> None:
    mod, plain = network_of(name, fmt), network_of(name, "float32")
    x, out = {"input": images(3, 1)}, tmp_path / "page.html"
    compiler.export_page({fmt: mod, "plain": plain}, out, examples=[x])
    for got, program in zip(in_node(out), (mod, plain), strict=True):
        assert got["error"] == ""
        assert got["outputs"] == [expected(program, x)] * 2
        assert got["time"]["milliseconds"] > 0
        assert got["time"]["runs"] >= 1


@needs_node
def test_several_inputs_and_outputs_in_node(tmp_path: Path) -> None:
    rng, out = np.random.default_rng(0), tmp_path / "page.html"
    x = {n: rng.standard_normal((2, 3)).astype(np.float32) for n in ("left", "right")}
    compiler.export_page({"net": sum_and_product()}, out, examples=[x])
    (got,) = in_node(out)
    assert got["outputs"] == [expected(sum_and_product(), x)] * 2


@needs_node
@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float16", "float64"])
def test_types_in_node(tmp_path: Path, dtype: str) -> None:
    x, out = {"x": np.arange(-3, 9).reshape(3, 4).astype(dtype)}, tmp_path / "page.html"
    compiler.export_page({"net": unchanged((3, 4), dtype)}, out, examples=[x])
    (got,) = in_node(out)
    assert got["outputs"] == [[x["x"].tobytes().hex()]] * 2


# The command.


def test_the_verb_writes_a_page(tmp_path: Path, capsys: Capture) -> None:
    out, labels = tmp_path / "page.html", tmp_path / "labels.txt"
    labels.write_text("zero\none\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n")
    given = ["export", "mnist_mlp", "--dtype", "posit8_es0", "--target", "wasm32", "--page"]
    given += ["--labels", str(labels), "-o", str(out)]
    assert run_command([*given, "--input", "mnist1k", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["bytes"] == out.stat().st_size
    assert [p["name"] for p in said["programs"]] == ["posit8_es0", "float32"]
    held = [len(blob(out, f"weights{k}")) for k in range(2)]
    assert [p["weights_bytes"] for p in said["programs"]] == held
    found = facts(out)
    assert found["inputs"][0]["shape"] == [1, 1, 28, 28]
    assert found["pictures"] == {"divide": "255", "mean": "0.1307", "std": "0.3081", "order": "rgb"}
    assert found["labels"][9] == "nine"
    assert len(found["examples"]) == said["examples"] == 8
    assert blob(out, "example3_0") == datasets.load("mnist1k").x[3:4].tobytes()


def test_a_page_without_a_format_has_one_program(tmp_path: Path, capsys: Capture) -> None:
    x, out = npy(tmp_path / "x.npy", images(0, 5)), tmp_path / "page.html"
    given = ["export", "mnist_mlp", "--target", "wasm32", "--page", "-o", str(out)]
    given += ["--input", str(x), "--shape", "input=2x1x28x28", "--mean", "0.5", "--std", ".25"]
    assert run_command(given) == 0
    assert re.fullmatch(
        r"\S+page.html: \d+ KiB, mnist_mlp in float32; open it in a browser\n",
        capsys.readouterr().out,
    )
    found = facts(out)
    assert [p["name"] for p in found["programs"]] == ["float32"]
    assert found["inputs"][0]["shape"] == [2, 1, 28, 28]
    assert found["pictures"]["mean"] == "0.5"
    assert blob(out, "example2_0") == images(4, 1).tobytes() * 2, "filled up with the last one"


def test_what_a_model_says_of_pixels(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(zoo.FOLDER / "mnist_mlp.onnx")
    for key, value in {"NominalPixelRange": "Normalized_1_1", "BitmapPixelFormat": "Bgr8"}.items():
        model.metadata_props.add(key=f"Image.{key}", value=value)
    onnx.save(model, tmp_path / "m.onnx")
    given = ["export", str(tmp_path / "m.onnx"), "--target", "wasm32", "--page"]
    assert run_command([*given, "-o", str(tmp_path / "page.html")]) == 0
    want = {"divide": "255", "mean": "0.5", "std": "0.5", "order": "bgr"}
    assert facts(tmp_path / "page.html")["pictures"] == want
    assert parts(tmp_path / "page.html").keys() == {"data", "machine", "wasm0", "weights0"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "llvm"], "pages run WebAssembly: give target wasm32, not 'llvm'"),
        (["--form", "object"], "--form says nothing of a page"),
        (["--report"], "--report says nothing of a page"),
        (["--labels", "nowhere"], "cannot read labels nowhere"),
        (["--labels", "LABELS"], "2 labels fit no output with classes: 'logits' has 10"),
        (["--mean", "1,2"], "--mean '1,2' is not a number, or three with commas between them"),
        (["--divide", "0"], "divide of pixels must be one number"),
        (["--input", "WRONG"], "x.npy: "),
        (["--input", "LABELS"], "labels.npy is not a .npy file of a plain array"),
        (["--input", "mnist1k", "-o", "HERE"], "is there already: give --force to write over it"),
        (["-o", "HERE/x.html"], "cannot write"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path, capsys: Capture, words: list[str], message: str
) -> None:
    (tmp_path / "labels.npy").write_text("a\nb\n")
    (tmp_path / "here.html").touch()
    npy(tmp_path / "x.npy", np.zeros((2, 5), np.float32))
    names = {"LABELS": "labels.npy", "HERE": "here.html", "WRONG": "x.npy"}
    for name, file in names.items():
        words = [w.replace(name, str(tmp_path / file)) for w in words]
    given = ["export", "mnist_mlp", "--page", "--target", "wasm32", "-o", str(tmp_path / "p.html")]
    assert run_command([*given, *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here.html", "labels.npy", "x.npy"]
    assert (tmp_path / "here.html").read_bytes() == b""


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("stdlib_lm", [], "fix its shape with --shape input_ids=..."),
        ("stdlib_encoder", ["--input", "x.npy"], "x.npy holds one array, but stdlib_encoder has"),
        ("mnist_mlp", ["--plan", "no.json"], "no.json"),
        ("mnist_mlp", ["--dtype", "posit9_es7_"], "posit9_es7_"),
        ("no_model", [], "unknown model 'no_model'"),
    ],
)
def test_models_and_files_that_do_not_fit(
    tmp_path: Path, capsys: Capture, model: str, words: list[str], message: str
) -> None:
    given = ["export", model, "--page", "--target", "wasm32", "-o", str(tmp_path / "p.html")]
    assert run_command([*given, *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_what_is_for_pages_only_needs_one(tmp_path: Path, capsys: Capture) -> None:
    assert run_command(["export", "mnist_mlp", "--mean", "0", "-o", str(tmp_path / "x")]) == 2
    assert "--mean is for pages: add --page, or leave it out" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
