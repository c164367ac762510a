"""Rules of differentiation in float32 beside PyTorch's, where it is installed, for any shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, tensor_type

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

Theirs = Callable[..., Any]
CALLS: list[tuple[str, dict[str, Any], list[tuple[Any, ...]], Theirs]] = [
    ("nn.softmax", {"axis": -1}, [("n", "m")], lambda x: F.softmax(x, -1)),
    ("nn.log_softmax", {"axis": 1}, [("n", "m", 2)], lambda x: F.log_softmax(x, 1)),
    ("nn.layer_norm", {}, [("n", "m"), ("m",), ("m",)],
     lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b, 1e-5)),
    ("nn.rms_norm", {}, [("n", "m"), ("m",)], lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-5)),
    ("nn.gelu", {}, [("n", "m")], F.gelu),
    ("nn.gelu", {"approximate": "tanh"}, [("n", "m")], lambda x: F.gelu(x, approximate="tanh")),
    ("nn.relu", {}, [("n", "m")], F.relu),
    ("sigmoid", {}, [("n", "m")], torch.sigmoid),
    ("erf", {}, [("n", "m")], torch.erf),
    ("maximum", {}, [("n", "m"), ("m",)], torch.maximum),
    ("divide", {}, [("n", "m"), ("n", 1)], torch.divide),
    ("clip", {"a_min": -0.5, "a_max": 0.25}, [("n", "m")], lambda x: torch.clip(x, -0.5, 0.25)),
    ("nn.hard_swish", {}, [("n", "m")], F.hardswish),
    ("max", {"axis": 1}, [("n", "m")], lambda x: torch.amax(x, 1)),
    ("mean", {"axis": 0}, [("n", "m")], lambda x: torch.mean(x, 0)),
    ("cumsum", {"axis": 1}, [("n", "m")], lambda x: torch.cumsum(x, 1)),
    ("nn.dense", {}, [("n", 2, "m"), (3, "m"), (3,)], F.linear),
    ("nn.matmul", {}, [("n", 2, "m"), ("m", 3)], torch.matmul),
    ("nn.conv2d", {"strides": (2, 1), "padding": (1, 2, 1, 2)},
     [("n", 2, 7, 6), (3, 2, 3, 2), (3,)],
     lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2))),
    ("nn.conv2d", {"groups": 2, "dilation": (1, 2)}, [("n", 4, 6, 7), (6, 2, 2, 3)],
     lambda x, w: F.conv2d(x, w, None, 1, 0, (1, 2), 2)),
    ("nn.max_pool2d", {"pool_size": (3, 3), "strides": (2, 2), "padding": (1,) * 4},
     [("n", 2, 7, 6)], lambda x: F.max_pool2d(x, 3, 2, 1)),
    ("nn.avg_pool2d", {"pool_size": (3, 2), "strides": (2, 1), "count_include_pad": True,
                       "padding": (1, 0, 1, 0)},
     [("n", 2, 7, 6)], lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0))),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda c: c[0])
@settings(max_examples=5, deadline=None)
@given(n=st.integers(1, 3), m=st.integers(1, 5), seed=st.integers(0, 9999))
def test_operators(call: Any, n: int, m: int, seed: int) -> None:
    op, attrs, shapes, theirs = call
    known = [tuple({"n": n, "m": m}.get(d, d) for d in shape) for shape in shapes]
    rng = np.random.default_rng(seed)
    args = [rng.standard_normal(shape).astype(np.float32) for shape in known]
    b = FunctionBuilder()
    y = b.call(op, *(b.param(f"p{k}", shape) for k, shape in enumerate(known)), **attrs)
    back = rng.standard_normal(tensor_type(y).static_shape).astype(np.float32)
    mod = IRModule({"main": b.finish(y)})
    names = [f"p{k}" for k in range(len(args))]
    _, *mine = compiler.evaluate(compiler.gradient(mod, names, "flows"), *args, back)
    tensors = [torch.from_numpy(a).requires_grad_() for a in args]
    theirs(*tensors).backward(torch.from_numpy(back))
    for ours, t in zip(mine, tensors, strict=True):
        np.testing.assert_allclose(ours, t.grad.numpy(), rtol=2e-4, atol=2e-4)
