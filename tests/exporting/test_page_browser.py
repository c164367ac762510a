"""Pages that run a network, in a headless browser, as a reader uses them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Tab, browser, needs_browser
from page_programs import HOSTILE, npy, parts, png, relu, sum_and_product
from test_page import FORMATS, WHY, network_of

import compiler
from compiler import Pictures
from compiler.exporting import page as pages
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.measure.metrics import sqnr_db
from experiments.zoo import model_files
from quantize import Plan, realize

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "elsewhere"))

from machines_here import needs

pytestmark = [needs_browser, pytest.mark.skipif(bool(WHY), reason=WHY or "it links")]
WASMTIME = "wasm32 -runner=wasmtime"
DONE = "dtypelab.status.startsWith('Done') || document.querySelector('#status.failed')"


@pytest.fixture(scope="module")
def shared() -> Iterator[Tab]:
    with browser() as found:
        yield found


@pytest.fixture
def tab(shared: Tab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tab]:
    """One page after the other; nothing may be complained about, or asked for but the page and its
    worker."""
    monkeypatch.setattr(pages, "TIMED", 30)
    shared.log.clear()
    yield shared
    assert shared.log == []
    assert [u for u in shared.requests if not u.startswith(("file:", "blob:"))] == []


def seen(tab: Tab, selector: str) -> list[str]:
    """The texts of elements."""
    return list(tab.run(f"[...document.querySelectorAll('{selector}')].map((e) => e.innerText)"))


def status(tab: Tab) -> str:
    tab.wait(DONE)
    return str(tab.run("dtypelab.status"))


def result(tab: Tab, program: int = 0) -> list[Array]:
    return tab.arrays(f"dtypelab.programs[{program}].outputs")


def built(mod: IRModule, x: Any) -> list[Array]:
    """What programs give in wasmtime."""
    found = compiler.build(mod, target=WASMTIME)(x)
    return found if isinstance(found, list) else [found]


def same(got: list[Array], want: list[Array]) -> None:
    assert [(a.dtype, a.shape) for a in got] == [(a.dtype, a.shape) for a in want]
    assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


@needs(WASMTIME)
@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(n, f, marks=() if (n, f) == ("mnist_mlp", "int8") else pytest.mark.thorough)
        for n in ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")
        for f in FORMATS
    ],
)
def test_bits_of_networks(tmp_path: Path, tab: Tab, name: str, fmt: str) -> None:
    """Of the example that a page begins with, those of wasmtime; and what is said of them."""
    mod, plain = network_of(name, fmt), network_of(name, "float32")
    x = {"input": datasets.load("mnist1k").x[7:8]}
    labels = [f"digit {k}" for k in range(10)]
    out = tmp_path / "page.html"
    compiler.export_page({fmt: mod, "plain": plain}, out, examples=[x], labels=labels)
    tab.open(out)
    assert status(tab) == "Done, with example 1."
    want = [built(m, x) for m in (mod, plain)]
    same(result(tab), want[0])
    same(result(tab, 1), want[1])
    best = int(want[0][0].argmax())
    assert seen(tab, ".class .name")[0] == f"digit {best} {best}"
    assert seen(tab, ".legend span") == [fmt, "plain"]
    (said,) = seen(tab, ".compared")
    if fmt == "float32":
        assert said == "float32 and plain give the same bits."
    else:
        distance = sqnr_db(want[0][0], want[1][0])
        assert said.startswith(f"SQNR of {fmt} to plain: {distance:.1f} dB; largest difference ")
    times = seen(tab, "[data-time]")
    assert len(times) == 2
    assert all(re.fullmatch(r"[\d.]+ ms, (one run|median of [\d,]+ runs)", t) for t in times)
    assert all(m > 0 for m in tab.run("dtypelab.programs.map((p) => p.milliseconds)"))


@pytest.mark.thorough
@needs(WASMTIME)
def test_a_plan_and_a_picture(tmp_path: Path, tab: Tab) -> None:
    """From a file of ONNX to classes of a picture, in whole numbers and in floats, by commands."""
    plan, out = tmp_path / "p.json", tmp_path / "page.html"
    quantize = ["quantize", "light_squeezenet", "--calib", "pictures224", "--plan", str(plan)]
    assert run_command([*quantize, "-o", str(tmp_path / "q.onnx")]) == 0
    export = ["export", "light_squeezenet", "--plan", str(plan), "--target", "wasm32", "--page"]
    assert run_command([*export, "--mean", "0.5,0.4,0.3", "--std", "0.25", "-o", str(out)]) == 0
    tab.open(out)
    rng = np.random.default_rng(6)
    pixels = np.kron(rng.integers(0, 256, (14, 14, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    tab.choose("input[type=file]", png(tmp_path / "a.png", pixels))
    assert status(tab) == "Done, with a.png."
    assert seen(tab, ".legend span") == ["plan p.json", "float32"]
    assert len(seen(tab, ".class")) >= 5
    scaled = (pixels / 255 - np.array([0.5, 0.4, 0.3])) / 0.25
    x = np.ascontiguousarray(scaled.transpose(2, 0, 1)[None].astype(np.float32))
    path = model_files.model_file("light_squeezenet")
    mod = compiler.from_onnx(path, shapes={"data_0": (1, 3, 224, 224)})
    same(result(tab), built(realize(mod, Plan.from_json(plan)), x))
    same(result(tab, 1), built(mod, x))


def relu_page(folder: Path, shape: tuple[int, ...], dtype: str = "float32", **options: Any) -> Path:
    """A page whose output is its input, if that has no sign."""
    compiler.export_page({"net": relu(shape, dtype)}, folder / "page.html", **options)
    return folder / "page.html"


def test_files_of_numpy(tmp_path: Path, tab: Tab) -> None:
    tab.open(relu_page(tmp_path, (2, 3)))
    tab.wait("dtypelab.status === 'Choose x, and the network runs.'")
    assert seen(tab, "#results *") == [], "nothing is shown that nobody gave"
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 4
    tab.choose("input[type=file]", npy(tmp_path / "x.npy", x))
    assert status(tab) == "Done, with x.npy."
    same(result(tab), [x])
    assert seen(tab, "tbody tr")[:2] == ["[0, 0]\t0", "[0, 1]\t0.25000"]
    tab.choose("input[type=file]", npy(tmp_path / "y.npy", x.reshape(3, 2)))
    tab.wait("document.querySelector('#status.failed')")
    assert status(tab) == "y.npy is no input: its shape is (3, 2), but x takes (2, 3)."
    assert tab.run("dtypelab.programs.length") == 0
    assert seen(tab, "#results *") == [], "nor what is of another input"
    tab.choose("input[type=file]", npy(tmp_path / "z.npy", x.astype(np.int64)))
    tab.wait("dtypelab.status.startsWith('Done, with z.npy')")
    same(result(tab), [x.astype(np.int64).astype(np.float32)])


DROP = """(bytes, place) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "dropped.npy"));
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector(place).dispatchEvent(event);
  return event.defaultPrevented;
}"""


def test_files_that_are_dropped(tmp_path: Path, tab: Tab) -> None:
    """On the card they are taken; beside it they do not take the place of the page."""
    tab.open(relu_page(tmp_path, (2, 3)))
    tab.wait("dtypelab.status.startsWith('Choose')")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    content = list(npy(tmp_path / "x.npy", x).read_bytes())
    assert tab.run(f"({DROP})({content}, 'h1')")
    assert tab.run("dtypelab.status").startswith("Choose")
    assert tab.run(f"({DROP})({content}, '.card h3')")
    assert status(tab) == "Done, with dropped.npy."
    same(result(tab), [x])


SLOW = """Worker = class extends Worker {
  postMessage(message) { setTimeout(() => super.postMessage(message), 300); }
}"""


def test_readers_who_are_quicker_than_the_page(tmp_path: Path, tab: Tab) -> None:
    """What is chosen while programs load, or others run, is what is shown in the end."""
    made = tab.send("Page.addScriptToEvaluateOnNewDocument", source=SLOW)
    try:
        files = [npy(tmp_path / f"{k}.npy", np.full((2, 3), k, np.float32)) for k in range(4)]
        examples = [{"x": np.full((2, 3), 9, np.float32)}]
        tab.open(relu_page(tmp_path, (2, 3), examples=examples))
        tab.choose("input[type=file]", files[0])
        assert tab.run("dtypelab.status") == ""
        assert status(tab) == "Done, with 0.npy."
        for file in files[1:]:
            tab.choose("input[type=file]", file)
        tab.wait("dtypelab.status === 'Done, with 3.npy.'")
        same(result(tab), [np.full((2, 3), 3, np.float32)])
        tab.open(tmp_path / "page.html")
        tab.choose("input[type=file]", npy(tmp_path / "wrong.npy", np.zeros(5)))
        assert status(tab) == "wrong.npy is no input: its shape is (5,), but x takes (2, 3)."
        tab.wait("state.ready")
        assert tab.run("dtypelab.status").startswith("wrong.npy is no input")
    finally:
        tab.send("Page.removeScriptToEvaluateOnNewDocument", identifier=made["identifier"])


def test_pictures(tmp_path: Path, tab: Tab) -> None:
    """Of the network's size, every pixel counts; others are scaled."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 6, 3), np.uint8)
    tab.open(relu_page(tmp_path, (1, 3, 4, 6), pictures=Pictures(mean=(-1.0,), order="bgr")))
    tab.choose("input[type=file]", png(tmp_path / "a.png", pixels))
    assert status(tab) == "Done, with a.png."
    planes = pixels[..., ::-1].transpose(2, 0, 1)[None]
    same(result(tab), [(planes / 255 + 1).astype(np.float32)])
    assert tab.run("document.querySelector('.preview').width") == 6
    told = "Each number is (pixel / 255 − -1) / 1; change that"
    assert seen(tab, ".options summary") == [told]
    tab.run("document.querySelector('.options').open = true")
    tab.run(
        "(() => { const field = document.querySelector('[data-option=mean]');"
        "field.value = '-1, -2, -3'; field.dispatchEvent(new Event('change')); })()"
    )
    shifted = (planes / 255 + np.array([1, 2, 3]).reshape(1, 3, 1, 1)).astype(np.float32)
    tab.wait("dtypelab.programs[0]?.outputs[0].bytes.at(-1) === 64")  # of what is at least 2
    tab.wait(DONE)
    same(result(tab), [shifted])
    tab.run(
        "(() => { const field = document.querySelector('[data-option=std]');"
        "field.value = '0'; field.dispatchEvent(new Event('change')); })()"
    )
    assert status(tab) == "a.png is no input: divide and std must not be 0."


@pytest.mark.thorough
def test_pictures_of_other_sizes(tmp_path: Path, tab: Tab) -> None:
    """Stretched, or cropped in the middle; what is transparent is white."""
    tab.open(relu_page(tmp_path, (1, 2, 2, 3), "uint8"))
    pixels = np.zeros((8, 16, 4), np.uint8)
    pixels[:, :4] = pixels[:, 12:] = (200, 0, 0, 255)
    pixels[:, 4:12] = (0, 100, 0, 255)
    tab.choose("input[type=file]", png(tmp_path / "wide.png", pixels))
    assert status(tab) == "Done, with wide.png."
    red, green = result(tab)[0][0, :, :, 0], result(tab)[0][0, :, :, 1]
    assert red.min() > 50, "stretched: red is in both halves"
    tab.run("document.querySelectorAll('.options input[type=checkbox]')[1].click()")
    tab.wait("dtypelab.programs[0]?.outputs[0].bytes[0] === 0")
    tab.wait(DONE)
    green = result(tab)[0][0, :, :, 1]
    assert (green == 100).all(), "cropped: only the middle is there"
    tab.choose("input[type=file]", png(tmp_path / "none.png", np.zeros((4, 4, 4), np.uint8)))
    tab.wait("dtypelab.status.startsWith('Done, with none.png')")
    assert (result(tab)[0] == 255).all()
    (tmp_path / "text.png").write_text("no picture")
    tab.choose("input[type=file]", tmp_path / "text.png")
    tab.wait("document.querySelector('#status.failed')")
    assert "text.png is no input: this browser reads neither" in status(tab)


@pytest.mark.thorough
def test_drawing(tmp_path: Path, tab: Tab) -> None:
    """A line down the middle, seen by the network where it was drawn."""
    tab.open(relu_page(tmp_path, (1, 1, 28, 28)))
    tab.wait("dtypelab.status.startsWith('Choose')")
    box = tab.run(
        "(() => { const board = document.querySelector('.board'); board.scrollIntoView();"
        "const {left, top, width, height} = board.getBoundingClientRect();"
        "return [left, top, width, height]; })()"
    )
    x, top, height = box[0] + box[2] / 2, box[1], box[3]
    tab.mouse([(x, top + height * share) for share in (0.2, 0.5, 0.8)])
    assert status(tab) == "Done, with a drawing."
    (got,) = result(tab)
    assert (got[0, 0, 8:20, 13:15] > 0.5).all()
    assert got[0, 0, :, :10].max() == got[0, 0, :, 18:].max() == 0


@pytest.mark.thorough
@needs(WASMTIME)
def test_several_inputs_and_outputs(tmp_path: Path, tab: Tab) -> None:
    mod, out = sum_and_product(), tmp_path / "page.html"
    rng = np.random.default_rng(1)
    x = {n: rng.standard_normal((2, 3)).astype(np.float32) for n in ("left", "right")}
    compiler.export_page({"net": mod}, out)
    tab.open(out)
    tab.wait("dtypelab.status === 'Choose left and right, and the network runs.'")
    tab.choose(".card:nth-child(1) input", npy(tmp_path / "a.npy", x["left"]))
    tab.wait("dtypelab.status === 'Choose right, and the network runs.'")
    tab.choose(".card:nth-child(2) input", npy(tmp_path / "b.npy", x["right"]))
    assert status(tab) == "Done, with a.npy, b.npy."
    same(result(tab), built(mod, x))
    assert len(seen(tab, "#results h3")) == 2


@pytest.mark.thorough
def test_examples(tmp_path: Path, tab: Tab) -> None:
    examples = [{"x": np.full((1, 4), k, np.float32)} for k in range(3)]
    tab.open(relu_page(tmp_path, (1, 4), examples=examples))
    assert status(tab) == "Done, with example 1."
    tab.run("document.querySelectorAll('#examples button')[2].click()")
    tab.wait("dtypelab.status === 'Done, with example 3.'")
    same(result(tab), [examples[2]["x"]])
    tab.choose("input[type=file]", npy(tmp_path / "x.npy", np.ones((1, 4))))
    tab.wait("dtypelab.status === 'Done, with x.npy.'")
    tab.run("document.querySelector('#examples button').click()")
    tab.wait("dtypelab.status === 'Done, with example 1.'")
    assert tab.run("document.querySelector('input[type=file]').value") == ""


def damaged(page: Path, module: str) -> None:
    """Put another module in the place of the first program."""
    import base64

    import wasmtime

    text = base64.b64encode(wasmtime.wat2wasm(module)).decode() if module else "AGFzbQ=="
    page.write_text(page.read_text().replace(parts(page)["wasm0"], text))


MODULE = """(module (memory (export "memory") 1) (global (export "__heap_base") i32 (i32.const 64))
  (func (export "net_run") (param i32 i32 i32 i32 i32) (result i32) {}))"""


@needs(WASMTIME)
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (MODULE.format("unreachable"), "net stopped: RuntimeError: unreachable."),
        pytest.param(
            *(MODULE.format("i32.const 7"), "net stopped: Error: it returns 7."),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *("", "This browser does not run net: CompileError: WebAssembly.Module(): "),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_programs_that_fail(tmp_path: Path, tab: Tab, module: str, message: str) -> None:
    """One sentence; the program beside it still shows what it gives."""
    mod, out = relu((1, 4)), tmp_path / "page.html"
    plain = IRModule({"main": mod.main})
    compiler.export_page(
        {"net": mod, "plain": plain}, out, examples=[{"x": np.ones((1, 4), np.float32)}]
    )
    content = out.read_text()
    both = parts(out)
    damaged(out, module)
    if both["wasm0"] == both["wasm1"]:  # only the first one is damaged
        head, _, tail = out.read_text().rpartition(parts(out)["wasm1"])
        out.write_text(head + both["wasm1"] + tail)
    assert out.read_text() != content
    tab.open(out)
    tab.wait("document.querySelector('#status.failed')")
    assert status(tab).startswith(message)
    if module:
        assert tab.run("dtypelab.programs[0].outputs") is None
        same(result(tab, 1), [np.ones((1, 4), np.float32)])
        tab.run("document.querySelector('#examples button').click()")
        tab.wait("dtypelab.programs.length && document.querySelector('#status.failed')")
        assert status(tab).startswith(message), "and again the next time"


@pytest.mark.thorough
def test_browsers_without_workers(tmp_path: Path, tab: Tab) -> None:
    source = "Worker = class { constructor() { throw new Error('there are none'); } }"
    made = tab.send("Page.addScriptToEvaluateOnNewDocument", source=source)
    try:
        tab.open(relu_page(tmp_path, (2, 3)))
        assert status(tab) == "This browser does not start the program: there are none."
    finally:
        tab.send("Page.removeScriptToEvaluateOnNewDocument", identifier=made["identifier"])


def hostile() -> IRModule:
    """A program with such names, of a long output."""
    b = FunctionBuilder()
    return IRModule({"main": b.finish(b.call("nn.relu", b.param(HOSTILE, (1, 300)), name=HOSTILE))})


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_names_of_others_on_a_phone(tmp_path: Path, tab: Tab, dark: bool) -> None:
    out, x = tmp_path / "page.html", np.arange(300, dtype=np.float32).reshape(1, 300)
    mod, labels = hostile(), [f"{HOSTILE} {k} {'long' * 30}" for k in range(300)]
    compiler.export_page(
        {HOSTILE: mod, "plain": mod}, out, examples=[{HOSTILE: x}], labels=labels, title=HOSTILE
    )
    tab.open(out, width=360, dark=dark)
    assert status(tab) == "Done, with example 1."
    assert seen(tab, "h1") == [HOSTILE]
    assert seen(tab, ".class .name")[0].startswith(f"{HOSTILE} 299 long")
    assert tab.run("document.querySelectorAll('script').length") == 4, "data, machine, example"
    assert tab.run("document.documentElement.scrollWidth") == 360
    paper = tab.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 26)" if dark else "rgb(251, 251, 250)")
    small = tab.run(
        "[...document.querySelectorAll('button, summary, input:not([type=checkbox])')]"
        ".filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 24).length"
    )
    assert small == 0, "to be touched"
