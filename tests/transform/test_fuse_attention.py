"""FuseAttention: which kernels become one, and why others do not."""

from __future__ import annotations

import numpy as np

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.symbolic import Var as Size
from compiler.transform import FuseAttention, FuseOps, Sequential


def attention(rows: object = 5, shared: bool = False, reshaped: bool = False) -> IRModule:
    """softmax(q k) v of two heads; `shared`: the scores are a result, too."""
    b = FunctionBuilder()
    q, k = b.param("q", (2, rows, 4)), b.param("k", (2, 4, 6))
    scores = b.call("nn.matmul", q, k)
    weights = scores
    if reshaped:
        weights = b.call("reshape", b.call("nn.relu", weights), newshape=(1, 2, rows, 6))
    weights = b.call("nn.softmax", weights, axis=-1)
    if reshaped:
        weights = b.call("reshape", b.call("nn.relu", weights), newshape=(2, rows, 6))
    out = b.call("nn.matmul", weights, b.param("v", (2, 6, 3)))
    return IRModule({"main": b.finish(out, scores) if shared else b.finish(out)})


def kernels(mod: IRModule) -> int:
    return len(Sequential([FuseOps(), FuseAttention()])(mod).main.bindings)


def reasons(mod: IRModule) -> list[str]:
    return [str(r) for r in FuseAttention().explain(Sequential([FuseOps()])(mod))]


def test_attention_is_one_kernel() -> None:
    assert kernels(attention()) == 1
    (why,) = reasons(attention())  # the first of the two products
    assert "FuseAttention does not apply: what it multiplies is no result of a kernel" in why


def test_scores_that_are_read_twice_stay() -> None:
    mod = attention(shared=True)
    assert kernels(mod) == 3
    assert "is read by something else, too" in reasons(mod)[-1]


def test_other_shapes_between_stay() -> None:
    mod = attention(reshaped=True)
    assert kernels(mod) == 5
    assert reasons(mod)[-1].endswith("is another shape (reshape)")


def test_open_sizes_stay() -> None:
    mod = attention(Size("rows"))
    assert kernels(mod) == 3
    assert reasons(mod)[-1].endswith("the size rows is known only when it runs")


def test_constant_values_stay() -> None:
    """A product with a constant is a kernel for packed constants."""
    b = FunctionBuilder()
    q, k = b.param("q", (2, 5, 4)), b.param("k", (2, 4, 6))
    weights = b.call("nn.softmax", b.call("nn.matmul", q, k), axis=-1)
    values = compiler.const(np.ones((2, 6, 3), np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.matmul", weights, values))})
    assert kernels(mod) == 3


def test_two_layers_are_two_kernels() -> None:
    """The result of one is what the other multiplies first."""
    b = FunctionBuilder()
    x: Var | object = b.param("x", (2, 5, 4))
    for layer in range(2):
        k, v = b.param(f"k{layer}", (2, 4, 6)), b.param(f"v{layer}", (2, 6, 4))
        x = b.call("nn.matmul", b.call("nn.softmax", b.call("nn.matmul", x, k), axis=-1), v)
    mod = IRModule({"main": b.finish(x)})
    assert kernels(mod) == 2


def test_transpositions_of_rows_are_read_and_written_through() -> None:
    """Heads that are split off and joined, but not the transposition that keys need."""
    b = FunctionBuilder()
    q, k, v = (
        b.call("transpose", b.param(name, (1, 5, 2, 4)), axes=(0, 2, 1, 3)) for name in "qkv"
    )
    scores = b.call("nn.matmul", q, b.call("transpose", k, axes=(0, 1, 3, 2)))
    out = b.call("nn.matmul", b.call("nn.softmax", scores, axis=-1), v)
    mod = IRModule({"main": b.finish(b.call("transpose", out, axes=(0, 2, 1, 3)))})
    assert kernels(mod) == 3
    _, _, last = Sequential([FuseOps(), FuseAttention()])(mod).main.bindings
    assert [a.name for a in last.value.args][:2] == ["q", "v"]
