"""One value as every operand of an operator, and as operands of neighbours in one kernel: compiled
code says what the reference says. What a schedule knows of an operand must be what one access does,
not what its buffer does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from op_case import F32, F64, I32
from op_cases import CASES
from toy_dtype import TOY

import compiler
from compiler import PassContext
from compiler.arithmetic.arrays import arithmetic
from compiler.errors import DtypelabError
from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.op.library import get_op
from compiler.types.dtypes import BOOL, INT8, UINT8, Array, DType
from compiler.types.tensor_types import TensorType

SHAPES = [(16, 16), (3, 30, 30), (9, 6, 3, 3), (20, 33), (7,), (2, 5, 1, 2, 4)]
DTYPES = [F32, I32, TOY, INT8, UINT8, BOOL, F64]
#: What an operator whose operands are integers of any kind may need to take them.
EXTRA: list[dict[str, Any]] = [{}, {"out_dtype": "int32"}]


def several_operands() -> list[str]:
    """Every operator that the cases call with two operands or more."""
    return sorted({c.op for c in CASES if len(c.shapes) > 1})


def calls(name: str) -> Iterator[tuple[int, Mapping[str, Any], TensorType]]:
    """Number of operands, attributes and type for which the operator takes one value as all its
    operands."""
    op, seen = get_op(name), set[str]()
    made = [(len(c.shapes), dict(c.attrs)) for c in CASES if c.op == name and len(c.shapes) > 1]
    if name == "einsum":
        made += [(2, {"equation": e}) for e in ("ij,jk->ik", "ij,kj->ik", "ji,jk->ki")]
    for count, attrs in made:
        for shape in SHAPES:
            # the number of elements of a mean must be a number of its type
            for dtype in [d for d in DTYPES if d.bits > 8 or not name.startswith("mean")]:
                for more in EXTRA:
                    t = TensorType.of(shape, dtype)
                    key = f"{count} {attrs | more} {t}"
                    if key not in seen and _takes(op, attrs | more, t, count):
                        yield count, attrs | more, t
                        break
                    seen.add(key)


def _takes(op: Any, attrs: Mapping[str, Any], t: TensorType, count: int) -> bool:
    with contextlib.suppress(DtypelabError, TypeError):
        op.infer_type(op.make_attrs(**attrs), [t] * count)
        return True
    return False


def data(t: TensorType, low: int = 0) -> Array:
    """Small integers of a type, whose sums and products are exact in any order."""
    x = np.random.default_rng(5).integers(low, 3, t.static_shape)
    return np.asarray(arithmetic(t.dtype).cast(x.astype(np.float32), F32))


def check(b: FunctionBuilder, y: Var, *arrays: Array, exact: bool = True) -> None:
    """Compiled code and the reference of what ends in `y` have the same results."""
    fields = getattr(y.type, "fields", ())
    mod = IRModule({"main": b.finish(*([b.get(y, k) for k in range(len(fields))] or [y]))})
    with np.errstate(all="ignore"):
        want, got = evaluate(mod, *arrays), compiler.build(mod)(*arrays)
    for w, g in zip(*([r] if not isinstance(r, list) else r for r in (want, got)), strict=True):
        if exact:
            np.testing.assert_array_equal(g, w)
        else:
            np.testing.assert_allclose(g, w, rtol=2e-6, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", several_operands())
def test_every_operand_is_the_same_value(name: str) -> None:
    found = list(calls(name))
    rounds = name in ("nn.batch_norm", "nn.layer_norm", "nn.rms_norm", "mean_products", "power")
    kinds = {(count, repr(attrs), t.dtype): (count, attrs, t) for count, attrs, t in found}
    for count, attrs, t in list(kinds.values())[:12]:
        b = FunctionBuilder()
        x = b.param("x", t.shape, t.dtype)
        check(b, b.call(name, *[x] * count, **attrs), data(t, 1), exact=not rounds)


def test_most_operators_take_one_value_twice() -> None:
    none = {n for n in several_operands() if not any(calls(n))}
    # Batch norm's data has more dimensions than its other operands; boxes have 4 numbers, scores 1.
    assert none == {"nn.batch_norm", "non_max_suppression"}


PRODUCTS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("nn.matmul", {}, (16, 16)),
    ("nn.matmul", {}, (30, 30)),
    ("nn.matmul", {}, (2, 3, 17, 17)),
    ("nn.dense", {}, (20, 33)),
    ("nn.conv2d", {"padding": (2, 2, 2, 2)}, (18, 5, 4, 4)),
    ("einsum", {"equation": "ij,jk->ik"}, (16, 16)),
    ("einsum", {"equation": "ji,jk->ki"}, (12, 24)),
    ("einsum", {"equation": "bij,bkj->bik"}, (2, 18, 6)),
]
CASES_OF_PRODUCTS = [
    (name, attrs, shape, dtype, kind)
    for name, attrs, shape in PRODUCTS
    for dtype in (F32, TOY, I32, INT8, DType("float", 16))
    for kind in ("parameter", "computed", "constant")
    if dtype != INT8 or name != "einsum"
]


@pytest.mark.sampled(36)
@pytest.mark.parametrize("case", CASES_OF_PRODUCTS, ids=lambda c: "-".join(map(str, c)))
def test_products_of_a_value_with_itself(case: Any) -> None:
    name, attrs, shape, dtype, kind = case
    t = TensorType.of(shape, dtype)
    b, x = FunctionBuilder(), data(t, -1)
    value = b.const(x, dtype) if kind == "constant" else b.param("x", shape, dtype)
    if kind == "computed":
        value = b.call("maximum", value, b.const(np.zeros((), dtype.storage), dtype))
    if dtype == INT8:
        attrs = attrs | {"out_dtype": "int32"}
    with PassContext(disabled_pass=["FoldConstant"]):
        check(b, b.call(name, value, value, **attrs), *([] if kind == "constant" else [x]))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["nn.matmul", "nn.dense"])
@pytest.mark.parametrize("then", ["add", "multiply", "maximum", "nn.matmul", "take"])
@pytest.mark.parametrize("n", [16, 30])
def test_a_constant_serves_a_product_and_what_follows(name: str, then: str, n: int) -> None:
    """The kernel packs no constant that something else reads as it is."""
    t, b = TensorType.of((n, n), F32), FunctionBuilder()
    w = b.const(data(t, -1))
    y = b.call(name, b.param("x", (n, n)), w)
    if then == "take":
        rows = b.call("cast", b.call("clip", y, a_min=0, a_max=n - 1), dtype="int32")
        y = b.call("take", w, rows, axis=0)
    else:
        y = b.call(then, y, w)
    check(b, y, data(t))
