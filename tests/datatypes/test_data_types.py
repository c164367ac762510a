"""Lists of tensors, and types with tensors in their definitions, in other number formats."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.boundary.data import Datum

SHAPES = """
type Shape { Circle(Tensor[(), float32]), Box(Tensor[(2,), float32]) }
def @main(%x: Tensor[(2,), float32], %y: Tensor[(2,), float32]) -> Tensor[(2,), float32] {
  %n = Nil; %l = Cons(%x, %n); %m = Cons(%y, %l);
  %f = fn (%a: Tensor[(2,), float32], %b: Tensor[(2,), float32]) { %c = multiply(%a, %b); %c };
  %s = @foldl(%f, %x, %m);
  %b = Box(%s);
  %t = match (%b) { Circle(_) => { %x }, Box(%q) => { %v = add(%q, %y); %v } };
  %t
}
"""
X, Y = np.float32([1.1, -2.3]), np.float32([0.7, 1.9])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["posit16_es1", "posit8_es2", "bfloat16"])
def test_data_hold_custom_formats(name: str) -> None:
    mod = compiler.parse(SHAPES, using=compiler.prelude())
    out = datatypes.change_dtype(mod, "float32", name)
    compiler.verify(out)
    assert f"Box(Tensor[(2,), {dtype_of(name)}])" in out.astext()
    again = compiler.parse(out.astext(show_meta_data=True))
    assert compiler.structural_equal(out, again)
    plain = compiler.parse(
        "def @main(%x: Tensor[(2,), float32], %y: Tensor[(2,), float32]) { %a = multiply(%x, %y);"
        "%b = multiply(%a, %x); %c = add(%b, %y); %c }"
    )
    want = compiler.evaluate(datatypes.change_dtype(plain, "float32", name), X, Y)
    np.testing.assert_array_equal(compiler.evaluate(out, X, Y), want)
    np.testing.assert_array_equal(compiler.build(out)(X, Y), want)


def dtype_of(name: str) -> str:
    return f"custom[{name}]{datatypes.get(name).nbits}"


def test_data_at_the_boundary_are_codes_or_refused() -> None:
    text = "def @main(%xs: List[Tensor[(), float32]]) { %r = @head(%xs); %r }"
    mod = compiler.parse(text, using=compiler.prelude())
    with pytest.raises(compiler.UnsupportedError, match=r"^%xs of type List.* boundary=False$"):
        datatypes.change_dtype(mod, "float32", "posit16_es1")
    out = datatypes.change_dtype(mod, "float32", "posit16_es1", boundary=False)
    code = np.uint16(0x4000)
    given = Datum("Cons", (code, Datum("Nil")))
    for run in (lambda x: compiler.evaluate(out, x), compiler.build(out)):
        assert run(given).fields[0] == code


def test_formats_by_layer_do_not_go_through_data() -> None:
    mod = compiler.parse(SHAPES, using=compiler.prelude())
    with pytest.raises(compiler.UnsupportedError, match="%n: formats by layer do not go through"):
        datatypes.change_dtype(mod, {"*": "bfloat16"})
