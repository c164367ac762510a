"""What the computing unit of an accelerator does with one vector, as loop nests: their bits are
those of the same scalar operations in every other program."""

from __future__ import annotations

from collections.abc import Callable

from compiler.scheduling import Schedule
from compiler.symbolic import IntLike
from compiler.target.accelerator import Design
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, binary, call, cast, const, maximum, minimum
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, DType, format_dtype


def data_dtype(design: Design, signed: bool) -> DType:
    """What a number of data is."""
    if design.integer:
        return INT8 if signed else UINT8
    return format_dtype(design.format)


def held_dtype(design: Design) -> DType:
    """What accumulators are held in here."""
    if design.integer:
        return INT32
    return FLOAT32 if design.accumulator == "float32" else FLOAT64


def parameter_dtype(design: Design) -> DType:
    """What the parameters are that results are made with: scales, or biases."""
    return FLOAT32 if design.integer else held_dtype(design)


def multiply(design: Design, signed: bool) -> PrimFunc:
    """acc[o] += sum over k of x[k] * w[k, o]: in order, or, where accumulators saturate, the sum of
    all k exactly, which is then added."""
    n, held, data = design.block, held_dtype(design), data_dtype(design, signed)
    b = PrimBuilder("accel_multiply")
    x = b.input("x", (n,), data)
    w = b.input("w", (n, n), INT8 if design.integer else data)
    acc = b.buffer("acc", (n,), held)
    if design.integer and design.saturates:
        _stage(b, acc, lambda o: _limited(design, x, w, acc, o))
    else:
        # A product of two numbers of 8 bits is exact in each of these.
        b.stage(
            acc,
            {"o": n},
            lambda o, k: ((o,), cast(x[k], held) * cast(w[k, o], held)),
            reduce={"k": n},
            update="Add",
        )
    f = b.finish([acc])
    s = Schedule(f)
    if not (design.integer and design.saturates):
        s.reorder("acc_s.k", "acc_s.o")
    s.vectorize("acc_s.o")
    return f


def _limited(design: Design, x: Buffer, w: Buffer, acc: Buffer, o: IntLike) -> Expr:
    total: Expr | None = None
    for k in range(design.block):
        product = cast(x[k], INT32) * cast(w[k, o], INT32)
        total = product if total is None else total + product
    assert total is not None
    most = 1 << (design.accumulator_bits - 1)
    last = cast(acc[o], INT64) + cast(total, INT64)
    return cast(minimum(maximum(last, -most), most - 1), INT32)


def finish(design: Design) -> PrimFunc:
    """What makes results of accumulators: of integers, acc * scale in float32, rounded to nearest
    even, plus a zero point, within bounds (see `compiler.op.qnn.requantize`), the three in `given`;
    of formats, acc + bias in the accumulator's numbers, rounded to the format."""
    n, held = design.block, held_dtype(design)
    b = PrimBuilder("accel_finish")
    acc = b.input("acc", (n,), held)
    par = b.input("par", (n,), parameter_dtype(design))
    given = b.input("given", (3,), INT32)
    code = UINT8 if design.integer else data_dtype(design, False)
    out = b.buffer("out", (n,), code)

    def integers(i: IntLike) -> Expr:
        return _clipped(cast(_held(design, acc[i]), FLOAT32) * par[i], given)

    def formats(i: IntLike) -> Expr:
        return cast(binary("Add", acc[i], par[i]), code)

    _stage(b, out, integers if design.integer else formats)
    f = b.finish([out])
    Schedule(f).vectorize("out_s.o")
    return f


def take(design: Design) -> PrimFunc:
    """Bytes of accumulators of integers, which begin at bit `given[1]`."""
    b = PrimBuilder("accel_take")
    acc = b.input("acc", (design.block,), INT32)
    given = b.input("given", (3,), INT32)
    out = b.buffer("out", (design.block,), UINT8)
    _stage(b, out, lambda i: cast((_held(design, acc[i]) >> given[1]) & 255, UINT8))
    f = b.finish([out])
    Schedule(f).vectorize("out_s.o")
    return f


def greatest(design: Design) -> PrimFunc:
    """The greater of accumulators of integers and of bytes (see `_with_bytes`)."""
    return _with_bytes(design, "accel_max", maximum)


def add(design: Design) -> PrimFunc:
    """The sum of accumulators of integers and of bytes (see `_with_bytes`)."""
    return _with_bytes(design, "accel_add", lambda a, b: a + b)


def _with_bytes(design: Design, name: str, value: Callable[[Expr, Expr], Expr]) -> PrimFunc:
    """What accumulators and bytes make in the accumulators' place; bytes are numbers from
    `given[1]` on, -128 or 0."""
    b = PrimBuilder(name)
    x = b.input("x", (design.block,), UINT8)
    given = b.input("given", (3,), INT32)
    acc = b.buffer("acc", (design.block,), INT32)

    def made(i: IntLike) -> Expr:
        return value(acc[i], _number(x[i], given[1]))

    _stage(b, acc, made)
    f = b.finish([acc])
    Schedule(f).vectorize("acc_s.o")
    return f


def add_tensors(design: Design) -> PrimFunc:
    """The sum of two vectors of data: of integers each less its zero point and times its vector of
    `par`, in float32 (see `compiler.op.qnn.add`), rounded to nearest even, plus a zero point,
    within bounds; of formats in the accumulator's numbers, rounded to the format. `given`: zero
    point and bounds, zero points of both, the least numbers that bytes of both stand for."""
    n, data = design.block, data_dtype(design, False)
    b = PrimBuilder("accel_sum")
    x, y = b.input("x", (n,), data), b.input("y", (n,), data)
    par = b.input("par", (2, n), parameter_dtype(design))
    given = b.input("given", (7,), INT32)
    out = b.buffer("out", (n,), data)

    def integers(i: IntLike) -> Expr:
        terms = [
            cast(_number(v[i], given[5 + k]) - given[3 + k], FLOAT32) * par[k, i]
            for k, v in enumerate((x, y))
        ]
        return _clipped(terms[0] + terms[1], given)

    def formats(i: IntLike) -> Expr:
        held = held_dtype(design)
        return cast(cast(x[i], held) + cast(y[i], held), data)

    _stage(b, out, integers if design.integer else formats)
    f = b.finish([out])
    Schedule(f).vectorize("out_s.o")
    return f


def _clipped(value: Expr, given: Buffer) -> Expr:
    rounded = call("rint_i32", value, dtype=INT32) + given[0]
    return cast(minimum(maximum(rounded, given[1]), given[2]) & 255, UINT8)


def _number(byte: Expr, least: Expr) -> Expr:
    """What a byte stands for, where that is `least` or more."""
    return ((cast(byte, INT32) - least) & 255) + least


def _held(design: Design, value: Expr) -> Expr:
    """What an accumulator of integers holds: wrapped, if it wraps."""
    unused = const(INT32.bits - design.accumulator_bits, INT32)
    if design.saturates or design.accumulator_bits == INT32.bits:
        return value
    return (value << unused) >> unused


def _stage(b: PrimBuilder, out: Buffer, value: Callable[..., Expr]) -> None:
    b.stage(out, {"o": out.shape[0]}, lambda o: ((o,), value(o)))
