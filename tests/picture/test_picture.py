"""Pictures of graphs: every operator, shape and dtype is there, and no box lies on another."""

from __future__ import annotations

import itertools
import re
import shutil
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Function, If, IRModule
from compiler.picture import Box, Diagram, diagram, layered_svg, svg_text
from compiler.picture.drawing import COLOURS
from experiments import zoo

SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def network() -> IRModule:
    return compiler.optimize(compiler.from_onnx(zoo.FOLDER / "mnist_resnet8.onnx"))


def texts(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def rectangles(svg: str) -> list[Rectangle]:
    """(left, top, right, bottom) of every box."""
    out = []
    for e in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        if e.get("rx"):
            x, y, w, h = (float(e.get(k, 0)) for k in ("x", "y", "width", "height"))
            out.append((x, y, x + w, y + h))
    return out


def lines(svg: str) -> list[list[tuple[float, float, float]]]:
    """For every edge the straight parts between boxes: (x, top, bottom)."""
    out = []
    for e in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        d = e.get("d", "")
        if e.get("stroke"):
            parts = re.findall(r"([\d.]+) ([\d.]+)V([\d.]+)", d)
            out.append([(float(x), float(a), float(b)) for x, a, b in parts])
    return out


@pytest.mark.parametrize("graphviz", [False, True])
def test_operators_shapes_dtypes_and_groups_are_shown(graphviz: bool) -> None:
    if graphviz and not shutil.which("dot"):
        pytest.skip("graphviz is not installed")
    mod = network()
    shown = " | ".join(texts(svg_text(mod, graphviz=graphviz)))
    for word in ("3 fused", "nn.conv2d", "add", "nn.dense", "float32 (N, 1, 28, 28)",
                 "weight float32", "logits"):  # fmt: skip
        assert word in shown
    blocks = (f"float32 (N, {64 // n}, 7, 7, {n})" for n in (4, 8, 16))  # of the CPU's vectors
    assert any(b in shown for b in blocks)
    operators = [n for box in diagram(mod).boxes for n in (box.title, *box.lines)]
    assert operators.count("nn.conv2d") == 9


def test_branches_are_shown() -> None:
    b = FunctionBuilder()
    c, x = b.param("c", (), "bool"), b.param("x", (3,))

    def side(op: str) -> Function:
        inner = FunctionBuilder()
        return inner.finish(inner.call(op, x))

    y = b.bind(If(c, side("abs"), side("negative")), "y")
    mod = IRModule({"main": b.finish(b.call("nn.relu", y))})
    found = diagram(mod)
    assert [box.kind for box in found.boxes] == ["input", "input", "control", "operator", "output"]
    assert found.edges == ((0, 2), (1, 2), (2, 3), (3, 4))
    assert "then: 1 value" in texts(svg_text(mod, graphviz=False))


def test_graphviz_that_is_not_installed_is_not_pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    mod = network()
    assert "nn.conv2d" in svg_text(mod)
    with pytest.raises(ConfigError, match="not installed"):
        svg_text(mod, graphviz=True)


def test_names_are_escaped() -> None:
    box = Box("operator", "<a & b>", ('"x"',))
    svg = layered_svg(Diagram((box,), ()), COLOURS)
    assert texts(svg) == ["<a & b>", '"x"']


@st.composite
def diagrams(draw: st.DrawFn) -> Diagram:
    """Boxes of any size, and edges from earlier to later ones."""
    count = draw(st.integers(1, 14))
    size = st.text("x", min_size=1, max_size=30)
    kinds = st.sampled_from(["operator", "group", "input"])
    box = st.builds(Box, kinds, size, st.lists(size, max_size=4).map(tuple))
    boxes = draw(st.lists(box, min_size=count, max_size=count))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count) if boxes[b].kind != "input"]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=24)) if pairs else []
    return Diagram(tuple(boxes), tuple(sorted(edges)))


@settings(max_examples=60, deadline=None)
@given(diagrams())
def test_boxes_never_overlap_and_edges_lead_down_past_them(shown: Diagram) -> None:
    svg = layered_svg(shown, COLOURS)
    boxes = rectangles(svg)
    assert len(boxes) == len(shown.boxes)
    for (l1, t1, r1, b1), (l2, t2, r2, b2) in itertools.combinations(boxes, 2):
        assert r1 < l2 or r2 < l1 or b1 < t2 or b2 < t1
    for a, b in shown.edges:
        assert boxes[a][3] < boxes[b][1]
    for parts in lines(svg):
        for x, top, bottom in parts:
            for left, upper, right, lower in boxes:
                assert not (left < x < right and upper < bottom and top < lower)


def test_cases_and_data_are_drawn() -> None:
    mod = compiler.parse(
        "def @main(%x: Tensor[(2,), float32]) { %o = Some(%x);"
        "%r = match (%o) { Some(%y) => { %z = nn.relu(%y); %z }, None => { %x } }; %r }",
        using=compiler.prelude(),
    )
    boxes = {b.title: b.lines for b in diagram(mod).boxes}
    assert boxes["Some"] == ("Option[Tensor[(2,), float32]]",)
    assert boxes["match"] == ("Some(%y): 1 value", "None: 0 values", "float32 (2,)")
    assert "Some(%y): 1 value" in texts(svg_text(mod, graphviz=False))
