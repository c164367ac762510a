"""Programs that differ have different text, also where their names do not differ."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler.scheduling import Schedule
from compiler.symbolic import Var
from compiler.target.intrinsics.emission import program_text
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    Gather,
    IndexValue,
    Let,
    LetVar,
    const,
    let,
)
from compiler.tensor.intrinsic import dot_product
from compiler.tensor.stmt import For, PrimFunc, Store, stores
from compiler.types.dtypes import DType

F32, I32, U32 = (DType.parse(d) for d in ("float32", "int32", "uint32"))


def base(value: Callable[[Expr], Expr] = lambda x: x + 1.0) -> PrimFunc:
    b = PrimBuilder("f")
    x, y = b.input("x", (8, 16), F32), b.input("y", (8, 16), F32)
    return b.finish([b.compute("out", (8, 16), F32, lambda i, j: value(x[i, j]) * y[i, j])])


def scheduled(change: Callable[[Schedule], object]) -> PrimFunc:
    s = Schedule(base())
    change(s)
    return s.func


def loops(f: PrimFunc) -> tuple[str, str]:
    outer = f.body[0]
    assert isinstance(outer, For)
    inner = outer.body[0]
    assert isinstance(inner, For)
    return outer.var.name, inner.var.name


OUTER, INNER = loops(base())


def table(content: list[float]) -> PrimFunc:
    data = np.array(content, np.float32)
    held = Buffer("table", (2,), F32, "constant", data=data)
    return base(lambda x: Gather(held, x.astype("int64")))


def bits(dtype: DType) -> PrimFunc:
    return base(lambda x: Cast(Call("bits", (x,), dtype), F32))


def extern(dtype: DType) -> PrimFunc:
    return base(lambda x: Cast(CallExtern("f", (x,), dtype), F32))


VARIANTS: dict[str, Callable[[], PrimFunc]] = {
    "base": base,
    "another literal": lambda: base(lambda x: x + 1.0000001),
    "minus zero": lambda: base(lambda x: x + 0.0),
    "zero": lambda: base(lambda x: x + -0.0),
    "nan": lambda: base(lambda x: x + FloatImm(float("nan"), F32)),
    "minus nan": lambda: base(lambda x: x + FloatImm(float(-np.float64("nan")), F32)),
    "vector": lambda: scheduled(lambda s: s.vectorize(INNER)),
    "unrolled": lambda: scheduled(lambda s: s.unroll(INNER)),
    "parallel": lambda: scheduled(lambda s: s.parallel(OUTER)),
    "reordered": lambda: scheduled(lambda s: s.reorder(INNER, OUTER)),
    "split": lambda: scheduled(lambda s: s.split(INNER, 4)),
    "split otherwise": lambda: scheduled(lambda s: s.split(INNER, 8)),
    "opaque": lambda: scheduled(lambda s: s.opaque(OUTER, s.func.params[0])),
    "another opaque": lambda: scheduled(lambda s: s.opaque(OUTER, s.func.params[1])),
    "fence": lambda: scheduled(lambda s: s.opaque(OUTER, s.func.params[0], fence=True)),
    "prefetch": lambda: scheduled(lambda s: s.prefetch(s.func.params[0], 64)),
    "farther prefetch": lambda: scheduled(lambda s: s.prefetch(s.func.params[0], 128)),
    "packed": lambda: scheduled(lambda s: s.pack("out_s", s.func.params[1])),
    "packed, 32": lambda: scheduled(lambda s: s.pack("out_s", s.func.params[1], align=32)),
    "table": lambda: table([1, 2]),
    "another table": lambda: table([1, 3]),
    "bits as int32": lambda: bits(I32),
    "bits as uint32": lambda: bits(U32),
    "C function to int32": lambda: extern(I32),
    "C function to uint32": lambda: extern(U32),
}


def test_every_variant_has_a_text_of_its_own() -> None:
    texts = {name: program_text(make()) for name, make in VARIANTS.items()}
    for name, text in texts.items():
        twins = [n for n, t in texts.items() if t == text and n != name]
        assert not twins, f"{name} reads like {twins}"


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_programs_have_equal_texts(name: str) -> None:
    assert program_text(VARIANTS[name]()) == program_text(VARIANTS[name]())


# ---- equal names ---------------------------------------------------------------------------------
def test_buffers_of_one_name() -> None:
    def reading(first: bool) -> PrimFunc:
        f = base()
        twin = replace(f.params[1], name="x")
        f.params[1] = twin
        (s,) = stores(f.body)
        s.value = (f.params[0] if first else twin)[s.idx] + 1.0
        return f

    assert program_text(reading(True)) != program_text(reading(False))


def test_loops_of_one_name() -> None:
    def nest(outer: bool) -> PrimFunc:
        f = base()
        x, y, out = f.params
        a, b = Var("i", 8), Var("i", 8)
        v = a if outer else b
        f.body = [For(a, [For(b, [Store("out", out, (a, b), x[v, v] * y[v, v])])])]
        return f

    assert program_text(nest(True)) != program_text(nest(False))


def test_a_loop_named_like_a_dimension() -> None:
    def reading(dim: bool) -> PrimFunc:
        n = Var("n")
        loop = Var("n", 5)
        x, out = Buffer("x", (n,), F32), Buffer("out", (5,), F32)
        body = Store("out", out, (loop,), x[(n if dim else loop) - 1])
        return PrimFunc("f", [x, out], 1, [For(loop, [body])], dims=[n])

    assert program_text(reading(True)) != program_text(reading(False))


def test_bound_values_of_one_name() -> None:
    def nested(outer: bool) -> PrimFunc:
        def value(x: Expr) -> Expr:
            return let(x, lambda a: let(a * 2.0, lambda b: (a if outer else b) + 1.0))

        return base(value)

    assert program_text(nested(True)) != program_text(nested(False))


def test_a_bound_value_named_like_a_loop() -> None:
    def reading(loop: bool) -> PrimFunc:
        f = base()
        (s,) = stores(f.body)
        v = LetVar(OUTER, I32)
        i = next(iter(s.idx[0].vars()))
        inner: Expr = IndexValue(i) if loop else Cast(v, DType.parse("int64"))
        s.value = Let(v, Call("rint_i32", (s.value,), I32), Cast(inner, F32))
        return f

    assert program_text(reading(True)) != program_text(reading(False))


def test_instructions_of_one_name() -> None:
    def tensorized(op: str) -> PrimFunc:
        b = PrimBuilder("f")
        x = b.input("x", (2, 8, 4), DType.parse("uint8"))
        w = b.input("w", (8, 4), DType.parse("int8"))

        def product(n: Var, i: Var, k: Var) -> Expr:
            return x[n, i, k].astype("int32") * w[i, k].astype("int32")

        acc = b.reduce("acc", (2, 8), I32, {"k": 4}, product, const(0, I32))
        s = Schedule(b.finish([acc]))
        (stage,) = s.stages()
        s.decompose_reduction(stage, s.loops(stage)[1])
        s.tensorize(stage, dot_product("dot", 8, lambda e, c, *_: e.bin(op, c, c)))
        return s.func

    assert str(tensorized("add")) == str(tensorized("sub"))
    assert program_text(tensorized("add")) != program_text(tensorized("sub"))


def test_what_is_multiplied_matters() -> None:
    f = base()
    (s,) = stores(f.body)
    assert isinstance(s.value, BinOp)
    s.value = BinOp("Mul", s.value.b, s.value.a, F32)
    assert program_text(f) != program_text(base())
