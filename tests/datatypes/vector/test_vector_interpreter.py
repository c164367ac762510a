"""Vector expressions mean the same to the interpreter as in machine code."""

from __future__ import annotations

import numpy as np
import pytest
from vector_support import ARITHMETIC, binary_kernel, dtype_of, lane_of, lowered, some_pairs

from compiler.interpret import loop_nests
from compiler.lowering.custom_dtypes import Lane
from compiler.symbolic import Index
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import BinOp, Expr
from compiler.types.dtypes import BOOL
from datatypes import vector
from datatypes.formats import get

NAMES = [
    "posit8_es0", "posit16_es1", "posit16_es2", "posit32_es2", "bfloat16", "float8_e4m3fn",
    "fixed16_8", "takum16",
]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("op", [*ARITHMETIC, "LT", "EQ"])
@pytest.mark.parametrize("name", NAMES)
def test_interpreter_and_machine_code(name: str, op: str, deferred: bool) -> None:
    fmt = get(name)
    a, b = (vector.lane_array(fmt, x[:: x.size // 150]) for x in some_pairs(fmt, 2000))
    compares = op not in ARITHMETIC
    builder, lane, dtype = PrimBuilder("pairs"), lane_of(fmt), dtype_of(fmt)
    x, y = (builder.input(n, (a.size,), lane) for n in ("x", "y"))

    def body(i: Index) -> Expr:
        node = BinOp(op, Lane(x[i], dtype), Lane(y[i], dtype), BOOL if compares else dtype)
        return lowered(fmt, node, deferred)

    out = builder.compute("out", (a.size,), BOOL if compares else lane, body)
    got = np.zeros(a.size, bool if compares else a.dtype)
    with np.errstate(all="ignore"):
        loop_nests.run(builder.finish([out]), [a, b, got])
    np.testing.assert_array_equal(got, binary_kernel(name, op, deferred, "llvm")(a, b))


def test_fma_of_float64_is_rounded_once() -> None:
    one, tiny = 1.0, 2.0**-60
    for a, b, c, want in (
        (one + 2**-30, one + 2**-30, -1.0, 2**-29 + 2.0**-60),  # the product needs 61 bits
        (one, one, tiny, one),
        (1e200, 1e200, -1e300, np.inf),
        (0.0, -1.0, 0.0, 0.0),
        (-0.0, 1.0, -0.0, -0.0),
        (np.inf, 0.0, 1.0, np.nan),
    ):
        with np.errstate(all="ignore"):
            got = loop_nests.fma(a, b, c, lane_of(get("posit32_es2")))
        np.testing.assert_array_equal(got, want)
        assert np.signbit(got) == np.signbit(want) or np.isnan(want)
