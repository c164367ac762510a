"""Printed programs read back as the same programs; errors say where."""

from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.equal import structural_equal
from compiler.ir.expr import Constant, IRModule
from compiler.ir.parser import parse
from compiler.symbolic import Index, imin
from compiler.symbolic import Var as Dim
from compiler.transform.fuse_ops import FuseOps
from compiler.types.dtypes import DType
from compiler.types.tokens import ParseError

N, M = Dim("n"), Dim("m")
DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
NETS = ["mnist_mlp", "mnist_resnet8", "mnist_dwsep", "mnist_vit"]


def small() -> IRModule:
    n = Dim("n")
    b = FunctionBuilder()
    x = b.param("x", (n, 4, imin(n, 3) * 2 + 1))
    y = b.call("add", x, b.const(np.float32(0.1)), origins=["node/1", "two"])
    y = b.call("multiply", y, b.const(np.float32([[np.inf], [np.nan], [-0.0], [1e-42]])))
    y = b.call("clip", y, a_min=float("-inf"), a_max=6.0)
    s = b.call("split", y, sizes=[1, 3], axis=1)
    z = b.call("reshape", b.get(s, 1), newshape=(n, -1))
    k = b.call("cast", z, dtype="int64")
    t = b.call("greater", k, b.const(np.int64(-3)))
    return IRModule(
        {"main": b.finish(b.get(s, 0), k, t)}, {"opset": 13, "outputs": ("a", "b", "c")}
    )


@pytest.mark.parametrize("fused", [False, True])
def test_round_trip(fused: bool) -> None:
    mod = FuseOps()(small()) if fused else small()
    text = mod.astext(show_meta_data=True)
    again = parse(text)
    assert compiler.structural_equal(mod, again)
    assert again.astext(show_meta_data=True) == text
    compiler.verify(again)


@pytest.mark.parametrize("net", NETS)
def test_round_trip_of_trained_nets(net: str) -> None:
    path = DATA / f"{net}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    mod = compiler.from_onnx(path)
    assert compiler.structural_equal(mod, parse(mod.astext(show_meta_data=True)))


def test_names_of_constants_are_read_back() -> None:
    x = compiler.var("x", (2,))
    weight, gain = (
        Constant(np.array(v, "float32"), DType("float", 32), name)
        for v, name in (([1, 2], "a.weight"), (3, "g"))
    )
    mod = IRModule({"main": compiler.function([x], (x * weight) * gain)})
    text = mod.astext(show_meta_data=True)
    again = parse(text)
    assert compiler.structural_equal(mod, again)
    assert list(compiler.parameters(again)) == list(compiler.parameters(mod)) == ["a.weight", "g"]
    with_loss = compiler.with_loss(again, "squared_error", "y")
    assert compiler.gradient(with_loss, ["g"]).main.params[-1].name == "g"
    without = "\n".join(row for row in text.splitlines() if not row.startswith("names = "))
    assert compiler.structural_equal(mod, parse(without))  # as texts were before names
    for wrong in ("names = [1]", 'names = {"0": 1}', "names = 3"):
        with pytest.raises(ParseError, match="names must be"):
            parse(f"{without}\n{wrong}\n")


def test_equality_notices_differences() -> None:
    text = small().astext(show_meta_data=True)
    for old, new in [("a_max=6.0", "a_max=7.0"), ("0.1", "0.2"), ("node/1", "node/2")]:
        other = parse(text.replace(old, new, 1))
        assert not compiler.structural_equal(small(), other)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            "def @main(%x: Tensor[(2,), float32]) {\n  %y = nn.relux(%x);\n  %y\n}",
            "line 2, column 8",
        ),
        (
            "def @main(%x: Tensor[(2,), float32]) {\n  %y = nn.relu(%z);\n  %y\n}",
            "line 2, column 16",
        ),
        ("def @main(%x: Tensor[(2,), float33]) {\n  %x\n}", "line 1, column 28"),
        ("def @main(%x: Tensor[(2,), float32]) {\n  %x", "line 2, column 5"),
        ("def @main(%x: Tensor[(2,), float32]) {\n  ?\n}", "line 2, column 3"),
        ("", "line 1, column 1"),
    ],
)
def test_errors_point_at_line_and_column(text: str, where: str) -> None:
    with pytest.raises(ParseError, match=where):
        parse(text)


@pytest.mark.parametrize(
    "d",
    [
        N // 2 + 1, (N // 2 + 1) // 2, (N + 3) // 4 * 4, N % 3, (N * 2 + 1) % 5 + N, N * M, 10 - N,
        imin(N, 2) // 2, imin(N * M, M + 3), (N - 1) // M, N % M, -(N // 3) + 7, N * N // 2,
    ],
    ids=str,
)  # fmt: skip
def test_dimensions_read_back(d: Index) -> None:
    x = compiler.var("x", (1, d, N, M))
    mod = IRModule({"main": compiler.function([x], compiler.call("nn.relu", x))})
    assert parse(mod.astext()).main.params[0].type == x.type


def test_comments_stand_where_no_division_can() -> None:
    mod = parse("""// a comment
// another // one
def @main(%x: Tensor[(n, (n // 2) + 1), float32]) { // here
  %y = nn.relu(%x);  // and here
  // a line of its own
  %z = nn.relu(%y); /* ty=Tensor[(1,), bool] */ // after a type
  %z
} // the end
""")
    assert len(mod.main.bindings) == 2
    assert str(mod.main.params[0].type) == "Tensor[(n, (n // 2) + 1), float32]"


def test_a_negative_zero_among_attributes_reads_back() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 2))
    mod = IRModule({"main": b.finish(b.call("nn.pad", x, pad_width=((1, 1), (0, 0)), value=-0.0))})
    back = parse(mod.astext())
    assert "value=-0.0" in back.astext()


def test_calls_may_be_operands_of_calls() -> None:
    mod = parse("""
def @main(%x: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
  %y = add(exp(negative(%x)), minimum(%x, 1.0float32));
  %y
}
""")
    assert [b.var.name for b in mod.main.bindings] == ["y/0", "y/1", "y/2", "y"]
    assert structural_equal(parse(mod.astext()), mod)
    with pytest.raises(ParseError, match=r"line 3, column 12: .*did you mean 'exp'"):
        parse("""
def @main(%x: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
  %y = add(expo(%x), %x);
  %y
}
""")
