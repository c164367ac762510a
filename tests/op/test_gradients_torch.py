"""Rules of differentiation in float32 beside PyTorch's, where it is installed, for any shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, tensor_type
from compiler.op.gradient import flat
from compiler.op.library import all_ops
from compiler.types.tensor_types import TupleType

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

Theirs = Callable[..., Any]
Shape = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """A call of an operator, and what it is in PyTorch.

    Attributes:
        op, attrs: the operator; where its attributes go by sizes, they are a function of those.
        shapes: of the operands; "n" and "m" are sizes that are drawn, and "n+m" is their sum.
        theirs: the same on PyTorch's tensors.
        low, high: range of the operands' elements.
        places: by operand that holds positions, or truth values (2): how many there are.
    """

    op: str
    attrs: dict[str, Any] | Callable[[int, int], dict[str, Any]]
    shapes: list[Shape]
    theirs: Theirs
    low: float = -2.0
    high: float = 2.0
    places: Mapping[int, Any] = field(default_factory=dict)

    def sized(self, sizes: Mapping[Any, int]) -> list[tuple[int, ...]]:
        """The shapes with numbers for sizes."""
        return [tuple(sizes.get(d, d) for d in shape) for shape in self.shapes]


def transform(n: int) -> Any:
    """The orthonormal Walsh-Hadamard matrix."""
    one = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    return one if n == 2 else torch.kron(one, transform(n // 2))


def normal(x: Any, gain: Any, shift: Any, mean: Any, var: Any) -> Any:
    """Batch norm of given statistics, which torch's own has no gradients of."""
    up = (1, -1, 1)
    away = (x - mean.view(up)) / torch.sqrt(var.view(up) + 1e-5)
    return away * gain.view(up) + shift.view(up)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def updated(how: str) -> Theirs:
    """scatter_reduce of torch, along the second axis."""
    return lambda x, at, u: torch.scatter_reduce(x, 1, at, u, how)


def on_grid(x: Any, scale: Any) -> Any:
    """Rounding to 4 bits whose steps are learned: straight through inside."""
    v = x / scale
    inside = v + (torch.round(v) - v).detach()
    return torch.where((v >= -8) & (v <= 7), inside, torch.clip(v, -8, 7).detach()) * scale


WHOLE: list[Shape] = [("n", "m")]
PAIR: list[Shape] = [("n", "m"), ("m",)]
SAME: list[Shape] = [("n", "m"), ("n", "m")]
PLACED: list[Shape] = [("n", "m"), ("n", 3), ("n", 3)]
CALLS = [
    *(Call(op, {}, WHOLE, getattr(torch, op)) for op in
      ("exp", "tanh", "sin", "cos", "atan", "sinh", "cosh", "asinh", "negative", "abs", "erf",
       "sigmoid")),
    *(Call(op, {}, WHOLE, getattr(torch, op), 0.2, 3) for op in ("sqrt", "rsqrt", "log")),
    *(Call(op, {}, WHOLE, getattr(torch, op), -0.9, 0.9) for op in ("asin", "acos", "atanh")),
    Call("tan", {}, WHOLE, torch.tan, -1.2, 1.2),
    Call("acosh", {}, WHOLE, torch.acosh, 1.1, 3),
    *(Call(op, {}, PAIR, getattr(torch, op)) for op in
      ("add", "subtract", "multiply", "maximum", "minimum")),
    Call("divide", {}, [("n", "m"), ("n", 1)], torch.divide, 0.5, 2),
    Call("power", {}, PAIR, torch.pow, 0.5, 2),
    Call("fmod", {}, PAIR, torch.fmod, 0.3, 4),
    Call("mod", {}, PAIR, torch.fmod, 0.3, 4),  # of operands of one sign
    Call("where", {}, [("n", "m"), ("m",), ("n", 1)], lambda c, x, y: torch.where(c > 0, x, y),
         places={0: 2}),
    Call("cast", {"dtype": "float64"}, WHOLE, lambda x: x.double()),
    Call("nn.relu", {}, WHOLE, F.relu),
    Call("nn.leaky_relu", {"alpha": 0.1}, WHOLE, lambda x: F.leaky_relu(x, 0.1)),
    Call("nn.hard_sigmoid", {"alpha": 1 / 6, "beta": 0.5}, WHOLE, F.hardsigmoid, -4, 4),
    Call("nn.hard_swish", {}, WHOLE, F.hardswish, -4, 4),
    Call("nn.gelu", {}, WHOLE, F.gelu),
    Call("nn.gelu", {"approximate": "tanh"}, WHOLE, lambda x: F.gelu(x, approximate="tanh")),
    Call("clip", {"a_min": -0.5, "a_max": 0.25}, WHOLE, lambda x: torch.clip(x, -0.5, 0.25)),
    Call("nn.bias_add", {"axis": 1}, [("n", "m", 2), ("m",)], lambda x, b: x + b[:, None]),
    Call("nn.dropout", {}, WHOLE, lambda x: F.dropout(x, training=False)),
    Call("annotation.on_device", {"device": "cpu"}, WHOLE, lambda x: x.cpu()),
    Call("device_copy", {"src": "host", "dst": "cpu"}, WHOLE, lambda x: x.cpu()),
    Call("qnn.straight_through", {}, SAME, lambda x, y: x.detach() + (y - y.detach())),
    Call("qnn.simulated_quantize", {"qmin": -8, "qmax": 7, "out_dtype": "int8"},
         [("n", "m"), ()], on_grid, 0.1, 3),
    # ---- normalizations
    Call("nn.softmax", {"axis": -1}, WHOLE, lambda x: F.softmax(x, -1)),
    Call("nn.log_softmax", {"axis": 1}, [("n", "m", 2)], lambda x: F.log_softmax(x, 1)),
    Call("nn.layer_norm", {}, [("n", "m"), ("m",), ("m",)],
         lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b, 1e-5)),
    Call("nn.rms_norm", {}, PAIR, lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-5)),
    Call("nn.batch_norm", {}, [("n", "m", 2), *[("m",)] * 4], normal, 0.3, 2),
    # ---- sums and the like
    Call("sum", {"axis": 1}, WHOLE, lambda x: torch.sum(x, 1)),
    Call("mean", {"axis": 0}, WHOLE, lambda x: torch.mean(x, 0)),
    Call("sum_products", {"axis": (1,)}, SAME, lambda x, y: (x * y).sum(1)),
    Call("mean_products", {"axis": (1,)}, SAME, lambda x, y: (x * y).mean(1)),
    Call("max", {"axis": 1}, WHOLE, lambda x: torch.amax(x, 1)),
    Call("min", {"axis": 1}, WHOLE, lambda x: torch.amin(x, 1)),
    Call("prod", {"axis": 1}, WHOLE, lambda x: torch.prod(x, 1)),
    Call("cumsum", {"axis": 1}, WHOLE, lambda x: torch.cumsum(x, 1)),
    Call("cumprod", {"axis": 1}, WHOLE, lambda x: torch.cumprod(x, 1)),
    Call("topk", {"k": 1, "axis": 1}, WHOLE, lambda x: torch.topk(x, 1, 1).values),
    Call("nn.hadamard", {}, [("n", 8)], lambda x: x @ transform(8)),
    # ---- products of matrices, and windows
    Call("nn.dense", {}, [("n", 2, "m"), (3, "m"), (3,)], F.linear),
    Call("nn.matmul", {}, [("n", 2, "m"), ("m", 3)], torch.matmul),
    Call("einsum", {"equation": "nij,njk->nik"}, [("n", 2, "m"), ("n", "m", 3)],
         lambda a, b: torch.einsum("nij,njk->nik", a, b)),
    Call("nn.conv2d", {"strides": (2, 1), "padding": (1, 2, 1, 2)},
         [("n", 2, 7, 6), (3, 2, 3, 2), (3,)],
         lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2))),
    Call("nn.conv2d", {"groups": 2, "dilation": (1, 2)}, [("n", 4, 6, "n+m"), (6, 2, 2, 1)],
         lambda x, w: F.conv2d(x, w, None, 1, 0, (1, 2), 2)),
    Call("nn.max_pool2d", {"pool_size": (3, 3), "strides": (2, 2), "padding": (1,) * 4},
         [("n", 2, 7, "n+m")], lambda x: F.max_pool2d(x, 3, 2, 1)),
    Call("nn.avg_pool2d", {"pool_size": (3, 2), "strides": (2, 1), "count_include_pad": True,
                           "padding": (1, 0, 1, 0)},
         [("n", 2, 7, "n+m")], lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0))),
    Call("nn.global_avg_pool2d", {}, [("n", 2, 3, "m")], lambda x: F.adaptive_avg_pool2d(x, 1)),
    Call("nn.rotary", {}, [("n", "m", 4), ("m", 4), ("m", 4)], turned),
    Call("image.resize2d", {"scales": (2.0, 3.0), "coordinate_transformation_mode": "asymmetric",
                            "nearest_mode": "floor"},
         [("n", 1, "m", 2)], lambda x: F.interpolate(x, scale_factor=(2, 3))),
    # ---- elements under other shapes and at other places
    Call("concatenate", {"axis": 1}, [("n", "m"), ("n", 2)], lambda a, b: torch.cat([a, b], 1)),
    Call("append", {"axis": 1}, [("n", "m"), ("n", 2)], lambda a, b: torch.cat([a, b], 1)),
    Call("split", lambda n, m: {"sizes": (1, n + m - 1), "axis": 1}, [(2, "n+m")],
         lambda x: torch.split(x, (1, x.shape[1] - 1), 1)[0]),
    Call("reshape", {"newshape": (-1,)}, WHOLE, lambda x: x.reshape(-1)),
    Call("flatten", {"axis": 1}, [("n", "m", 2)], lambda x: x.flatten(1)),
    Call("nn.batch_flatten", {}, [("n", "m", 2)], lambda x: x.flatten(1)),
    Call("squeeze", {"axis": 1}, [("n", 1, "m")], lambda x: x.squeeze(1)),
    Call("expand_dims", {"axes": 1}, WHOLE, lambda x: x.unsqueeze(1)),
    Call("transpose", {"axes": (1, 0)}, WHOLE, lambda x: x.T),
    Call("broadcast_to", lambda n, m: {"shape": (3, n, 4)}, [("n", 1)],
         lambda x: x.expand(3, -1, 4)),
    Call("strided_slice", {"begin": (0,), "end": (9,), "strides": (2,), "axes": (1,)}, WHOLE,
         lambda x: x[:, ::2]),
    Call("nn.pad", {"pad_width": ((0, 0), (1, 2))}, WHOLE, lambda x: F.pad(x, (1, 2))),
    Call("nn.pad", {"pad_width": ((0, 0), (0, 0), (1, 2)), "mode": "edge"}, [("n", "m", 2)],
         lambda x: F.pad(x, (1, 2), mode="replicate")),
    Call("take", {"axis": 1}, [("n", "m"), (4,)], lambda x, at: x[:, at], places={1: "m"}),
    Call("gather_elements", {"axis": 1}, [("n", "m"), ("n", 3)],
         lambda x, at: torch.gather(x, 1, at), places={1: "m"}),
    Call("gather_nd", {}, [("n", "m"), (4, 1)], lambda x, at: x[at[:, 0]], places={1: "n"}),
    *(Call("scatter_elements", {"axis": 1, "reduction": mine}, PLACED, updated(torchs), 0.5, 2,
           {1: "m"})
      for mine, torchs in (("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin"))),
    Call("scatter_nd", {"reduction": "add"}, [("n", "m"), (4, 1), (4, "m")],
         lambda x, at, u: x.index_put((at[:, 0],), u, accumulate=True), places={1: "n"}),
]  # fmt: skip
WITHOUT = {"assume": "it says what sizes a program has, which torch has no operator for"}
"""Operators that have no counterpart, and why."""


def test_every_operator_that_has_a_rule_is_here() -> None:
    rules = {n for n, op in all_ops().items() if callable(op.gradient) and op.gradient is not flat}
    here = {c.op for c in CALLS}
    assert rules == here | set(WITHOUT), "add calls of new operators, or say why torch has none"


@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.op)
@settings(max_examples=5, deadline=None)
@given(n=st.integers(1, 3), m=st.integers(1, 5), seed=st.integers(0, 9999))
def test_operators(call: Call, n: int, m: int, seed: int) -> None:
    rng, sizes = np.random.default_rng(seed), {"n": n, "m": m, "n+m": n + m}
    args = []
    for k, shape in enumerate(call.sized(sizes)):
        if k in call.places:
            most = call.places[k]
            args.append(rng.integers(0, sizes.get(most, most), shape))
        else:
            args.append(rng.uniform(call.low, call.high, shape).astype(np.float32))
    attrs = call.attrs if isinstance(call.attrs, dict) else call.attrs(n, m)
    if call.op == "where":
        args[0] = args[0].astype(bool)
    b = FunctionBuilder()
    y = b.call(
        call.op, *(b.param(f"p{k}", a.shape, str(a.dtype)) for k, a in enumerate(args)), **attrs
    )
    first = b.get(y, 0) if isinstance(y.type, TupleType) else y
    mod = IRModule({"main": b.finish(first)})
    t = tensor_type(first)
    back = rng.standard_normal(t.static_shape).astype(t.dtype.storage)
    floats = [k for k, a in enumerate(args) if a.dtype == np.float32]
    given = compiler.gradient(mod, [f"p{k}" for k in floats], "flows")
    y, *mine = compiler.evaluate(given, *args, back)
    tensors = [torch.from_numpy(a) for a in args]
    for k in floats:
        tensors[k].requires_grad_()
    theirs = call.theirs(*tensors)
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=2e-4, atol=2e-4)
    theirs.backward(torch.from_numpy(back))
    for k, ours in zip(floats, mine, strict=True):
        grad = tensors[k].grad
        want = np.zeros(ours.shape) if grad is None else grad.numpy()
        np.testing.assert_allclose(ours, want, rtol=2e-4, atol=2e-4)
