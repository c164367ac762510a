"""Printed loop nests read back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_identity import VARIANTS

import compiler
import datatypes
import quantize
from compiler.errors import ParseError
from compiler.ir.expr import IRModule
from compiler.target.intrinsics import named_intrinsics
from compiler.target.intrinsics.emission import program_text
from compiler.tensor.parser import parse_primfunc
from experiments import zoo
from experiments.data import datasets


def test_every_kind_of_statement_reads_back() -> None:
    for name, make in VARIANTS.items():
        if "table" not in name:
            f = make()
            assert program_text(parse_primfunc(str(f), named_intrinsics())) == program_text(f), name


FORMATS = {"float32": None, "posit16_es1": None, "posit8_es0": "table", "bfloat16": "library"}
SLOW = [("mnist_mlp", "posit16_es1"), ("mnist_dwsep", "float32"), ("mnist_dwsep", "posit16_es1")]
QUICK = [("mnist_mlp", "float32"), ("mnist_resnet8", "float32"), ("mnist_resnet8", "posit8_es0")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("network", "name"),
    [*QUICK, *(pytest.param(*run, marks=pytest.mark.slow) for run in SLOW)],
)
def test_scheduled_kernels_of_networks_read_back(network: str, name: str) -> None:
    mod = compiler.from_onnx(zoo.FOLDER / f"{network}.onnx")
    if name != "float32":
        mod = datatypes.change_dtype(mod, "float32", name)
    for k in compiler.build(mod, dtype_lowering=FORMATS[name]).program.kernels:
        text = IRModule({"f": k.func}).astext(show_meta_data=True)
        again = compiler.parse(text)
        assert again.astext(show_meta_data=True) == text
        assert compiler.structural_equal(again, IRModule({"f": k.func}))


def test_int8_kernels_with_instructions_read_back() -> None:
    digits = datasets.load("mnist1k")
    mod = compiler.from_onnx(zoo.FOLDER / "mnist_resnet8.onnx")
    exe = compiler.build(quantize.quantize(mod, [digits.x[:64]]))
    read = [(k.func, parse_primfunc(str(k.func), named_intrinsics())) for k in exe.program.kernels]
    assert all(program_text(f) == program_text(g) for f, g in read)
    assert any("<" in line.split(":")[0] for f, _ in read for line in str(f).splitlines()[1:])


TEXTS = [
    """primfunc @f[n](x: float32[n, 4]) -> (y: float32[n, 4]) {
  temp t: float32[n]
  for i in n:
    for k in 4:
      t_s: t[i] += (x[i, k] * float32(1.5))  (init float32(0.0))
  parallel for i in n: {whole n // 2}
    for j in 4:
      y_s: y[i, j] = select((t[i] < x[i, 3 - j]), exp(t[i]), float32(int64(i*2 + 1)))
}

def @main(%x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), float32] {
  %y = call_tir(@f, (%x,), Tensor[(n, 4), float32]);
  %z = call_packed("env.note", (%y, 1.0float32), ());
  %y
}
"""
]
ROW = "primfunc @f[n](x: float32[n, 4]) -> (y: float32[n, 4]) {\n"
NEST = "  for i in n:\n    for j in 4:\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        (ROW + NEST + "      s: y[i, k] = x[i, j]\n}", 4, 15, "unknown loop or dimension 'k'"),
        (ROW + NEST + "      s: y[i] = x[i, j]\n}", 4, 11, "2 dimensions, not 1"),
        (ROW + NEST + "      s: y[i, j] = z[i, j]\n}", 4, 20, "unknown buffer 'z'"),
        (ROW + NEST + "      s: y[i, j] = (x[i, j] + int32(1))\n}", 4, 29, "cast one of them"),
        (ROW + NEST + "      s: y[i, j] = (x[i, j] ? x[i, j])\n}", 4, 29, "unexpected '?'"),
        (ROW + NEST + "      s: y[i, j] = int32(x[i, j])\n}", 5, 1, "cast it"),
        (ROW + NEST + "      s: y[i, j] = x[i, j + 1]\n}", 5, 1, "outside 0 to 3"),
        (ROW + NEST + "      s: x[i, j] = y[i, j]\n}", 5, 1, "stores into its input x"),
        (ROW + NEST + "      s: y[i, j] - x[i, j]\n}", 4, 18, "expected one of"),
        (ROW + NEST + "      s: y[i, j] = float32(\n}", 4, 28, "ends here"),
        (ROW + "  for i in n:\n}", 2, 3, "nothing is indented below"),
        (ROW + NEST + "      s: y[i, j] = x[i, j]", 1, 1, "no line '}' ends"),
        (ROW + "  for i in n:\n    for i in 4:\n      s: y[i, i] = x[i, i]\n}", 3, 9, "already"),
        (ROW.replace("float32[n, 4])", "float33[n, 4])", 1), 1, 19, "unknown dtype"),
        (ROW + NEST + "      s: y[i, j % 0] = x[i, j]\n}", 4, 17, "divisor must be positive"),
        (ROW + NEST + "      dot4<o<4, i<4>: s: y[i, j] = x[i, j]\n}", 4, 7, "unknown instruct"),
    ],
)
def test_errors_name_line_and_column(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as e:
        parse_primfunc(text if text.endswith("}") or "s:" in text else text + "}")
    assert str(e.value).startswith(f"line {line}, column {column}: "), e.value
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("index", "inside"),
    [
        ("(j % 3)", True),
        ("((j*2 + 1) % 5)", True),
        ("((j*3 + 1) % 5)", False),
        ("(j // 2)*3", True),
        ("(j // 2)*4", False),
        ("-j + 3", True),
        ("-j + 2", False),
        ("min(j*2, 3)", True),
        ("min(j*2, 4)", False),
    ],
)
def test_indices_of_any_form_are_known_to_stay_inside(index: str, inside: bool) -> None:
    text = ROW + "  for i in n:\n    for j in 4:\n      s: y[i, j] = x[i, INDEX]\n}"
    text = text.replace("INDEX", index)
    if inside:
        parse_primfunc(text)
    else:
        with pytest.raises(ParseError, match="outside 0 to 3"):
            parse_primfunc(text)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_changed_texts_are_programs_or_refused(data: st.DataObject) -> None:
    """Any text is read or refused, without another exception; what is read prints again."""
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        count = data.draw(st.integers(0, 4))
        new = data.draw(
            st.sampled_from(["", " ", "(", ")", "]", "-", "n", "7", ":", "\n", "x", "%"])
        )
        text = text[:at] + new + text[at + count :]
    try:
        mod = compiler.parse(text)
    except compiler.DtypelabError:
        return
    assert compiler.parse(mod.astext(show_meta_data=True)).astext() == mod.astext()


@pytest.mark.parametrize("update", ["|=", "&="])
def test_updates_of_truth_values_read_back(update: str) -> None:
    text = f"""primfunc @f(x: bool[3, 4]) -> (y: bool[3]) {{
  for i in 3:
    for k in 4:
      y_s: y[i] {update} (x[i, k] | x[i, 0])  (init bool(1))
}}"""
    f = parse_primfunc(text)
    assert update in str(f)
    assert program_text(parse_primfunc(str(f))) == program_text(f)
