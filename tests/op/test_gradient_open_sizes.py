"""Rules of differentiation along axes whose sizes are open: the gradient is that of fixed sizes,
interpreted and compiled; one gradient serves images of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import compiler
from compiler.errors import TypeInferenceError, UnsupportedError
from compiler.ir.expr import IRModule, tensor_type

Shape = tuple[Any, ...]


def program(op: str, shapes: list[Shape], **attrs: Any) -> IRModule:
    """The operator in a module."""
    given = [compiler.var(f"p{k}", s, "float64") for k, s in enumerate(shapes)]
    return IRModule({"main": compiler.function(given, compiler.call(op, *given, **attrs))})


def check(op: str, shapes: list[Shape], sizes: dict[str, int], **attrs: Any) -> None:
    """Gradients of open sizes and of fixed ones, in the interpreter; the first of two sizes by
    compiled code, too."""
    names = [f"p{k}" for k in range(len(shapes))]
    both = compiler.gradient(program(op, shapes, **attrs), names, "flows")
    compiler.verify(both)
    known = [tuple(sizes.get(n, n) for n in s) for s in shapes]
    fixed = program(op, known, **attrs)
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s) for s in known]
    back = rng.standard_normal(tensor_type(fixed.main.results[0]).static_shape)
    want = compiler.evaluate(compiler.gradient(fixed, names, "flows"), *args, back)
    for a, b in zip(compiler.evaluate(both, *args, back), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


small = st.integers(1, 3)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)), st.tuples(small, small),
    st.tuples(small, small), st.tuples(small, small), st.tuples(*[st.integers(0, 2)] * 4),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_convolutions(
    sizes: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int],
    dilation: tuple[int, int], padding: tuple[int, ...], groups: int,
) -> None:  # fmt: skip
    shapes: list[Shape] = [("n", 2 * groups, "h", "w"), (groups, 2, *kernel)]
    known = {"n": 2, "h": sizes[0], "w": sizes[1]}
    how = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    try:
        program("nn.conv2d", [tuple(known.get(n, n) for n in s) for s in shapes], **how)
    except TypeInferenceError:
        assume(False)
    check("nn.conv2d", shapes, known, **how)


CASES: list[tuple[str, list[Shape], dict[str, Any]]] = [
    ("nn.conv2d", [("n", 2, "h", "w"), (3, 2, 3, 3)], {"padding": (1,) * 4}),
    ("nn.conv2d", [("n", 2, "h", "w"), (3, 2, 3, 3)], {"padding": (1,) * 4, "strides": (2, 2)}),
    ("nn.conv2d", [("n", 2, "h", "w"), (3, 2, 1, 1)], {"strides": (2, 2)}),
    ("nn.conv2d", [("n", 2, "h", "w"), (3, 2, 3, 2)], {"strides": (1, 3)}),
    ("nn.max_pool2d", [("n", 2, "h", "w")], {"pool_size": (3, 3), "strides": (2, 2),
                                             "padding": (1,) * 4}),
    ("nn.avg_pool2d", [("n", 2, "h", "w")], {"pool_size": (3, 2), "strides": (2, 1),
                                             "padding": (1, 0, 1, 1)}),
    ("nn.avg_pool2d", [("n", 2, "h", "w")], {"pool_size": (2, 2), "strides": (2, 2),
                                             "padding": (1,) * 4, "count_include_pad": True}),
    ("nn.global_avg_pool2d", [("n", 2, "h", "w")], {}),
    ("nn.pad", [("h", "w")], {"pad_width": ((1, 2), (0, 2))}),
    ("nn.pad", [("h", "w")], {"pad_width": ((1, 2), (2, 0)), "mode": "reflect"}),
    ("nn.pad", [("h", "w")], {"pad_width": ((3, 2), (0, 1)), "mode": "edge"}),
    ("strided_slice", [("h", "w")], {"begin": (1,), "end": (-1,), "strides": (2,), "axes": (1,)}),
    ("strided_slice", [("h", "w")], {"begin": (-1, 0), "end": (-99, 2), "strides": (-2, 1)}),
    ("concatenate", [("h", 2), (1, 2), ("w", 2)], {"axis": 0}),
    ("concatenate", [(1, 2), ("w", 2), (2, 2)], {"axis": 0}),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("op", "shapes", "attrs"), CASES)
@pytest.mark.parametrize("sizes", [(5, 4), (8, 7)])
def test_operators(
    op: str, shapes: list[Shape], attrs: dict[str, Any], sizes: tuple[int, int]
) -> None:
    check(op, shapes, {"n": 2, "h": sizes[0], "w": sizes[1]}, **attrs)


def test_what_must_be_known_is_said() -> None:
    how = {"pool_size": (2, 2), "strides": (2, 2)}
    mod = program("nn.avg_pool2d", [(1, 2, "h", "w")], ceil_mode=True, **how)
    with pytest.raises(UnsupportedError, match="may be partial, and its size is open"):
        compiler.gradient(mod, ["p0"], "flows")


@pytest.mark.thorough
def test_one_build_serves_images_of_any_size() -> None:
    """A small residual network with strides, pools and batch norms."""
    x = compiler.var("x", ("n", 2, "h", "w"))
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return compiler.const(rng.standard_normal(shape).astype("float32"))

    y = compiler.call("nn.conv2d", x, weight(4, 2, 3, 3), padding=(1,) * 4, strides=(2, 2))
    y = compiler.call("nn.relu", y)
    y = compiler.call("nn.max_pool2d", y, pool_size=(3, 3), strides=(2, 2), padding=(1,) * 4)
    z = compiler.call("nn.conv2d", y, weight(4, 4, 3, 3), padding=(1,) * 4)
    y = compiler.call("nn.relu", compiler.call("add", y, z))
    y = compiler.call("nn.batch_flatten", compiler.call("nn.global_avg_pool2d", y))
    y = compiler.call("nn.dense", y, weight(3, 4)).named("y")
    mod = compiler.with_loss(
        IRModule({"main": compiler.function([x], y)}), "cross_entropy", "labels"
    )
    names = list(compiler.parameters(mod))
    both = compiler.gradient(mod, names)
    program, weights = compiler.build(both), compiler.parameters(mod)
    for shape in ((1, 2, 9, 8), (3, 2, 16, 21)):
        image = rng.standard_normal(shape).astype("float32")
        given = [image, np.arange(shape[0]) % 3, *(weights[n] for n in names)]
        for a, b in zip(program(*given), compiler.evaluate(both, *given), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
